"""Read what a module's own code defines: functions and classes as written, before anyone replaced them."""

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, ModuleType

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

    def inside(self, path: str) -> "Definitions | None":
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
