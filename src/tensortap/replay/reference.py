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
        self.used_ids: set[int] = set()  # entries, by id
        self.candidate_steps: list[Any] = []  # steps of the other model
        self.is_sliced = self.is_concatenated = False
        self.has_matching_inputs = (
            True  # what is given to the model is about what the reference's piece of it is
        )
        self._entries: dict[str, dict[tuple[int, int], Entry]] = defaultdict(dict)
        self._consumed: dict[_CallKey, int] = defaultdict(int)  # how much of it
        self._last_length: dict[_CallKey, int] = {}  # how long its last piece was
        self._token_spans: dict[int, _Span] = {}  # of each step: from where to where the model's inputs go
        self._input_lengths: dict[str, int] = {}  # of the model's inputs, along the axis that is cut
        self._sliced_steps: set[int] = set()  # steps whose inputs are a piece
        self._inputs_layout: tuple[tuple[int, ...], int] = (
            (),
            0,
        )  # the shape of the inputs' whole, and what axis is cut
        self._step_lengths: list[int] = []  # how long the steps of the reference are that are put together
        indices = {step: index for index, step in enumerate(self.steps)}
        # Those that a rule speaks of come first: it may mean a name that another value has by itself.
        for entry in sorted(side.entries, key=lambda entry: names.get(entry.name, entry.name) == entry.name):
            key = indices[entry.first_step], entry.call
            self._entries[names.get(entry.name, entry.name)].setdefault(key, entry)

    def step_of(self, record: Record) -> int:
        """The reference's number of the step that a record belongs to."""
        step_index = self._step_index(record)
        more = step_index - len(self.steps) + 1
        return self.steps[step_index] if more <= 0 else self.steps[-1] + more

    def lookup(self, record: Record, shape: tuple[int, ...]) -> Entry | None:
        """What the reference had there; another shape than was asked for where nothing fits."""
        by_call, step_index = self._entries.get(record.name, {}), self._step_index(record)
        same_call, full = by_call.get((step_index, record.call)), by_call.get((0, record.call))
        if self.is_sliced and full is not None and _is_scalar_of_its_own(record, full, shape):
            return None
        if same_call is not None and same_call.shape == shape:
            return self._mark_used(same_call)
        if full is None:
            return None if same_call is None else self._mark_used(same_call)
        entry = self._slice(full, record, shape) or self._concatenate_steps(by_call, record, shape)
        if entry is not None:
            return replace(entry, step=self.step_of(record))
        return None if same_call is None else self._mark_used(same_call)

    def incomplete_inputs(self) -> list[tuple[str, int, int]]:
        """Inputs of the model of which the pieces do not make up the whole: name, how much, of how much."""
        return [
            (name, consumed, self._input_lengths[name])
            for (name, _), consumed in self._consumed.items()
            if consumed < self._input_lengths.get(name, 0)
        ]

    @property
    def unmatched_steps(self) -> int:
        """How many steps of the other model are no piece of the one, where the others are."""
        return len(self.candidate_steps) - len(self._sliced_steps) if self.is_sliced else 0

    def _step_index(self, record: Record) -> int:
        if record.step not in self.candidate_steps:
            self.candidate_steps.append(record.step)
        return self.candidate_steps.index(record.step)

    def _mark_used(self, entry: Entry) -> Entry:
        self.used_ids.add(id(entry))
        return entry

    def _slice(self, full: Entry, record: Record, shape: tuple[int, ...]) -> Entry | None:
        """The next piece of a value that the reference had at once."""
        step_index = self._step_index(record)
        if len(self.steps) > 1 or not (_is_model_input(record) or step_index in self._sliced_steps):
            return None
        key = record.name, record.call
        if self.is_sliced and full.shape == shape:
            self._consumed[key] = self._input_lengths.get(record.name, 0)
            self._sliced_steps.add(step_index)
            return self._mark_used(full)
        rows = None if _is_model_input(record) else self._packed_rows(full.shape, shape, step_index)
        if rows is not None:
            self._mark_used(full)
            return _with_value(full, to_tensor(full.load())[torch.from_numpy(rows)])
        span = self._next_span(full, record, shape)
        slices = None if span is None else _slice_for(full.shape, shape, span)
        if span is None or slices is None:
            return None
        if self._may_be_sorted(full, shape) and not _is_close_to_slice(record, full, slices):
            return None
        self.is_sliced = True
        self._sliced_steps.add(step_index)
        axis = _differing_axes(full.shape, shape)[0]
        self._consumed[key], self._last_length[key] = span[1], shape[axis]
        if _is_model_input(record):
            self.has_matching_inputs = self.has_matching_inputs and _is_close_to_slice(record, full, slices)
            self._input_lengths[record.name] = full.shape[axis]
            if span[0] or not self._token_spans:
                self._token_spans.setdefault(step_index, span)
                self._update_inputs_layout(full.shape, axis)
        self._mark_used(full)
        return _with_value(full, full.load()[slices])

    def _next_span(self, full: Entry, record: Record, shape: tuple[int, ...]) -> _Span | None:
        """From where to where the next piece goes along the first axis that is cut: it follows the last one,
        or it goes from the beginning to where the tokens of this step end, as a mask does beside a cache."""
        axes = _differing_axes(full.shape, shape) if len(full.shape) == len(shape) else []
        if not axes:
            return None
        size, start = shape[axes[0]], self._consumed[record.name, record.call]
        following, grown = (start, start + size), (0, size)
        if not _is_model_input(record):
            token_span = self._token_spans.get(self._step_index(record))
            return (
                following if token_span is None else self._span_of_tokens(token_span, full.shape, shape, axes)
            )
        if len(axes) > 1 or not start:
            return following
        candidates = (
            (following, grown)
            if size > self._last_length.get((record.name, record.call), 0)
            else (following,)
        )
        fitting = [span for span in candidates if span[1] <= full.shape[axes[0]]]
        matching = [span for span in fitting if _equals_slice(record, full, shape, span)] or fitting
        return matching[-1] if matching else None

    def _span_of_tokens(
        self, token_span: _Span, full_shape: Sequence[int], shape: Sequence[int], axes: Sequence[int]
    ) -> _Span | None:
        """Where the piece of a value lies whose axis has as much as there are tokens, or so many times as
        much; None for others, as the rows that a router has sorted."""
        (begin, end), (inputs_shape, cut_axis) = token_span, self._inputs_layout
        size, length, total = shape[axes[0]], full_shape[axes[0]], inputs_shape[cut_axis]
        if size == end and length == total and len(axes) == 1:
            return 0, end
        is_fitting = size * total == length * (end - begin) and (axes[0] > 0 or length == total)
        return (begin * length // total, end * length // total) if is_fitting else None

    def _update_inputs_layout(self, shape: tuple[int, ...], axis: int) -> None:
        """Remember the table of most sequences among the inputs: positions may be there once for all."""
        inputs_shape, cut_axis = self._inputs_layout
        if not inputs_shape or (
            len(shape) == len(inputs_shape) == 2 and axis == cut_axis and shape[0] > inputs_shape[0]
        ):
            self._inputs_layout = shape, axis

    def _may_be_sorted(self, full: Entry, shape: Sequence[int]) -> bool:
        """Whether it has as many rows as a sequence has tokens, though there are several: a table of
        positions, or rows that a router has sorted, by chance so many."""
        inputs_shape, cut_axis = self._inputs_layout
        is_flat = len(inputs_shape) == 2 and cut_axis == 1 and inputs_shape[0] > 1 and len(shape) == 2
        return is_flat and full.shape[0] == inputs_shape[1] != shape[0]

    def _packed_rows(self, full_shape: Sequence[int], shape: Sequence[int], step_index: int) -> Array | None:
        """Of a value that has a row for each token of all sequences, those of this step."""
        (inputs_shape, cut_axis), token_span = self._inputs_layout, self._token_spans.get(step_index)
        if (
            token_span is None
            or len(inputs_shape) != 2
            or not full_shape
            or tuple(full_shape[1:]) != tuple(shape[1:])
        ):
            return None
        index = (slice(None),) * cut_axis + (slice(*token_span),)
        rows = np.arange(math.prod(inputs_shape)).reshape(inputs_shape)[index].reshape(-1)
        return (
            rows
            if inputs_shape[0] > 1 and (full_shape[0], shape[0]) == (math.prod(inputs_shape), len(rows))
            else None
        )

    def _concatenate_steps(
        self, by_call: Mapping[tuple[int, int], Entry], record: Record, shape: tuple[int, ...]
    ) -> Entry | None:
        """All steps of the reference in one, along the axis in which they add up."""
        if len(self.candidate_steps) > 1 or not (self.is_concatenated or _is_model_input(record)):
            return None
        entries_of_steps = [by_call.get((step_index, record.call)) for step_index in range(len(self.steps))]
        entries = [entry for entry in entries_of_steps if entry is not None]
        axis = _concatenation_axis([entry.shape for entry in entries], shape)
        if len(entries) < len(entries_of_steps) or axis is None:
            return None
        sizes = [entry.shape[axis] for entry in entries]
        if _is_model_input(record):
            self._step_lengths = self._step_lengths or sizes
            self._update_inputs_layout(shape, axis)
        if not are_token_lengths(
            sizes, self._step_lengths, self._other_axis_length, (*shape[:axis], *shape[axis + 1 :])
        ):
            return None
        self.is_concatenated = True
        joined = concatenate([self._mark_used(entry).load() for entry in entries], axis)
        return _with_value(entries[0], joined[self._row_order(shape, axis)])

    @property
    def _other_axis_length(self) -> int:
        """How long the other axis of the inputs is, where they are a table."""
        inputs_shape, cut_axis = self._inputs_layout
        return inputs_shape[1 - cut_axis] if len(inputs_shape) == 2 else 0

    def _row_order(self, shape: Sequence[int], axis: int) -> Any:
        """Where the rows of a whole are among those of its pieces, of values with a row for each token."""
        inputs_shape, cut_axis = self._inputs_layout
        is_flat = (
            len(inputs_shape) == 2 and (axis, cut_axis) == (0, 1) and shape[0] == math.prod(inputs_shape)
        )
        return (
            torch.from_numpy(token_row_order(inputs_shape[0], self._step_lengths)) if is_flat else slice(None)
        )


def to_tensor(value: Any) -> torch.Tensor:
    """Of any library; what is mapped from a file and must not be written is copied."""
    return value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def concatenate(values: Sequence[Any], axis: int) -> torch.Tensor:
    return torch.cat([to_tensor(value) for value in values], axis)


def _is_model_input(record: Record) -> bool:
    """Whether it is an input of the model itself: only those tell that a run is cut in another way."""
    return record.kind == "input" and not module_of(record.name, "input")


def _is_scalar_of_its_own(record: Record, full: Entry, shape: Sequence[int]) -> bool:
    """Whether a piece of the inputs makes a number of its own of it, as a loss is."""
    value = record.value
    if shape or full.shape or not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return not math.isclose(float(value), float(full.load()), rel_tol=_SCALAR_TOLERANCE)


def _equals_slice(record: Record, full: Entry, shape: Sequence[int], span: _Span) -> bool:
    """Whether what was given is that piece of the whole."""
    slices = _slice_for(full.shape, shape, span)
    if slices is None or not isinstance(record.value, torch.Tensor):
        return False
    return bool((to_tensor(full.load()[slices]).to(record.value.device) == record.value).all())


def _is_close_to_slice(record: Record, full: Entry, slices: tuple[slice, ...]) -> bool:
    """Whether it is about the same as that piece of the whole."""
    if not isinstance(record.value, torch.Tensor):
        return False
    own = record.value.detach().cpu().double()
    other = to_tensor(full.load()[slices]).cpu().double()
    return bool((own - other).norm() <= _MAX_DISTANCE * torch.maximum(own.norm(), other.norm()))


def _slice_for(full_shape: Sequence[int], shape: Sequence[int], span: _Span) -> tuple[slice, ...] | None:
    """The piece that goes from there to there along the first axis that is cut. Along a second, as of a mask
    or of attention's weights, it may reach as far as that."""
    axes, stop = _differing_axes(full_shape, shape), span[1]
    if not 1 <= len(axes) <= 2:
        return None
    if stop > full_shape[axes[0]] or (len(axes) == 2 and shape[axes[1]] != stop):
        return None
    slices = [slice(None)] * len(shape)
    slices[axes[0]] = slice(*span)
    if len(axes) == 2:
        slices[axes[1]] = slice(0, stop)
    return tuple(slices)


def _differing_axes(full_shape: Sequence[int], shape: Sequence[int]) -> list[int]:
    return [
        axis
        for axis, (full_size, size) in enumerate(zip(full_shape, shape, strict=True))
        if full_size != size
    ]


def _concatenation_axis(shapes: Sequence[tuple[int, ...]], full_shape: tuple[int, ...]) -> int | None:
    if not shapes or any(len(shape) != len(full_shape) for shape in shapes):
        return None
    columns = list(zip(*shapes, strict=True))
    axes = [axis for axis, sizes in enumerate(columns) if set(sizes) != {full_shape[axis]}]
    return axes[0] if len(axes) == 1 and sum(columns[axes[0]]) == full_shape[axes[0]] else None


def _with_value(entry: Entry, value: Any) -> Entry:
    nbytes = int(getattr(value, "nbytes", 0))
    return replace(entry, reference=InMemoryRef(value), shape=tuple(value.shape), nbytes=nbytes, checksum="")
