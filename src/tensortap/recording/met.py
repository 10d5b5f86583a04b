"""The models that an unedited program was seen to call, each with a label where there are several."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

from tensortap.core.parts import Sink
from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.recording.capture import Capture
from tensortap.recording.counting import Counting
from tensortap.sources.sites import class_name, takes_hooks, unwrapped

_CALLS = ("_wrapped_call_impl", "_call_impl")


class QuietCapture(Capture):
    """One of several in a process: what `tt.tap` shows is heard by another."""

    def _listen(self, stack: contextlib.ExitStack, tap: Tap) -> None: ...


class Models:
    """Held weakly: a model that the program lets go of is gone."""

    def __init__(self) -> None:
        self._met: list[Met] = []

    def meet(self, model: Any, frame: FrameType | None) -> Met | None:
        """None for one that is known already, by itself or in another wrapper."""
        inner = unwrapped(model)
        if getattr(model, "_is_replica", False) or any(one.model is inner for one in self._met):
            return None
        parts = set(map(id, model.modules()))
        within = [one for one in self._met if one.model is not None and id(one.model) in parts]
        for one in within:  # a part of it was called before the whole was
            one.give_way()
        self._met = [one for one in self._met if one not in within]
        is_first = not self._met or any(not one.label for one in within)
        met = Met(inner, "" if is_first else self._label(class_name(inner)), frame)
        self._met.append(met)
        return met

    def let_go(self, model: Any) -> None:
        """Take the hooks off those that share a module with this one."""
        parts = set(map(id, model.modules()))
        for one in self._met:
            if one.model is not None and any(id(part) in parts for part in one.model.modules()):
                one.let_go()

    @property
    def gone(self) -> list[str]:
        """Those that were let go of, by their classes."""
        return [one.facts["class"] for one in self._met if one.is_gone]

    def captures(self) -> list[Capture]:
        return [capture for one in self._met if (capture := one.captured) is not None]

    def facts(self) -> list[dict[str, Any]]:
        return [one.facts for one in self._met]

    def _label(self, name: str) -> str:
        """The first model has none: its names are those of any capture of it."""
        taken = {one.label for one in self._met}
        numbered = (name if number == 1 else f"{name}_{number}" for number in range(1, len(taken) + 2))
        return next(one for one in numbered if one not in taken)


class Met:
    """A model, where it was first called, and the capture of it, which lives as long as the model does."""

    def __init__(self, model: Any, label: str, frame: FrameType | None) -> None:
        self._model = weakref.ref(model)
        self._capture: weakref.ref[Capture] | None = None
        self._handle: Any = None
        self.label = label
        self.is_gone = False
        self.facts: dict[str, Any] = {
            "label": label,
            "class": class_name(model),
            "modules": sum(1 for _ in model.modules()),
            "parameters": sum(_size(one) for one in model.parameters()),
            "called_at": f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "",
        }

    @property
    def model(self) -> Any:
        return self._model()

    @property
    def captured(self) -> Capture | None:
        return self._capture() if self._capture is not None else None

    def own(self, pattern: str) -> str:
        """A pattern as it is meant within this model: those of the others begin with their labels."""
        mark, body = ("!", pattern[1:]) if pattern.startswith("!") else ("", pattern)
        return mark + (body.removeprefix(f"{self.label}.") if self.label else body)

    def capture(self, model: Any, patterns: Sequence[str], options: dict[str, Any], sink: Sink) -> Capture:
        given = Labelled(sink, f"{self.label}.") if self.label else sink
        capture = QuietCapture(model, patterns, **options, to=given)
        capture.start_within(0, has_begun=False)
        self._capture = weakref.ref(capture)
        return capture

    def count(self, model: Any, counting: Counting, capture: Capture | None) -> None:
        """Before its forward, and before whoever else wants to know the step."""
        from tensortap.sources.hooks import OfferHook  # late: it imports torch, which a model has done

        # On a compiled model's wrapper, where it has one: there it is outside of the graph.
        outer = model if class_name(model) == "OptimizedModule" else unwrapped(model)
        if takes_hooks(outer):
            hook = OfferHook(Forward(id(self), counting, capture))
            self._handle = outer.register_forward_pre_hook(hook.see, prepend=True)

    def give_way(self) -> None:
        """The model is a part of another, which is looked into instead."""
        capture = self.captured
        if capture is not None:
            capture.stop()
        if self._handle is not None:
            self._handle.remove()

    def let_go(self) -> None:
        """Once: what was captured of it was written before."""
        if self._handle is not None:
            self.is_gone = True
            self.give_way()
            self._handle = None


class Forward:
    """What the hook on a model holds: the capture lives as long as the model, and no longer."""

    is_resting = False

    def __init__(self, key: int, counting: Counting, capture: Capture | None) -> None:
        self._key, self._counting, self._capture = key, counting, capture

    def begin_step(self) -> None:
        self._counting.begin_forward(self._key)


class Labelled:
    """Writes records under the label of their model."""

    def __init__(self, inner: Sink, label: str) -> None:
        self._inner, self._label = inner, label

    def write(self, record: Record) -> None:
        self._inner.write(record._replace(name=self._label + record.name))

    def flush(self) -> None:
        self._inner.flush()

    def close(self) -> None:
        self._inner.flush()


def is_within() -> bool:
    """Whether the forward of another module is under way in this thread."""
    module = sys.modules["torch.nn.modules.module"].Module
    codes = [vars(module)[name].__code__ for name in _CALLS]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _size(parameter: Any) -> int:
    """How many numbers; one that the first forward will make has none yet."""
    try:
        return int(parameter.numel())
    except ValueError:
        return 0
