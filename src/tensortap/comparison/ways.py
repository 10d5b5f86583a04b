"""The ways in which the pieces of several ranks can make a whole, the simplest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal

import numpy as np

from tensortap.kernels.numbers import Array

PlacementKind = Literal["replicate", "shard", "zigzag", "fused", "partial", "mesh"]
Shape = tuple[int, ...]
_Span = tuple[int, int]  # where it begins in the whole, and its length
# What is often stored as one: gate and up; query, key and value, also with fewer keys than queries.
_FUSED_SECTIONS: tuple[tuple[int, ...], ...] = ((1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1))


@dataclass(frozen=True, slots=True)
class ShardPlacement:
    """One way to put pieces together; it can be pickled, and says its name."""

    kind: PlacementKind
    dim: int = 0
    sections: tuple[int, ...] = ()  # of what is fused: their relative sizes
    is_balanced: bool = False  # rests go to the first ranks one by one, not all to the last
    padding: int = 0  # rows at the end that are not in the whole
    operation: str = "sum"
    mesh: tuple[int, int] = (1, 1)
    parts: tuple[ShardPlacement, ...] = ()

    @property
    def is_reduced(self) -> bool:
        """Whether numbers of several pieces are added, so that their noise becomes less."""
        return self.kind == "partial" or any(part.is_reduced for part in self.parts)

    def __str__(self) -> str:
        if self.kind == "mesh":
            return f"{self.parts[0]} x {self.parts[1]} of a {self.mesh[0]} x {self.mesh[1]} mesh"
        if self.kind == "partial":
            return f"partial({self.operation})"
        if self.kind == "replicate":
            return "replicate"
        more = {"zigzag": " zigzag", "fused": f" fused {':'.join(map(str, self.sections))}"}.get(
            self.kind, ""
        )
        return f"shard({self.dim}){more}{f' with {self.padding} of padding' if self.padding else ''}"


REPLICATE = ShardPlacement("replicate")


def candidate_placements(pieces: Sequence[Shape], whole: Shape) -> Iterator[ShardPlacement]:
    """Every way that the shapes allow, the simplest first."""
    simple = list(_simple_placements(pieces, whole))
    yield from simple
    is_copy = all(shape == whole for shape in pieces)
    if is_copy:
        yield from (ShardPlacement("partial", operation=operation) for operation in ("sum", "mean"))
    for dim in {way.dim: None for way in simple if way.kind == "shard" and not way.padding}:
        yield from _regrouped_placements([shape[dim] for shape in pieces], dim)
    yield from _mesh_placements(pieces, whole)


def assemble(way: ShardPlacement, pieces: Sequence[Array]) -> list[Array]:
    """The whole; of copies each."""
    if way.kind == "replicate":
        return list(pieces)
    if way.kind == "partial":
        total = np.sum([piece.astype(np.float64, copy=False) for piece in pieces], axis=0)
        return [total / len(pieces) if way.operation == "mean" else total]
    if way.kind == "mesh":
        return _assemble_mesh(way, pieces)
    return [_concatenate(way, pieces)]


def shard_spans(way: ShardPlacement, lengths: Sequence[int]) -> list[list[_Span]] | None:
    """Where the parts of each piece lie in the whole, in their order; None where the lengths do not fit."""
    count, size = len(lengths), sum(lengths)
    if way.kind == "shard":
        starts = np.cumsum([0, *lengths]).tolist()
        return [[(start, length)] for start, length in zip(starts, lengths, strict=False)]
    if way.kind == "zigzag":
        cut = _chunk(0, size, 2 * count, way.is_balanced)
        found = [[cut[rank], cut[2 * count - 1 - rank]] for rank in range(count)]
    else:
        found = _section_spans(way, size, count)
    fits = [sum(length for _, length in of_rank) for of_rank in found] == list(lengths)
    return found if fits else None


def owning_shards(way: ShardPlacement, pieces: Sequence[Array]) -> Array:
    """Whose number each of the whole is, by position among the pieces."""
    marked = [np.full(piece.shape, position) for position, piece in enumerate(pieces)]
    return assemble(way, marked)[0]


def _simple_placements(pieces: Sequence[Shape], whole: Shape) -> Iterator[ShardPlacement]:
    if all(shape == whole for shape in pieces):
        yield REPLICATE
    for dim in range(len(whole)):
        if any(shape_without(shape, dim) != shape_without(whole, dim) for shape in pieces):
            continue
        extra = sum(shape[dim] for shape in pieces) - whole[dim]
        is_padded = 0 < extra < max(shape[dim] for shape in pieces) and pieces[0] != whole
        if extra == 0 or is_padded:
            yield ShardPlacement("shard", dim, padding=extra)


def _regrouped_placements(lengths: list[int], dim: int) -> Iterator[ShardPlacement]:
    """The pieces follow each other in another order than that of ranks."""
    for kind, sections in (("zigzag", ()), *(("fused", sections) for sections in _FUSED_SECTIONS)):
        seen: list[object] = []
        for is_balanced in (False, True):
            way = ShardPlacement("zigzag" if kind == "zigzag" else "fused", dim, sections, is_balanced)
            found = shard_spans(way, lengths)
            if found is not None and found not in seen:
                seen.append(found)
                yield way


def _mesh_placements(pieces: Sequence[Shape], whole: Shape) -> Iterator[ShardPlacement]:
    """Two dimensions of ranks, each with a simple way of its own."""
    count = len(pieces)
    if len(set(pieces)) > 1:  # uneven meshes have too many ways to be told apart
        return
    simple = [
        REPLICATE,
        *(ShardPlacement("shard", dim) for dim in range(len(whole))),
        ShardPlacement("partial"),
    ]
    for mesh in [(outer, count // outer) for outer in range(2, count) if count % outer == 0]:
        for outer in simple:
            for inner in simple:
                is_new = outer != inner
                if is_new and _mesh_shape(pieces[0], (outer, inner), mesh) == whole:
                    yield ShardPlacement("mesh", mesh=mesh, parts=(outer, inner))


def _mesh_shape(piece: Shape, parts: tuple[ShardPlacement, ShardPlacement], mesh: tuple[int, int]) -> Shape:
    shape = list(piece)
    for way, ranks in zip(parts, mesh, strict=True):
        if way.kind == "shard":
            shape[way.dim] *= ranks
    return tuple(shape)


def _assemble_mesh(way: ShardPlacement, pieces: Sequence[Array]) -> list[Array]:
    outer, inner = way.parts
    size = way.mesh[1]
    groups = [assemble(inner, pieces[start : start + size]) for start in range(0, prod(way.mesh), size)]
    if outer.kind == "replicate":
        return [one for group in groups for one in group]
    return [assemble(outer, copies)[0] for copies in zip(*groups, strict=True)]


def _concatenate(way: ShardPlacement, pieces: Sequence[Array]) -> Array:
    lengths = [piece.shape[way.dim] for piece in pieces]
    found = shard_spans(way, lengths)
    if found is None:
        raise ValueError(f"pieces of {lengths} along dimension {way.dim} do not make a whole by {way}")
    if way.kind == "shard":
        whole = np.concatenate(pieces, axis=way.dim)
    else:
        placed = [
            (start, part)
            for piece, of_rank in zip(pieces, found, strict=True)
            for (start, _), part in zip(of_rank, _split_shard(piece, way.dim, of_rank), strict=True)
        ]
        placed.sort(key=lambda one: one[0])
        whole = np.concatenate([part for _, part in placed], axis=way.dim)
    return whole if not way.padding else np.take(whole, range(whole.shape[way.dim] - way.padding), way.dim)


def _split_shard(piece: Array, dim: int, of_rank: Sequence[_Span]) -> list[Array]:
    ends = np.cumsum([length for _, length in of_rank])[:-1]
    return np.split(piece, ends.tolist(), axis=dim)


def _section_spans(way: ShardPlacement, size: int, count: int) -> list[list[_Span]]:
    unit, rest = divmod(size, sum(way.sections))
    if rest:
        return []
    starts = np.cumsum([0, *(unit * share for share in way.sections)]).tolist()
    cuts = [_chunk(start, end - start, count, way.is_balanced) for start, end in pairwise(starts)]
    return [[cut[rank] for cut in cuts] for rank in range(count)]


def _chunk(start: int, size: int, count: int, is_balanced: bool) -> list[_Span]:
    """As torch's chunk does (all rests to the last), or as numpy's array_split does."""
    if is_balanced:
        lengths = [size // count + (number < size % count) for number in range(count)]
    else:
        step = -(-size // count)
        lengths = [max(0, min(step, size - step * number)) for number in range(count)]
    begins = np.cumsum([start, *lengths]).tolist()
    return list(zip(begins, lengths, strict=False))


def shape_without(shape: Shape, dim: int) -> tuple[int, Shape]:
    return len(shape), (*shape[:dim], *shape[dim + 1 :])
