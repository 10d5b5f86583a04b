"""The Framework protocol (what an array library must answer), and the framework of a given value."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tensortap.core.dtypes import ARRAY_LIBRARY_NAMES
from tensortap.core.record import Placement
from tensortap.core.registry import Registry

if TYPE_CHECKING:
    import numpy as np


class Description(NamedTuple):
    """Metadata of a value without its elements. `dtype` is a name of the dtype table if there is one;
    `layout` is "strided" for an ordinary array, else why its bytes are not one block."""

    type: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    device: str = "cpu"
    layout: str = "strided"


class Framework(Protocol):
    name: str
    suffix: str  # of the file that a value of this framework is dumped to

    def owns(self, kind: type) -> bool:
        """Whether values of this class belong to this framework."""

    def describe(self, value: Any) -> Description: ...

    def snapshot(self, value: Any) -> Any:
        """A copy that later writes cannot reach."""

    def mark(self, value: Any) -> Callable[[Any], bool]:
        """A predicate: is another value this same, unmodified one?"""

    def bits(self, value: Any) -> np.ndarray[Any, Any]:
        """The bytes as an array of the storage dtype; shares memory where it can."""

    def to_numpy(self, value: Any) -> np.ndarray[Any, Any]:
        """The exact elements: a dtype that numpy lacks becomes the smallest that represents every value."""

    def from_bits(self, bits: np.ndarray[Any, Any], dtype: str) -> Any: ...

    def placement(self, value: Any) -> Placement | None: ...


frameworks: Registry[Framework] = Registry("frameworks")


def framework_of(value: Any) -> Framework:
    """The framework that owns this value; plain Python if no other does."""
    kind: type = type(value)
    return _framework_of_type(kind)


def framework_named(name: str) -> Framework:
    """The framework of that name; a built-in one imports its library."""
    added = frameworks.get(name)
    return added if added is not None else _built_in(name)


def register_framework(framework: Framework) -> None:
    """Let a framework of your own answer for the values it owns."""
    frameworks.add(framework.name, framework)
    _framework_of_type.cache_clear()


@lru_cache(maxsize=4096)
def _framework_of_type(kind: type) -> Framework:
    candidates = [
        *frameworks.plugins(),
        *(_built_in(name) for name in ARRAY_LIBRARY_NAMES if sys.modules.get(name)),
    ]
    return next((framework for framework in candidates if framework.owns(kind)), _built_in("python"))


@lru_cache(maxsize=8)
def _built_in(name: str) -> Framework:
    # Values of a framework exist only if the program has imported its library.
    framework: Framework = import_module(f"tensortap.frameworks.{name}").FRAMEWORK
    return framework


def disable_compile(function: Callable[..., Any], reason: str) -> None:
    """Exclude the function from torch.compile. Imports nothing: without torch there is nothing to do."""
    marks = vars(function)
    marks["_torchdynamo_disable"], marks["_torchdynamo_disable_msg"] = True, reason
    frames: Any = sys.modules.get("torch._C._dynamo.eval_frame")
    if frames is not None and hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
