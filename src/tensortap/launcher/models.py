"""Models seen being called, and their steps.

The models that an unedited program was seen to call, each with a label where there are several.

Which step an unedited program is in: its optimizers', else counted by the forwards of its models.
"""

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
from tensortap.sources.sites import class_name, takes_hooks, unwrapped

_CALL_METHODS = ("_wrapped_call_impl", "_call_impl")


class CaptureIgnoringTaps(Capture):
    """One of several in a process: what `tt.tap` shows is heard by another."""

    def _attach_tap_source(self, stack: contextlib.ExitStack, tap: Tap) -> None: ...


class ObservedModels:
    """Held weakly: a model that the program lets go of is gone."""

    def __init__(self) -> None:
        self._observed: list[ObservedModel] = []

    def register(self, model: Any, frame: FrameType | None) -> ObservedModel | None:
        """None for one that is known already, by itself or in another wrapper."""
        inner = unwrapped(model)
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
        for inner_model in inner_models:  # a part of it was called before the whole was
            inner_model.detach()
        self._observed = [observed for observed in self._observed if observed not in inner_models]
        is_first = not self._observed or any(not observed.label for observed in inner_models)
        registered = ObservedModel(inner, "" if is_first else self._label(class_name(inner)), frame)
        self._observed.append(registered)
        return registered

    def release(self, model: Any) -> None:
        """Take the hooks off those that share a module with this one."""
        parts = set(map(id, model.modules()))
        for observed in self._observed:
            if observed.model is not None and any(id(module) in parts for module in observed.model.modules()):
                observed.release()

    @property
    def released(self) -> list[str]:
        """Those that were let go of, by their classes."""
        return [observed.facts["class"] for observed in self._observed if observed.is_released]

    def captures(self) -> list[Capture]:
        return [capture for observed in self._observed if (capture := observed.active_capture) is not None]

    def facts(self) -> list[dict[str, Any]]:
        return [observed.facts for observed in self._observed]

    def _label(self, name: str) -> str:
        """The first model has none: its names are those of any capture of it."""
        taken = {observed.label for observed in self._observed}
        candidates = (name if number == 1 else f"{name}_{number}" for number in range(1, len(taken) + 2))
        return next(label for label in candidates if label not in taken)


class ObservedModel:
    """A model, where it was first called, and the capture of it, which lives as long as the model does."""

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
        """A pattern as it is meant within this model: those of the others begin with their labels."""
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
        """Before its forward, and before whoever else wants to know the step."""
        from tensortap.sources.hooks.modules import (
            OfferHook,  # late: it imports torch, which a model has done
        )

        # On a compiled model's wrapper, where it has one: there it is outside of the graph.
        outer = model if class_name(model) == "OptimizedModule" else unwrapped(model)
        if takes_hooks(outer):
            hook = OfferHook(ForwardCounter(id(self), counter, capture))
            self._handle = outer.register_forward_pre_hook(hook.see, prepend=True)

    def detach(self) -> None:
        """The model is a part of another, which is looked into instead."""
        capture = self.active_capture
        if capture is not None:
            capture.stop()
        if self._handle is not None:
            self._handle.remove()

    def release(self) -> None:
        """Once: what was captured of it was written before."""
        if self._handle is not None:
            self.is_released = True
            self.detach()
            self._handle = None


class ForwardCounter:
    """What the hook on a model holds: the capture lives as long as the model, and no longer."""

    is_resting = False

    def __init__(self, key: int, counter: StepCounter, capture: Capture | None) -> None:
        self._key, self._counter, self._capture = key, counter, capture

    def begin_step(self) -> None:
        self._counter.begin_forward(self._key)


class LabellingSink:
    """Writes records under the label of their model."""

    def __init__(self, inner: Sink, label: str) -> None:
        self._inner, self._label = inner, label

    def write(self, record: Record) -> None:
        self._inner.write(record._replace(name=self._label + record.name))

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        self._inner.flush()


def is_inside_forward() -> bool:
    """Whether the forward of another module is under way in this thread."""
    module = sys.modules["torch.nn.modules.module"].Module
    codes = [vars(module)[name].__code__ for name in _CALL_METHODS]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _numel(parameter: Any) -> int:
    """How many numbers; one that the first forward will make has none yet."""
    try:
        return int(parameter.numel())
    except ValueError:
        return 0


class StepCounter:
    """Until something is trained, every forward begins a step; several models share one until the first of
    them comes again. From then on the forward does that comes after every optimizer has taken its step; which
    ones there are to wait for is learned when one comes twice."""

    def __init__(self, optimizers: Collection[Any], is_grad_enabled: Callable[[], bool]) -> None:
        self._optimizers, self._is_grad_enabled = optimizers, is_grad_enabled
        self._awaited_optimizers: set[int] | None = None
        self._optimizers_stepped: set[int] = set()  # optimizers, within this step
        self._models_called: set[int] = set()  # models, within this step
        self._is_training = False
        self._steps_by_optimizer: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._max_steps = 0  # that any optimizer has taken, also one that is gone
        self.step = 0
        set_counted_step(0)

    @property
    def count(self) -> int:
        """How many steps there were, as far as that can be told without looking at every forward."""
        return self._max_steps or (self.step + bool(self._models_called))

    def begin_forward(self, model: int) -> None:
        if self._is_step_over(model):
            self._begin_next_step()
        self._models_called.add(model)
        self._is_training = self._is_training or (bool(self._optimizers) and self._is_grad_enabled())

    def end_optimizer_step(self, optimizer: Any, *_: Any) -> None:
        """As torch calls it after the step of any optimizer."""
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
