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
from tensortap.frameworks import sharded
from tensortap.frameworks.parallel_layers import megatron_placement, megatron_parameter_placement
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
        stored = [port for port in self.ports if port.kind == "param"]
        self._parameters = Parameters(self, stored) if stored else None

    def start(self, tap: Tap) -> None:
        super().start(tap)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            if takes_hooks(self.model):
                self._handles.append(self._hook_step())
            by_module: defaultdict[Any, list[Port]] = defaultdict(list)
            for port in self.ports:
                if takes_hooks(port.module) and port.kind not in VARIABLES:
                    by_module[port.module].append(port)
            for module, ports in by_module.items():
                self._hook(module, ports)
            if self._parameters is not None:
                self._handles += self._parameters.hooks()
            self._handles += Probes(self, [port for port in self.ports if port.kind in VARIABLES]).place()
            undo.pop_all()

    def forget(self) -> None:
        super().forget()
        self._parameters = None

    def passed(self, ports: Sequence[Port]) -> None:
        for port in ports:
            if self._is_last is not None and self._is_last(port):
                self.stopped_after = port.path or "the model itself"
                raise Stopped(self)

    def placement(self, port: Port, leaf: Any) -> Placement | None:
        """How a piece sits in the whole, as the tensor says, or the hooks of its layer, or its form."""
        found = super().placement(port, leaf)
        if port.function is not None:
            return found
        if found is None and port.raw is not None:
            found = sharded.placement_of_former_dtensor(port.raw, leaf, port.module)
        if found is None and port.kind == "param":
            return megatron_parameter_placement(port.module, leaf)
        return found or megatron_placement(port.module, leaf, port.kind)  # type: ignore[arg-type]

    @cached_property
    def _has_pieces(self) -> bool:
        """Whether layers may hand out local pieces of distributed tensors."""
        if "torch.distributed.tensor" not in sys.modules:
            return False
        return any(sharded.is_distributed(type(one)) for one in self.model.parameters())

    def _hook(self, module: Any, ports: Sequence[Port]) -> None:
        if len(ports) == 1 and ports[0].is_simple and not self._may_hand_out_pieces(module):
            hook = SimpleHook(self, ports[0])
            self._handles.append(module.register_forward_hook(hook.see))
            return
        inputs = [port for port in ports if port.kind == "input"]
        outputs = [port for port in ports if port.kind == "output"]
        parameters = [port for port in ports if port.kind == "param"]
        if inputs:
            before = InputHook(self, inputs, module)
            self._handles.append(module.register_forward_pre_hook(before.see, with_kwargs=True))
        if self._may_hand_out_pieces(module):
            for port in ports:
                port.may_be_piece = True
        if outputs and module._forward_hooks and self._has_pieces:
            self._handles.append(module.register_forward_hook(RawHook(self, outputs).see, prepend=True))
        if outputs or parameters:
            after = OutputHook(self, outputs, [port for port in parameters if port.values])
            self._handles.append(module.register_forward_hook(after.see))

    def _may_hand_out_pieces(self, module: Any) -> bool:
        if self._has_pieces:
            return True
        return any(hasattr(one, "tensor_model_parallel") for one in module._parameters.values())

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
