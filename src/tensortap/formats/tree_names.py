"""Names of captured values: to which module they belong, and how many are written as one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tensortap.core.record import Kind
from tensortap.formats.rows import ValueRow

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
_DEEPEST = 60  # segments; a tree is walked by recursion
_MOST_RANGES = 6
_LONGEST_NUMBER = 10


class Place(NamedTuple):
    """Where a value stands: the segments of its module, what it is called there, and its direction."""

    module: tuple[str, ...]
    label: str
    arrow: str


def places(rows: Sequence[ValueRow]) -> dict[str, Place]:
    """The place of every name; what a name means may depend on which others exist."""
    kinds: dict[str, Kind] = {}
    for row in rows:
        kinds.setdefault(row.name, row.kind)
    return {name: _place(name, kinds) for name in kinds}


def _place(name: str, kinds: Mapping[str, Kind]) -> Place:
    bare = name.removesuffix(".grad")
    is_gradient = bare != name and kinds[name] != "value"
    kind = kinds.get(bare, kinds[name]) if is_gradient else kinds[name]
    place = _placed(bare if is_gradient else name, kind, kinds)
    if not is_gradient:
        return place
    return place._replace(label=f"{place.label}.grad" if place.label else "grad")


def _placed(name: str, kind: Kind, kinds: Mapping[str, Kind]) -> Place:
    arrow = _ARROWS.get(kind, "=")
    segments, items = _segments(name, kind)
    if kind in ("input", "grad_input") and "in" in segments:
        at = segments.index("in")
        return Place(segments[:at], ".".join(segments[at + 1 :]) + items, arrow)
    if kind == "param" and segments[-1] == "after_step":
        return Place(segments[:-2], ".".join(segments[-2:]) + items, arrow)
    if kind not in ("output", "grad_output"):
        return Place(segments[:-1], segments[-1] + items, arrow)
    at = segments.index("out") if "out" in segments else -1
    names_a_part = at == 0 or (0 < at < len(segments) - 1 and ".".join(segments[: at + 1]) not in kinds)
    if names_a_part:
        return Place(segments[:at], ".".join(("", *segments[at + 1 :])).rstrip(".") + items, arrow)
    return Place(segments, items, arrow)


def _segments(name: str, kind: Kind) -> tuple[tuple[str, ...], str]:
    """The dotted segments, and the items (`[0]['k']`) from the first bracket on. Free text stays whole, and
    so does a name with nothing before, after or between its dots: `../../x`."""
    if kind == "value" and not _DOTTED.fullmatch(name):
        return (name,), ""
    bracket = next((found.start() for found in _SPLIT.finditer(name) if found.group(1)), len(name))
    parts = name[:bracket].split(".")
    if not all(parts):
        return (name[:bracket],), name[bracket:]
    if len(parts) > _DEEPEST:
        parts = [*parts[:_DEEPEST], ".".join(parts[_DEEPEST:])]
    return tuple(parts), name[bracket:]


def is_number(segment: str) -> bool:
    """Whether it is the place of a module in a list, and not digits that someone wrote."""
    return segment.isascii() and segment.isdecimal() and len(segment) < _LONGEST_NUMBER


def ranges(indices: Iterable[int]) -> str:
    """`0-6,8-11`; of very many pieces the first and the last."""
    pieces: list[list[int]] = []
    for index in sorted(set(indices)):
        if pieces and index == pieces[-1][1] + 1:
            pieces[-1][1] = index
        else:
            pieces.append([index, index])
    written = [str(low) if low == high else f"{low}-{high}" for low, high in pieces]
    if len(written) > _MOST_RANGES:
        written = [*written[: _MOST_RANGES - 2], "...", written[-1]]
    return ",".join(written)


def joined(names: Iterable[str]) -> list[str]:
    """Names that differ in one number written as one: `layers.0-11.mlp`. Several numbers fold one by one,
    the last first."""
    written = list(dict.fromkeys(tuple(name.split(".")) for name in names))
    for at in reversed(range(max((len(name) for name in written), default=0))):
        written = _joined_at(written, at)
    return [".".join(name) for name in written]


def _joined_at(names: list[tuple[str, ...]], at: int) -> list[tuple[str, ...]]:
    groups: dict[tuple[object, ...], list[tuple[str, ...]]] = {}
    for name in names:
        is_numbered = len(name) > at and is_number(name[at])
        key = (name[:at], "", name[at + 1 :]) if is_numbered else (name,)
        groups.setdefault(key, []).append(name)
    return [_merged(group, at) if len(group) > 1 else group[0] for group in groups.values()]


def _merged(group: list[tuple[str, ...]], at: int) -> tuple[str, ...]:
    first = group[0]
    return (*first[:at], ranges(int(name[at]) for name in group), *first[at + 1 :])
