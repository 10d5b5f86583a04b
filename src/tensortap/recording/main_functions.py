"""Functions of the program's own script: noticed as soon as they are defined, before they are called."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

_MAIN = "__main__"
_MAIN_OF_CHILD = "__mp_main__"  # what a spawned child of multiprocessing calls the script while it reads it
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Tracer = Callable[[FrameType, str, Any], Any]


def await_definitions(patterns: Sequence[str], tell: Callable[[], object]) -> None:
    """Call `tell` once every name that the patterns begin with stands in the script's namespace.

    No import tells of them, so the lines of the script are followed until then. Names that its text does not
    define are not waited for; with a wildcard, the first call of a function of the script is the moment.
    """
    names = {_first_name(one) for one in patterns if one.removeprefix("!").startswith(f"{_MAIN}:")}
    plain = {name for name in names if name.isidentifier()}
    known = _defined()
    awaited = plain if known is None else plain & known
    if awaited or names != plain:
        Definitions(awaited, is_open=names != plain, tell=tell).start()


class Definitions:
    """A trace function that looks at the lines of the script's own frame, and at nothing of any other."""

    def __init__(self, names: set[str], *, is_open: bool, tell: Callable[[], object]) -> None:
        self._names, self._is_open, self._tell = names, is_open, tell
        self._before: Any = None

    def start(self) -> None:
        self._before = sys.gettrace()
        sys.settrace(self.see_call)

    def see_call(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        if frame.f_globals.get("__name__") not in (_MAIN, _MAIN_OF_CHILD):
            return None
        if frame.f_code.co_name == "<module>":
            return self.see_line
        if self._is_open and self._names <= frame.f_globals.keys():
            self._end()
        return None

    def see_line(self, frame: FrameType, event: str, argument: Any) -> Tracer | None:
        is_there = not self._is_open and self._names <= frame.f_globals.keys()
        if is_there or event == "return":
            self._end()
            return None
        return self.see_line

    def _end(self) -> None:
        if sys.gettrace() == self.see_call:  # else a debugger of the program's has taken its place
            sys.settrace(self._before)
        with _main_of_child():
            self._tell()


@contextmanager
def _main_of_child() -> Iterator[None]:
    """In a spawned child the script takes the place of the main module, but only when it was read."""
    main, script = sys.modules[_MAIN], sys.modules.get(_MAIN_OF_CHILD)
    sys.modules[_MAIN] = script or main
    try:
        yield
    finally:
        sys.modules[_MAIN] = main


def _first_name(pattern: str) -> str:
    return pattern.partition(":")[2].partition(".")[0]


def _defined() -> set[str] | None:
    """The functions and classes in the text of the script; None where there is no such text."""
    try:
        with open(sys.argv[0], "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, IndexError, SyntaxError, ValueError):
        return None
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    aliases = {alias.asname or alias.name for node in imported for alias in node.names}
    return aliases | {node.name for node in ast.walk(tree) if isinstance(node, _DEFINES)}
