"""Compiled models: run as plain Python while they are captured, tapped in their graphs, or refused."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Literal

Compiled = Literal["eager", "graph", "error"]
_COMPILER = "torch._dynamo"


def plain_python() -> contextlib.AbstractContextManager[None]:
    """Let compiled code run as it was written; its graphs are kept and used again afterwards.

    The compiler takes seconds to import: where it is not loaded yet, this waits until the program does.
    """
    return _PlainPython()


# No generator: one that a program leaves open runs its end while the interpreter is half gone.
class _PlainPython(contextlib.AbstractContextManager[None]):
    """The compiler is asked by the first that comes and released by the last that goes: captures need not
    end in the order in which they began, and the compiler knows no other."""

    _lock = threading.Lock()
    _users = 0
    _undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        shared = _PlainPython
        with shared._lock:
            shared._users += 1
            if shared._users == 1:
                _ask(shared._undo)

    def __exit__(self, *error: object) -> None:
        shared = _PlainPython
        with shared._lock:
            shared._users -= 1
            if not shared._users:
                shared._undo.close()


def _ask(undo: contextlib.ExitStack) -> None:
    if _COMPILER in sys.modules:
        undo.enter_context(_force_eager())
        return
    finder = _Awaited(undo)
    sys.meta_path.insert(0, finder)
    undo.callback(finder.leave)


def refuse_compiled(model: Any) -> None:
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            raise ValueError(
                f"{name or 'the model'} is compiled; compiled='eager' runs it as plain Python meanwhile, "
                "compiled='graph' takes values out of its graph"
            )


def _force_eager() -> contextlib.AbstractContextManager[None]:
    stance: contextlib.AbstractContextManager[None] = sys.modules["torch"].compiler.set_stance("force_eager")
    return stance


class _Awaited(MetaPathFinder):
    """Sees the compiler being imported, and asks it for plain Python as soon as it is there."""

    def __init__(self, undo: contextlib.ExitStack) -> None:
        self._stack = undo

    def leave(self) -> None:
        if self in (sys.meta_path or ()):  # None while the interpreter ends
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _COMPILER:
            return None
        self.leave()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_then_force_eager(module: ModuleType) -> None:
                execute(module)
                self._stack.enter_context(_force_eager())

            spec.loader.exec_module = execute_then_force_eager  # type: ignore[method-assign]
        return spec
