"""The pieces that records of several ranks hold: their bits, where each sits, and whether two are equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.core.errors import NotWholeError, UnsupportedValueError
from tensortap.core.record import Placement, Record
from tensortap.frameworks.base import Framework, framework_of
from tensortap.frameworks.sharded import by_rank, local
from tensortap.readers.stored import Stored

_Array = np.ndarray[Any, Any]
UNPLACED = Placement((), (), (), (), ())
_SAME = ("name", "kind", "step", "call")
_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Piece:
    rank: int | tuple[int, ...]
    value: Any
    placement: Placement
    framework: Framework
    dtype: str  # empty for what is not an ordinary array
    bits: _Array


def pieces_of(records: Sequence[Record | Stored]) -> list[Piece]:
    """One piece per rank, in the order of ranks; the records must be of one name at one moment."""
    _check_same(records)
    found = [piece for record in records for piece in _expanded(record)]
    return sorted(found, key=lambda piece: np.atleast_1d(piece.rank).tolist())


def check_arrays(name: str, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        if not piece.dtype:
            what = piece.framework.describe(piece.value)
            kind = what.type if what.layout == "python" else f"{what.layout} {what.type}"
            raise UnsupportedValueError(
                f"{name!r} is a {kind} on rank {piece.rank}, and only ordinary arrays can be put together; "
                "capture its parts, or make it dense first"
            )
    kinds = dict.fromkeys((piece.framework.name, piece.dtype) for piece in pieces)
    if len(kinds) > 1:
        told = [f"{framework} {dtype}" for framework, dtype in kinds]
        raise NotWholeError(f"{name!r} is not of one kind: {listed(told)}; give pieces of one number type")


def differing(one: Piece, other: Piece) -> str:
    """In what two pieces differ, as text; empty when they are equal bit for bit."""
    if one is other:
        return ""
    if one.bits.shape != other.bits.shape:
        return f"shape: {list(one.bits.shape)} and {list(other.bits.shape)}"
    first, second = _words(one.bits), _words(other.bits)
    if np.array_equal(first, second):
        return ""
    is_different = (first != second).any(axis=1)
    return f"{int(is_different.sum())} of {len(is_different)} elements"


def of_ranks(pieces: Iterable[Piece]) -> str:
    ranks = list(dict.fromkeys(piece.rank for piece in pieces))
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"


def listed(found: Sequence[Any]) -> str:
    more = f", ... {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(map(str, found[:_SHOWN])) + more


def _check_same(records: Sequence[Record | Stored]) -> None:
    if not records:
        raise NotWholeError("there are no records to put together; give those of one name, of every rank")
    for record in records:
        if not isinstance(record, Record | Stored):
            raise UnsupportedValueError(
                f"whole() takes records, not a {type(record).__name__}; give run.filter(name) or cap.records"
            )
    for fact in _SAME:
        found = list(dict.fromkeys(getattr(record, fact) for record in records))
        if len(found) > 1:
            raise NotWholeError(
                f"these are records of {len(found)} {fact}s: {listed(found)}; give those of one {fact}"
            )


def _expanded(record: Record | Stored) -> list[Piece]:
    value = record.value if isinstance(record, Record) else record.load()
    known = record.placement or framework_of(value).placement(value)
    simulated = by_rank(value, known)
    if simulated is None:
        return [_piece(record.rank, local(value), known)]
    return [_piece(rank, piece, placement) for rank, piece, placement in simulated]


def _piece(rank: int | tuple[int, ...], value: Any, placement: Placement | None) -> Piece:
    framework = framework_of(value)
    description = framework.describe(value)
    is_array = description.layout == "strided"
    bits = framework.bits(value) if is_array else np.empty(0)
    return Piece(rank, value, placement or UNPLACED, framework, description.dtype if is_array else "", bits)


def _words(bits: _Array) -> _Array:
    """One row of unsigned integers per element."""
    flat = np.ascontiguousarray(bits).reshape(-1)
    words = flat.view(_WORDS.get(flat.itemsize, "u8" if flat.itemsize % 8 == 0 else "u1"))
    return words.reshape(len(flat), -1) if len(flat) else words.reshape(0, 1)
