"""Numbers, dtypes, ranges and repeats as words; names of captured values by module, folded where numbered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tensortap.core.record import Kind

if TYPE_CHECKING:
    from tensortap.render.histogram import Number
    from tensortap.render.value_rows import ValueRow  # with numpy, which a plain table does without

_SHORT_DTYPES = (("bfloat", "bf"), ("float", "f"), ("complex", "c"), ("uint", "u"), ("int", "i"))
_MAX_INTEGER_DIGITS = 7
_MAX_TYPES = 2


def format_number(value: Number) -> str:
    """Three significant digits; short integers in full; bools by name."""
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
    """`f32` for float32; other names unchanged."""
    for long, short in _SHORT_DTYPES:
        if re.fullmatch(rf"{long}\d+\w*", dtype):
            return short + dtype.removeprefix(long)
    return dtype


def describe_type(rows: Sequence[ValueRow], usual_dtype: str, usual_device: str) -> str:
    """Dtype, shape and device, omitting the usual ones: `[4,64]`, `i64[4,64] cuda:1`."""
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
    """The minimum and maximum finite element of all rows; one word where a range says less."""
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
    """Sigma from the first to the last row; for scalars the numbers themselves."""
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
    """What is anomalous about the value: `3 NaN (first in run), 2 Inf`."""
    if not (row.nan or row.inf):
        return row.note
    return ", ".join(
        f"{'all' if 1 < count == row.count else count} {what}{' (first in run)' if is_first else ''}"
        for count, what, is_first in ((row.nan, "NaN", is_first_nan), (row.inf, "Inf", is_first_inf))
        if count
    )


def describe_repeats(rows: Sequence[ValueRow], has_steps: bool, has_ranks: bool) -> str:
    """How often a value was captured: `x3 calls, steps 0-9`."""
    calls = max(Counter((row.name, row.step, row.rank) for row in rows).values(), default=0)
    words = [f"x{calls} calls"] if calls > 1 else []
    for is_shown, what, numbers in (
        (has_steps, "step", {row.step for row in rows}),
        (has_ranks, "rank", {row.rank for row in rows}),
    ):
        if is_shown:
            flat = [
                part for number in numbers for part in (number if isinstance(number, tuple) else (number,))
            ]
            words.append(f"{what}{'s' if len(set(flat)) > 1 else ''} {format_ranges(flat)}")
    return ", ".join(words)


def join_some(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = f", ... {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def join_notes(rows: Sequence[ValueRow]) -> str:
    return ", ".join(dict.fromkeys(row.note for row in rows if row.note))


def pluralize(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def escape_unprintable(text: str) -> str:
    """On one line, with unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode("ascii")
        for letter in text
    )


_ITEM = r"\[(?:'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|[^\]]*)\]"
_SPLIT = re.compile(rf"({_ITEM})|\.")
_DOTTED = re.compile(rf"\w+(?:#-?\d+)?(?:\.\w+(?:#-?\d+)?|{_ITEM})*")
_ARROWS: dict[Kind, str] = {
    "output": "->",
    "return": "->",
    "grad_output": "->",
    "input": "<-",
    "grad_input": "<-",
    "call": "<-",
}
_MAX_SEGMENTS = 60  # trees are traversed recursively
_MAX_RANGES = 6
_MAX_INDEX_DIGITS = 10


class ValueLocation(NamedTuple):
    """Where a value belongs: the segments of its module, its label there, and its direction."""

    module: tuple[str, ...]
    label: str
    arrow: str


def locate_values(rows: Sequence[ValueRow]) -> dict[str, ValueLocation]:
    """The location of every name; a name's meaning may depend on which others exist."""
    kinds: dict[str, Kind] = {}
    for row in rows:
        kinds.setdefault(row.name, row.kind)
    return {name: _locate(name, kinds) for name in kinds}


def _locate(name: str, kinds: Mapping[str, Kind]) -> ValueLocation:
    bare = name.removesuffix(".grad")
    is_gradient = bare != name and kinds[name] != "value"
    kind = kinds.get(bare, kinds[name]) if is_gradient else kinds[name]
    location = _locate_by_kind(bare if is_gradient else name, kind, kinds)
    if not is_gradient:
        return location
    return location._replace(label=f"{location.label}.grad" if location.label else "grad")


def _locate_by_kind(name: str, kind: Kind, kinds: Mapping[str, Kind]) -> ValueLocation:
    arrow = _ARROWS.get(kind, "=")
    segments, items = _split_name(name, kind)
    if kind in ("input", "grad_input") and "in" in segments:
        at = segments.index("in")
        return ValueLocation(segments[:at], ".".join(segments[at + 1 :]) + items, arrow)
    if kind == "param" and segments[-1] == "after_step":
        return ValueLocation(segments[:-2], ".".join(segments[-2:]) + items, arrow)
    if kind not in ("output", "grad_output"):
        return ValueLocation(segments[:-1], segments[-1] + items, arrow)
    at = segments.index("out") if "out" in segments else -1
    names_a_part = at == 0 or (0 < at < len(segments) - 1 and ".".join(segments[: at + 1]) not in kinds)
    if names_a_part:
        return ValueLocation(segments[:at], ".".join(("", *segments[at + 1 :])).rstrip(".") + items, arrow)
    return ValueLocation(segments, items, arrow)


def _split_name(name: str, kind: Kind) -> tuple[tuple[str, ...], str]:
    """The dotted segments, and the items (`[0]['k']`) from the first bracket on. Free text is not split,
    nor is a name with an empty segment: `../../x`."""
    if kind == "value" and not _DOTTED.fullmatch(name):
        return (name,), ""
    bracket = next((match.start() for match in _SPLIT.finditer(name) if match.group(1)), len(name))
    parts = name[:bracket].split(".")
    if not all(parts):
        return (name[:bracket],), name[bracket:]
    if len(parts) > _MAX_SEGMENTS:
        parts = [*parts[:_MAX_SEGMENTS], ".".join(parts[_MAX_SEGMENTS:])]
    return tuple(parts), name[bracket:]


def is_list_index(segment: str) -> bool:
    """Whether the segment is an index in a module list, rather than digits in a name."""
    return segment.isascii() and segment.isdecimal() and len(segment) < _MAX_INDEX_DIGITS


def format_ranges(indices: Iterable[int]) -> str:
    """`0-6,8-11`; of very many ranges the first and the last."""
    bounds: list[list[int]] = []
    for index in sorted(set(indices)):
        if bounds and index == bounds[-1][1] + 1:
            bounds[-1][1] = index
        else:
            bounds.append([index, index])
    written = [str(low) if low == high else f"{low}-{high}" for low, high in bounds]
    if len(written) > _MAX_RANGES:
        written = [*written[: _MAX_RANGES - 2], "...", written[-1]]
    return ",".join(written)


def fold_numbered_names(names: Iterable[str]) -> list[str]:
    """Names that differ in one number written as one: `layers.0-11.mlp`. Several numbers are folded one at
    a time, the last first."""
    written = list(dict.fromkeys(tuple(name.split(".")) for name in names))
    for at in reversed(range(max((len(name) for name in written), default=0))):
        written = _fold_at(written, at)
    return [".".join(name) for name in written]


def _fold_at(names: list[tuple[str, ...]], at: int) -> list[tuple[str, ...]]:
    groups: dict[tuple[object, ...], list[tuple[str, ...]]] = {}
    for name in names:
        is_numbered = len(name) > at and is_list_index(name[at])
        key = (name[:at], "", name[at + 1 :]) if is_numbered else (name,)
        groups.setdefault(key, []).append(name)
    return [_merge_numbers(group, at) if len(group) > 1 else group[0] for group in groups.values()]


def _merge_numbers(group: list[tuple[str, ...]], at: int) -> tuple[str, ...]:
    first = group[0]
    return (*first[:at], format_ranges(int(name[at]) for name in group), *first[at + 1 :])
