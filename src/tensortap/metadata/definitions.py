"""What a module defined, who owns it.

Read what a module's own code defines: functions and classes as written, before anyone replaced them.

Tell whose code a file, module or function is: Python's, a library's, the program's or ours.
"""

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

_CLASS_MARK = "__qualname__"
_LOAD = dis.opmap["LOAD_CONST"]
_EXTENDED = dis.EXTENDED_ARG
_CALLS = frozenset(dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW") if name in dis.opmap)
_STORES = frozenset((dis.opmap["STORE_NAME"], dis.opmap["STORE_GLOBAL"]))
_WANTED = _CALLS | _STORES | {_LOAD}


@dataclass(frozen=True, slots=True)
class Definition:
    """One `def` or `class` statement."""

    line: int
    is_plain: bool  # bound once and undecorated, so that what is there must be what is written


class Definitions:
    """The names a body of code binds, found without running it."""

    def __init__(self, code: CodeType) -> None:
        self._code = code

    def mentions(self, name: str) -> bool:
        return name in self._code.co_names

    def find(self, name: str) -> Definition | None:
        """The definition of a name in this body; None when it is imported, computed or absent."""
        if not any(code.co_name == name for code in _bodies(self._code)):
            return None
        bound = [(code, calls) for stored, code, calls in self._bound if stored == name]
        for code, calls in bound:
            if code is not None and code.co_name == name:
                is_undecorated = calls == (1 if _is_class(code) else 0)
                return Definition(code.co_firstlineno, is_undecorated and len(bound) == 1)
        return None

    @cached_property
    def _bound(self) -> list[tuple[str, CodeType | None, int]]:
        return list(_stores(self._code))

    def inside(self, path: str) -> Definitions | None:
        """The body of a class, `Outer.Inner`; None unless it is defined here."""
        body = self._code
        for part in path.split("."):
            found = [code for code in _bodies(body) if code.co_name == part and _is_class(code)]
            if len(found) != 1:
                return None
            body = found[0]
        return Definitions(body)


def definitions_of(module: ModuleType) -> Definitions | None:
    """From the cached bytecode, or the source; None for a module that has neither."""
    spec = module.__spec__
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    if spec is None or get_code is None:
        return None
    try:
        code = get_code(spec.name)
    except (ImportError, OSError, SyntaxError, ValueError, EOFError):
        return None
    return Definitions(code) if isinstance(code, CodeType) else None


def _bodies(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def _is_class(code: CodeType) -> bool:
    return _CLASS_MARK in code.co_names


def _stores(code: CodeType) -> Iterator[tuple[str, CodeType | None, int]]:
    """Each name bound, the body made just before (if any), and how many calls came between.

    A decorator is a call between making a function and binding it; a plain `def` has none, a class one.
    """
    made: CodeType | None = None
    calls = 0
    for operation, argument in _operations(code.co_code):
        if operation == _LOAD and isinstance(code.co_consts[argument], CodeType):
            made, calls = code.co_consts[argument], 0
        elif operation in _CALLS:
            calls += 1
        elif operation in _STORES:
            yield code.co_names[argument], made, calls
            made = None


def _operations(bytecode: bytes) -> Iterator[tuple[int, int]]:
    """The few operations that matter here; `dis` explains every one, and takes five times as long."""
    high = 0
    for operation, low in zip(bytecode[::2], bytecode[1::2], strict=True):
        argument, high = high | low, 0
        if operation == _EXTENDED:
            high = argument << 8
        elif operation in _WANTED:
            yield operation, argument


Kind = Literal["stdlib", "library", "program", "own"]

_OWN = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Owner:
    kind: Kind
    top: str  # the top-level package


NOBODY = Owner("stdlib", "")


class Owners:
    """Answers for one look at the process, each file and module asked about once."""

    def __init__(self) -> None:
        self._files: dict[str, Owner] = {}
        self._modules: dict[str, Owner] = {}
        self._stdlib = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})

    def of(self, value: Any) -> Owner:
        """Who defined a function or class; of another callable, who defined its type."""
        kind = type(value)
        if kind is FunctionType:
            return self.of_function(value)
        if kind is partial:
            return self.of(value.func)
        return self.of_class(value if issubclass(kind, type) else kind)

    def of_function(self, function: FunctionType) -> Owner:
        filename = function.__code__.co_filename
        found = self._files.get(filename)
        if found is not None:
            return found
        module = function.__globals__.get("__name__", "")
        # Generated code has no file of its own, and a script's may be relative: the globals say whose it is.
        return self.of_file(filename, module) if os.path.isabs(filename) else self.of_module(module)

    def of_class(self, found: type) -> Owner:
        """By the code of its methods, since `__module__` is often set to where a class is shown."""
        named = self.of_module(found.__module__)
        if named.kind == "program":
            return named
        methods = (value for value in vars(found).values() if type(value) is FunctionType)
        return next((self.of_function(method) for method in methods), NOBODY)

    def of_module(self, name: Any) -> Owner:
        if not isinstance(name, str):
            return NOBODY
        if name not in self._modules:
            self._modules[name] = self._module(name)
        return self._modules[name]

    def of_file(self, filename: str, module: str) -> Owner:
        if filename not in self._files:
            self._files[filename] = self._file(filename, module)
        return self._files[filename]

    def _module(self, name: str) -> Owner:
        top = name.partition(".")[0]
        if name == "__main__":
            return Owner("program", _top_of_main())
        module = sys.modules.get(name)
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str):
            return self.of_file(file, name)
        if module is None or top in sys.stdlib_module_names:
            return NOBODY
        # Made at run time, such as torch.ops: it belongs to the package it is named after.
        return self.of_module(top) if top != name else NOBODY

    def _file(self, filename: str, module: str) -> Owner:
        if filename.startswith(_OWN):
            return Owner("own", "tensortap")
        for folder in ("/site-packages/", "/dist-packages/"):
            if folder in filename:
                return Owner("library", _first_part(filename.rpartition(folder)[2]))
        if filename.startswith(self._stdlib):
            return Owner("stdlib", module.partition(".")[0])
        return Owner("program", _top_of_main() if module == "__main__" else module.partition(".")[0])


def _first_part(path: str) -> str:
    return path.partition("/")[0].partition(".")[0]


def _top_of_main() -> str:
    """`python -m package.train` runs as `__main__`, but is the package's own code."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name.partition(".")[0] if spec is not None else "__main__"
