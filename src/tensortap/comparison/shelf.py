"""What a reference had at each place of another model, found by name, step and call as that model runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tensortap.comparison.entries import Entry, Side
from tensortap.comparison.modules import module_of
from tensortap.comparison.references import Held
from tensortap.core.record import Record

_Key = tuple[str, int]  # name and call
_Span = tuple[int, int]


class Shelf:
    """The values of a reference under the names that the other model has for them.

    Steps are paired in their order. Where the inputs of the model are a piece of those of the reference, as
    when it runs row by row or token by token, every value is set against its own piece; where they are
    several steps of the reference in one, against those put together."""

    def __init__(self, side: Side, names: Mapping[str, str]) -> None:
        self.steps = sorted({entry.first_step for entry in side.entries}) or [0]
        self.names = names
        self.used: set[int] = set()  # entries, by id
        self.ran: list[Any] = []  # steps of the other model
        self.is_cut = self.is_joined = False
        self._held: dict[str, dict[tuple[int, int], Entry]] = defaultdict(dict)
        self._taken: dict[_Key, int] = defaultdict(int)  # how much of it
        self._last: dict[_Key, int] = {}  # how long its last piece was
        self._reach: dict[int, _Span] = {}  # of each step: from where to where the model's inputs go
        self._lengths: dict[str, int] = {}  # of the model's inputs, along the axis that is cut
        self._met: set[int] = set()  # steps whose inputs are a piece
        places = {step: place for place, step in enumerate(self.steps)}
        # Those that a rule speaks of come first: it may mean a name that another value has by itself.
        for entry in sorted(side.entries, key=lambda one: names.get(one.name, one.name) == one.name):
            key = places[entry.first_step], entry.call
            self._held[names.get(entry.name, entry.name)].setdefault(key, entry)

    def step_of(self, record: Record) -> int:
        """The reference's number of the step that a record belongs to."""
        place = self._place(record)
        more = place - len(self.steps) + 1
        return self.steps[place] if more <= 0 else self.steps[-1] + more

    def take(self, record: Record, shape: tuple[int, ...]) -> Entry | None:
        """What the reference had there; another shape than was asked for where nothing fits."""
        held, place = self._held.get(record.name, {}), self._place(record)
        exact, whole = held.get((place, record.call)), held.get((0, record.call))
        if exact is not None and exact.shape == shape:
            return self._marked(exact)
        if whole is None:
            return None if exact is None else self._marked(exact)
        other = self._cut(whole, record, shape) or self._joined(held, record, shape)
        if other is not None:
            return replace(other, step=self.step_of(record))
        return None if exact is None else self._marked(exact)

    def unfinished(self) -> list[tuple[str, int, int]]:
        """Inputs of the model of which the pieces do not make up the whole: name, how much, of how much."""
        return [
            (name, taken, self._lengths[name])
            for (name, _), taken in self._taken.items()
            if taken < self._lengths.get(name, 0)
        ]

    @property
    def strange(self) -> int:
        """How many steps of the other model are no piece of the one, where the others are."""
        return len(self.ran) - len(self._met) if self.is_cut else 0

    def _place(self, record: Record) -> int:
        if record.step not in self.ran:
            self.ran.append(record.step)
        return self.ran.index(record.step)

    def _marked(self, entry: Entry) -> Entry:
        self.used.add(id(entry))
        return entry

    def _cut(self, whole: Entry, record: Record, shape: tuple[int, ...]) -> Entry | None:
        """The next piece of a value that the reference had at once."""
        place = self._place(record)
        if len(self.steps) > 1 or not (_is_given(record) or place in self._met):
            return None
        key = record.name, record.call
        if self.is_cut and whole.shape == shape:
            self._taken[key] = self._lengths.get(record.name, 0)
            self._met.add(place)
            return self._marked(whole)
        span = self._span(whole, record, shape)
        piece = None if span is None else _piece(whole.shape, shape, span)
        if span is None or piece is None:
            return None
        self.is_cut = True
        self._met.add(place)
        axis = _axes(whole.shape, shape)[0]
        self._taken[key], self._last[key] = span[1], shape[axis]
        if _is_given(record):
            self._lengths[record.name] = whole.shape[axis]
            if span[0] or not self._reach:
                self._reach.setdefault(place, span)
        self._marked(whole)
        return _holding(whole, whole.load()[piece])

    def _span(self, whole: Entry, record: Record, shape: tuple[int, ...]) -> _Span | None:
        """From where to where the next piece goes along the first axis that is cut: it follows the last one,
        or it goes from the beginning to where the tokens of this step end, as a mask does beside a cache."""
        axes = _axes(whole.shape, shape) if len(whole.shape) == len(shape) else []
        if not axes:
            return None
        size, start = shape[axes[0]], self._taken[record.name, record.call]
        following, grown = (start, start + size), (0, size)
        if not _is_given(record):
            begin, end = self._reach.get(self._place(record), following)
            if size == end - begin:
                return begin, end
            return grown if size == end and len(axes) == 1 else following
        if len(axes) > 1 or not start:
            return following
        ways = (following, grown) if size > self._last.get((record.name, record.call), 0) else (following,)
        fitting = [one for one in ways if one[1] <= whole.shape[axes[0]]]
        there = [one for one in fitting if _is_there(record, whole, shape, one)] or fitting
        return there[-1] if there else None

    def _joined(
        self, held: Mapping[tuple[int, int], Entry], record: Record, shape: tuple[int, ...]
    ) -> Entry | None:
        """All steps of the reference in one, along the axis in which they add up."""
        if len(self.ran) > 1 or not (self.is_joined or _is_given(record)):
            return None
        parts = [held.get((place, record.call)) for place in range(len(self.steps))]
        entries = [part for part in parts if part is not None]
        axis = _sum_axis([entry.shape for entry in entries], shape)
        if len(entries) < len(parts) or axis is None:
            return None
        self.is_joined = True
        values = [self._marked(entry).load() for entry in entries]
        return _holding(entries[0], put_together(values, axis))


def tensor_of(value: Any) -> torch.Tensor:
    """Of any library; what is mapped from a file and must not be written is copied."""
    return value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def put_together(values: Sequence[Any], axis: int) -> torch.Tensor:
    return torch.cat([tensor_of(value) for value in values], axis)


def _is_given(record: Record) -> bool:
    """Whether it is an input of the model itself: only those tell that a run is cut in another way."""
    return record.kind == "input" and not module_of(record.name, "input")


def _is_there(record: Record, whole: Entry, shape: Sequence[int], span: _Span) -> bool:
    """Whether what was given is that piece of the whole."""
    piece = _piece(whole.shape, shape, span)
    if piece is None or not isinstance(record.value, torch.Tensor):
        return False
    return bool((tensor_of(whole.load()[piece]).to(record.value.device) == record.value).all())


def _piece(whole: Sequence[int], shape: Sequence[int], span: _Span) -> tuple[slice, ...] | None:
    """The piece that goes from there to there along the first axis that is cut. Along a second, as of a mask
    or of attention's weights, it may reach as far as that."""
    axes, stop = _axes(whole, shape), span[1]
    if not 1 <= len(axes) <= 2:
        return None
    if stop > whole[axes[0]] or (len(axes) == 2 and shape[axes[1]] != stop):
        return None
    piece = [slice(None)] * len(shape)
    piece[axes[0]] = slice(*span)
    if len(axes) == 2:
        piece[axes[1]] = slice(0, stop)
    return tuple(piece)


def _axes(whole: Sequence[int], shape: Sequence[int]) -> list[int]:
    return [axis for axis, (one, other) in enumerate(zip(whole, shape, strict=True)) if one != other]


def _sum_axis(shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...]) -> int | None:
    if not shapes or any(len(shape) != len(whole) for shape in shapes):
        return None
    columns = list(zip(*shapes, strict=True))
    axes = [axis for axis, sizes in enumerate(columns) if set(sizes) != {whole[axis]}]
    return axes[0] if len(axes) == 1 and sum(columns[axes[0]]) == whole[axes[0]] else None


def _holding(entry: Entry, value: Any) -> Entry:
    nbytes = int(getattr(value, "nbytes", 0))
    return replace(entry, reference=Held(value), shape=tuple(value.shape), nbytes=nbytes, checksum="")
