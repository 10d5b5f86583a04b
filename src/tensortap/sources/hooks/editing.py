"""Replace values in flight.

Replace values at sites of a model while it runs.

Let every selected tensor of a running model go by a function that is told its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tensortap.core.record import Kind
from tensortap.frameworks.pytree import leaves, map_leaves
from tensortap.sources.hooks.modules import Hook, StepHook
from tensortap.sources.observation.point import Naming, native_naming
from tensortap.sources.sites import Wanted, inputs_of, unwrapped

Change = Callable[[Any], Any]


class Edits:
    """Hooks that put other values in the place of a module's outputs, inputs and gradients."""

    is_resting = False

    def __init__(self, model: Any, edits: Sequence[tuple[Wanted, Change]]) -> None:
        self._model = unwrapped(model)
        self._places: dict[tuple[int, str], Place] = {}
        for selected, change in edits:
            key = id(selected.site.module), selected.site.of
            point = self._places.get(key)
            if point is None:
                point = self._places[key] = self._place(selected.site.module, selected.site.of)
            point.edits.append((selected, change))
        self._handles: list[Any] = []

    def _place(self, module: Any, kind: Kind) -> Place:
        return Place(module, kind)

    def start(self) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self._handles.append(self._model.register_forward_pre_hook(StepHook(self).see, prepend=True))
            self._handles += [point.hook(self) for point in self._places.values()]
            undo.pop_all()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def unused(self) -> list[Wanted]:
        """The edits that were never made."""
        points = self._places.values()
        return [selected for point in points for selected, _ in point.edits if selected not in point.made]

    def begin_step(self) -> None:
        for point in self._places.values():
            point.calls = 0


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
        replacements: dict[int, Any] = {}
        for item, leaf in leaves(value):
            new = self._leaf(parameter, item, leaf, call)
            if new is not leaf:
                replacements[id(leaf)] = new
        if not replacements:
            return value
        return map_leaves(value, lambda leaf: replacements.get(id(leaf), leaf))

    def _leaf(self, parameter: str, item: str, leaf: Any, call: int) -> Any:
        for selected, change in self.edits:
            if not selected.accepts(parameter, item, call):
                continue
            if not selected.site.is_gradient:
                leaf = _changed(selected, change, leaf)
                self.made.add(selected)
            elif isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                self._edit_gradient(selected, change, leaf)
        return leaf

    def _edit_gradient(self, selected: Wanted, change: Change, leaf: torch.Tensor) -> None:
        def replace_gradient(gradient: torch.Tensor) -> Any:
            self.made.add(selected)
            return _changed(selected, change, gradient)

        leaf.register_hook(replace_gradient)  # type: ignore[no-untyped-call]


class _OutputEdit(Hook):
    def __init__(self, source: Edits, point: Place) -> None:
        super().__init__(source)
        self._place = point

    def see(self, module: Any, arguments: Any, output: Any) -> Any:
        if self._source.is_resting:
            return None
        point = self._place
        point.calls += 1
        return point.edited("", output, point.calls - 1)


class _InputEdit(Hook):
    def __init__(self, source: Edits, point: Place) -> None:
        super().__init__(source)
        self._place = point
        self._positional, _, self._rest, _ = inputs_of(point.module)

    def see(self, module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        if self._source.is_resting:
            return None
        point = self._place
        point.calls += 1
        call = point.calls - 1
        names: Iterable[str] = [*self._positional, *[self._rest or "args"] * len(arguments)]
        new_arguments = tuple(
            point.edited(name, value, call) for name, value in zip(names, arguments, strict=False)
        )
        return new_arguments, {name: point.edited(name, value, call) for name, value in keywords.items()}


def _changed(selected: Wanted, change: Change, value: Any) -> Any:
    new = change(value)
    if new is None:
        raise TypeError(f"the edit of {selected.site.name!r} returned None; return the value to go on with")
    return new


Exchange = Callable[[str, torch.Tensor], Any]


class Replacing(Edits):
    """`exchange(name, tensor)` gives what the model goes on with; the names are those of a capture."""

    def __init__(self, model: Any, selected: Sequence[Wanted], replace: Exchange) -> None:
        self._naming, self._exchange = native_naming(unwrapped(model)), replace
        super().__init__(model, [(site, _itself) for site in selected])

    def _place(self, module: Any, kind: Kind) -> Place:
        return _NamedPlace(module, kind, self._naming, self._exchange)


class _NamedPlace(Place):
    def __init__(self, module: Any, kind: Kind, naming: Naming, replace: Exchange) -> None:
        super().__init__(module, kind)
        self._naming, self._exchange = naming, replace

    def _leaf(self, parameter: str, item: str, leaf: Any, call: int) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        new_leaf: Any = leaf
        # A module may be known under several names: each is told, and one that has a value gives it.
        for selected, _ in self.edits:
            if selected.accepts(parameter, item, call):
                replacement = self._exchange(
                    self._naming(selected.site.path, self.kind, parameter, item), leaf
                )
                if replacement is not leaf:
                    new_leaf = replacement
                    self.made.add(selected)
        return new_leaf


def _itself(value: Any) -> Any:
    return value
