"""Replace values at sites of a model while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tensortap.core.record import Kind
from tensortap.frameworks.nested import leaves, map_leaves
from tensortap.sources.hooks import Hook, StepHook
from tensortap.sources.sites import Wanted, inputs_of, unwrapped

Change = Callable[[Any], Any]


class Edits:
    """Hooks that put other values in the place of a module's outputs, inputs and gradients."""

    is_resting = False

    def __init__(self, model: Any, edits: Sequence[tuple[Wanted, Change]]) -> None:
        self._model = unwrapped(model)
        self._places: dict[tuple[int, str], Place] = {}
        for wanted, change in edits:
            key = id(wanted.site.module), wanted.site.of
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = self._place(wanted.site.module, wanted.site.of)
            place.edits.append((wanted, change))
        self._handles: list[Any] = []

    def _place(self, module: Any, kind: Kind) -> Place:
        return Place(module, kind)

    def start(self) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self._handles.append(self._model.register_forward_pre_hook(StepHook(self).see, prepend=True))
            self._handles += [place.hook(self) for place in self._places.values()]
            undo.pop_all()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def unused(self) -> list[Wanted]:
        """The edits that were never made."""
        places = self._places.values()
        return [wanted for place in places for wanted, _ in place.edits if wanted not in place.made]

    def begin_step(self) -> None:
        for place in self._places.values():
            place.calls = 0


class Place:
    """The outputs or the inputs of one module, and what is to be changed there."""

    def __init__(self, module: Any, kind: Kind) -> None:
        self.module, self.kind = module, kind
        self.edits: list[tuple[Wanted, Change]] = []
        self.made: set[Wanted] = set()
        self.calls = 0

    def hook(self, source: Edits) -> Any:
        if self.kind == "input":
            return self.module.register_forward_pre_hook(_InputEdit(source, self).see, with_kwargs=True)
        return self.module.register_forward_hook(_OutputEdit(source, self).see)

    def edited(self, parameter: str, value: Any, call: int) -> Any:
        """The value with every wanted leaf replaced; the very same object where nothing is."""
        changed: dict[int, Any] = {}
        for item, leaf in leaves(value):
            new = self._leaf(parameter, item, leaf, call)
            if new is not leaf:
                changed[id(leaf)] = new
        if not changed:
            return value
        return map_leaves(value, lambda leaf: changed.get(id(leaf), leaf))

    def _leaf(self, parameter: str, item: str, leaf: Any, call: int) -> Any:
        for wanted, change in self.edits:
            if not wanted.accepts(parameter, item, call):
                continue
            if not wanted.site.is_gradient:
                leaf = _changed(wanted, change, leaf)
                self.made.add(wanted)
            elif isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                self._edit_gradient(wanted, change, leaf)
        return leaf

    def _edit_gradient(self, wanted: Wanted, change: Change, leaf: torch.Tensor) -> None:
        def replaced(gradient: torch.Tensor) -> Any:
            self.made.add(wanted)
            return _changed(wanted, change, gradient)

        leaf.register_hook(replaced)  # type: ignore[no-untyped-call]


class _OutputEdit(Hook):
    def __init__(self, source: Edits, place: Place) -> None:
        super().__init__(source)
        self._place = place

    def see(self, module: Any, arguments: Any, output: Any) -> Any:
        if self._source.is_resting:
            return None
        place = self._place
        place.calls += 1
        return place.edited("", output, place.calls - 1)


class _InputEdit(Hook):
    def __init__(self, source: Edits, place: Place) -> None:
        super().__init__(source)
        self._place = place
        self._positional, _, self._rest, _ = inputs_of(place.module)

    def see(self, module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        if self._source.is_resting:
            return None
        place = self._place
        place.calls += 1
        call = place.calls - 1
        names: Iterable[str] = [*self._positional, *[self._rest or "args"] * len(arguments)]
        new = tuple(place.edited(name, one, call) for name, one in zip(names, arguments, strict=False))
        return new, {name: place.edited(name, one, call) for name, one in keywords.items()}


def _changed(wanted: Wanted, change: Change, value: Any) -> Any:
    new = change(value)
    if new is None:
        raise TypeError(f"the edit of {wanted.site.name!r} returned None; return the value to go on with")
    return new
