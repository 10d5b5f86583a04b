"""Gradients of parameters when the backward pass is over, and their values after the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from tensortap.frameworks.base import framework_of
from tensortap.sources.hooks import Hook
from tensortap.sources.ports import Port
from tensortap.sources.sites import AFTER_STEP, Wanted

if TYPE_CHECKING:
    from tensortap.sources.modules import Modules


class Parameters:
    """What is wanted of parameters beyond their value at the end of a call."""

    def __init__(self, source: Modules, points: Sequence[Port]) -> None:
        self._source, self._ports = source, points
        self._waiting: dict[str, Callable[[], None]] = {}

    def hooks(self) -> list[Any]:
        """Hang them up; the handles take them down."""
        handles = [
            handle
            for point in self._ports
            for selected in point.gradients
            for handle in self._hook(point, selected)
        ]
        if any(selected.site.is_after_step for point in self._ports for selected in point.values):
            handles.append(register_optimizer_step_post_hook(self._after_step))
        return handles

    def _hook(self, point: Port, selected: Wanted) -> list[Any]:
        parameter = getattr(point.module, selected.site.parameter, None)
        if not isinstance(parameter, torch.Tensor) or not parameter.requires_grad:
            point.unfit[selected.site.parameter] = "it does not require a gradient"
            return []
        hook = _Accumulated(self._source, lambda: self._wait(point, selected))
        register: Any = parameter.register_post_accumulate_grad_hook
        return [register(hook.see)]

    def _wait(self, point: Port, selected: Wanted) -> None:
        """Until the backward pass is over: with data parallelism the sum over ranks comes after this hook."""
        if not self._waiting:
            try:
                _queue(lambda: self._queue_again())
            except RuntimeError:  # a sharded model hands out gradients when the pass is over already
                self._emit_gradient(point, selected)
                return
        self._waiting[selected.site.name] = lambda: self._emit_gradient(point, selected)

    def _queue_again(self) -> None:
        # Data parallelism queues its own end while the pass runs: ours has to come after it.
        _queue(self._emit_waiting)

    def _emit_waiting(self) -> None:
        pending, self._waiting = list(self._waiting.values()), {}
        try:
            for emit in pending:
                emit()
        except Exception:  # noqa: BLE001 - a guest in someone's backward pass
            self._source.fail()

    def _emit_gradient(self, point: Port, selected: Wanted) -> None:
        gradient = getattr(point.module, selected.site.parameter).grad
        if gradient is None:
            return
        point.fired.add(selected)
        placement = framework_of(gradient).placement(gradient)
        point.emit(selected.site.name, gradient, "grad_param", self._source.step, 0, placement)

    def _after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        try:
            for point in self._ports:
                for selected in point.values:
                    if selected.site.is_after_step:
                        self._emit_after_step(point, selected, stepped)
        except Exception:  # noqa: BLE001 - a guest in someone's training loop
            self._source.fail()

    def _emit_after_step(self, point: Port, selected: Wanted, stepped: set[int]) -> None:
        value = getattr(point.module, selected.site.parameter)
        if isinstance(value, torch.nn.Parameter) and id(value) not in stepped:
            return
        point.fired.add(selected)
        placement = framework_of(value).placement(value)
        point.emit(
            f"{point.name(selected.site.parameter)}.{AFTER_STEP}",
            value,
            "param",
            self._source.step,
            0,
            placement,
        )


class _Accumulated(Hook):
    def __init__(self, source: Modules, on_accumulated: Callable[[], None]) -> None:
        super().__init__(source)
        self._accumulated = on_accumulated

    def see(self, parameter: torch.Tensor) -> None:
        if not self._source.is_resting:
            self._accumulated()


def _queue(callback: Callable[[], None]) -> None:
    """Run it when the backward pass that is under way is over."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
