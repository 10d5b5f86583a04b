"""Run a model with another's values: each one is recorded, and then the model goes on with the other's."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tensortap.comparison.entries import Entry
from tensortap.comparison.held_sides import of_records
from tensortap.comparison.shelf import Shelf, tensor_of
from tensortap.comparison.untouched import untouched
from tensortap.core.errors import TensortapError
from tensortap.core.record import Record
from tensortap.recording.capture import capture
from tensortap.sources.compiled import plain_python
from tensortap.sources.replacing import Replacing
from tensortap.sources.selection import selection
from tensortap.sources.sites import Wanted, class_name, walk

_REPLACED = ("output", "input")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(slots=True)
class Forced:
    """What a model made of another's values: pairs of (the other's, its own), and what has no partner."""

    pairs: list[tuple[Entry, Entry]] = field(default_factory=list)
    alone: list[Entry] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)  # values that were not replaced, and why
    missing: list[str] = field(default_factory=list)


def forced(model: Any, batch: Any, patterns: Sequence[Any], shelf: Shelf) -> Forced:
    """Run the model, every selected input and output replaced by what is on the shelf. Afterwards the model
    is what it was: hooks, buffers, gradients, modes and random states."""
    run = _Run(shelf, {".".join(names): class_name(module) for names, module in walk(model)})
    wanted = [one for one in selection(model, patterns) if one.site.kind in _REPLACED]
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(capture(model, *patterns, keep="cow", to=run.see))
        stack.enter_context(untouched(model))
        # Hooks run in their order: what is recorded is what the model made, before it is replaced.
        stack.enter_context(replacing(model, wanted, run))
        run_batch(model, batch)
    if run.failure is not None:
        raise run.failure
    run.found.missing = [f"{one.name} was selected and never came: {one.reason}" for one in seen.missing]
    return run.found


@contextlib.contextmanager
def replacing(model: Any, wanted: Sequence[Wanted], run: _Run) -> Any:
    source = Replacing(model, wanted, run.exchange)
    with plain_python():
        source.start()
        try:
            yield
        finally:
            source.stop()


def run_batch(model: Any, batch: Any) -> None:
    """A dict is `model(**batch)`, a tuple or list `model(*batch)`, a function `batch(model)`."""
    with torch.no_grad():
        if callable(batch):
            batch(model)
            return
        given = _fresh(batch)
        if isinstance(given, Mapping):
            model(**given)
        else:
            model(*given) if isinstance(given, (tuple, list)) else model(given)


def is_model(thing: Any) -> bool:
    return isinstance(thing, torch.nn.Module)


def types_of(model: Any) -> set[torch.dtype]:
    """Of its floating weights."""
    return {one.dtype for one in model.parameters() if one.is_floating_point()}


def _fresh(batch: Any) -> Any:
    """A copy: a cache among the inputs is written by the model, and the next run would find it full."""
    try:
        return copy.deepcopy(batch)
    except (RuntimeError, TypeError):
        return batch


class _Run:
    """One run: what is seen of it, and what is waiting to be put in the place of what was just seen."""

    def __init__(self, shelf: Shelf, classes: Mapping[str, str]) -> None:
        self._shelf, self._classes = shelf, classes
        self._next: dict[str, Entry] = {}
        self.found = Forced()
        self.failure: Exception | None = None

    def see(self, record: Record) -> None:
        try:
            self._see(record)
        except Exception as error:  # noqa: BLE001 - a capture would only log it; raised afterwards
            self.failure = self.failure or error

    def _see(self, record: Record) -> None:
        (own,) = of_records([record], self._classes).entries
        own.order = len(self.found.pairs) + len(self.found.alone)
        other = self._shelf.take(record, own.shape)
        own.step = self._shelf.step_of(record)
        if other is None:
            self.found.alone.append(own)
            return
        self.found.pairs.append((replace(other, rank=own.rank, call=own.call, order=own.order), own))
        self._next[record.name] = other

    def exchange(self, name: str, value: torch.Tensor) -> torch.Tensor:
        entry = self._next.pop(name, None)
        if entry is None:
            return value
        try:
            return fitted(entry.load(), value)
        except (OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, TensortapError) as error:
            self.found.kept.setdefault(name, str(error))
            return value


def fitted(given: Any, like: torch.Tensor) -> torch.Tensor:
    """The given numbers as a tensor of that type, on that device; a copy, for the model may write to it."""
    if type(like) not in _PLAIN or like.layout != torch.strided:
        raise TypeError(f"a {type(like).__name__} ({like.layout}) cannot be replaced")
    other = tensor_of(given)
    if other.shape != like.shape:
        raise ValueError(f"shape {list(other.shape)} against {list(like.shape)}")
    if _sort(other) != _sort(like):
        raise ValueError(f"{other.dtype} against {like.dtype}".replace("torch.", ""))
    made = torch.empty_like(like)
    return made.copy_(_in_range(other, like.dtype))


def _sort(value: torch.Tensor) -> tuple[bool, ...]:
    return value.is_floating_point(), value.is_complex(), value.dtype == torch.bool


def _in_range(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The lowest number of a wide type stands for a mask: it becomes the lowest of a narrow one, not minus
    infinity, of which a softmax makes NaN."""
    if not value.is_floating_point() or torch.finfo(value.dtype).max <= torch.finfo(dtype).max:
        return value
    most = torch.finfo(dtype).max
    return torch.where(value.isfinite(), value.clamp(-most, most), value)
