"""How far two values are apart, in numbers that do not depend on who is called A and who B."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensortap.comparison.masks import as_mask, lowest, masked, without_mask
from tensortap.comparison.operands import Operand, are_equal, is_number, operand, shape_of_numbers
from tensortap.comparison.structure import Pair, pairs
from tensortap.kernels.along import worst_of_both
from tensortap.kernels.differences import ArrayDifference, Extreme, differences
from tensortap.kernels.many import Account, Report, Terms, are_discrete, columns_of
from tensortap.kernels.numbers import Array
from tensortap.kernels.tally import apart, index_of

_PLAIN = (str, bytes, bool, int, float, complex, type(None))


class _Unfolding:
    """What the kernels reported of a pair: most of it is asked for of few pairs, and made when it is."""

    __slots__ = ("_report", "_shape")
    _report: Report | None
    _shape: tuple[int, ...]

    if not TYPE_CHECKING:  # it would let any name pass

        def __getattr__(self, name: str) -> Any:
            # Only what was left open comes here: `from_report` fills the others.
            if name not in _OPEN:
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            for one, value in zip(_OPEN, _unfolded(self._report, self._shape), strict=True):
                setattr(self, one, value)
            return getattr(self, name)


# Not frozen: one is made for every pair, and freezing takes seven times as long. Nobody changes it.
@dataclass(slots=True)
class Metrics(_Unfolding):
    """How two values differ. Everything relative speaks of the larger side, so it is the same seen from
    either. `row` and `column` are the worst along the last axis and across it, with their positions.

    `reason` says why nothing was measured: another shape, another structure. `is_opaque` means that the
    values are neither numbers nor text, so that a difference between them says nothing."""

    count: int = 0
    is_identical: bool = False
    is_discrete: bool = False
    relative_l2: float = 0.0
    row: float = 0.0
    column: float = 0.0
    worst_row: int = -1
    worst_column: int = -1
    absolute: Extreme | None = None
    cosine_distance: float | None = None
    gain: float | None = None
    bias: float = 0.0
    mismatches: int = 0
    nan: tuple[int, int] = (0, 0)
    inf: tuple[int, int] = (0, 0)
    disagreeing: int = 0  # not finite on one side, something else on the other
    masked: int = 0  # of those: minus infinity on one side, a number on the other
    norms: tuple[float, float] = (0.0, 0.0)
    part: str = ""  # of a nested value: the leaf that differs most
    reason: str = ""
    is_opaque: bool = False

    @property
    def is_nonfinite(self) -> bool:
        """Whether a NaN or an infinity that nobody meant stands against something else."""
        return self.disagreeing > self.masked

    def __reduce__(self) -> tuple[Any, ...]:
        """Short, as it was reported: it may come from another process."""
        report = getattr(self, "_report", None)
        if report is not None:
            return _of_report, (report, self._shape, self.count)
        return Metrics, tuple(getattr(self, one.name) for one in fields(self))


_OPEN = (
    "worst_row", "worst_column", "absolute", "cosine_distance", "gain", "bias",
    "mismatches", "nan", "inf", "norms", "part",
)  # fmt: skip


def measure(a: Any, b: Any, *, threads: int | None = None) -> Metrics:
    """How two values differ; of nested ones the leaf that differs most."""
    are_whole = not any(map(_comes_apart, (a, b)))
    if are_whole and shape_of_numbers(a) is not None and shape_of_numbers(b) is not None:
        return _of_leaf(Pair("", a, b), threads)
    found = [(pair, _of_leaf(pair, threads)) for pair in pairs(a, b, _is_leaf)]
    if not found:
        return Metrics(is_identical=True, is_discrete=True)
    pair, worst = max(found, key=lambda one: _badness(one[1]))
    is_same = all(one.is_identical for _, one in found)
    count = sum(one.count for _, one in found)
    return replace(worst, count=count, is_identical=is_same, part=pair.path)


def measure_operands(a: Operand, b: Operand, *, threads: int | None = None) -> Metrics:
    """How the numbers of two arrays differ."""
    if a.bits.shape != b.bits.shape:
        return Metrics(
            reason=f"shapes differ: {list(a.bits.shape)} against {list(b.bits.shape)}", count=a.bits.size
        )
    found = differences(a.bits, a.dtype, b.bits, b.dtype, threads=threads)
    if are_discrete(a.dtype, b.dtype):
        return _of_discrete(found)
    if found.disagreeing or _reaches(found.a.min, a) or _reaches(found.b.min, b):
        x, y = without_mask(a), without_mask(b)
        x, y = as_mask(x, y), as_mask(y, x)
        if x is not a or y is not b:
            a, b = x, y
            found = differences(a.bits, a.dtype, b.bits, b.dtype, threads=threads)
    return _of_numbers(found, a, b, threads)


def from_report(report: Report, known: Terms) -> Metrics | None:
    """The same as `measure_operands`, of what the kernels found in many pairs at once; None where it takes
    another look: there are masks, or numbers that are not finite on one side."""
    if known.are_integers:
        return _of_decisions(Account._make(report), known.shape)
    a_lowest, b_lowest = lowest(known.a_dtype), lowest(known.b_dtype)
    if report[_DISAGREEING] or report[_A_MIN] <= a_lowest or report[_B_MIN] <= b_lowest:
        return None
    return _of_report(report, known.shape, known.size)


# Where these stand in a report: to make an account of each would take as long as all else.
_DISAGREEING, _GAP_SQUARES, _A_SQUARES, _B_SQUARES, _A_MIN, _B_MIN, _LARGEST, _ROW, _COLUMN = map(
    Account._fields.index,
    ("disagreeing", "gap_squares", "a_squares", "b_squares", "a_min", "b_min", "largest", "row", "column"),
)


def _of_report(report: Report, shape: tuple[int, ...], count: int) -> Metrics:
    x, y, largest = report[_A_SQUARES], report[_B_SQUARES], report[_LARGEST]
    made = Metrics.__new__(Metrics)
    made._report, made._shape = report, shape  # type: ignore[misc]  # slots of its base
    made.count = count
    made.is_identical, made.is_discrete, made.is_opaque = not largest, False, False
    made.relative_l2 = math.sqrt(report[_GAP_SQUARES]) / math.sqrt(x if x > y else y) if largest else 0.0
    made.row, made.column = report[_ROW], report[_COLUMN]
    made.disagreeing = made.masked = 0
    made.reason = ""
    return made


def _unfolded(report: Report, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """What `_OPEN` names."""
    found = Account._make(report)
    norms = x, y = math.sqrt(found.a_squares), math.sqrt(found.b_squares)
    gap, longest = math.sqrt(found.gap_squares), max(norms)
    gain = cosine_distance = absolute = None
    if x and y:
        gain = found.product / y / y
        along = found.product / longest / longest
        cosine_distance = apart(gap / longest, along, x / longest, y / longest)
    if found.largest:
        absolute = Extreme(found.largest, index_of(found.position, shape), found.a, found.b)
    bias = found.total / found.finite if found.finite else 0.0
    nan, inf = (found.a_nan, found.b_nan), (found.a_inf, found.b_inf)
    return found.worst_row, found.worst_column, absolute, cosine_distance, gain, bias, 0, nan, inf, norms, ""


def _of_decisions(found: Account, shape: tuple[int, ...]) -> Metrics:
    differing = found.above + found.below
    if differing:
        index = index_of(found.position, shape)
        absolute = Extreme(int(found.largest), index, int(found.a), int(found.b))
    return Metrics(
        count=math.prod(shape),
        is_identical=differing == 0,
        is_discrete=True,
        mismatches=differing,
        absolute=absolute if differing else None,
        norms=(math.sqrt(found.a_squares), math.sqrt(found.b_squares)),
    )


def _of_leaf(pair: Pair, threads: int | None) -> Metrics:
    if pair.reason is not None:
        return Metrics(reason=pair.reason)
    a_shape, b_shape = shape_of_numbers(pair.a), shape_of_numbers(pair.b)
    if a_shape is not None and b_shape is not None:
        if a_shape != b_shape:
            return Metrics(reason=f"shapes differ: {list(a_shape)} against {list(b_shape)}")
        a, b = operand(pair.a), operand(pair.b)
        if a is not None and b is not None:
            return measure_operands(a, b, threads=threads)
    return _of_others(pair)


def _of_others(pair: Pair) -> Metrics:
    """What only knows ==: text counts as a decision, an object that is not equal says nothing."""
    if _are_texts(pair.a, pair.b):
        return _of_texts(pair.a, pair.b)
    is_same, told = are_equal(pair.a, pair.b)
    if is_same:
        return Metrics(count=1, is_identical=True, is_discrete=True)
    if isinstance(pair.a, _PLAIN) and isinstance(pair.b, _PLAIN):
        return Metrics(count=1, is_discrete=True, mismatches=1, reason="" if _are_text(pair) else told)
    return Metrics(count=1, is_opaque=True, reason=told)


def _comes_apart(value: Any) -> bool:
    """Whether it is an array of several fields, or of objects."""
    return isinstance(value, np.ndarray) and (value.dtype.names is not None or value.dtype.hasobject)


def _are_texts(a: Any, b: Any) -> bool:
    are_arrays = isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.shape == b.shape
    return are_arrays and a.dtype.kind in "USmM" and a.dtype.kind == b.dtype.kind


def _of_texts(a: Array, b: Array) -> Metrics:
    """Texts and times one by one; a time that is none is itself."""
    apart = int(np.count_nonzero((a != b) & ((a == a) | (b == b))))
    return Metrics(count=a.size, is_identical=not apart, is_discrete=True, mismatches=apart)


def _are_text(pair: Pair) -> bool:
    return isinstance(pair.a, (str, bytes)) and type(pair.a) is type(pair.b)


def _is_leaf(a: Any, b: Any) -> bool:
    return is_number(a) and is_number(b)


def _badness(found: Metrics) -> tuple[bool, bool, bool, float]:
    is_apart = bool(found.reason) and not found.is_opaque
    return is_apart, found.is_nonfinite, found.mismatches > 0, max(found.relative_l2, found.row)


def _of_discrete(found: ArrayDifference) -> Metrics:
    differing = found.above + found.below
    return Metrics(
        count=found.count,
        is_identical=differing == 0,
        is_discrete=True,
        mismatches=differing,
        absolute=found.absolute,
        norms=(found.a.norm, found.b.norm),
    )


def _of_numbers(found: ArrayDifference, a: Operand, b: Operand, threads: int | None) -> Metrics:
    is_same = found.absolute is None and not found.disagreeing
    rows, columns = ((0.0, -1), (0.0, -1)) if found.absolute is None else _along(found, a, b, threads)
    return Metrics(
        count=found.count,
        is_identical=is_same,
        relative_l2=_relative(found),
        row=rows[0],
        column=columns[0],
        worst_row=rows[1],
        worst_column=columns[1],
        absolute=found.absolute,
        cosine_distance=found.cosine_distance,
        gain=found.gain,
        bias=found.bias,
        nan=found.nan,
        inf=found.inf,
        disagreeing=found.disagreeing,
        masked=masked(a, b) if found.disagreeing else 0,
        norms=(found.a.norm, found.b.norm),
    )


def _relative(found: ArrayDifference) -> float:
    """|a - b| of the larger side."""
    a, b = found.a.norm, found.b.norm
    if found.absolute is None:
        return 0.0
    return 1.0 if not b else found.relative_l2 * min(1.0, b / a if a else 1.0)


def _along(
    found: ArrayDifference, a: Operand, b: Operand, threads: int | None
) -> tuple[tuple[float, int], tuple[float, int]]:
    """The worst row and the worst column, of the larger side."""
    if not columns_of(a.bits.shape):
        return (0.0, -1), (0.0, -1)
    smaller, larger = (b, a) if found.a.norm > found.b.norm else (a, b)
    x, y = (one.bits.reshape(-1, one.bits.shape[-1]) for one in (smaller, larger))
    are_finite = not any((*found.nan, *found.inf))
    return worst_of_both(x, smaller.dtype, y, larger.dtype, are_finite=are_finite, threads=threads)


def _reaches(low: int | float | None, side: Operand) -> bool:
    return low is not None and low <= lowest(side.dtype)
