"""How far two values are apart, in numbers that do not depend on who is called A and who B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tensortap.comparison.masks import (
    bool_mask_to_additive,
    count_one_sided_masked,
    mask_threshold,
    mask_values_to_inf,
)
from tensortap.comparison.operands import (
    Operand,
    are_equal,
    as_operand,
    is_big_int,
    is_composite_array,
    is_number,
    numeric_shape,
)
from tensortap.comparison.reported import Metrics as Metrics
from tensortap.comparison.reported import are_norms_tied
from tensortap.comparison.reported import metrics_from_report as metrics_from_report
from tensortap.comparison.structure import LeafPair, walk_leaf_pairs
from tensortap.kernels.accumulator import ArrayDifference
from tensortap.kernels.batched import are_discrete, last_axis_length
from tensortap.kernels.decode import Array
from tensortap.kernels.differences import measure_differences
from tensortap.kernels.per_axis import worst_row_and_column

_PLAIN_TYPES = (str, bytes, bool, int, float, complex, type(None))


def measure(a: Any, b: Any, *, threads: int | None = None) -> Metrics:
    """How two values differ; of nested ones the leaf that differs most."""
    are_whole = not any(map(is_composite_array, (a, b)))
    if are_whole and numeric_shape(a) is not None and numeric_shape(b) is not None:
        return _measure_leaf(LeafPair("", a, b), threads)
    measurements = [(pair, _measure_leaf(pair, threads)) for pair in walk_leaf_pairs(a, b, _is_leaf)]
    if not measurements:
        return Metrics(is_identical=True, is_discrete=True)
    pair, worst = max(measurements, key=lambda measurement: _badness(measurement[1]))
    is_same = all(metrics.is_identical for _, metrics in measurements)
    count = sum(metrics.count for _, metrics in measurements)
    return replace(worst, count=count, is_identical=is_same, part=pair.path)


def measure_operands(a: Operand, b: Operand, *, threads: int | None = None) -> Metrics:
    """How the numbers of two arrays differ."""
    if a.bits.shape != b.bits.shape:
        return Metrics(
            reason=f"shapes differ: {list(a.bits.shape)} against {list(b.bits.shape)}", count=a.bits.size
        )
    difference = measure_differences(a.bits, a.dtype, b.bits, b.dtype, threads=threads)
    if are_discrete(a.dtype, b.dtype):
        return _discrete_metrics(difference)
    if (
        difference.disagreeing
        or _reaches_mask_value(difference.a.min, a)
        or _reaches_mask_value(difference.b.min, b)
    ):
        x, y = mask_values_to_inf(a), mask_values_to_inf(b)
        x, y = bool_mask_to_additive(x, y), bool_mask_to_additive(y, x)
        if x is not a or y is not b:
            a, b = x, y
            difference = measure_differences(a.bits, a.dtype, b.bits, b.dtype, threads=threads)
    return _float_metrics(difference, a, b, threads)


def _measure_leaf(pair: LeafPair, threads: int | None) -> Metrics:
    if pair.reason is not None:
        return Metrics(reason=pair.reason)
    a_shape, b_shape = numeric_shape(pair.a), numeric_shape(pair.b)
    if a_shape is not None and b_shape is not None:
        if a_shape != b_shape:
            return Metrics(reason=f"shapes differ: {list(a_shape)} against {list(b_shape)}")
        if is_big_int(pair.a) or is_big_int(pair.b):
            return _measure_big_ints(pair)
        a, b = as_operand(pair.a), as_operand(pair.b)
        if a is not None and b is not None:
            return measure_operands(a, b, threads=threads)
    return _measure_opaque(pair)


def _measure_big_ints(pair: LeafPair) -> Metrics:
    """Integers of any length, exactly; beside a number of another kind the nearest that there is."""
    if pair.a == pair.b:
        return Metrics(count=1, is_identical=True, is_discrete=True)
    a, b = as_operand(pair.a), as_operand(pair.b)
    if (isinstance(pair.a, int) and isinstance(pair.b, int)) or a is None or b is None:
        return Metrics(count=1, is_discrete=True, mismatches=1)
    metrics = measure_operands(a, b)
    return (
        replace(metrics, is_identical=False, is_discrete=True, mismatches=1)
        if metrics.is_identical
        else metrics
    )


def _measure_opaque(pair: LeafPair) -> Metrics:
    """What only knows ==: text counts as a decision, an object that is not equal says nothing."""
    if _are_string_arrays(pair.a, pair.b):
        return _measure_string_arrays(pair.a, pair.b)
    is_same, reason = are_equal(pair.a, pair.b)
    if is_same:
        return Metrics(count=1, is_identical=True, is_discrete=True)
    if isinstance(pair.a, _PLAIN_TYPES) and isinstance(pair.b, _PLAIN_TYPES):
        return Metrics(count=1, is_discrete=True, mismatches=1, reason="" if _are_strings(pair) else reason)
    return Metrics(count=1, is_opaque=True, reason=reason)


def _are_string_arrays(a: Any, b: Any) -> bool:
    are_arrays = isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape
    return are_arrays and a.dtype.kind in "USmMV" and a.dtype.kind == b.dtype.kind


def _measure_string_arrays(a: Array, b: Array) -> Metrics:
    """Texts and times one by one; a time that is none is itself."""
    apart = int(np.count_nonzero((a != b) & ((a == a) | (b == b))))
    return Metrics(count=a.size, is_identical=not apart, is_discrete=True, mismatches=apart)


def _are_strings(pair: LeafPair) -> bool:
    return isinstance(pair.a, (str, bytes)) and type(pair.a) is type(pair.b)


def _is_leaf(a: Any, b: Any) -> bool:
    return is_number(a) and is_number(b)


def _badness(metrics: Metrics) -> tuple[bool, bool, bool, float]:
    is_apart = bool(metrics.reason) and not metrics.is_opaque
    return is_apart, metrics.is_nonfinite, metrics.mismatches > 0, max(metrics.relative_l2, metrics.row)


def _discrete_metrics(difference: ArrayDifference) -> Metrics:
    differing = difference.above + difference.below
    return Metrics(
        count=difference.count,
        is_identical=differing == 0,
        is_discrete=True,
        mismatches=differing,
        absolute=difference.absolute,
        norms=(difference.a.norm, difference.b.norm),
    )


def _float_metrics(difference: ArrayDifference, a: Operand, b: Operand, threads: int | None) -> Metrics:
    is_same = difference.absolute is None and not difference.disagreeing
    rows, columns = (
        ((0.0, -1), (0.0, -1))
        if difference.absolute is None
        else _worst_row_and_column(difference, a, b, threads)
    )
    return Metrics(
        count=difference.count,
        is_identical=is_same,
        relative_l2=_symmetric_relative_l2(difference),
        row=rows[0],
        column=columns[0],
        worst_row=rows[1],
        worst_column=columns[1],
        absolute=difference.absolute,
        cosine_distance=difference.cosine_distance,
        gain=difference.gain,
        bias=difference.bias,
        nan=difference.nan,
        inf=difference.inf,
        disagreeing=difference.disagreeing,
        masked=count_one_sided_masked(a, b) if difference.disagreeing else 0,
        norms=(difference.a.norm, difference.b.norm),
    )


def _symmetric_relative_l2(difference: ArrayDifference) -> float:
    """|a - b| of the larger side."""
    a, b = difference.a.norm, difference.b.norm
    if difference.absolute is None:
        return 0.0
    return 1.0 if not b else difference.relative_l2 * min(1.0, b / a if a else 1.0)


def _worst_row_and_column(
    difference: ArrayDifference, a: Operand, b: Operand, threads: int | None
) -> tuple[tuple[float, int], tuple[float, int]]:
    """The worst row and the worst column, of the larger side; where neither is, the worse of both."""
    if not last_axis_length(a.bits.shape):
        return (0.0, -1), (0.0, -1)
    are_finite = not any((*difference.nan, *difference.inf))

    def of(operand: Operand, base: Operand) -> tuple[tuple[float, int], tuple[float, int]]:
        x, y = (side.bits.reshape(-1, side.bits.shape[-1]) for side in (operand, base))
        return worst_row_and_column(x, operand.dtype, y, base.dtype, are_finite=are_finite, threads=threads)

    if are_norms_tied(difference.a.norm, difference.b.norm):
        relative_to_a, relative_to_b = of(b, a), of(a, b)
        return max(relative_to_a[0], relative_to_b[0]), max(relative_to_a[1], relative_to_b[1])
    return of(b, a) if difference.a.norm > difference.b.norm else of(a, b)


def _reaches_mask_value(low: int | float | None, side: Operand) -> bool:
    return low is not None and low <= mask_threshold(side.dtype)
