"""How a bug is planted: in one part of one model, and what has to be named is said beforehand."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from planted.models import Batch, Kind

Plant = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Bug:
    """`role` is the part that is changed, and the one that has to be named. Of changed weights the gate has
    to name each, and no other."""

    name: str
    family: str
    role: str
    plant: Plant
    needs: frozenset[str] = frozenset()

    @property
    def is_of_weights(self) -> bool:
        return self.family == "weights"

    def fits(self, kind: Kind) -> bool:
        return self.role in kind.parts and self.needs <= kind.traits

    def located(self, kind: Kind) -> str:
        return kind.parts[self.role]

    def into(self, model: nn.Module, kind: Kind) -> nn.Module:
        self.plant(model.get_submodule(self.located(kind)))
        return model


@dataclass(frozen=True)
class DataBug:
    """A batch that is not what it should be: the gate has to name the input."""

    name: str
    located: str  # the input
    change: Callable[[torch.Tensor], torch.Tensor]
    needs: frozenset[str] = frozenset()

    def fits(self, kind: Kind, given: Batch) -> bool:
        return self.located in given and self.needs <= kind.traits

    def into(self, given: Batch) -> Batch:
        return given | {self.located: self.change(given[self.located].clone())}


BUGS: dict[str, Bug] = {}
DATA_BUGS: dict[str, DataBug] = {}


def bug(family: str, role: str, *needs: str) -> Callable[[Plant], Plant]:
    def keep(plant: Plant) -> Plant:
        BUGS[plant.__name__] = Bug(plant.__name__, family, role, plant, frozenset(needs))
        return plant

    return keep


def data_bug(located: str, *needs: str) -> Callable[[Any], Any]:
    def keep(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        DATA_BUGS[change.__name__] = DataBug(change.__name__, located, change, frozenset(needs))
        return change

    return keep


def replaced(module: nn.Module, make: Callable[..., Any]) -> None:
    """`make(original, *arguments)` instead of the module's forward: hooks see what they saw before."""
    module.forward = functools.wraps(module.forward)(functools.partial(make, module.forward))  # type: ignore[method-assign]


def after(module: nn.Module, change: Callable[[Any], Any]) -> None:
    """What the module gives, changed."""
    replaced(module, lambda original, *given, **named: change(original(*given, **named)))


def while_it_runs(module: nn.Module, **names: Any) -> None:
    """Functions that the module's own code calls, replaced as long as this one module runs."""
    home = sys.modules[type(module).__module__]
    # Two ranks are two threads: while the module runs in one, the other would take these for its own.
    kept = {name: getattr(home, name) for name in names}

    def run(original: Callable[..., Any], *given: Any, **named: Any) -> Any:
        vars(home).update(names)
        try:
            return original(*given, **named)
        finally:
            vars(home).update(kept)

    replaced(module, run)


def wrapped_while_it_runs(module: nn.Module, name: str, make: Callable[..., Any]) -> None:
    """`make(original, *arguments)` instead of a function that the module's own code calls."""
    home = sys.modules[type(module).__module__]
    while_it_runs(module, **{name: functools.partial(make, getattr(home, name))})


def at(index: int) -> torch.Tensor:
    return torch.tensor([index])


def fitting(kind: Kind) -> list[Bug]:
    return [one for one in BUGS.values() if one.fits(kind)]


def fitting_data(kind: Kind, given: Batch) -> list[DataBug]:
    return [one for one in DATA_BUGS.values() if one.fits(kind, given)]
