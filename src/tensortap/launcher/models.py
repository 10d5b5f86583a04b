"""The models that an unedited program calls, labelled where there are several, and its step count."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from tensortap.core.protocols import Sink
from tensortap.core.record import Record
from tensortap.core.steps import set_counted_step
from tensortap.core.tap import Tap
from tensortap.recording.capture import Capture
from tensortap.sources.sites import class_name, supports_hooks, unwrap

_CALL_METHODS = ("_wrapped_call_impl", "_call_impl")


class CaptureIgnoringTaps(Capture):
    """One of several captures in a process; `tt.tap` values go to a separate source."""

    def _attach_tap_source(self, stack: contextlib.ExitStack, tap: Tap) -> None: ...


class ObservedModels:
    """Holds weak references, so models can be garbage-collected."""

    def __init__(self) -> None:
        self._observed: list[ObservedModel] = []

    def register(self, model: Any, frame: FrameType | None) -> ObservedModel | None:
        """Add a model; None if it is registered already, by itself or in a wrapper."""
        inner = unwrap(model)
        if getattr(model, "_is_replica", False) or any(
            observed.model is inner for observed in self._observed
        ):
            return None
        parts = set(map(id, model.modules()))
        inner_models = [
            observed
            for observed in self._observed
            if observed.model is not None and id(observed.model) in parts
        ]
        for inner_model in inner_models:  # submodules that were called before the model was
            inner_model.detach()
        self._observed = [observed for observed in self._observed if observed not in inner_models]
        is_first = not self._observed or any(not observed.label for observed in inner_models)
        registered = ObservedModel(inner, "" if is_first else self._label(class_name(inner)), frame)
        self._observed.append(registered)
        return registered

    def release(self, model: Any) -> None:
        """Remove the hooks of every model that shares a module with this one."""
        parts = set(map(id, model.modules()))
        for observed in self._observed:
            if observed.model is not None and any(id(module) in parts for module in observed.model.modules()):
                observed.release()

    @property
    def released(self) -> list[str]:
        """The class names of the released models."""
        return [observed.facts["class"] for observed in self._observed if observed.is_released]

    def captures(self) -> list[Capture]:
        return [capture for observed in self._observed if (capture := observed.active_capture) is not None]

    def facts(self) -> list[dict[str, Any]]:
        return [observed.facts for observed in self._observed]

    def _label(self, name: str) -> str:
        """An unused label; the first model has none, so its names are those of `tt.capture`."""
        taken = {observed.label for observed in self._observed}
        candidates = (name if number == 1 else f"{name}_{number}" for number in range(1, len(taken) + 2))
        return next(label for label in candidates if label not in taken)


class ObservedModel:
    """A model, where it was first called, and its capture, which lives as long as the model."""

    def __init__(self, model: Any, label: str, frame: FrameType | None) -> None:
        self._model = weakref.ref(model)
        self._capture: weakref.ref[Capture] | None = None
        self._handle: Any = None
        self.label = label
        self.is_released = False
        self.facts: dict[str, Any] = {
            "label": label,
            "class": class_name(model),
            "modules": sum(1 for _ in model.modules()),
            "parameters": sum(_numel(parameter) for parameter in model.parameters()),
            "called_at": f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "",
        }

    @property
    def model(self) -> Any:
        return self._model()

    @property
    def active_capture(self) -> Capture | None:
        return self._capture() if self._capture is not None else None

    def strip_label(self, pattern: str) -> str:
        """The pattern within this model: patterns for a labelled model start with its label."""
        negation, body = ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)
        return negation + (body.removeprefix(f"{self.label}.") if self.label else body)

    def start_capture(
        self, model: Any, patterns: Sequence[str], options: dict[str, Any], sink: Sink
    ) -> Capture:
        labelling_sink = LabellingSink(sink, f"{self.label}.") if self.label else sink
        capture = CaptureIgnoringTaps(model, patterns, **options, to=labelling_sink)
        capture.start_within(0, has_begun=False)
        self._capture = weakref.ref(capture)
        return capture

    def count_forwards(self, model: Any, counter: StepCounter, capture: Capture | None) -> None:
        """Count steps in a forward pre-hook that runs before all others."""
        # Imported lazily: it imports torch, which is loaded once there is a model.
        from tensortap.sources.hooks.modules import ExposedModelHook

        # On the wrapper of a compiled model, if any: there it is outside of the graph.
        outer = model if class_name(model) == "OptimizedModule" else unwrap(model)
        if supports_hooks(outer):
            hook = ExposedModelHook(ForwardCounter(id(self), counter, capture))
            self._handle = outer.register_forward_pre_hook(hook.run, prepend=True)

    def detach(self) -> None:
        """Stop capturing: the model is a submodule of another, which is captured instead."""
        capture = self.active_capture
        if capture is not None:
            capture.stop()
        if self._handle is not None:
            self._handle.remove()

    def release(self) -> None:
        """Remove the hooks, once; earlier records are kept."""
        if self._handle is not None:
            self.is_released = True
            self.detach()
            self._handle = None


class ForwardCounter:
    """What the pre-hook refers to: keeps the capture alive as long as the model."""

    is_idle = False

    def __init__(self, key: int, counter: StepCounter, capture: Capture | None) -> None:
        self._key, self._counter, self._capture = key, counter, capture

    def begin_step(self) -> None:
        self._counter.begin_forward(self._key)


class LabellingSink:
    """Prefixes record names with the label of their model."""

    def __init__(self, inner: Sink, label: str) -> None:
        self._inner, self._label = inner, label

    def write(self, record: Record) -> None:
        self._inner.write(record._replace(name=self._label + record.name))

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        self._inner.flush()


def is_inside_forward() -> bool:
    """Is a module's forward running in this thread?"""
    module = sys.modules["torch.nn.modules.module"].Module
    codes = [vars(module)[name].__code__ for name in _CALL_METHODS]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _numel(parameter: Any) -> int:
    """The number of elements; 0 for a lazy parameter."""
    try:
        return int(parameter.numel())
    except ValueError:
        return 0


class StepCounter:
    """Counts steps. Before training every forward starts a step, which several models share until one of them
    is called again. In training a step starts with the forward after every optimizer has stepped; which
    optimizers to wait for is learned when one of them steps twice."""

    def __init__(self, optimizers: Collection[Any], is_grad_enabled: Callable[[], bool]) -> None:
        self._optimizers, self._is_grad_enabled = optimizers, is_grad_enabled
        self._awaited_optimizers: set[int] | None = None
        self._optimizers_stepped: set[int] = set()  # in this step, by id
        self._models_called: set[int] = set()  # in this step, by id
        self._is_training = False
        self._steps_by_optimizer: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._max_steps = 0  # of any optimizer, also of one that was collected
        self.step = 0
        set_counted_step(0)

    @property
    def count(self) -> int:
        """The number of steps, as far as it is known without observing every forward."""
        return self._max_steps or (self.step + bool(self._models_called))

    def begin_forward(self, model: int) -> None:
        if self._is_step_over(model):
            self._begin_next_step()
        self._models_called.add(model)
        self._is_training = self._is_training or (bool(self._optimizers) and self._is_grad_enabled())

    def end_optimizer_step(self, optimizer: Any, *_: Any) -> None:
        """The post-hook that torch calls after every optimizer step."""
        key = id(optimizer)
        self._is_training = True
        self._steps_by_optimizer[optimizer] = steps = self._steps_by_optimizer.get(optimizer, 0) + 1
        self._max_steps = max(self._max_steps, steps)
        if key in self._optimizers_stepped:
            self._awaited_optimizers = set(self._optimizers_stepped)
            self._begin_next_step()
        self._optimizers_stepped.add(key)

    def _is_step_over(self, model: int) -> bool:
        if not self._is_training:
            return model in self._models_called
        awaited = (
            set(map(id, self._optimizers)) if self._awaited_optimizers is None else self._awaited_optimizers
        )
        return bool(self._optimizers_stepped) and self._optimizers_stepped >= awaited

    def _begin_next_step(self) -> None:
        self._models_called.clear()
        self._optimizers_stepped.clear()
        self.step += 1
        set_counted_step(self.step)
