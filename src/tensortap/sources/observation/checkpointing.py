"""Activation checkpointing: recomputed values give no second record, but may receive the gradients.

A re-entrant checkpoint runs its first forward without a graph, so gradients flow to the recomputed tensors,
each of which must be matched to the original call.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

graph_task = torch._C._current_graph_task_id
NO_GRAPH_TASK = -1
_MAX_PENDING_CALLS = 1000  # most calls without a graph are never recomputed


def is_recomputing() -> bool:
    """Whether a backward pass is running, during which checkpoints recompute their forward."""
    is_in_backward: bool = graph_task() != NO_GRAPH_TASK
    return is_in_backward


class GradientPoint(Protocol):
    """What a recomputed call needs of the observation point it belongs to."""

    step: int
    source: Any

    def gradients_selecting(self, parameter: str, item: str, call: int) -> Any: ...

    def name(self, parameter: str, item: str = "") -> str: ...

    def record_gradient(self, selected: Any, name: str, gradient: Any, step: int, call: int) -> None: ...


class Recomputation:
    """The calls of one observation point that had no graph, and gradient hooks on their recomputation."""

    def __init__(self, point: GradientPoint) -> None:
        self._point = point
        self.calls_without_graph: deque[_CallWithoutGraph] = deque(maxlen=_MAX_PENDING_CALLS)
        self._replay: _CheckpointReplay | None = None

    def expect(self, part: str, leaf: torch.Tensor, call: int) -> None:
        """Remember a call without a graph: a checkpoint may recompute it."""
        step = self._point.step
        if torch.is_grad_enabled():
            if self.calls_without_graph and self.calls_without_graph[0].step != step:
                self.calls_without_graph.clear()
            return
        last = self.calls_without_graph[-1] if self.calls_without_graph else None
        if last is None or (last.step, last.call) != (step, call):
            last = _CallWithoutGraph(step, call)
            self.calls_without_graph.append(last)
        if leaf.requires_grad:  # the module returned its input, which is hooked already
            last.hooked_parts.add(part)

    def hook_gradient(self, parameter: str, item: str, leaf: torch.Tensor, call: int) -> None:
        if not (self.calls_without_graph and torch.is_grad_enabled() and leaf.requires_grad):
            return
        checkpoint = (graph_task(), id(torch._C._current_autograd_node()))
        if self._replay is None or self._replay.checkpoint != checkpoint:
            if self._replay is not None:
                self._replay.match_calls()
            self._replay = _CheckpointReplay(checkpoint, self.calls_without_graph)
        self._replay.expect(call)
        hook = _RecomputedGradientHook(self._point, self._replay, parameter, item, call)
        handle = leaf.register_hook(hook)  # type: ignore[no-untyped-call]
        self._point.source.keep_handle(handle, leaf.is_leaf)


@dataclass(slots=True)
class _CallWithoutGraph:
    """A call without a graph, and the parts of its value that are hooked already."""

    step: int
    call: int
    hooked_parts: set[str] = field(default_factory=set)


class _CheckpointReplay:
    """The calls that one checkpoint recomputes. Checkpoints are recomputed in reverse order, so the original
    calls are known once all calls of one have been seen, which is before their gradients arrive."""

    def __init__(self, checkpoint: tuple[int, int], calls_without_graph: deque[_CallWithoutGraph]) -> None:
        self.checkpoint, self._calls_without_graph = checkpoint, calls_without_graph
        self._calls: list[int] = []
        self._originals: dict[int, _CallWithoutGraph] = {}

    def expect(self, call: int) -> None:
        if call not in self._calls:
            self._calls.append(call)

    def match_calls(self) -> None:
        while self._calls and self._calls_without_graph:
            self._originals[self._calls.pop()] = self._calls_without_graph.pop()

    def original_call(self, call: int) -> _CallWithoutGraph | None:
        self.match_calls()
        return self._originals.get(call)


class _RecomputedGradientHook:
    """Gradient hook on a recomputed tensor; records with the step and call of the original."""

    __slots__ = ("_call", "_item", "_parameter", "_point", "_replay")
    __torch_unserializable__ = True

    def __init__(
        self, point: GradientPoint, replay: _CheckpointReplay, parameter: str, item: str, call: int
    ) -> None:
        self._point, self._replay = point, replay
        self._parameter, self._item, self._call = parameter, item, call

    def __call__(self, gradient: torch.Tensor) -> None:
        point, parameter, item = self._point, self._parameter, self._item
        try:
            original = self._replay.original_call(self._call)
            if original is None or parameter + item in original.hooked_parts:
                return
            selected = point.gradients_selecting(parameter, item, original.call)
            if selected:
                name = point.name(parameter, item) + ".grad"
                point.record_gradient(selected, name, gradient, original.step, original.call)
        except Exception:  # noqa: BLE001 - a guest in someone's backward pass
            point.source.fail()
