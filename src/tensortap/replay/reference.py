"""The reference's activations, looked up by name, step and call while the candidate runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensortap.comparison.alignment.tokens import are_token_lengths, token_row_order
from tensortap.comparison.sides.entry import Entry, InMemoryRef, Side, module_of
from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.torch_precision import concatenate, to_tensor
from tensortap.kernels.decode import Array

_CallKey = tuple[str, int]  # name and call
_Span = tuple[int, int]
_MAX_DISTANCE = 0.3  # relative L2
_SCALAR_TOLERANCE = 1e-5  # relative


class ReferenceActivations:
    """The reference's activations under the candidate's names, looked up by name, step and call.

    Steps are paired in order. If the candidate's inputs are a slice of the reference's (row by row, token by
    token), every value is paired with its own slice; if one candidate step covers several reference steps,
    with their concatenation."""

    def __init__(self, side: Side, names: Mapping[str, str]) -> None:
        self.steps = sorted({entry.first_step for entry in side.entries}) or [0]
        self.names = names
        self.used_ids: set[int] = set()  # id() of entries
        self.candidate_steps: list[Any] = []
        self.is_sliced = self.is_concatenated = False
        self.has_matching_inputs = True  # the candidate's inputs are close to the reference's slices
        self._entries: dict[str, dict[tuple[int, int], Entry]] = defaultdict(dict)
        self._consumed: dict[_CallKey, int] = defaultdict(int)  # length already sliced off
        self._last_length: dict[_CallKey, int] = {}  # length of the last slice
        self._token_spans: dict[int, _Span] = {}  # per step: the slice of the model's inputs
        self._input_lengths: dict[str, int] = {}  # full lengths of the model's inputs along the sliced axis
        self._sliced_steps: set[int] = set()  # steps whose inputs are a slice
        self._inputs_layout: tuple[tuple[int, ...], int] = ((), 0)  # full shape of the inputs, sliced axis
        self._step_lengths: list[int] = []  # lengths of the concatenated reference steps
        indices = {step: index for index, step in enumerate(self.steps)}
        # Entries renamed by a rule come first: another entry may already have that name.
        for entry in sorted(side.entries, key=lambda entry: names.get(entry.name, entry.name) == entry.name):
            key = indices[entry.first_step], entry.call
            self._entries[names.get(entry.name, entry.name)].setdefault(key, entry)

    def step_of(self, record: Record) -> int:
        """The reference's step number for a record of the candidate."""
        step_index = self._step_index(record)
        excess = step_index - len(self.steps) + 1
        return self.steps[step_index] if excess <= 0 else self.steps[-1] + excess

    def lookup(self, record: Record, shape: tuple[int, ...]) -> Entry | None:
        """The reference entry for a record, sliced or concatenated to `shape` where possible."""
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
        """Model inputs whose slices do not cover the full value: (name, covered length, full length)."""
        return [
            (name, consumed, self._input_lengths[name])
            for (name, _), consumed in self._consumed.items()
            if consumed < self._input_lengths.get(name, 0)
        ]

    @property
    def unmatched_steps(self) -> int:
        """How many candidate steps are no slice of the reference's step, if others are."""
        return len(self.candidate_steps) - len(self._sliced_steps) if self.is_sliced else 0

    def _step_index(self, record: Record) -> int:
        if record.step not in self.candidate_steps:
            self.candidate_steps.append(record.step)
        return self.candidate_steps.index(record.step)

    def _mark_used(self, entry: Entry) -> Entry:
        self.used_ids.add(id(entry))
        return entry

    def _slice(self, full: Entry, record: Record, shape: tuple[int, ...]) -> Entry | None:
        """The next slice of a value that the reference computed in one step."""
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
            return _with_value(full, to_tensor(full.load())[to_tensor(rows)])
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
        """The next slice along the first differing axis: after the last one, or from 0 to the last token of
        this step, like a mask beside a KV cache."""
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
        """The slice of an axis that is a multiple of the number of tokens; None for others, like rows that a
        router has sorted."""
        (begin, end), (inputs_shape, cut_axis) = token_span, self._inputs_layout
        size, length, total = shape[axes[0]], full_shape[axes[0]], inputs_shape[cut_axis]
        if size == end and length == total and len(axes) == 1:
            return 0, end
        is_fitting = size * total == length * (end - begin) and (axes[0] > 0 or length == total)
        return (begin * length // total, end * length // total) if is_fitting else None

    def _update_inputs_layout(self, shape: tuple[int, ...], axis: int) -> None:
        """Keep the input shape with the most sequences: position ids may have a batch size of 1."""
        inputs_shape, cut_axis = self._inputs_layout
        if not inputs_shape or (
            len(shape) == len(inputs_shape) == 2 and axis == cut_axis and shape[0] > inputs_shape[0]
        ):
            self._inputs_layout = shape, axis

    def _may_be_sorted(self, full: Entry, shape: Sequence[int]) -> bool:
        """Whether a 2-D value has one row per position in spite of several sequences: a position table, or
        rows that a router has sorted."""
        inputs_shape, cut_axis = self._inputs_layout
        is_flat = len(inputs_shape) == 2 and cut_axis == 1 and inputs_shape[0] > 1 and len(shape) == 2
        return is_flat and full.shape[0] == inputs_shape[1] != shape[0]

    def _packed_rows(self, full_shape: Sequence[int], shape: Sequence[int], step_index: int) -> Array | None:
        """Rows of a packed (all sequences) value that belong to this step."""
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
        """All reference steps concatenated along the axis in which their lengths add up."""
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
        """Length of the axis of 2-D inputs that is not sliced; 0 for other inputs."""
        inputs_shape, cut_axis = self._inputs_layout
        return inputs_shape[1 - cut_axis] if len(inputs_shape) == 2 else 0

    def _row_order(self, shape: Sequence[int], axis: int) -> Any:
        """Index that reorders concatenated packed rows to sequence order; a full slice for other values."""
        inputs_shape, cut_axis = self._inputs_layout
        is_flat = (
            len(inputs_shape) == 2 and (axis, cut_axis) == (0, 1) and shape[0] == math.prod(inputs_shape)
        )
        return to_tensor(token_row_order(inputs_shape[0], self._step_lengths)) if is_flat else slice(None)


def _is_model_input(record: Record) -> bool:
    """Whether it is an input of the model itself: only those decide whether steps are sliced."""
    return record.kind == "input" and not module_of(record.name, "input")


def _is_scalar_of_its_own(record: Record, full: Entry, shape: Sequence[int]) -> bool:
    """Whether it is a scalar that each slice of the inputs computes for itself, like a loss."""
    value = record.value
    if shape or full.shape or not _is_tensor(value) or not value.is_floating_point():
        return False
    return not math.isclose(float(value), float(full.load()), rel_tol=_SCALAR_TOLERANCE)


def _equals_slice(record: Record, full: Entry, shape: Sequence[int], span: _Span) -> bool:
    """Whether the record equals that slice of the full value."""
    slices = _slice_for(full.shape, shape, span)
    if slices is None or not _is_tensor(record.value):
        return False
    return bool((to_tensor(full.load()[slices]).to(record.value.device) == record.value).all())


def _is_close_to_slice(record: Record, full: Entry, slices: tuple[slice, ...]) -> bool:
    """Whether the record is close to that slice of the full value."""
    if not _is_tensor(record.value):
        return False
    own = record.value.detach().cpu().double()
    other = to_tensor(full.load()[slices]).cpu().double()
    return bool((own - other).norm() <= _MAX_DISTANCE * max(own.norm(), other.norm()))


def _is_tensor(value: Any) -> bool:
    return framework_of(value).name == "torch"


def _slice_for(full_shape: Sequence[int], shape: Sequence[int], span: _Span) -> tuple[slice, ...] | None:
    """The slices for `span` along the first differing axis; a second one, as of a mask or of attention
    weights, must end at `span[1]`."""
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
