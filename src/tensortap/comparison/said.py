"""Pieces that sit in the whole as a user says, and what the numbers say against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensortap.comparison.entries import Entry
from tensortap.comparison.glimpse import distance
from tensortap.comparison.joining import Joined, numbers_in, pieces_in, way_said
from tensortap.comparison.placing import infer
from tensortap.comparison.ways import Way, joined, spans
from tensortap.comparison.wholes import Whole, are_apart, arrays_in, farthest, ranks_of
from tensortap.kernels.numbers import Array

_CLEARLY, _EXACT = 3.0, 1e-12  # another way contradicts what leaves so many times as much


def as_said(entry: Entry, way: Way, whole: Array | None = None) -> Whole | None:
    """The whole that was declared, with what the other side's whole says of it; None for no numbers."""
    arrays = arrays_in(entry)
    if arrays is None:
        return None
    way = _fitting(entry, way, arrays)
    copies = joined(way, arrays)
    copy, worst = farthest(copies, copies[0] if whole is None else whole)
    pieces = pieces_in(entry)
    told = [f"{len(pieces)} pieces of {ranks_of(pieces)} are {way}, as was declared", worst]
    told += [] if whole is None else [_against(way, arrays, copies[copy], whole)]
    reference = Joined(tuple(piece.reference for piece in pieces), way, copy)
    made = replace(entry, reference=reference, shape=tuple(copies[copy].shape))
    doubt = f"its {len(copies)} copies are not equal" if worst and are_apart(copies, entry.dtype) else ""
    return Whole(made, str(way), "; ".join(filter(None, told)), doubt)


def checked(entry: Entry, made: Whole, other: Whole) -> Whole:
    """The same; of what was declared it is told where the numbers of the other side contradict it."""
    way = way_said(entry)
    whole = None if way is None else numbers_in(other.entry.reference)
    if way is None or whole is None or whole.shape != made.entry.shape:
        return made
    return as_said(entry, way, whole) or made


def _fitting(entry: Entry, way: Way, arrays: Sequence[Array]) -> Way:
    """The way as these shapes need it; refused where they make no whole by it."""
    shapes, axes = [one.shape for one in arrays], arrays[0].ndim
    if way.kind in ("replicate", "partial"):
        if len(set(shapes)) == 1:
            return way
    elif -axes <= way.dim < axes:
        way = replace(way, dim=way.dim % axes)
        rest = {(*shape[: way.dim], *shape[way.dim + 1 :]) for shape in shapes}
        lengths = [shape[way.dim] for shape in shapes]
        for known in (way, replace(way, is_balanced=True)):
            if len(rest) == 1 and spans(known, lengths) is not None:
                return known
    told = ", ".join(str(list(shape)) for shape in shapes)
    raise ValueError(f"{entry.name} was declared as {way}, by which pieces of {told} make no whole")


def _against(way: Way, arrays: Sequence[Array], made: Array, whole: Array) -> str:
    placing = infer(whole, arrays)
    if placing.state != "certain" or str(placing.way) == str(way):
        return ""
    is_worse = distance(made, whole) > _CLEARLY * placing.error + _EXACT
    return f"the numbers contradict it, they are {placing}" if is_worse else ""
