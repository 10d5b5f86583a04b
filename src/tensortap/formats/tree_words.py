"""The words of a line in a tree of values: numbers, types, ranges, repetitions and what is unusual."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tensortap.formats.rows import Number, ValueRow
from tensortap.formats.tree_names import ranges

_SHORT_DTYPES = (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i"))
_MAX_INTEGER_DIGITS = 7
_MAX_TYPES = 2


def format_number(value: Number) -> str:
    """Three significant digits; an integer whole while it is short; a truth value by its name."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        if abs(value) < 10**_MAX_INTEGER_DIGITS:
            return str(value)
        if value.bit_length() > 1000:
            return f"{'-' if value < 0 else ''}2^{value.bit_length() - 1}+"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 999.5:
        return f"{value:#.3g}".removesuffix(".")
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits}e{int(exponent)}"


def short_dtype(dtype: str) -> str:
    """`f32` for float32; a name that is no number type stays."""
    for long, short in _SHORT_DTYPES:
        if re.fullmatch(rf"{long}\d+\w*", dtype):
            return short + dtype.removeprefix(long)
    return dtype


def describe_type(rows: Sequence[ValueRow], usual_dtype: str, usual_device: str) -> str:
    """Type, shape and device as far as they are not the usual ones: `[4,64]`, `i64[4,64] cuda:1`."""
    groups: dict[tuple[str, str, int], list[ValueRow]] = {}
    for row in rows:
        rank = -1 if row.shape is None else len(row.shape)
        groups.setdefault((row.dtype, row.device, rank), []).append(row)
    words = [_describe_type_group(group, usual_dtype, usual_device) for group in groups.values()]
    more = ["..."] if len(words) > _MAX_TYPES else []
    return " | ".join(words[:_MAX_TYPES] + more)


def _describe_type_group(rows: list[ValueRow], usual_dtype: str, usual_device: str) -> str:
    first = rows[0]
    if first.shape is None:
        return short_dtype(first.dtype)
    sizes = [sorted(set(column)) for column in zip(*(row.shape or () for row in rows), strict=True)]
    shape = ",".join(str(size[0]) if len(size) == 1 else f"{size[0]}..{size[-1]}" for size in sizes)
    dtype = "" if first.dtype == usual_dtype else short_dtype(first.dtype)
    device = "" if first.device in (usual_device, "") else f" {first.device}"
    return f"{dtype}[{shape}]{device}"


def format_range(rows: Sequence[ValueRow]) -> tuple[str, str]:
    """The lowest and the highest finite number of all rows; one word where a range says less."""
    known = [row for row in rows if row.low is not None and row.high is not None]
    if not known:
        return "", ""
    if all(row.dtype == "bool" and row.shape is not None for row in known):
        return f"{_percent_true(known)} true", ""
    low = min(row.low for row in known if row.low is not None)
    high = max(row.high for row in known if row.high is not None)
    if low != high:
        return format_number(low), format_number(high)
    is_one = all(row.count == 1 for row in known)
    return (format_number(low) if is_one else f"all {format_number(low)}"), ""


def _percent_true(rows: list[ValueRow]) -> str:
    count = sum(row.count for row in rows)
    share = 100 * sum((row.mean or 0.0) * row.count for row in rows) / count if count else 0.0
    if 0 < share < 0.1 or 99.9 < share < 100:
        return "<0.1%" if share < 50 else ">99.9%"
    return f"{share:.3g}%"


def format_std_trend(ends: Sequence[ValueRow]) -> str:
    """Sigma, from the first to the last; of single numbers the numbers themselves."""
    if not ends:
        return ""
    if all(row.count == 1 for row in ends):
        values = [format_number(row.low) for row in ends if row.low is not None]
        return f"{values[0]} -> {values[-1]}" if len(set(values)) > 1 else ""
    if any(row.sigma is None or row.dtype == "bool" or row.low == row.high for row in ends):
        return ""
    first, last = (format_number(row.sigma or 0.0) for row in (ends[0], ends[-1]))
    return f"s={first}" if first == last else f"s {first} -> {last}"


def describe_anomaly(row: ValueRow, is_first_nan: bool, is_first_inf: bool) -> str:
    """What is unusual about the value: `3 NaN (first in run), 2 Inf`."""
    if not (row.nan or row.inf):
        return row.note
    return ", ".join(
        f"{'all' if 1 < count == row.count else count} {what}{' (first in run)' if is_first else ''}"
        for count, what, is_first in ((row.nan, "NaN", is_first_nan), (row.inf, "Inf", is_first_inf))
        if count
    )


def describe_repeats(rows: Sequence[ValueRow], has_steps: bool, has_ranks: bool) -> str:
    """How often a value was seen: `x3 calls, steps 0-9`."""
    calls = max(Counter((row.name, row.step, row.rank) for row in rows).values(), default=0)
    words = [f"x{calls} calls"] if calls > 1 else []
    for is_told, what, found in (
        (has_steps, "step", {row.step for row in rows}),
        (has_ranks, "rank", {row.rank for row in rows}),
    ):
        if is_told:
            flat = [each for one in found for each in (one if isinstance(one, tuple) else (one,))]
            words.append(f"{what}{'s' if len(set(flat)) > 1 else ''} {ranges(flat)}")
    return ", ".join(words)


def join_notes(rows: Sequence[ValueRow]) -> str:
    return ", ".join(dict.fromkeys(row.note for row in rows if row.note))


def pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def escape_unprintable(text: str) -> str:
    """On one line, whatever a name or a note holds."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in text
    )
