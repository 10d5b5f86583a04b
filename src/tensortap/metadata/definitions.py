"""What the source of a module defines, and who owns code: the stdlib, a library, the program or tensortap."""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal

_CLASS_MARKER = "__qualname__"
_LOAD_CONST = dis.opmap["LOAD_CONST"]
_EXTENDED_ARG = dis.EXTENDED_ARG
_CALLS = frozenset(dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW") if name in dis.opmap)
_STORES = frozenset((dis.opmap["STORE_NAME"], dis.opmap["STORE_GLOBAL"]))
_RELEVANT = _CALLS | _STORES | {_LOAD_CONST}


@dataclass(frozen=True, slots=True)
class WrittenDefinition:
    """A `def` or `class` statement in the source."""

    line: int
    is_plain: bool  # bound once and undecorated, so the value must be the one in the source


class ModuleDefinitions:
    """The names that a code object binds, read from its bytecode without running it."""

    def __init__(self, code: CodeType) -> None:
        self._code = code

    def mentions(self, name: str) -> bool:
        return name in self._code.co_names

    def find(self, name: str) -> WrittenDefinition | None:
        """The `def` or `class` of a name in this body; None if it is imported, computed or absent."""
        if not any(code.co_name == name for code in _nested_code(self._code)):
            return None
        bindings = [(code, calls) for bound_name, code, calls in self._bindings if bound_name == name]
        for code, calls in bindings:
            if code is not None and code.co_name == name:
                is_undecorated = calls == (1 if _is_class(code) else 0)
                return WrittenDefinition(code.co_firstlineno, is_undecorated and len(bindings) == 1)
        return None

    @cached_property
    def _bindings(self) -> list[tuple[str, CodeType | None, int]]:
        return list(_name_bindings(self._code))

    def class_body(self, path: str) -> ModuleDefinitions | None:
        """The body of a class, `Outer.Inner`; None unless it is defined here."""
        body = self._code
        for class_name in path.split("."):
            class_bodies = [
                code for code in _nested_code(body) if code.co_name == class_name and _is_class(code)
            ]
            if len(class_bodies) != 1:
                return None
            body = class_bodies[0]
        return ModuleDefinitions(body)


def read_definitions(module: ModuleType) -> ModuleDefinitions | None:
    """Definitions from the cached bytecode or the source; None for a module with neither."""
    spec = module.__spec__
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    if spec is None or get_code is None:
        return None
    try:
        code = get_code(spec.name)
    except (ImportError, OSError, SyntaxError, ValueError, EOFError):
        return None
    return ModuleDefinitions(code) if isinstance(code, CodeType) else None


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _is_class(code: CodeType) -> bool:
    return _CLASS_MARKER in code.co_names


def _name_bindings(code: CodeType) -> Iterator[tuple[str, CodeType | None, int]]:
    """Each bound name, the code object loaded before it (if any), and the number of calls in between.

    A decorator is a call between creating a function and binding it; a plain `def` has none, a class one.
    """
    body: CodeType | None = None
    calls = 0
    for operation, argument in _relevant_operations(code.co_code):
        if operation == _LOAD_CONST and isinstance(code.co_consts[argument], CodeType):
            body, calls = code.co_consts[argument], 0
        elif operation in _CALLS:
            calls += 1
        elif operation in _STORES:
            yield code.co_names[argument], body, calls
            body = None


def _relevant_operations(bytecode: bytes) -> Iterator[tuple[int, int]]:
    """(opcode, argument) of the relevant operations; `dis` decodes all, and takes five times as long."""
    high = 0
    for operation, low in zip(bytecode[::2], bytecode[1::2], strict=True):
        argument, high = high | low, 0
        if operation == _EXTENDED_ARG:
            high = argument << 8
        elif operation in _RELEVANT:
            yield operation, argument


OwnerKind = Literal["stdlib", "library", "program", "own"]

_OWN_FOLDER = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class CodeOwner:
    kind: OwnerKind
    top: str  # the top-level package


NO_OWNER = CodeOwner("stdlib", "")


class OwnerLookup:
    """Finds the owner of code, caching files and modules; for one scan of the process."""

    def __init__(self) -> None:
        self._files: dict[str, CodeOwner] = {}
        self._modules: dict[str, CodeOwner] = {}
        self._stdlib = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})

    def of(self, value: Any) -> CodeOwner:
        """The owner of a function or class; for another callable, of its type."""
        kind = type(value)
        if kind is FunctionType:
            return self.of_function(value)
        if kind is partial:
            return self.of(value.func)
        return self.of_class(value if issubclass(kind, type) else kind)

    def of_function(self, function: FunctionType) -> CodeOwner:
        filename = function.__code__.co_filename
        owner = self._files.get(filename)
        if owner is not None:
            return owner
        module = function.__globals__.get("__name__", "")
        # Generated code has no file, and a script's path may be relative: its globals tell the module.
        return self.of_file(filename, module) if os.path.isabs(filename) else self.of_module(module)

    def of_class(self, cls: type) -> CodeOwner:
        """The owner by the code of its methods, since `__module__` is often set to a public re-export."""
        module_owner = self.of_module(cls.__module__)
        if module_owner.kind == "program":
            return module_owner
        methods = (value for value in vars(cls).values() if type(value) is FunctionType)
        return next((self.of_function(method) for method in methods), NO_OWNER)

    def of_module(self, name: Any) -> CodeOwner:
        if not isinstance(name, str):
            return NO_OWNER
        if name not in self._modules:
            self._modules[name] = self._find_module_owner(name)
        return self._modules[name]

    def of_file(self, filename: str, module: str) -> CodeOwner:
        if filename not in self._files:
            self._files[filename] = self._find_file_owner(filename, module)
        return self._files[filename]

    def _find_module_owner(self, name: str) -> CodeOwner:
        top = name.partition(".")[0]
        if name == "__main__":
            return CodeOwner("program", _main_package())
        module = sys.modules.get(name)
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str):
            return self.of_file(file, name)
        if module is None or top in sys.stdlib_module_names:
            return NO_OWNER
        # Created at run time, such as torch.ops: it belongs to the package it is named after.
        return self.of_module(top) if top != name else NO_OWNER

    def _find_file_owner(self, filename: str, module: str) -> CodeOwner:
        if filename.startswith(_OWN_FOLDER):
            return CodeOwner("own", "tensortap")
        for folder in ("/site-packages/", "/dist-packages/"):
            if folder in filename:
                return CodeOwner("library", _top_level_name(filename.rpartition(folder)[2]))
        if filename.startswith(self._stdlib):
            return CodeOwner("stdlib", module.partition(".")[0])
        return CodeOwner("program", _main_package() if module == "__main__" else module.partition(".")[0])


def _top_level_name(path: str) -> str:
    return path.partition("/")[0].partition(".")[0]


def _main_package() -> str:
    """The top-level package of `python -m package.train`, which runs as `__main__`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name.partition(".")[0] if spec is not None else "__main__"
