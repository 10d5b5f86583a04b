"""Let compiled models run eagerly while they are observed; imports no torch."""

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

CompiledMode = Literal["eager", "graph", "error"]


_COMPILER = "torch._dynamo"


def run_eagerly() -> contextlib.AbstractContextManager[None]:
    """Run compiled code eagerly in this context; its graphs are kept and reused afterwards.

    The compiler takes seconds to import: if it is not loaded, this takes effect when the program imports it.
    """
    return _RunEagerly()


# Not a generator: one left open would run its cleanup while the interpreter shuts down.
class _RunEagerly(contextlib.AbstractContextManager[None]):
    """The first user sets the stance and the last one resets it: captures need not end in the reverse order
    of their start, and the compiler supports no other."""

    _lock = threading.Lock()
    _users = 0
    _undo = contextlib.ExitStack()

    def __enter__(self) -> None:
        shared = _RunEagerly
        with shared._lock:
            shared._users += 1
            if shared._users == 1:
                _request_eager(shared._undo)

    def __exit__(self, *error: object) -> None:
        shared = _RunEagerly
        with shared._lock:
            shared._users -= 1
            if not shared._users:
                shared._undo.close()


def _request_eager(undo: contextlib.ExitStack) -> None:
    if _COMPILER in sys.modules:
        undo.enter_context(_set_eager_stance())
        return
    finder = _CompilerImportHook(undo)
    sys.meta_path.insert(0, finder)
    undo.callback(finder.leave)


def refuse_compiled(model: Any) -> None:
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            raise ValueError(
                f"{name or 'the model'} is compiled; compiled='eager' runs it as plain Python meanwhile, "
                "compiled='graph' takes values out of its graph"
            )


def _set_eager_stance() -> contextlib.AbstractContextManager[None]:
    stance: contextlib.AbstractContextManager[None] = sys.modules["torch"].compiler.set_stance("force_eager")
    return stance


class _CompilerImportHook(MetaPathFinder):
    """Import hook that forces eager execution as soon as the compiler is imported."""

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
                self._stack.enter_context(_set_eager_stance())

            spec.loader.exec_module = execute_then_force_eager  # type: ignore[method-assign]
        return spec
