"""What a checkpoint computes again in the backward pass: no second record, but gradients may come from it.

A re-entrant checkpoint runs its first forward without a graph, so gradients come to the tensors that it
computes again; each has to be told which call it repeats.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

graph_task = torch._C._current_graph_task_id
NO_GRAPH_TASK = -1
_MOST_HIDDEN = 1000  # calls without a graph wait for a checkpoint, most of them in vain


def is_recomputing() -> bool:
    """Whether a backward pass is under way, in which a checkpoint computes again what it did not keep."""
    is_in_backward: bool = graph_task() != NO_GRAPH_TASK
    return is_in_backward


class GradientPoint(Protocol):
    """What a recomputed call needs of the observation point it belongs to."""

    step: int
    source: Any

    def wanting_gradient(self, parameter: str, item: str, call: int) -> Any: ...

    def name(self, parameter: str, item: str = "") -> str: ...

    def take_gradient(self, wanted: Any, name: str, gradient: Any, step: int, call: int) -> None: ...


class Recomputed:
    """The calls of one port that had no graph, and the gradients that come when they are repeated."""

    def __init__(self, point: GradientPoint) -> None:
        self._port = point
        self.hidden: deque[_Hidden] = deque(maxlen=_MOST_HIDDEN)
        self._replay: _Replay | None = None

    def expect(self, part: str, leaf: torch.Tensor, call: int) -> None:
        """Remember a call without a graph: a checkpoint may come back to it."""
        step = self._port.step
        if torch.is_grad_enabled():
            if self.hidden and self.hidden[0].step != step:
                self.hidden.clear()
            return
        last = self.hidden[-1] if self.hidden else None
        if last is None or (last.step, last.call) != (step, call):
            last = _Hidden(step, call)
            self.hidden.append(last)
        if leaf.requires_grad:  # the module handed on what it was given, which is watched outside
            last.watched.add(part)

    def watch(self, parameter: str, item: str, leaf: torch.Tensor, call: int) -> None:
        if not (self.hidden and torch.is_grad_enabled() and leaf.requires_grad):
            return
        checkpoint = (graph_task(), id(torch._C._current_autograd_node()))
        if self._replay is None or self._replay.checkpoint != checkpoint:
            if self._replay is not None:
                self._replay.settle()
            self._replay = _Replay(checkpoint, self.hidden)
        self._replay.expect(call)
        hook = _LateGradient(self._port, self._replay, parameter, item, call)
        handle = leaf.register_hook(hook)  # type: ignore[no-untyped-call]
        self._port.source.keep_handle(handle, leaf.is_leaf)


@dataclass(slots=True)
class _Hidden:
    """A call without a graph, and the parts of it that are watched all the same."""

    step: int
    call: int
    watched: set[str] = field(default_factory=set)


class _Replay:
    """The calls that one checkpoint computes again. Checkpoints come back in the opposite order, so which
    calls they repeat is known when all of one have come, and their gradients only come after that."""

    def __init__(self, checkpoint: tuple[int, int], calls_without_graph: deque[_Hidden]) -> None:
        self.checkpoint, self._hidden = checkpoint, calls_without_graph
        self._calls: list[int] = []
        self._repeated: dict[int, _Hidden] = {}

    def expect(self, call: int) -> None:
        if call not in self._calls:
            self._calls.append(call)

    def settle(self) -> None:
        while self._calls and self._hidden:
            self._repeated[self._calls.pop()] = self._hidden.pop()

    def repeated(self, call: int) -> _Hidden | None:
        self.settle()
        return self._repeated.get(call)


class _LateGradient:
    """Waits on a tensor that a checkpoint has computed again; the step and call are those it repeats."""

    __slots__ = ("_call", "_item", "_parameter", "_port", "_replay")
    __torch_unserializable__ = True

    def __init__(
        self, point: GradientPoint, recomputation: _Replay, parameter: str, item: str, call: int
    ) -> None:
        self._port, self._replay = point, recomputation
        self._parameter, self._item, self._call = parameter, item, call

    def __call__(self, gradient: torch.Tensor) -> None:
        point, parameter, item = self._port, self._parameter, self._item
        try:
            original = self._replay.repeated(self._call)
            if original is None or parameter + item in original.watched:
                return
            selected = point.wanting_gradient(parameter, item, original.call)
            if selected:
                name = point.name(parameter, item) + ".grad"
                point.take_gradient(selected, name, gradient, original.step, original.call)
        except Exception:  # noqa: BLE001 - a guest in someone's backward pass
            point.source.fail()
