"""Values of one moment and one parent, found without looking at all the others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice

from tensortap.comparison.entries import Entry


class CandidatesByShape:
    """The values of a side that are still free, by moment, name, parent and shape."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._positions = {id(entry): position for position, entry in enumerate(entries)}
        self._groups: defaultdict[Hashable, dict[int, Entry]] = defaultdict(dict)
        for index, entry in enumerate(entries):
            for key in _lookup_keys(entry):
                self._groups[key][index] = entry

    def with_names(self, full: Entry, names: Sequence[str]) -> list[Entry]:
        """Those of its moment that have one of these names, in the order of the side."""
        return self._ordered([self._group((_call_key(full), name)) for name in names])

    def with_shape(self, full: Entry, axis: int, limit: int) -> list[Entry]:
        """The first of its moment and parent, and parts of itself, with its shape but for one axis."""
        shape_key = _call_key(full), axis, _shape_without(full.shape, axis)
        groups = [self._group((*shape_key, "in", _parent(full))), self._group((*shape_key, "of", full.name))]
        return self._ordered([dict(islice(group.items(), limit)) for group in groups])[:limit]

    def remove(self, entries: Sequence[Entry]) -> None:
        """They are free no more."""
        for entry in entries:
            for key in _lookup_keys(entry):
                self._groups[key].pop(self._positions[id(entry)], None)

    def _group(self, key: Hashable) -> dict[int, Entry]:
        return self._groups.get(key, {})

    def _ordered(self, groups: Sequence[dict[int, Entry]]) -> list[Entry]:
        by_position = {position: entry for group in groups for position, entry in group.items()}
        return [by_position[position] for position in sorted(by_position)]


def _lookup_keys(entry: Entry) -> Iterator[Hashable]:
    call_key = _call_key(entry)
    yield call_key, entry.name
    for axis in {len(entry.shape) - 1, 0} if entry.shape else ():
        shape_key = call_key, axis, _shape_without(entry.shape, axis)
        yield (*shape_key, "in", _parent(entry))
        for container in _containers(entry.name):
            yield (*shape_key, "of", container)


def _containers(name: str) -> Iterator[str]:
    """What it may be a part of: `block[1][0]` of `block` and of `block[1]`."""
    at = name.find("[")
    while at >= 0:
        yield name[:at]
        at = name.find("[", at + 1)


def _call_key(entry: Entry) -> Hashable:
    return entry.kind, entry.step, entry.call, entry.rank


def _parent(entry: Entry) -> str:
    """Of a weight, that of its module."""
    path = entry.name.split(".")
    return ".".join(path[:-2] if entry.kind in ("param", "grad_param", "input") else path[:-1])


def _shape_without(shape: tuple[int, ...], axis: int) -> tuple[int, tuple[int, ...]]:
    return len(shape), (*shape[:axis], *shape[axis + 1 :])
