"""tt.compare and tt.difference: whether two values, files or structures are equal, and how they differ."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensortap.comparison.sides.leaf import (
    PYTHON_NUMBERS,
    Operand,
    are_close,
    are_close_integers,
    are_equal,
    are_equal_arrays,
    as_operand,
    is_array_like,
    numeric_shape,
)
from tensortap.comparison.values.structure import LeafPair, describe_leaf, walk_leaf_pairs
from tensortap.core.patterns import natural_sort_key
from tensortap.core.registry import Registry
from tensortap.formats import serializers
from tensortap.frameworks.base import Description
from tensortap.kernels.accumulator import (
    DEFAULT_ATOL,
    DEFAULT_RTOL,
    ArrayDifference,
    LargestDifference,
    Number,
    Tolerance,
)
from tensortap.kernels.differences import is_within_tolerance, measure_differences
from tensortap.render import html

Comparator = Callable[[Any, Any, float, float], bool]

comparators: Registry[Comparator] = Registry("comparators")
_MAX_ROWS = 20
_HEADINGS = ("path", "A", "B", "mismatches", "max |a - b|", "max rel", "NaN A|B", "Inf A|B")
_COUNT_SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e4, "k"))


def register_comparator(types: type | tuple[type, ...], function: Comparator) -> None:
    """Compare values of these classes, and of classes below them, with `function(a, b, atol, rtol)`."""
    comparators.add(types, function)


def compare(
    a: Any,
    b: Any,
    atol: float = DEFAULT_ATOL,
    rtol: float = DEFAULT_RTOL,
    *,
    equal_nan: bool = False,
    trust: bool = False,
) -> bool:
    """Whether two values, or files of values, are equal: `|a - b| <= atol + rtol * |b|` everywhere.

    >>> compare(torch.zeros(2), np.zeros(2))
    True
    >>> compare("experiments/20251028_143041/loss.pt", "loss.npy")
    True

    Shapes must be the same. Integers are equal only exactly, unless you give a tolerance of your own.
    """
    tolerance = Tolerance(atol, rtol, equal_nan)
    leaf_pairs = walk_leaf_pairs(_load_if_path(a, trust), _load_if_path(b, trust), _has_comparator)
    return all(pair.reason is None and _is_pair_equal(pair, tolerance) for pair in leaf_pairs)


def difference(
    a: Any,
    b: Any,
    atol: float = DEFAULT_ATOL,
    rtol: float = DEFAULT_RTOL,
    *,
    equal_nan: bool = False,
    trust: bool = False,
) -> Difference:
    """How two values, or files of values, differ; printing it shows a table.

    >>> print(difference(before, after))
    different: 37 of 1,024 numbers (3.6 %) beyond atol + rtol*|b|; ...
    """
    tolerance = Tolerance(atol, rtol, equal_nan)
    leaf_pairs = walk_leaf_pairs(_load_if_path(a, trust), _load_if_path(b, trust), _has_comparator)
    return Difference(tuple(_compare_leaf(pair, tolerance) for pair in leaf_pairs), tolerance)


def _load_if_path(value: Any, trust: bool) -> Any:
    """The value itself, or the contents of the file it names."""
    if not _is_path(value):
        return value
    path = Path(value)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the path of a file in it, or a value")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the path of a dumped value, or a value")
    return serializers.load(path, trust=trust)


def _is_path(value: Any) -> bool:
    if not isinstance(value, str):
        return isinstance(value, os.PathLike)
    return value.lower().endswith(tuple(serializers.known_suffixes())) or os.path.exists(value)


def _find_comparator(a: Any, b: Any) -> Comparator | None:
    own = comparators.for_type(type(a))
    return own if own is not None else comparators.for_type(type(b))


def _has_comparator(a: Any, b: Any) -> bool:
    return _find_comparator(a, b) is not None


def _is_pair_equal(pair: LeafPair, tolerance: Tolerance) -> bool:
    if (
        type(pair.a) in PYTHON_NUMBERS
        and type(pair.b) in PYTHON_NUMBERS
        and not _has_comparator(pair.a, pair.b)
    ):
        return are_close(pair.a, pair.b, tolerance)
    numbers = _pair_operands(pair)
    if numbers is None or isinstance(numbers, str):
        return _compare_opaque(pair, numbers, tolerance)[0]
    a, b = numbers
    return is_within_tolerance(a.bits, a.dtype, b.bits, b.dtype, **_tolerance_kwargs(tolerance))


def _compare_leaf(pair: LeafPair, tolerance: Tolerance) -> LeafDifference:
    a, b = describe_leaf(pair.a), describe_leaf(pair.b)
    if pair.reason is not None:
        return LeafDifference(pair.path, a, b, is_equal=False, reason=pair.reason)
    numbers = _pair_operands(pair)
    if numbers is None or isinstance(numbers, str):
        equal, reason = _compare_opaque(pair, numbers, tolerance)
        return LeafDifference(pair.path, a, b, is_equal=equal, reason=None if equal else reason)
    a_operand, b_operand = numbers
    difference = measure_differences(
        a_operand.bits, a_operand.dtype, b_operand.bits, b_operand.dtype, **_tolerance_kwargs(tolerance)
    )
    return LeafDifference(pair.path, a, b, is_equal=not difference.mismatches, numbers=difference)


def _pair_operands(pair: LeafPair) -> tuple[Operand, Operand] | str | None:
    """The numbers of both sides; a message if they cannot be compared; None if they are not numeric."""
    if _has_comparator(pair.a, pair.b) or _are_big_ints(pair):
        return None
    a_shape, b_shape = numeric_shape(pair.a), numeric_shape(pair.b)
    if a_shape is None or b_shape is None:
        # A tensor's == returns a tensor, or raises; that of a Python number returns a bool.
        is_array = is_array_like(pair.a) or is_array_like(pair.b)
        return f"{type(pair.a).__name__} against {type(pair.b).__name__}" if is_array else None
    if a_shape != b_shape:
        return f"shapes differ: {list(a_shape)} against {list(b_shape)}"
    a, b = as_operand(pair.a), as_operand(pair.b)
    if a is None or b is None:
        return None if a is b else f"{describe_leaf(pair.a).dtype} against {describe_leaf(pair.b).dtype}"
    return a, b


def _are_big_ints(pair: LeafPair) -> bool:
    """Whether both are integers, and one exceeds 63 bits: only Python's own arithmetic is exact."""
    both = isinstance(pair.a, int) and isinstance(pair.b, int)
    return both and max(pair.a.bit_length(), pair.b.bit_length()) > 63


def _compare_opaque(pair: LeafPair, reason: str | None, tolerance: Tolerance) -> tuple[bool, str]:
    """Compare values that are not both numeric; return whether they are equal, and why not."""
    if reason is not None:
        return False, reason
    own = _find_comparator(pair.a, pair.b)
    if own is not None:
        return bool(
            own(pair.a, pair.b, tolerance.atol, tolerance.rtol)
        ), f"{_function_name(own)} says they differ"
    if _are_big_ints(pair):
        return are_close_integers(pair.a, pair.b, *tolerance.for_integers())
    if hasattr(pair.a, "dtype") and hasattr(pair.b, "dtype"):
        return _compare_opaque_arrays(pair, tolerance)
    return are_equal(pair.a, pair.b)


def _compare_opaque_arrays(pair: LeafPair, tolerance: Tolerance) -> tuple[bool, str]:
    return are_equal_arrays(pair.a, pair.b, equal_nan=tolerance.equal_nan), "the elements differ"


def _function_name(function: Comparator) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _tolerance_kwargs(tolerance: Tolerance) -> dict[str, Any]:
    return {"atol": tolerance.atol, "rtol": tolerance.rtol, "equal_nan": tolerance.equal_nan}


@dataclass(frozen=True, slots=True)
class LeafDifference:
    """One pair of leaves: what each side is, and how their numbers differ or why they cannot be compared."""

    path: str
    a: Description
    b: Description
    is_equal: bool
    numbers: ArrayDifference | None = None
    reason: str | None = None

    @property
    def differs(self) -> bool:
        """Whether there is any difference, even within tolerance."""
        return not self.is_equal or (self.numbers is not None and self.numbers.absolute is not None)


@dataclass(frozen=True, slots=True)
class Difference:
    """What `difference` found; `str()` is a table."""

    leaves: tuple[LeafDifference, ...]
    tolerance: Tolerance

    @property
    def equal(self) -> bool:
        return all(leaf.is_equal for leaf in self.leaves)

    @property
    def worst(self) -> LeafDifference | None:
        """The leaf that differs most, structural mismatches first; None if nothing differs."""
        return next(iter(_worst_first(self.leaves)), None)

    def __str__(self) -> str:
        return "\n".join([_summary_line(self), *_text_table(self)])

    def _repr_html_(self) -> str:
        rows, note = _table_rows(self)
        table = html.table([_HEADINGS, *rows]) if rows else ""
        footer = html.element("p", note) if note else ""
        return html.join(html.element("p", _summary_line(self)), table, footer)


def _worst_first(leaves: tuple[LeafDifference, ...]) -> list[LeafDifference]:
    return sorted((leaf for leaf in leaves if leaf.differs), key=_badness)


def _badness(leaf: LeafDifference) -> tuple[object, ...]:
    numbers = leaf.numbers
    if numbers is None:
        return (leaf.is_equal, False, 0, 0.0, natural_sort_key(leaf.path))
    far = numbers.relative_l2 if not math.isnan(numbers.relative_l2) else math.inf
    return (leaf.is_equal, True, -numbers.disagreeing, -far, natural_sort_key(leaf.path))


def _summary_line(difference: Difference) -> str:
    limits = f"atol={difference.tolerance.atol:g}, rtol={difference.tolerance.rtol:g}"
    if difference.equal:
        return f"equal within {limits}: {_describe_contents(difference.leaves)}"
    reasons = [leaf for leaf in difference.leaves if leaf.reason is not None]
    clauses = [
        _describe_reasons(reasons, len(difference.leaves)),
        _describe_mismatches(difference.leaves),
        *_describe_nonfinite(difference.leaves),
    ]
    return "different: " + "; ".join(clause for clause in clauses if clause)


def _describe_contents(leaves: tuple[LeafDifference, ...]) -> str:
    arrays = [leaf.numbers for leaf in leaves if leaf.numbers is not None and leaf.a.shape != ()]
    non_arrays = len(leaves) - len(arrays)
    parts = []
    if arrays:
        count = sum(numbers.count for numbers in arrays)
        parts = [_plural(len(arrays), "array"), f"{_format_count(count)} number{'s' if count != 1 else ''}"]
    if non_arrays or not arrays:
        parts.append(_plural(non_arrays, "other value" if arrays else "value"))
    return ", ".join(parts)


def _describe_reasons(reasons: list[LeafDifference], total: int) -> str:
    if not reasons:
        return ""
    first = f"{_path_prefix(reasons[0].path)}{reasons[0].reason}"
    return first if len(reasons) == 1 else f"{len(reasons):,} of {total:,} values do not match, first {first}"


def _describe_mismatches(leaves: tuple[LeafDifference, ...]) -> str:
    numbers = [leaf.numbers for leaf in leaves if leaf.numbers is not None]
    mismatches, count = (
        sum(difference.mismatches for difference in numbers),
        sum(difference.count for difference in numbers),
    )
    if not mismatches:
        return ""
    percent = _format_percent(mismatches, count)
    text = f"{mismatches:,} of {_plural(count, 'number')} ({percent}) beyond atol + rtol*|b|"
    largest = _describe_largest(leaves)
    return text if largest is None else f"{text}; largest |a - b| = {largest}"


def _describe_largest(leaves: tuple[LeafDifference, ...]) -> str | None:
    """The largest difference among the leaves that have mismatches."""
    extremes = [
        (leaf.numbers.absolute, leaf.path)
        for leaf in leaves
        if leaf.numbers is not None and leaf.numbers.absolute is not None and not leaf.is_equal
    ]
    if not extremes:
        return None
    extreme, path = max(extremes, key=lambda row: row[0].size)
    where = f"{_to_printable_ascii(path)}{list(extreme.index) if extreme.index else ''}"
    return f"{_format_number(extreme.size)}{' at ' + where if where else ''}: {_format_both_sides(extreme)}"


def _describe_nonfinite(leaves: tuple[LeafDifference, ...]) -> list[str]:
    numbers = [leaf.numbers for leaf in leaves if leaf.numbers is not None and not leaf.is_equal]
    one_sided, both = (
        sum(difference.disagreeing for difference in numbers),
        sum(difference.both_nan for difference in numbers),
    )
    clauses = []
    if one_sided:
        clauses.append(f"{one_sided:,} NaN or infinite on one side, not the same on the other")
    if both:
        clauses.append(f"{both:,} NaN on both sides (equal_nan=True takes them as equal)")
    return clauses


def _table_rows(difference: Difference) -> tuple[list[tuple[str, ...]], str]:
    """The rows of the worst leaves, and a line that counts the others."""
    ranked = _worst_first(difference.leaves)
    hidden, equal = max(0, len(ranked) - _MAX_ROWS), len(difference.leaves) - len(ranked)
    counts = [(hidden, "more that differ"), (equal, "the same")]
    note = ", ".join(f"{count:,} {label}" for count, label in counts if count)
    return [_table_row(leaf) for leaf in ranked[:_MAX_ROWS]], f"... and {note}" if note and ranked else ""


def _table_row(leaf: LeafDifference) -> tuple[str, ...]:
    start = (_to_printable_ascii(leaf.path) or ".", _format_description(leaf.a), _format_description(leaf.b))
    numbers = leaf.numbers
    if numbers is None:
        return (*start, _to_printable_ascii(leaf.reason or ""))
    counted = f"{numbers.mismatches:,} ({_format_percent(numbers.mismatches, numbers.count)})"
    relative = _format_number(numbers.relative.size) if numbers.relative else "0"
    nan, inf = (f"{a}|{b}" for a, b in (numbers.nan, numbers.inf))
    return (*start, counted, _format_extreme(numbers.absolute), relative, nan, inf)


def _format_extreme(extreme: LargestDifference | None) -> str:
    if extreme is None:
        return "0"
    index = f" at {list(extreme.index)}" if extreme.index else ""
    return f"{_format_number(extreme.size)}{index}: {_format_both_sides(extreme)}"


def _text_table(difference: Difference) -> list[str]:
    rows, note = _table_rows(difference)
    if not rows:
        return []
    # A reason overflows to the right instead of widening the columns.
    full_rows = [_HEADINGS, *(row for row in rows if len(row) == len(_HEADINGS))]
    columns = range(len(_HEADINGS))
    widths = [max(len(row[i]) for row in ([_HEADINGS, *rows] if i < 3 else full_rows)) for i in columns]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()
        for row in (_HEADINGS, *rows)
    ]
    return [*lines, note] if note else lines


def _format_description(description: Description) -> str:
    shape = str(list(description.shape)) if description.shape or description.layout != "python" else ""
    dtype = description.dtype if description.layout != "python" else ""
    return _to_printable_ascii(" ".join(part for part in (description.type, dtype, shape) if part))


def _path_prefix(path: str) -> str:
    return f"{_to_printable_ascii(path)}: " if path else ""


def _to_printable_ascii(text: str) -> str:
    """Escape everything but printable ASCII, so that keys and reprs stay on one line."""
    return "".join(
        character if " " <= character <= "~" else character.encode("unicode_escape").decode()
        for character in text
    )


def _format_percent(part: int, total: int) -> str:
    percent = 100 * part / total if total else 0.0
    if 99.95 <= percent < 100:
        return ">99.9 %"
    return "<0.1 %" if 0 < percent < 0.05 else f"{percent:.1f} %".replace(".0 %", " %")


def _format_count(count: int) -> str:
    for size, letter in _COUNT_SUFFIXES:
        if count >= size:
            return f"{count / (1e3 if letter == 'k' else size):.1f} {letter}"
    return f"{count:,}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _format_number(value: Number) -> str:
    return f"{value:.6g}" if isinstance(value, (float, complex)) else str(value)


def _format_both_sides(extreme: LargestDifference) -> str:
    a, b = _format_number(extreme.a), _format_number(extreme.b)
    if a == b and extreme.a != extreme.b:
        a, b = str(extreme.a), str(extreme.b)
    return f"{a} against {b}"
