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

    def __init__(self, model: Any, wanted: Sequence[Wanted], exchange: Exchange) -> None:
        self._naming, self._exchange = native_naming(unwrapped(model)), exchange
        super().__init__(model, [(one, _itself) for one in wanted])

    def _place(self, module: Any, kind: Kind) -> Place:
        return _NamedPlace(module, kind, self._naming, self._exchange)


class _NamedPlace(Place):
    def __init__(self, module: Any, kind: Kind, naming: Naming, exchange: Exchange) -> None:
        super().__init__(module, kind)
        self._naming, self._exchange = naming, exchange

    def _leaf(self, parameter: str, item: str, leaf: Any, call: int) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        new: Any = leaf
        # A module may be known under several names: each is told, and one that has a value gives it.
        for wanted, _ in self.edits:
            if wanted.accepts(parameter, item, call):
                given = self._exchange(self._naming(wanted.site.path, self.kind, parameter, item), leaf)
                if given is not leaf:
                    new = given
                    self.made.add(wanted)
        return new


def _itself(value: Any) -> Any:
    return value
