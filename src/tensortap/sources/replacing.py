"""Let every selected tensor of a running model go by a function that is told its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensortap.core.record import Kind
from tensortap.sources.edits import Edits, Place
from tensortap.sources.ports import Naming, native_naming
from tensortap.sources.sites import Wanted, unwrapped

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
