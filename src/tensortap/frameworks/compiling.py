"""Functions of ours in code that torch compiles: one clean break of the graph, not our insides in it."""

import sys
from collections.abc import Callable
from typing import Any


def disable_compile(function: Callable[..., Any], reason: str) -> None:
    """Let the compiler call it as it is. Nothing is imported: without torch, there is nothing to do."""
    marks = vars(function)
    marks["_torchdynamo_disable"], marks["_torchdynamo_disable_msg"] = True, reason
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if frames is not None and hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
