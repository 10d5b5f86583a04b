"""Replace values of a running model by name: what would happen if this layer were right?"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tensortap.core.settings import is_on
from tensortap.recording.capture import Selector
from tensortap.sources.hooks.eager_mode import run_eagerly
from tensortap.sources.hooks.editing import EditFunction, EditHooks
from tensortap.sources.selection.missing import selection_label
from tensortap.sources.selection.select import resolve_patterns
from tensortap.sources.sites import VARIABLES, require_module


def edit(model: Any, edits: Mapping[Selector, Any]) -> Edit:
    """Replace values at sites while the `with` block runs; the grammar is that of `tt.capture`.

    >>> with tt.edit(model, {"layers.3": lambda x: x * 0, "layers.5.in.mask": mask}):
    ...     model(x)

    A function gets the value and returns the one to go on with; anything else is put there as it is.
    Outputs, inputs and gradients can be edited; a compiled model runs as plain Python meanwhile.
    """
    return Edit(model, edits)


class Edit:
    """What `tt.edit` returns; `unused` lists the edits that were never applied."""

    def __init__(self, model: Any, edits: Mapping[Selector, Any]) -> None:
        require_module(model)
        wanted = [
            (selected, _function(change))
            for pattern, change in edits.items()
            for selected in resolve_patterns(model, [pattern])
        ]
        stored = next((selected.site.name for selected, _ in wanted if selected.site.of == "param"), None)
        if stored is not None:
            raise ValueError(
                f"{stored!r} is part of the model: change it there; "
                "outputs, inputs and gradients can be edited here"
            )
        inside = next((selected.site.name for selected, _ in wanted if selected.site.of in VARIABLES), None)
        if inside is not None:
            raise ValueError(
                f"{inside!r} is inside of a function; "
                "outputs, inputs and gradients of modules can be edited here"
            )
        self._edits = EditHooks(model, wanted)
        self._undo = contextlib.ExitStack()
        self._is_on = False

    def __enter__(self) -> Self:
        if not is_on():
            return self
        if self._is_on:
            raise RuntimeError("this edit is already on; make another with tt.edit(...)")
        with contextlib.ExitStack() as stack:
            stack.enter_context(run_eagerly())
            self._edits.start()
            stack.callback(self._edits.stop)
            self._undo = stack.pop_all()
            self._is_on = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_on = False
        self._undo.close()

    @property
    def unused(self) -> list[str]:
        return [selection_label(wanted) for wanted in self._edits.unused]


def _function(change: Any) -> EditFunction:
    return change if callable(change) else lambda value: change
