"""Values of a model's modules, seen by hooks on the selected ones alone."""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tensortap.core.record import Placement
from tensortap.core.steps import declared_step
from tensortap.core.tap import Tap
from tensortap.frameworks import dtensor
from tensortap.frameworks.megatron import megatron_parameter_placement, megatron_placement
from tensortap.sources.hooks import InputHook, OutputHook, RawHook, SimpleHook, StepHook
from tensortap.sources.parameters import Parameters
from tensortap.sources.port_source import PortSource, Stopped
from tensortap.sources.ports import Naming, Port, native_naming
from tensortap.sources.probes import Probes
from tensortap.sources.sites import VARIABLES, Wanted, takes_hooks, unwrapped


class Modules(PortSource):
    """Hooks on the modules that are wanted, from `start` to `stop`; the model itself keeps no trace.

    `rests(step)` says in which steps nothing is wanted, `is_last(port)` when the forward may be left.
    With `by_position` the naming gets `0`, `1` and `kwargs.mask` for inputs, not the names of parameters.
    """

    def __init__(
        self,
        model: Any,
        wanted: Sequence[Wanted],
        *,
        naming: Naming | None = None,
        by_position: bool = False,
        keeps_structures: bool = False,
        rests: Callable[[int], bool] | None = None,
        is_last: Callable[[Port], bool] | None = None,
    ) -> None:
        model = unwrapped(model)
        super().__init__(
            model, wanted, naming or native_naming(model), keeps_structures=keeps_structures, rests=rests
        )
        self.by_position = by_position
        self.may_stop = self.is_special = is_last is not None
        self._is_last = is_last
        parameter_points = [point for point in self.ports if point.kind == "param"]
        self._parameters = Parameters(self, parameter_points) if parameter_points else None

    def start(self, tap: Tap) -> None:
        super().start(tap)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            if takes_hooks(self.model):
                self._handles.append(self._hook_step())
            by_module: defaultdict[Any, list[Port]] = defaultdict(list)
            for point in self.ports:
                if takes_hooks(point.module) and point.kind not in VARIABLES:
                    by_module[point.module].append(point)
            for module, points in by_module.items():
                self._hook(module, points)
            if self._parameters is not None:
                self._handles += self._parameters.hooks()
            self._handles += Probes(self, [point for point in self.ports if point.kind in VARIABLES]).place()
            undo.pop_all()

    def forget(self) -> None:
        super().forget()
        self._parameters = None

    def passed(self, points: Sequence[Port]) -> None:
        for point in points:
            if self._is_last is not None and self._is_last(point):
                self.stopped_after = point.path or "the model itself"
                raise Stopped(self)

    def placement(self, point: Port, leaf: Any) -> Placement | None:
        """How a piece sits in the whole, as the tensor says, or the hooks of its layer, or its form."""
        placement = super().placement(point, leaf)
        if point.function is not None:
            return placement
        if placement is None and point.raw is not None:
            placement = dtensor.placement_of_former_dtensor(point.raw, leaf, point.module)
        if placement is None and point.kind == "param":
            return megatron_parameter_placement(point.module, leaf)
        return placement or megatron_placement(point.module, leaf, point.kind)  # type: ignore[arg-type]

    @cached_property
    def _has_pieces(self) -> bool:
        """Whether layers may hand out local pieces of distributed tensors."""
        if "torch.distributed.tensor" not in sys.modules:
            return False
        return any(dtensor.is_distributed(type(parameter)) for parameter in self.model.parameters())

    def _hook(self, module: Any, points: Sequence[Port]) -> None:
        if len(points) == 1 and points[0].is_simple and not self._may_hand_out_pieces(module):
            hook = SimpleHook(self, points[0])
            self._handles.append(module.register_forward_hook(hook.see))
            return
        inputs = [point for point in points if point.kind == "input"]
        outputs = [point for point in points if point.kind == "output"]
        parameters = [point for point in points if point.kind == "param"]
        if inputs:
            input_hook = InputHook(self, inputs, module)
            self._handles.append(module.register_forward_pre_hook(input_hook.see, with_kwargs=True))
        if self._may_hand_out_pieces(module):
            for port in points:
                port.may_be_piece = True
        if outputs and module._forward_hooks and self._has_pieces:
            self._handles.append(module.register_forward_hook(RawHook(self, outputs).see, prepend=True))
        if outputs or parameters:
            output_hook = OutputHook(self, outputs, [point for point in parameters if point.values])
            self._handles.append(module.register_forward_hook(output_hook.see))

    def _may_hand_out_pieces(self, module: Any) -> bool:
        if self._has_pieces:
            return True
        return any(hasattr(parameter, "tensor_model_parallel") for parameter in module._parameters.values())

    def _hook_step(self) -> Any:
        return self.model.register_forward_pre_hook(StepHook(self).see, prepend=True)

    def begin_step(self) -> None:
        if self.has_run and self._tap is not None:
            self._tap.tick(self.step)
        declared = declared_step()
        self.step = declared if declared is not None else self.step + self.has_run
        self.has_run = True
        self.is_resting = self._rests is not None and self._rests(self.step)
        self.was_awake = self.was_awake or not self.is_resting
        self.is_special = self.is_resting or self.may_stop
        self._clear_gradients()
