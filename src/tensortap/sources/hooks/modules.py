"""Record values of a model through hooks on the selected modules: outputs, inputs, parameters and gradients.

Copies and pickles of a model do not keep the hooks.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from time import time
from typing import Any, Protocol

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling
from torch.optim.optimizer import register_optimizer_step_post_hook

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Placement, Record
from tensortap.core.steps import declared_step, next_order
from tensortap.core.tap import Tap
from tensortap.frameworks import dtensor
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.megatron import megatron_parameter_placement, megatron_placement
from tensortap.sources.observation.checkpointing import NO_GRAPH_TASK, graph_task, is_recomputing
from tensortap.sources.observation.point import (
    HookSource,
    Naming,
    ObservationPoint,
    StopForward,
    native_naming,
)
from tensortap.sources.probes.probes import ProbeInstaller
from tensortap.sources.sites import (
    AFTER_STEP,
    VARIABLES,
    SelectedSite,
    forward_signature,
    supports_hooks,
    unwrap,
)


class ModuleSource(HookSource):
    """Hooks on the selected modules, from `start` to `stop`; nothing stays on the model.

    `skips_step(step)`: nothing is recorded in that step; `is_last(point)`: the forward may be left after it.
    With `by_position` inputs are named `0`, `1` and `kwargs.mask`, not by the parameters of forward.
    """

    def __init__(
        self,
        model: Any,
        selected_sites: Sequence[SelectedSite],
        *,
        naming: Naming | None = None,
        by_position: bool = False,
        keeps_structures: bool = False,
        skips_step: Callable[[int], bool] | None = None,
        is_last: Callable[[ObservationPoint], bool] | None = None,
    ) -> None:
        model = unwrap(model)
        super().__init__(
            model,
            selected_sites,
            naming or native_naming(model),
            keeps_structures=keeps_structures,
            skips_step=skips_step,
        )
        self.by_position = by_position
        self.may_stop = self.is_special = is_last is not None
        self._is_last = is_last
        parameter_points = [point for point in self.points if point.kind == "param"]
        self._parameters = ParameterHooks(self, parameter_points) if parameter_points else None

    def start(self, tap: Tap) -> None:
        super().start(tap)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            if supports_hooks(self.model):
                self._handles.append(self._hook_step())
            by_module: defaultdict[Any, list[ObservationPoint]] = defaultdict(list)
            for point in self.points:
                if supports_hooks(point.module) and point.kind not in VARIABLES:
                    by_module[point.module].append(point)
            for module, points in by_module.items():
                self._hook(module, points)
            if self._parameters is not None:
                self._handles += self._parameters.register()
            self._handles += ProbeInstaller(
                self, [point for point in self.points if point.kind in VARIABLES]
            ).install()
            undo.pop_all()

    def forget(self) -> None:
        super().forget()
        self._parameters = None

    def stop_after_last(self, points: Sequence[ObservationPoint]) -> None:
        for point in points:
            if self._is_last is not None and self._is_last(point):
                self.stopped_after = point.path or "the model itself"
                raise StopForward(self)

    def placement(self, point: ObservationPoint, leaf: Any) -> Placement | None:
        """The placement of a shard, from the tensor, the DTensor before to_local(), or Megatron's layer."""
        placement = super().placement(point, leaf)
        if point.function is not None:
            return placement
        if placement is None and point.raw_output is not None:
            placement = dtensor.placement_of_former_dtensor(point.raw_output, leaf, point.module)
        if placement is None and point.kind == "param":
            return megatron_parameter_placement(point.module, leaf)
        return placement or megatron_placement(point.module, leaf, point.kind)  # type: ignore[arg-type]

    @cached_property
    def _has_dtensor_parameters(self) -> bool:
        """Whether layers may output local shards of DTensors."""
        if "torch.distributed.tensor" not in sys.modules:
            return False
        return any(dtensor.is_distributed(type(parameter)) for parameter in self.model.parameters())

    def _hook(self, module: Any, points: Sequence[ObservationPoint]) -> None:
        if len(points) == 1 and points[0].is_simple and not self._may_output_shards(module):
            hook = FastOutputHook(self, points[0])
            self._handles.append(module.register_forward_hook(hook.run))
            return
        inputs = [point for point in points if point.kind == "input"]
        outputs = [point for point in points if point.kind == "output"]
        parameters = [point for point in points if point.kind == "param"]
        if inputs:
            input_hook = InputHook(self, inputs, module)
            self._handles.append(module.register_forward_pre_hook(input_hook.run, with_kwargs=True))
        if self._may_output_shards(module):
            for point in points:
                point.may_be_shard = True
        if outputs and module._forward_hooks and self._has_dtensor_parameters:
            self._handles.append(module.register_forward_hook(RawOutputHook(self, outputs).run, prepend=True))
        if outputs or parameters:
            output_hook = OutputHook(self, outputs, [point for point in parameters if point.values])
            self._handles.append(module.register_forward_hook(output_hook.run))

    def _may_output_shards(self, module: Any) -> bool:
        if self._has_dtensor_parameters:
            return True
        return any(hasattr(parameter, "tensor_model_parallel") for parameter in module._parameters.values())

    def _hook_step(self) -> Any:
        return self.model.register_forward_pre_hook(StepHook(self).run, prepend=True)

    def begin_step(self) -> None:
        if self.has_run and self._tap is not None:
            self._tap.tick(self.step)
        declared = declared_step()
        self.step = declared if declared is not None else self.step + self.has_run
        self.has_run = True
        self.is_idle = self._skips_step is not None and self._skips_step(self.step)
        self.was_active = self.was_active or not self.is_idle
        self.is_special = self.is_idle or self.may_stop
        self._clear_gradients()


_NO_KEYWORDS: Mapping[str, Any] = {}


class Hook:
    """Registered as `hook.run`, a method, which torch calls faster than a callable object. A copy of the
    model gets a hook that stays idle."""

    def __init__(self, source: StepSource) -> None:
        self._source = source

    def __deepcopy__(self, memo: Any) -> Hook:
        return _idle_copy(type(self))

    def __reduce__(self) -> tuple[Callable[..., Hook], tuple[type[Hook]]]:
        return _idle_copy, (type(self),)


class StepSource(Protocol):
    is_idle: bool

    def begin_step(self) -> None: ...


class IdleSource:
    """The source of a hook that was copied with its model."""

    is_idle = is_special = True

    def begin_step(self) -> None: ...


def _idle_copy(hook_class: type[Hook]) -> Hook:
    hook = hook_class.__new__(hook_class)
    Hook.__init__(hook, IdleSource())
    return hook


class StepHook(Hook):
    """Before the outermost model's forward."""

    def run(self, module: Any, arguments: Any) -> None:
        if not is_recomputing():
            self._source.begin_step()


class ExposedModelHook(StepHook):
    """The same on a model that is only exposed: compiled away in a graph, since is_compiling() is constant
    there."""

    def run(self, module: Any, arguments: Any) -> None:
        if not is_compiling():
            super().run(module, arguments)


class OutputHook(Hook):
    """After a module's forward: its output under each of its names, then its parameters."""

    def __init__(
        self, source: ModuleSource, points: Sequence[ObservationPoint], parameters: Sequence[ObservationPoint]
    ) -> None:
        super().__init__(source)
        self._points, self._parameters = points, parameters

    def run(self, module: Any, arguments: Any, output: Any) -> None:
        source: Any = self._source
        if source.is_idle:
            return
        try:
            for point in self._points:
                point.observe_output(output)
                point.raw_output = None
            for point in self._parameters:
                point.observe_parameters(module)
        except Exception:  # noqa: BLE001 - a guest in someone's forward pass
            source.fail()
        if source.may_stop:
            source.stop_after_last([*self._points, *self._parameters])


class FastOutputHook(OutputHook):
    """The fast path: a whole output selected under one name, its value or its gradient or both."""

    def __init__(self, source: ModuleSource, point: ObservationPoint) -> None:
        super().__init__(source, [point], [])
        self.point, self.name, self.rank = point, point.name(""), source.rank
        self.retain, self.emit_record = source.retain_tensor, source.emit_fast
        self._has_values, self._recomputation = bool(point.values), point.recomputation

    def run(self, module: Any, arguments: Any, output: Any) -> None:
        source: Any = self._source
        if source.is_special or type(output) is not Tensor or graph_task() != NO_GRAPH_TASK:
            super().run(module, arguments, output)
            return
        recomputation = self._recomputation
        if recomputation is not None and (
            recomputation.calls_without_graph or not output.requires_grad or not is_grad_enabled()
        ):
            super().run(module, arguments, output)
            return
        try:
            point, step, name = self.point, source.step, self.name
            if point.step != step:
                point.begin(step)
            call = point.calls
            point.calls = call + 1
            if self._has_values:
                point.has_emitted = True
                retained, rank = self.retain(output), self.rank
                self.emit_record(
                    Record(name, retained, "output", step, rank, call, next_order(), time(), None, None)
                )
            if recomputation is not None:
                handle = output.register_hook(_FastGradientHook(self, step, call))  # type: ignore[no-untyped-call]
                source.keep_handle(handle, output.is_leaf)
        except UnsupportedValueError as error:
            source.refused.setdefault(self.name, str(error))
        except Exception:  # noqa: BLE001 - a guest in someone's forward pass
            source.fail()


class _FastGradientHook:
    """Gradient hook of one whole output."""

    __slots__ = ("_call", "_hook", "_step")
    __torch_unserializable__ = True

    def __init__(self, hook: FastOutputHook, step: int, call: int) -> None:
        self._hook, self._step, self._call = hook, step, call

    def __call__(self, gradient: Tensor) -> None:
        hook, step, call = self._hook, self._step, self._call
        try:
            point, name = hook.point, hook.name + ".grad"
            if point.source.is_over:
                return
            if type(gradient) is not Tensor:
                point.record_gradient(point.gradients, name, gradient, step, call)
                return
            point.has_gradient = True
            retained, rank = hook.retain(gradient), hook.rank
            hook.emit_record(
                Record(name, retained, "grad_output", step, rank, call, next_order(), time(), None, None)
            )
        except UnsupportedValueError as error:
            point.source.refused.setdefault(name, str(error))
        except Exception:  # noqa: BLE001 - a guest in someone's backward pass
            point.source.fail()


class InputHook(Hook):
    """Before a module's forward: its inputs, by parameter name or by position."""

    def __init__(self, source: ModuleSource, points: Sequence[ObservationPoint], module: Any) -> None:
        super().__init__(source)
        self._points = points
        self._positional, _, self._varargs, _ = forward_signature(module)
        self._name_inputs = self._by_position if source.by_position else self._by_name

    # Torch calls a hook that is removed during a call without the keywords.
    def run(
        self, module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any] = _NO_KEYWORDS
    ) -> None:
        source: Any = self._source
        if source.is_idle:
            return
        try:
            for point in self._points:
                point.observe_inputs(self._name_inputs(arguments, keywords))
        except Exception:  # noqa: BLE001 - a guest in someone's forward pass
            source.fail()
        if source.may_stop:
            source.stop_after_last(self._points)

    def _by_name(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        names = self._positional
        yield from zip(names, arguments, strict=False)
        if len(arguments) > len(names):
            yield self._varargs or "args", arguments[len(names) :]
        yield from keywords.items()

    def _by_position(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        """As passed by the caller: `0`, `1`, `kwargs.mask`."""
        for position, value in enumerate(arguments):
            yield str(position), value
        for name, value in keywords.items():
            yield f"kwargs.{name}", value


class RawOutputHook(Hook):
    """Before the other forward hooks: the DTensor a parallel layer computed, before to_local()."""

    def __init__(self, source: ModuleSource, points: Sequence[ObservationPoint]) -> None:
        super().__init__(source)
        self._points = points

    def run(self, module: Any, arguments: Any, output: Any) -> None:
        if self._source.is_idle:
            return
        for point in self._points:
            point.raw_output = output


class ParameterHooks:
    """Parameter gradients after the backward pass, and parameters after the optimizer's step."""

    def __init__(self, source: ModuleSource, points: Sequence[ObservationPoint]) -> None:
        self._source, self._points = source, points
        self._pending: dict[str, Callable[[], None]] = {}

    def register(self) -> list[Any]:
        """Register the hooks; returns their handles."""
        handles = [
            handle
            for point in self._points
            for selected in point.gradients
            for handle in self._hook(point, selected)
        ]
        if any(selected.site.is_after_step for point in self._points for selected in point.values):
            handles.append(register_optimizer_step_post_hook(self._after_step))
        return handles

    def _hook(self, point: ObservationPoint, selected: SelectedSite) -> list[Any]:
        parameter = getattr(point.module, selected.site.parameter, None)
        if not isinstance(parameter, torch.Tensor) or not parameter.requires_grad:
            point.rejections[selected.site.parameter] = "it does not require a gradient"
            return []
        hook = _AccumulatedGradientHook(self._source, lambda: self._emit_after_backward(point, selected))
        register: Any = parameter.register_post_accumulate_grad_hook
        return [register(hook.run)]

    def _emit_after_backward(self, point: ObservationPoint, selected: SelectedSite) -> None:
        """Emit the gradient when the backward pass ends: data parallelism all-reduces it after this hook."""
        if not self._pending:
            try:
                _queue_after_backward(lambda: self._requeue())
            except RuntimeError:  # FSDP sets gradients after the backward pass has ended
                self._emit_gradient(point, selected)
                return
        self._pending[selected.site.name] = lambda: self._emit_gradient(point, selected)

    def _requeue(self) -> None:
        # Data parallelism queues its own callback during the pass: ours must come after it.
        _queue_after_backward(self._emit_pending)

    def _emit_pending(self) -> None:
        pending, self._pending = list(self._pending.values()), {}
        try:
            for emit in pending:
                emit()
        except Exception:  # noqa: BLE001 - a guest in someone's backward pass
            self._source.fail()

    def _emit_gradient(self, point: ObservationPoint, selected: SelectedSite) -> None:
        gradient = getattr(point.module, selected.site.parameter).grad
        if gradient is None:
            return
        point.fired_sites.add(selected)
        placement = framework_of(gradient).placement(gradient)
        point.emit(selected.site.name, gradient, "grad_param", self._source.step, 0, placement)

    def _after_step(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        try:
            for point in self._points:
                for selected in point.values:
                    if selected.site.is_after_step:
                        self._emit_after_step(point, selected, stepped)
        except Exception:  # noqa: BLE001 - a guest in someone's training loop
            self._source.fail()

    def _emit_after_step(self, point: ObservationPoint, selected: SelectedSite, stepped: set[int]) -> None:
        value = getattr(point.module, selected.site.parameter)
        if isinstance(value, torch.nn.Parameter) and id(value) not in stepped:
            return
        point.fired_sites.add(selected)
        placement = framework_of(value).placement(value)
        point.emit(
            f"{point.name(selected.site.parameter)}.{AFTER_STEP}",
            value,
            "param",
            self._source.step,
            0,
            placement,
        )


class _AccumulatedGradientHook(Hook):
    def __init__(self, source: ModuleSource, on_accumulated: Callable[[], None]) -> None:
        super().__init__(source)
        self._on_accumulated = on_accumulated

    def run(self, parameter: torch.Tensor) -> None:
        if not self._source.is_idle:
            self._on_accumulated()


def _queue_after_backward(callback: Callable[[], None]) -> None:
    """Run it when the current backward pass ends."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)
