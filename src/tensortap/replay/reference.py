"""What a reference had at each place of another model, found by name, step and call as that model runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tensortap.comparison.alignment.tokens import are_token_lengths, token_row_order
from tensortap.comparison.sides.entry import Entry, Side
from tensortap.comparison.sides.module_names import module_of
from tensortap.comparison.sides.value_ref import InMemoryRef
from tensortap.core.record import Record
from tensortap.kernels.decode import Array

_CallKey = tuple[str, int]  # name and call
_Span = tuple[int, int]
_MAX_DISTANCE = 0.3  # of the whole
_SCALAR_TOLERANCE = 1e-5  # what a lone number may be off and still be the same


class ReferenceActivations:
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
        self.is_alike = True  # what is given to the model is about what the reference's piece of it is
        self._held: dict[str, dict[tuple[int, int], Entry]] = defaultdict(dict)
        self._taken: dict[_CallKey, int] = defaultdict(int)  # how much of it
        self._last: dict[_CallKey, int] = {}  # how long its last piece was
        self._reach: dict[int, _Span] = {}  # of each step: from where to where the model's inputs go
        self._lengths: dict[str, int] = {}  # of the model's inputs, along the axis that is cut
        self._met: set[int] = set()  # steps whose inputs are a piece
        self._table: tuple[tuple[int, ...], int] = (
            (),
            0,
        )  # the shape of the inputs' whole, and what axis is cut
        self._parts: list[int] = []  # how long the steps of the reference are that are put together
        indices = {step: place for place, step in enumerate(self.steps)}
        # Those that a rule speaks of come first: it may mean a name that another value has by itself.
        for entry in sorted(side.entries, key=lambda entry: names.get(entry.name, entry.name) == entry.name):
            key = indices[entry.first_step], entry.call
            self._held[names.get(entry.name, entry.name)].setdefault(key, entry)

    def step_of(self, record: Record) -> int:
        """The reference's number of the step that a record belongs to."""
        place = self._place(record)
        more = place - len(self.steps) + 1
        return self.steps[place] if more <= 0 else self.steps[-1] + more

    def take(self, record: Record, shape: tuple[int, ...]) -> Entry | None:
        """What the reference had there; another shape than was asked for where nothing fits."""
        by_call, step_index = self._held.get(record.name, {}), self._place(record)
        same_call, full = by_call.get((step_index, record.call)), by_call.get((0, record.call))
        if self.is_cut and full is not None and _is_scalar_of_its_own(record, full, shape):
            return None
        if same_call is not None and same_call.shape == shape:
            return self._marked(same_call)
        if full is None:
            return None if same_call is None else self._marked(same_call)
        found_entry = self._cut(full, record, shape) or self._joined(by_call, record, shape)
        if found_entry is not None:
            return replace(found_entry, step=self.step_of(record))
        return None if same_call is None else self._marked(same_call)

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
        step_index = self._place(record)
        if len(self.steps) > 1 or not (_is_model_input(record) or step_index in self._met):
            return None
        key = record.name, record.call
        if self.is_cut and whole.shape == shape:
            self._taken[key] = self._lengths.get(record.name, 0)
            self._met.add(step_index)
            return self._marked(whole)
        rows = None if _is_model_input(record) else self._rows(whole.shape, shape, step_index)
        if rows is not None:
            self._marked(whole)
            return _with_value(whole, to_tensor(whole.load())[torch.from_numpy(rows)])
        span = self._span(whole, record, shape)
        slices = None if span is None else _slice_for(whole.shape, shape, span)
        if span is None or slices is None:
            return None
        if self._may_be_sorted(whole, shape) and not _is_close_to_slice(record, whole, slices):
            return None
        self.is_cut = True
        self._met.add(step_index)
        axis = _differing_axes(whole.shape, shape)[0]
        self._taken[key], self._last[key] = span[1], shape[axis]
        if _is_model_input(record):
            self.is_alike = self.is_alike and _is_close_to_slice(record, whole, slices)
            self._lengths[record.name] = whole.shape[axis]
            if span[0] or not self._reach:
                self._reach.setdefault(step_index, span)
                self._widen(whole.shape, axis)
        self._marked(whole)
        return _with_value(whole, whole.load()[slices])

    def _span(self, whole: Entry, record: Record, shape: tuple[int, ...]) -> _Span | None:
        """From where to where the next piece goes along the first axis that is cut: it follows the last one,
        or it goes from the beginning to where the tokens of this step end, as a mask does beside a cache."""
        axes = _differing_axes(whole.shape, shape) if len(whole.shape) == len(shape) else []
        if not axes:
            return None
        size, start = shape[axes[0]], self._taken[record.name, record.call]
        following, grown = (start, start + size), (0, size)
        if not _is_model_input(record):
            known = self._reach.get(self._place(record))
            return following if known is None else self._of_tokens(known, whole.shape, shape, axes)
        if len(axes) > 1 or not start:
            return following
        candidates = (
            (following, grown) if size > self._last.get((record.name, record.call), 0) else (following,)
        )
        fitting = [span for span in candidates if span[1] <= whole.shape[axes[0]]]
        matching = [span for span in fitting if _equals_slice(record, whole, shape, span)] or fitting
        return matching[-1] if matching else None

    def _of_tokens(
        self, known: _Span, whole: Sequence[int], shape: Sequence[int], axes: Sequence[int]
    ) -> _Span | None:
        """Where the piece of a value lies whose axis has as much as there are tokens, or so many times as
        much; None for others, as the rows that a router has sorted."""
        (begin, end), (inputs_shape, cut_axis) = known, self._table
        size, length, total = shape[axes[0]], whole[axes[0]], inputs_shape[cut_axis]
        if size == end and length == total and len(axes) == 1:
            return 0, end
        is_fitting = size * total == length * (end - begin) and (axes[0] > 0 or length == total)
        return (begin * length // total, end * length // total) if is_fitting else None

    def _widen(self, shape: tuple[int, ...], axis: int) -> None:
        """Remember the table of most sequences among the inputs: positions may be there once for all."""
        table, cut_axis = self._table
        if not table or (len(shape) == len(table) == 2 and axis == cut_axis and shape[0] > table[0]):
            self._table = shape, axis

    def _may_be_sorted(self, whole: Entry, shape: Sequence[int]) -> bool:
        """Whether it has as many rows as a sequence has tokens, though there are several: a table of
        positions, or rows that a router has sorted, by chance so many."""
        table, cut_axis = self._table
        is_flat = len(table) == 2 and cut_axis == 1 and table[0] > 1 and len(shape) == 2
        return is_flat and whole.shape[0] == table[1] != shape[0]

    def _rows(self, whole: Sequence[int], shape: Sequence[int], place: int) -> Array | None:
        """Of a value that has a row for each token of all sequences, those of this step."""
        (table, cut_axis), known = self._table, self._reach.get(place)
        if known is None or len(table) != 2 or not whole or tuple(whole[1:]) != tuple(shape[1:]):
            return None
        index = (slice(None),) * cut_axis + (slice(*known),)
        rows = np.arange(math.prod(table)).reshape(table)[index].reshape(-1)
        return rows if table[0] > 1 and (whole[0], shape[0]) == (math.prod(table), len(rows)) else None

    def _joined(
        self, held: Mapping[tuple[int, int], Entry], record: Record, shape: tuple[int, ...]
    ) -> Entry | None:
        """All steps of the reference in one, along the axis in which they add up."""
        if len(self.ran) > 1 or not (self.is_joined or _is_model_input(record)):
            return None
        parts = [held.get((step_index, record.call)) for step_index in range(len(self.steps))]
        entries = [part for part in parts if part is not None]
        axis = _concatenation_axis([entry.shape for entry in entries], shape)
        if len(entries) < len(parts) or axis is None:
            return None
        sizes = [entry.shape[axis] for entry in entries]
        if _is_model_input(record):
            self._parts = self._parts or sizes
            self._widen(shape, axis)
        if not are_token_lengths(sizes, self._parts, self._beside, (*shape[:axis], *shape[axis + 1 :])):
            return None
        self.is_joined = True
        joined = concatenate([self._marked(entry).load() for entry in entries], axis)
        return _with_value(entries[0], joined[self._order(shape, axis)])

    @property
    def _beside(self) -> int:
        """How long the other axis of the inputs is, where they are a table."""
        table, cut_axis = self._table
        return table[1 - cut_axis] if len(table) == 2 else 0

    def _order(self, shape: Sequence[int], axis: int) -> Any:
        """Where the rows of a whole are among those of its pieces, of values with a row for each token."""
        table, cut_axis = self._table
        is_flat = len(table) == 2 and (axis, cut_axis) == (0, 1) and shape[0] == math.prod(table)
        return torch.from_numpy(token_row_order(table[0], self._parts)) if is_flat else slice(None)


def to_tensor(value: Any) -> torch.Tensor:
    """Of any library; what is mapped from a file and must not be written is copied."""
    return value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def concatenate(values: Sequence[Any], axis: int) -> torch.Tensor:
    return torch.cat([to_tensor(value) for value in values], axis)


def _is_model_input(record: Record) -> bool:
    """Whether it is an input of the model itself: only those tell that a run is cut in another way."""
    return record.kind == "input" and not module_of(record.name, "input")


def _is_scalar_of_its_own(record: Record, whole: Entry, shape: Sequence[int]) -> bool:
    """Whether a piece of the inputs makes a number of its own of it, as a loss is."""
    value = record.value
    if shape or whole.shape or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return not math.isclose(float(value), float(whole.load()), rel_tol=_SCALAR_TOLERANCE)


def _equals_slice(record: Record, whole: Entry, shape: Sequence[int], span: _Span) -> bool:
    """Whether what was given is that piece of the whole."""
    slices = _slice_for(whole.shape, shape, span)
    if slices is None or not isinstance(record.value, torch.Tensor):
        return False
    return bool((to_tensor(whole.load()[slices]).to(record.value.device) == record.value).all())


def _is_close_to_slice(record: Record, whole: Entry, slices: tuple[slice, ...]) -> bool:
    """Whether it is about the same as that piece of the whole."""
    if not isinstance(record.value, torch.Tensor):
        return False
    own = record.value.detach().cpu().double()
    other = to_tensor(whole.load()[slices]).cpu().double()
    return bool((own - other).norm() <= _MAX_DISTANCE * torch.maximum(own.norm(), other.norm()))


def _slice_for(whole: Sequence[int], shape: Sequence[int], span: _Span) -> tuple[slice, ...] | None:
    """The piece that goes from there to there along the first axis that is cut. Along a second, as of a mask
    or of attention's weights, it may reach as far as that."""
    axes, stop = _differing_axes(whole, shape), span[1]
    if not 1 <= len(axes) <= 2:
        return None
    if stop > whole[axes[0]] or (len(axes) == 2 and shape[axes[1]] != stop):
        return None
    slices = [slice(None)] * len(shape)
    slices[axes[0]] = slice(*span)
    if len(axes) == 2:
        slices[axes[1]] = slice(0, stop)
    return tuple(slices)


def _differing_axes(whole: Sequence[int], shape: Sequence[int]) -> list[int]:
    return [
        axis for axis, (full_size, size) in enumerate(zip(whole, shape, strict=True)) if full_size != size
    ]


def _concatenation_axis(shapes: Sequence[tuple[int, ...]], whole: tuple[int, ...]) -> int | None:
    if not shapes or any(len(shape) != len(whole) for shape in shapes):
        return None
    columns = list(zip(*shapes, strict=True))
    axes = [axis for axis, sizes in enumerate(columns) if set(sizes) != {whole[axis]}]
    return axes[0] if len(axes) == 1 and sum(columns[axes[0]]) == whole[axes[0]] else None


def _with_value(entry: Entry, value: Any) -> Entry:
    nbytes = int(getattr(value, "nbytes", 0))
    return replace(entry, reference=InMemoryRef(value), shape=tuple(value.shape), nbytes=nbytes, checksum="")
