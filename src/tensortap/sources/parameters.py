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

    def __init__(self, source: Modules, ports: Sequence[Port]) -> None:
        self._source, self._ports = source, ports
        self._waiting: dict[str, Callable[[], None]] = {}

    def hooks(self) -> list[Any]:
        """Hang them up; the handles take them down."""
        found = [handle for port in self._ports for one in port.gradients for handle in self._hook(port, one)]
        if any(one.site.is_after_step for port in self._ports for one in port.values):
            found.append(register_optimizer_step_post_hook(self._after_step))
        return found

    def _hook(self, port: Port, wanted: Wanted) -> list[Any]:
        parameter = getattr(port.module, wanted.site.parameter, None)
        if not isinstance(parameter, torch.Tensor) or not parameter.requires_grad:
            port.unfit[wanted.site.parameter] = "it does not require a gradient"
            return []
        hook = _Accumulated(self._source, lambda: self._wait(port, wanted))
        hang: Any = parameter.register_post_accumulate_grad_hook
        return [hang(hook.see)]

    def _wait(self, port: Port, wanted: Wanted) -> None:
        """Until the backward pass is over: with data parallelism the sum over ranks comes after this hook."""
        if not self._waiting:
            try:
                _queue(lambda: self._queue_again())
            except RuntimeError:  # a sharded model hands out gradients when the pass is over already
                self._emit_gradient(port, wanted)
                return
        self._waiting[wanted.site.name] = lambda: self._emit_gradient(port, wanted)

    def _queue_again(self) -> None:
        # Data parallelism queues its own end while the pass runs: ours has to come after it.
        _queue(self._emit_waiting)

    def _emit_waiting(self) -> None:
        waiting, self._waiting = list(self._waiting.values()), {}
        try:
            for emit in waiting:
                emit()
        except Exception:  # noqa: BLE001 - a guest in someone's backward pass
            self._source.fail()

    def _emit_gradient(self, port: Port, wanted: Wanted) -> None:
        gradient = getattr(port.module, wanted.site.parameter).grad
        if gradient is None:
            return
        port.fired.add(wanted)
        placement = framework_of(gradient).placement(gradient)
        port.emit(wanted.site.name, gradient, "grad_param", self._source.step, 0, placement)

    def _after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        stepped = {id(one) for group in optimizer.param_groups for one in group["params"]}
        try:
            for port in self._ports:
                for one in port.values:
                    if one.site.is_after_step:
                        self._emit_after_step(port, one, stepped)
        except Exception:  # noqa: BLE001 - a guest in someone's training loop
            self._source.fail()

    def _emit_after_step(self, port: Port, wanted: Wanted, stepped: set[int]) -> None:
        value = getattr(port.module, wanted.site.parameter)
        if isinstance(value, torch.nn.Parameter) and id(value) not in stepped:
            return
        port.fired.add(wanted)
        placement = framework_of(value).placement(value)
        port.emit(
            f"{port.name(wanted.site.parameter)}.{AFTER_STEP}",
            value,
            "param",
            self._source.step,
            0,
            placement,
        )


class _Accumulated(Hook):
    def __init__(self, source: Modules, accumulated: Callable[[], None]) -> None:
        super().__init__(source)
        self._accumulated = accumulated

    def see(self, parameter: torch.Tensor) -> None:
        if not self._source.is_resting:
            self._accumulated()


def _queue(callback: Callable[[], None]) -> None:
    """Run it when the backward pass that is under way is over."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
