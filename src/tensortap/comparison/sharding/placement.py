"""Shard placements (shard, replicate, partial, and combinations): enumerate, parse, assemble."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

from tensortap.comparison.sides.entry import is_selected
from tensortap.kernels.decode import Array, Shape

PlacementKind = Literal["replicate", "shard", "zigzag", "fused", "partial", "mesh"]
_Span = tuple[int, int]  # offset in the full tensor, and length
# Common fused projections: gate and up; query, key and value, also with grouped queries.
_FUSED_SECTIONS: tuple[tuple[int, ...], ...] = ((1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1))
_SHARD = re.compile(r"shard\((-?\d+)\)(?: (zigzag)| fused (\d+(?::\d+)+))?")
_PARTIAL = re.compile(r"partial\((sum|mean)\)")
_PLACEMENT_SYNTAX = (
    "replicate, shard(1), shard(1) zigzag, shard(1) fused 1:1:1, partial(sum) or partial(mean)"
)
_TABLE_SYNTAX = 'write [[placement]] tables with of = "a pattern" and is = "shard(1)"'


@dataclass(frozen=True, slots=True)
class ShardPlacement:
    """How the shards of several ranks make up the full tensor; picklable, and `str()` names it."""

    kind: PlacementKind
    dim: int = 0
    sections: tuple[int, ...] = ()  # relative sizes of fused projections
    is_balanced: bool = False  # chunked like numpy.array_split, not torch.chunk
    padding: int = 0  # rows at the end that are not part of the full tensor
    operation: str = "sum"
    mesh: tuple[int, int] = (1, 1)
    parts: tuple[ShardPlacement, ...] = ()

    @property
    def is_reduced(self) -> bool:
        """Whether shards are summed, which reduces their noise."""
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


def candidate_placements(shards: Sequence[Shape], full: Shape) -> Iterator[ShardPlacement]:
    """Every placement that the shapes allow, the simplest first."""
    simple = list(_simple_placements(shards, full))
    yield from simple
    is_copy = all(shape == full for shape in shards)
    if is_copy:
        yield from (ShardPlacement("partial", operation=operation) for operation in ("sum", "mean"))
    for dim in {
        placement.dim: None for placement in simple if placement.kind == "shard" and not placement.padding
    }:
        yield from _regrouped_placements([shape[dim] for shape in shards], dim)
    yield from _mesh_placements(shards, full)


def assemble(placement: ShardPlacement, shards: Sequence[Array]) -> list[Array]:
    """The full tensor; of replicated shards, each replica."""
    if placement.kind == "replicate":
        return list(shards)
    if placement.kind == "partial":
        total = np.sum([shard.astype(np.float64, copy=False) for shard in shards], axis=0)
        return [total / len(shards) if placement.operation == "mean" else total]
    if placement.kind == "mesh":
        return _assemble_mesh(placement, shards)
    return [_concatenate(placement, shards)]


def shard_spans(placement: ShardPlacement, lengths: Sequence[int]) -> list[list[_Span]] | None:
    """The spans of each shard in the full tensor, in order; None if the lengths do not fit."""
    count, size = len(lengths), sum(lengths)
    if placement.kind == "shard":
        starts = np.cumsum([0, *lengths]).tolist()
        return [[(start, length)] for start, length in zip(starts, lengths, strict=False)]
    if placement.kind == "zigzag":
        chunks = _chunk(0, size, 2 * count, placement.is_balanced)
        spans = [[chunks[rank], chunks[2 * count - 1 - rank]] for rank in range(count)]
    else:
        spans = _section_spans(placement, size, count)
    fits = [sum(length for _, length in rank_spans) for rank_spans in spans] == list(lengths)
    return spans if fits else None


def owning_shards(placement: ShardPlacement, shards: Sequence[Array]) -> Array:
    """For each number of the full tensor, the position of the shard it comes from."""
    labels = [np.full(shard.shape, position) for position, shard in enumerate(shards)]
    return assemble(placement, labels)[0]


def _simple_placements(shards: Sequence[Shape], full: Shape) -> Iterator[ShardPlacement]:
    if all(shape == full for shape in shards):
        yield REPLICATE
    for dim in range(len(full)):
        if any(shape_without(shape, dim) != shape_without(full, dim) for shape in shards):
            continue
        extra = sum(shape[dim] for shape in shards) - full[dim]
        is_padded = 0 < extra < max(shape[dim] for shape in shards) and shards[0] != full
        if extra == 0 or is_padded:
            yield ShardPlacement("shard", dim, padding=extra)


def _regrouped_placements(lengths: list[int], dim: int) -> Iterator[ShardPlacement]:
    """Shards that are interleaved instead of concatenated in rank order."""
    for kind, sections in (("zigzag", ()), *(("fused", sections) for sections in _FUSED_SECTIONS)):
        known_spans: list[object] = []
        for is_balanced in (False, True):
            placement = ShardPlacement("zigzag" if kind == "zigzag" else "fused", dim, sections, is_balanced)
            spans = shard_spans(placement, lengths)
            if spans is not None and spans not in known_spans:
                known_spans.append(spans)
                yield placement


def _mesh_placements(shards: Sequence[Shape], full: Shape) -> Iterator[ShardPlacement]:
    """Placements on a 2-D mesh, with a simple one for each dimension."""
    count = len(shards)
    if len(set(shards)) > 1:  # uneven meshes have too many placements to tell apart
        return
    simple = [
        REPLICATE,
        *(ShardPlacement("shard", dim) for dim in range(len(full))),
        ShardPlacement("partial"),
    ]
    for mesh in [(outer, count // outer) for outer in range(2, count) if count % outer == 0]:
        for outer in simple:
            for inner in simple:
                is_new = outer != inner
                if is_new and _mesh_shape(shards[0], (outer, inner), mesh) == full:
                    yield ShardPlacement("mesh", mesh=mesh, parts=(outer, inner))


def _mesh_shape(shard: Shape, parts: tuple[ShardPlacement, ShardPlacement], mesh: tuple[int, int]) -> Shape:
    shape = list(shard)
    for placement, ranks in zip(parts, mesh, strict=True):
        if placement.kind == "shard":
            shape[placement.dim] *= ranks
    return tuple(shape)


def _assemble_mesh(placement: ShardPlacement, shards: Sequence[Array]) -> list[Array]:
    outer, inner = placement.parts
    size = placement.mesh[1]
    groups = [assemble(inner, shards[start : start + size]) for start in range(0, prod(placement.mesh), size)]
    if outer.kind == "replicate":
        return [replica for group in groups for replica in group]
    return [assemble(outer, replicas)[0] for replicas in zip(*groups, strict=True)]


def _concatenate(placement: ShardPlacement, shards: Sequence[Array]) -> Array:
    lengths = [shard.shape[placement.dim] for shard in shards]
    spans = shard_spans(placement, lengths)
    if spans is None:
        raise ValueError(
            f"pieces of {lengths} along dimension {placement.dim} do not make a whole by {placement}"
        )
    if placement.kind == "shard":
        full = np.concatenate(shards, axis=placement.dim)
    else:
        parts = [
            (start, part)
            for shard, rank_spans in zip(shards, spans, strict=True)
            for (start, _), part in zip(
                rank_spans, _split_shard(shard, placement.dim, rank_spans), strict=True
            )
        ]
        parts.sort(key=lambda span_part: span_part[0])
        full = np.concatenate([part for _, part in parts], axis=placement.dim)
    return (
        full
        if not placement.padding
        else np.take(full, range(full.shape[placement.dim] - placement.padding), placement.dim)
    )


def _split_shard(shard: Array, dim: int, rank_spans: Sequence[_Span]) -> list[Array]:
    ends = np.cumsum([length for _, length in rank_spans])[:-1]
    return np.split(shard, ends.tolist(), axis=dim)


def _section_spans(placement: ShardPlacement, size: int, count: int) -> list[list[_Span]]:
    unit, remainder = divmod(size, sum(placement.sections))
    if remainder:
        return []
    starts = np.cumsum([0, *(unit * share for share in placement.sections)]).tolist()
    section_chunks = [
        _chunk(start, end - start, count, placement.is_balanced) for start, end in pairwise(starts)
    ]
    return [[chunks[rank] for chunks in section_chunks] for rank in range(count)]


def _chunk(start: int, size: int, count: int, is_balanced: bool) -> list[_Span]:
    """Chunk like torch.chunk (the last is shorter), or balanced like numpy.array_split."""
    if is_balanced:
        lengths = [size // count + (number < size % count) for number in range(count)]
    else:
        step = -(-size // count)
        lengths = [max(0, min(step, size - step * number)) for number in range(count)]
    begins = np.cumsum([start, *lengths]).tolist()
    return list(zip(begins, lengths, strict=False))


def shape_without(shape: Shape, dim: int) -> tuple[int, Shape]:
    return len(shape), (*shape[:dim], *shape[dim + 1 :])


class DeclaredPlacement(NamedTuple):
    """The placement that the user declares for the names that match a pattern."""

    pattern: str
    placement: ShardPlacement


def parse_placement(declaration: Any) -> ShardPlacement:
    """Parse a placement such as `shard(1)`."""
    text = declaration.strip() if isinstance(declaration, str) else ""
    if text == str(REPLICATE):
        return REPLICATE
    if partial := _PARTIAL.fullmatch(text):
        return ShardPlacement("partial", operation=partial[1])
    shard = _SHARD.fullmatch(text)
    if shard is None:
        raise ValueError(
            f"{declaration!r} says nothing of how pieces sit in a whole; say {_PLACEMENT_SYNTAX}"
        )
    dim, zigzag, sections = shard.groups()
    if sections:
        return ShardPlacement("fused", int(dim), tuple(map(int, sections.split(":"))))
    return ShardPlacement("zigzag" if zigzag else "shard", int(dim))


def parse_declared_placements(dims: Any) -> tuple[DeclaredPlacement, ...]:
    """Parse a dict of patterns, `{"**.up": "shard(1)"}`."""
    if dims is None:
        return ()
    if not isinstance(dims, Mapping):
        raise TypeError(f'dims are a dict from patterns to words, {{"**.up": "shard(1)"}}; not {dims!r}')
    return tuple(
        DeclaredPlacement(str(pattern), parse_placement(declaration)) for pattern, declaration in dims.items()
    )


def parse_placement_tables(tables: Any, where: str) -> tuple[DeclaredPlacement, ...]:
    """Parse the `[[placement]]` tables of a rules file."""
    placements = []
    for table in tables if isinstance(tables, list) else [tables]:
        is_placement = isinstance(table, Mapping) and table.keys() == {"of", "is"}
        if not is_placement or not isinstance(table["of"], str):
            raise ValueError(f"{where} has a placement {table!r}; {_TABLE_SYNTAX}")
        placements.append(DeclaredPlacement(table["of"], parse_placement(table["is"])))
    return tuple(placements)


def find_declared_placement(name: str, declarations: Sequence[DeclaredPlacement]) -> ShardPlacement | None:
    """The placement of the first pattern that matches the name."""
    return next(
        (declared.placement for declared in declarations if is_selected(name, [declared.pattern])), None
    )
