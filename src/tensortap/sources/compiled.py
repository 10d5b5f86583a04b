"""Compiled models: run as plain Python while they are captured, tapped in their graphs, or refused."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any, Literal

Compiled = Literal["eager", "graph", "error"]


@contextlib.contextmanager
def around_compiled(mode: Compiled, model: Any) -> Iterator[None]:
    if mode == "error":
        _refuse(model)
        yield
        return
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with sys.modules["torch"].compiler.set_stance("force_eager"):
        yield


def _refuse(model: Any) -> None:
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
            raise ValueError(
                f"{name or 'the model'} is compiled; compiled='eager' runs it as plain Python meanwhile, "
                "compiled='graph' takes values out of its graph"
            )
