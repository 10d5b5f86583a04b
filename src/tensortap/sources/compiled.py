"""Compiled models: run as plain Python while they are captured, tapped in their graphs, or refused."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Literal

Compiled = Literal["eager", "graph", "error"]
_COMPILER = "torch._dynamo"


@contextlib.contextmanager
def plain_python() -> Iterator[None]:
    """Let compiled code run as it was written; its graphs are kept and used again afterwards.

    The compiler takes seconds to import: where it is not loaded yet, this waits until the program does.
    """
    with contextlib.ExitStack() as stack:
        if _COMPILER in sys.modules:
            stack.enter_context(_force_eager())
        else:
            finder = _Awaited(stack)
            sys.meta_path.insert(0, finder)
            stack.callback(finder.leave)
        yield


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

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

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

            def execute_and_ask(module: ModuleType) -> None:
                execute(module)
                self._stack.enter_context(_force_eager())

            spec.loader.exec_module = execute_and_ask  # type: ignore[method-assign]
        return spec
