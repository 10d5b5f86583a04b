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
_DEFINITION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
TraceFunction = Callable[[FrameType, str, Any], Any]


def await_definitions(patterns: Sequence[str], notify: Callable[[], object]) -> None:
    """Call `tell` once every name that the patterns begin with stands in the script's namespace.

    No import tells of them, so the lines of the script are followed until then. Names that its text does not
    define are not waited for; with a wildcard, the first call of a function of the script is the moment.
    """
    names = {
        _first_name(pattern) for pattern in patterns if pattern.removeprefix("!").startswith(f"{_MAIN}:")
    }
    plain = {name for name in names if name.isidentifier()}
    defined = _names_defined_in_script()
    awaited = plain if defined is None else plain & defined
    if awaited or names != plain:
        DefinitionTracer(awaited, has_wildcard=names != plain, notify=notify).start()


class DefinitionTracer:
    """A trace function that looks at the lines of the script's own frame, and at nothing of any other."""

    def __init__(self, names: set[str], *, has_wildcard: bool, notify: Callable[[], object]) -> None:
        self._names, self._has_wildcard, self._notify = names, has_wildcard, notify
        self._previous_trace: Any = None

    def start(self) -> None:
        self._previous_trace = sys.gettrace()
        sys.settrace(self.trace_call)

    def trace_call(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        if frame.f_globals.get("__name__") not in (_MAIN, _MAIN_OF_CHILD):
            return None
        if frame.f_code.co_name == "<module>":
            return self.trace_line
        if self._has_wildcard and self._names <= frame.f_globals.keys():
            self._finish()
        return None

    def trace_line(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        are_defined = not self._has_wildcard and self._names <= frame.f_globals.keys()
        if are_defined or event == "return":
            self._finish()
            return None
        return self.trace_line

    def _finish(self) -> None:
        if sys.gettrace() == self.trace_call:  # else a debugger of the program's has taken its place
            sys.settrace(self._previous_trace)
        with _script_as_main():
            self._notify()


@contextmanager
def _script_as_main() -> Iterator[None]:
    """In a spawned child the script takes the place of the main module, but only when it was read."""
    main, script = sys.modules[_MAIN], sys.modules.get(_MAIN_OF_CHILD)
    sys.modules[_MAIN] = script or main
    try:
        yield
    finally:
        sys.modules[_MAIN] = main


def _first_name(pattern: str) -> str:
    return pattern.partition(":")[2].partition(".")[0]


def _names_defined_in_script() -> set[str] | None:
    """The functions and classes in the text of the script; None where there is no such text."""
    try:
        with open(sys.argv[0], "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, IndexError, SyntaxError, ValueError):
        return None
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    aliases = {alias.asname or alias.name for node in imported for alias in node.names}
    return aliases | {node.name for node in ast.walk(tree) if isinstance(node, _DEFINITION_NODES)}
