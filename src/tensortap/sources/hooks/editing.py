"""Hooks that replace outputs, inputs and gradients of a running model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from tensortap.core.record import Kind
from tensortap.frameworks.pytree import leaves, map_leaves
from tensortap.sources.hooks.modules import Hook, StepHook
from tensortap.sources.observation.point import Naming, native_naming
from tensortap.sources.sites import SelectedSite, forward_signature, unwrap

EditFunction = Callable[[Any], Any]


class EditHooks:
    """Hooks that replace a module's outputs, inputs and gradients by edited ones."""

    is_idle = False

    def __init__(self, model: Any, edits: Sequence[tuple[SelectedSite, EditFunction]]) -> None:
        self._model = unwrap(model)
        self._points: dict[tuple[int, str], EditPoint] = {}
        for selected, change in edits:
            key = id(selected.site.module), selected.site.of
            point = self._points.get(key)
            if point is None:
                point = self._points[key] = self._point(selected.site.module, selected.site.of)
            point.edits.append((selected, change))
        self._handles: list[Any] = []

    def _point(self, module: Any, kind: Kind) -> EditPoint:
        return EditPoint(module, kind)

    def start(self) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            self._handles.append(self._model.register_forward_pre_hook(StepHook(self).run, prepend=True))
            self._handles += [point.hook(self) for point in self._points.values()]
            undo.pop_all()

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    @property
    def unused(self) -> list[SelectedSite]:
        """The edits that were never applied."""
        points = self._points.values()
        return [selected for point in points for selected, _ in point.edits if selected not in point.applied]

    def begin_step(self) -> None:
        for point in self._points.values():
            point.calls = 0


class EditPoint:
    """The outputs or the inputs of one module, and the edits to apply."""

    def __init__(self, module: Any, kind: Kind) -> None:
        self.module, self.kind = module, kind
        self.edits: list[tuple[SelectedSite, EditFunction]] = []
        self.applied: set[SelectedSite] = set()
        self.calls = 0

    def hook(self, source: EditHooks) -> Any:
        if self.kind == "input":
            return self.module.register_forward_pre_hook(_InputEditHook(source, self).run, with_kwargs=True)
        return self.module.register_forward_hook(_OutputEditHook(source, self).run)

    def apply(self, parameter: str, value: Any, call: int) -> Any:
        """The value with every selected leaf replaced; the same object if none is."""
        replacements: dict[int, Any] = {}
        for item, leaf in leaves(value):
            new = self._edit_leaf(parameter, item, leaf, call)
            if new is not leaf:
                replacements[id(leaf)] = new
        if not replacements:
            return value
        return map_leaves(value, lambda leaf: replacements.get(id(leaf), leaf))

    def _edit_leaf(self, parameter: str, item: str, leaf: Any, call: int) -> Any:
        for selected, change in self.edits:
            if not selected.accepts(parameter, item, call):
                continue
            if not selected.site.is_gradient:
                leaf = _apply_edit(selected, change, leaf)
                self.applied.add(selected)
            elif isinstance(leaf, torch.Tensor) and leaf.requires_grad:
                self._edit_gradient(selected, change, leaf)
        return leaf

    def _edit_gradient(self, selected: SelectedSite, change: EditFunction, leaf: torch.Tensor) -> None:
        def replace_gradient(gradient: torch.Tensor) -> Any:
            self.applied.add(selected)
            return _apply_edit(selected, change, gradient)

        leaf.register_hook(replace_gradient)  # type: ignore[no-untyped-call]


class _OutputEditHook(Hook):
    def __init__(self, source: EditHooks, point: EditPoint) -> None:
        super().__init__(source)
        self._point = point

    def run(self, module: Any, arguments: Any, output: Any) -> Any:
        if self._source.is_idle:
            return None
        point = self._point
        point.calls += 1
        return point.apply("", output, point.calls - 1)


class _InputEditHook(Hook):
    def __init__(self, source: EditHooks, point: EditPoint) -> None:
        super().__init__(source)
        self._point = point
        self._positional, _, self._varargs, _ = forward_signature(point.module)

    def run(self, module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        if self._source.is_idle:
            return None
        point = self._point
        point.calls += 1
        call = point.calls - 1
        names: Iterable[str] = [*self._positional, *[self._varargs or "args"] * len(arguments)]
        new_arguments = tuple(
            point.apply(name, value, call) for name, value in zip(names, arguments, strict=False)
        )
        return new_arguments, {name: point.apply(name, value, call) for name, value in keywords.items()}


def _apply_edit(selected: SelectedSite, change: EditFunction, value: Any) -> Any:
    new = change(value)
    if new is None:
        raise TypeError(f"the edit of {selected.site.name!r} returned None; return the value to go on with")
    return new


ReplaceFunction = Callable[[str, torch.Tensor], Any]


class ReplacementHooks(EditHooks):
    """Replaces every selected tensor by `replace(name, tensor)`; the names are those of a capture."""

    def __init__(self, model: Any, selected: Sequence[SelectedSite], replace: ReplaceFunction) -> None:
        self._naming, self._replace_value = native_naming(unwrap(model)), replace
        super().__init__(model, [(site, _identity) for site in selected])

    def _point(self, module: Any, kind: Kind) -> EditPoint:
        return _NamedEditPoint(module, kind, self._naming, self._replace_value)


class _NamedEditPoint(EditPoint):
    def __init__(self, module: Any, kind: Kind, naming: Naming, replace: ReplaceFunction) -> None:
        super().__init__(module, kind)
        self._naming, self._replace_value = naming, replace

    def _edit_leaf(self, parameter: str, item: str, leaf: Any, call: int) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        new_leaf: Any = leaf
        # A module may have several names: each is tried, and one with a replacement provides it.
        for selected, _ in self.edits:
            if selected.accepts(parameter, item, call):
                replacement = self._replace_value(
                    self._naming(selected.site.path, self.kind, parameter, item), leaf
                )
                if replacement is not leaf:
                    new_leaf = replacement
                    self.applied.add(selected)
        return new_leaf


def _identity(value: Any) -> Any:
    return value
