"""The full tensor from the pieces of several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tensortap.core.errors import NotWholeError, UnsupportedValueError
from tensortap.core.record import Placement, Record
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.sharded import indices, shard_of
from tensortap.readers.pieces import (
    UNPLACED,
    Piece,
    check_arrays,
    differing,
    listed,
    of_ranks,
    pieces_of,
)
from tensortap.readers.stored import Stored

_Coordinate = tuple[int, ...]
# Torch's methods and numpy's functions have the same names.
_STEPS = {"sum": "add", "avg": "add", "product": "multiply", "max": "maximum", "min": "minimum"}


def whole(records: Record | Stored | Iterable[Record | Stored], *, dim: int | None = None) -> Any:
    """The full tensor from the pieces of several ranks, bit for bit, in the framework they came in.

    >>> tt.whole(tt.Run("runs/20251028_143041").filter("layers.0.mlp.up", step=3))
    >>> tt.whole(tt.Run("runs/20251028_143041").filter("head"), dim=0)   # each rank had a part of the batch

    Shards are put where they belong. Copies are compared bit for bit, NaN included, and one is taken.
    Partial results are reduced in the order of ranks and in their own number type: a collective may add in
    another order, so a sum can differ from its result in the last bits. Without a placement all values must
    be equal, unless `dim` says along which dimension they follow each other. The result is on the CPU.
    """
    given = [records] if isinstance(records, Record | Stored) else list(records)
    pieces = pieces_of(given)
    name = given[0].name
    unplaced = [piece for piece in pieces if piece.placement is UNPLACED]
    if dim is not None:
        return _joined(name, pieces, dim)
    if len(unplaced) == len(pieces):
        return _agreed(name, pieces)
    if unplaced:
        raise NotWholeError(
            f"{name!r} of {of_ranks(unplaced)} does not say how it sits in the whole, the others do; "
            "whole(..., dim=...) joins all of them along a dimension, in rank order"
        )
    return _assembled(name, [piece for piece in pieces if piece.placement.coordinate])


def _agreed(name: str, pieces: Sequence[Piece]) -> Any:
    """The value that all ranks hold; without a placement nothing else can be the whole."""
    first, *others = pieces
    if not first.dtype and all(first.framework.mark(first.value)(other.value) for other in others):
        return first.value
    check_arrays(name, pieces)
    for other in others:
        difference = differing(first, other)
        if difference:
            raise NotWholeError(
                f"{name!r} differs between rank {first.rank} and rank {other.rank} in {difference}, and "
                "nothing says how the pieces sit in the whole; whole(..., dim=...) would join them along a "
                "dimension, in rank order"
            )
    return first.value


def _joined(name: str, pieces: Sequence[Piece], dim: int) -> Any:
    check_arrays(name, pieces)
    if all(piece.placement is not UNPLACED for piece in pieces):
        raise ValueError(f"{name!r} says how it is placed ({_told(pieces[0].placement)}); leave dim out")
    if len({piece.rank for piece in pieces}) < len(pieces):
        raise NotWholeError(f"{len(pieces)} records of {name!r} come from {of_ranks(pieces)}; give one each")
    try:
        bits = np.concatenate([piece.bits for piece in pieces], axis=dim)
    except ValueError as error:
        shapes = listed([list(piece.bits.shape) for piece in pieces])
        raise NotWholeError(
            f"{name!r} cannot be put together along dimension {dim} from {shapes}: {error}"
        ) from None
    return pieces[0].framework.from_bits(bits, pieces[0].dtype)


def _assembled(name: str, pieces: Sequence[Piece]) -> Any:
    check_arrays(name, pieces)
    frame = _frame(name, pieces)
    _check_words(name, frame)
    for piece in pieces:
        _check_shape(name, piece)
    held = _without_copies(name, frame, pieces)
    _check_complete(name, frame, held, pieces)
    for axis in reversed(range(len(frame.parts))):
        if _operation(frame.parts[axis]) in _STEPS:
            held = _reduced(name, frame, held, axis)
    return _filled(frame, list(held.values()))


def _frame(name: str, pieces: Sequence[Piece]) -> Placement:
    """A placement whose mesh, parts and shape are those of all."""
    told = {(one.mesh, one.parts, one.shape): one for one in (piece.placement for piece in pieces)}
    if not told:
        raise NotWholeError(f"no rank of the mesh is among the records of {name!r}; give those of every rank")
    if len(told) > 1:
        raise NotWholeError(
            f"the ranks place {name!r} differently: {listed([_told(one) for one in told.values()])}; "
            "give records of the same capture"
        )
    return pieces[0].placement


def _check_words(name: str, frame: Placement) -> None:
    for part in frame.parts:
        if part != "replicate" and shard_of(part) is None and _operation(part) not in _STEPS:
            raise UnsupportedValueError(
                f"{name!r} is placed as {part}, which cannot be put together from its pieces; "
                "redistribute it before it is captured"
            )


def _check_shape(name: str, piece: Piece) -> None:
    where, placement = indices(piece.placement), piece.placement
    starts = [
        int(rows[0]) if len(rows) else begin for rows, begin in zip(where, placement.offset, strict=True)
    ]
    expected = list(map(len, where))
    if expected != list(piece.bits.shape) or starts != list(placement.offset):
        raise NotWholeError(
            f"rank {piece.rank} holds {list(piece.bits.shape)} from {list(placement.offset)} on of {name!r}, "
            f"but {_told(placement)} over a mesh {placement.mesh} gives it {expected} from {starts} on; "
            "the pieces and their placements do not belong together"
        )


def _without_copies(name: str, frame: Placement, pieces: Sequence[Piece]) -> dict[_Coordinate, Piece]:
    """One piece of each place, after all that claim it were found equal."""
    held: dict[_Coordinate, Piece] = {}
    for piece in pieces:
        place = tuple(
            0 if part == "replicate" else at
            for part, at in zip(frame.parts, piece.placement.coordinate, strict=True)
        )
        difference = differing(held.setdefault(place, piece), piece)
        if difference:
            raise NotWholeError(
                f"rank {held[place].rank} and rank {piece.rank} should hold the same piece of {name!r}, but "
                f"differ in {difference}; give the records of one group of ranks, or compare the two"
            )
    return held


def _check_complete(
    name: str, frame: Placement, held: dict[_Coordinate, Piece], pieces: Sequence[Piece]
) -> None:
    sizes = [1 if part == "replicate" else size for part, size in zip(frame.parts, frame.mesh, strict=True)]
    missing = [place for place in product(*map(range, sizes)) if place not in held and _matters(frame, place)]
    if missing:
        raise NotWholeError(
            f"{len(missing)} of {prod(sizes)} pieces of {name!r} are missing, at {listed(missing)} of the "
            f"mesh {frame.mesh}; {of_ranks(pieces)} gave theirs, give the records of every rank"
        )


def _matters(frame: Placement, place: _Coordinate) -> bool:
    """Whether that piece holds anything; of a short dimension the last ranks get nothing."""
    piece = Placement(frame.mesh, place, frame.parts, frame.shape, frame.offset)
    return all(len(rows) for rows in indices(piece))


def _reduced(
    name: str, frame: Placement, held: dict[_Coordinate, Piece], axis: int
) -> dict[_Coordinate, Piece]:
    groups: dict[_Coordinate, list[Piece]] = {}
    for place in sorted(held):
        groups.setdefault((*place[:axis], 0, *place[axis + 1 :]), []).append(held[place])
    operation = _operation(frame.parts[axis])
    try:
        return {place: _reduce(operation, group) for place, group in groups.items()}
    except (RuntimeError, TypeError) as error:
        dtype = next(iter(held.values())).dtype
        raise UnsupportedValueError(
            f"the {operation} of {dtype} pieces of {name!r} cannot be computed ({error}); "
            "redistribute it before it is captured"
        ) from None


def _reduce(operation: str, pieces: Sequence[Piece]) -> Piece:
    first = pieces[0]
    # Rebuilt from the bits: on the CPU, and outside of the program's graph.
    values = [first.framework.from_bits(piece.bits, first.dtype) for piece in pieces]
    total = reduce(_step(_STEPS[operation], values[0]), values)
    if operation == "avg":
        total = total / len(values)
    bits = framework_of(total).bits(total)
    return Piece(first.rank, total, first.placement, first.framework, first.dtype, bits)


def _step(name: str, value: Any) -> Callable[[Any, Any], Any]:
    step: Callable[[Any, Any], Any] = getattr(type(value), name, None) or getattr(np, name)
    return step


def _filled(frame: Placement, pieces: Sequence[Piece]) -> Any:
    first = pieces[0]
    bits = np.empty(frame.shape, first.bits.dtype)
    for piece in pieces:
        where = indices(piece.placement)
        slices = tuple(map(_slice, where))
        bits[np.ix_(*where) if None in slices else slices] = piece.bits
    return first.framework.from_bits(bits, first.dtype)


def _slice(rows: np.ndarray[Any, Any]) -> slice | None:
    """The rows as a slice, which numpy copies fastest; None when they are not in one run."""
    if not len(rows):
        return slice(0, 0)
    start, end = int(rows[0]), int(rows[-1]) + 1
    return slice(start, end) if end - start == len(rows) else None


def _operation(part: str) -> str:
    """What `partial(sum)` is reduced by; empty for every other word."""
    return part[len("partial(") : -1] if part.startswith("partial(") else ""


def _told(placement: Placement) -> str:
    return f"{', '.join(placement.parts)} of {list(placement.shape)}"
