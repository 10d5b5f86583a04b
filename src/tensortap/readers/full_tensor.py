"""The full tensor from the shards of several ranks, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tensortap.core.errors import NotWholeError, UnsupportedValueError
from tensortap.core.record import Placement, Record
from tensortap.frameworks.base import Framework, framework_of
from tensortap.frameworks.dtensor import global_indices, parse_shard, simulated_ranks, wait_local
from tensortap.readers.stored_record import StoredRecord

_Coordinate = tuple[int, ...]
# Torch's methods and numpy's functions have the same names.
_REDUCTIONS = {"sum": "add", "avg": "add", "product": "multiply", "max": "maximum", "min": "minimum"}


def whole(records: Record | StoredRecord | Iterable[Record | StoredRecord], *, dim: int | None = None) -> Any:
    """The full tensor from the pieces of several ranks, bit for bit, in the framework they came in.

    >>> tt.whole(tt.Run("runs/20251028_143041").filter("layers.0.mlp.up", step=3))
    >>> tt.whole(tt.Run("runs/20251028_143041").filter("head"), dim=0)   # each rank had a part of the batch

    Shards are put where they belong. Copies are compared bit for bit, NaN included, and one is taken.
    Partial results are reduced in the order of ranks and in their own number type: a collective may add in
    another order, so a sum can differ from its result in the last bits. Without a placement all values must
    be equal, unless `dim` says along which dimension they follow each other. The result is on the CPU.
    """
    record_list = [records] if isinstance(records, Record | StoredRecord) else list(records)
    shards = collect_shards(record_list)
    name = record_list[0].name
    unplaced = [shard for shard in shards if shard.placement is UNPLACED]
    if dim is not None:
        return _concatenate(name, shards, dim)
    if len(unplaced) == len(shards):
        return _replicated_value(name, shards)
    if unplaced:
        raise NotWholeError(
            f"{name!r} of {describe_ranks(unplaced)} does not say how it sits in the whole, the others do; "
            "whole(..., dim=...) joins all of them along a dimension, in rank order"
        )
    return _assemble(name, [shard for shard in shards if shard.placement.coordinate])


def _replicated_value(name: str, shards: Sequence[LocalShard]) -> Any:
    """The value that all ranks hold: without a placement it can only be replicated."""
    first, *others = shards
    if not first.dtype and all(first.framework.mark(first.value)(other.value) for other in others):
        return first.value
    check_arrays(name, shards)
    for other in others:
        difference = describe_difference(first, other)
        if difference:
            raise NotWholeError(
                f"{name!r} differs between rank {first.rank} and rank {other.rank} in {difference}, and "
                "nothing says how the pieces sit in the whole; whole(..., dim=...) would join them along a "
                "dimension, in rank order"
            )
    return first.value


def _concatenate(name: str, shards: Sequence[LocalShard], dim: int) -> Any:
    check_arrays(name, shards)
    if all(shard.placement is not UNPLACED for shard in shards):
        raise ValueError(
            f"{name!r} says how it is placed ({_describe_placement(shards[0].placement)}); leave dim out"
        )
    if len({shard.rank for shard in shards}) < len(shards):
        raise NotWholeError(
            f"{len(shards)} records of {name!r} come from {describe_ranks(shards)}; give one each"
        )
    try:
        bits = np.concatenate([shard.bits for shard in shards], axis=dim)
    except ValueError as error:
        shapes = format_list([list(shard.bits.shape) for shard in shards])
        raise NotWholeError(
            f"{name!r} cannot be put together along dimension {dim} from {shapes}: {error}"
        ) from None
    return shards[0].framework.from_bits(bits, shards[0].dtype)


def _assemble(name: str, shards: Sequence[LocalShard]) -> Any:
    check_arrays(name, shards)
    placement = _common_placement(name, shards)
    _check_supported(name, placement)
    for shard in shards:
        _check_shape(name, shard)
    by_coordinate = _deduplicate(name, placement, shards)
    _check_complete(name, placement, by_coordinate, shards)
    for mesh_dim in reversed(range(len(placement.parts))):
        if _reduction_of(placement.parts[mesh_dim]) in _REDUCTIONS:
            by_coordinate = _reduce_axis(name, placement, by_coordinate, mesh_dim)
    return _fill(placement, list(by_coordinate.values()))


def _common_placement(name: str, shards: Sequence[LocalShard]) -> Placement:
    """A placement whose mesh, parts and global shape are those of all shards."""
    distinct = {
        (placement.mesh, placement.parts, placement.shape): placement
        for placement in (shard.placement for shard in shards)
    }
    if not distinct:
        raise NotWholeError(f"no rank of the mesh is among the records of {name!r}; give those of every rank")
    if len(distinct) > 1:
        descriptions = format_list([_describe_placement(placement) for placement in distinct.values()])
        raise NotWholeError(
            f"the ranks place {name!r} differently: {descriptions}; give records of the same capture"
        )
    return shards[0].placement


def _check_supported(name: str, placement: Placement) -> None:
    for part in placement.parts:
        if part != "replicate" and parse_shard(part) is None and _reduction_of(part) not in _REDUCTIONS:
            raise UnsupportedValueError(
                f"{name!r} is placed as {part}, which cannot be put together from its pieces; "
                "redistribute it before it is captured"
            )


def _check_shape(name: str, shard: LocalShard) -> None:
    where, placement = global_indices(shard.placement), shard.placement
    starts = [
        int(rows[0]) if len(rows) else begin for rows, begin in zip(where, placement.offset, strict=True)
    ]
    expected = list(map(len, where))
    if expected != list(shard.bits.shape) or starts != list(placement.offset):
        raise NotWholeError(
            f"rank {shard.rank} holds {list(shard.bits.shape)} from {list(placement.offset)} on of {name!r}, "
            f"but {_describe_placement(placement)} over a mesh {placement.mesh} gives it {expected} from "
            f"{starts} on; the pieces and their placements do not belong together"
        )


def _deduplicate(
    name: str, placement: Placement, shards: Sequence[LocalShard]
) -> dict[_Coordinate, LocalShard]:
    """One shard per mesh coordinate; raises unless replicas are equal bit for bit."""
    by_coordinate: dict[_Coordinate, LocalShard] = {}
    for shard in shards:
        coordinate = tuple(
            0 if part == "replicate" else index
            for part, index in zip(placement.parts, shard.placement.coordinate, strict=True)
        )
        difference = describe_difference(by_coordinate.setdefault(coordinate, shard), shard)
        if difference:
            raise NotWholeError(
                f"rank {by_coordinate[coordinate].rank} and rank {shard.rank} should hold the same piece of "
                f"{name!r}, but differ in {difference}; give the records of one group of ranks, or compare "
                "the two"
            )
    return by_coordinate


def _check_complete(
    name: str,
    placement: Placement,
    by_coordinate: dict[_Coordinate, LocalShard],
    shards: Sequence[LocalShard],
) -> None:
    sizes = [
        1 if part == "replicate" else size for part, size in zip(placement.parts, placement.mesh, strict=True)
    ]
    missing = [
        coordinate
        for coordinate in product(*map(range, sizes))
        if coordinate not in by_coordinate and _is_nonempty(placement, coordinate)
    ]
    if missing:
        raise NotWholeError(
            f"{len(missing)} of {prod(sizes)} pieces of {name!r} are missing, at {format_list(missing)} of "
            f"the mesh {placement.mesh}; {describe_ranks(shards)} gave theirs, give the records of every rank"
        )


def _is_nonempty(placement: Placement, coordinate: _Coordinate) -> bool:
    """Whether the shard at that coordinate has elements; the last ranks of a short dimension have none."""
    shard_placement = Placement(
        placement.mesh, coordinate, placement.parts, placement.shape, placement.offset
    )
    return all(len(rows) for rows in global_indices(shard_placement))


def _reduce_axis(
    name: str, placement: Placement, by_coordinate: dict[_Coordinate, LocalShard], mesh_dim: int
) -> dict[_Coordinate, LocalShard]:
    groups: dict[_Coordinate, list[LocalShard]] = {}
    for coordinate in sorted(by_coordinate):
        groups.setdefault((*coordinate[:mesh_dim], 0, *coordinate[mesh_dim + 1 :]), []).append(
            by_coordinate[coordinate]
        )
    operation = _reduction_of(placement.parts[mesh_dim])
    try:
        return {coordinate: _reduce_group(operation, group) for coordinate, group in groups.items()}
    except (RuntimeError, TypeError) as error:
        dtype = next(iter(by_coordinate.values())).dtype
        raise UnsupportedValueError(
            f"the {operation} of {dtype} pieces of {name!r} cannot be computed ({error}); "
            "redistribute it before it is captured"
        ) from None


def _reduce_group(operation: str, shards: Sequence[LocalShard]) -> LocalShard:
    first = shards[0]
    # Rebuilt from the bits: on the CPU, and detached from the program's autograd graph.
    values = [first.framework.from_bits(shard.bits, first.dtype) for shard in shards]
    total = reduce(_elementwise(_REDUCTIONS[operation], values[0]), values)
    if operation == "avg":
        total = total / len(values)
    bits = framework_of(total).bits(total)
    return LocalShard(first.rank, total, first.placement, first.framework, first.dtype, bits)


def _elementwise(name: str, value: Any) -> Callable[[Any, Any], Any]:
    function: Callable[[Any, Any], Any] = getattr(type(value), name, None) or getattr(np, name)
    return function


def _fill(placement: Placement, shards: Sequence[LocalShard]) -> Any:
    first = shards[0]
    bits = np.empty(placement.shape, first.bits.dtype)
    for shard in shards:
        where = global_indices(shard.placement)
        slices = tuple(map(_as_slice, where))
        bits[np.ix_(*where) if None in slices else slices] = shard.bits
    return first.framework.from_bits(bits, first.dtype)


def _as_slice(rows: np.ndarray[Any, Any]) -> slice | None:
    """The indices as a slice, which numpy copies fastest; None when they are not contiguous."""
    if not len(rows):
        return slice(0, 0)
    start, end = int(rows[0]), int(rows[-1]) + 1
    return slice(start, end) if end - start == len(rows) else None


def _reduction_of(part: str) -> str:
    """The reduction of a partial placement, `sum` of `partial(sum)`; empty for other placements."""
    return part[len("partial(") : -1] if part.startswith("partial(") else ""


def _describe_placement(placement: Placement) -> str:
    return f"{', '.join(placement.parts)} of {list(placement.shape)}"


_Array = np.ndarray[Any, Any]
UNPLACED = Placement((), (), (), (), ())
_SHARED_FIELDS = ("name", "kind", "step", "call")
_UNSIGNED_TYPES = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class LocalShard:
    rank: int | tuple[int, ...]
    value: Any
    placement: Placement
    framework: Framework
    dtype: str  # empty for what is not an ordinary array
    bits: _Array


def collect_shards(records: Sequence[Record | StoredRecord]) -> list[LocalShard]:
    """One shard per rank, in rank order; the records must share name, kind, step and call."""
    _check_same_value(records)
    shards = [shard for record in records for shard in _shards_of_record(record)]
    return sorted(shards, key=lambda shard: np.atleast_1d(shard.rank).tolist())


def check_arrays(name: str, shards: Sequence[LocalShard]) -> None:
    for shard in shards:
        if not shard.dtype:
            description = shard.framework.describe(shard.value)
            kind = (
                description.type
                if description.layout == "python"
                else f"{description.layout} {description.type}"
            )
            raise UnsupportedValueError(
                f"{name!r} is a {kind} on rank {shard.rank}, and only ordinary arrays can be put together; "
                "capture its parts, or make it dense first"
            )
    kinds = dict.fromkeys((shard.framework.name, shard.dtype) for shard in shards)
    if len(kinds) > 1:
        descriptions = [f"{framework} {dtype}" for framework, dtype in kinds]
        raise NotWholeError(
            f"{name!r} is not of one kind: {format_list(descriptions)}; give pieces of one number type"
        )


def describe_difference(a: LocalShard, b: LocalShard) -> str:
    """How two shards differ, as a string; empty when they are equal bit for bit."""
    if a is b:
        return ""
    if a.bits.shape != b.bits.shape:
        return f"shape: {list(a.bits.shape)} and {list(b.bits.shape)}"
    a_elements, b_elements = _as_unsigned(a.bits), _as_unsigned(b.bits)
    if np.array_equal(a_elements, b_elements):
        return ""
    is_different = (a_elements != b_elements).any(axis=1)
    return f"{int(is_different.sum())} of {len(is_different)} elements"


def describe_ranks(shards: Iterable[LocalShard]) -> str:
    ranks = list(dict.fromkeys(shard.rank for shard in shards))
    return f"rank{'s' if len(ranks) > 1 else ''} {format_list(ranks)}"


def format_list(entries: Sequence[Any]) -> str:
    more = f", ... {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return ", ".join(map(str, entries[:_SHOWN])) + more


def _check_same_value(records: Sequence[Record | StoredRecord]) -> None:
    if not records:
        raise NotWholeError("there are no records to put together; give those of one name, of every rank")
    for record in records:
        if not isinstance(record, Record | StoredRecord):
            raise UnsupportedValueError(
                f"whole() takes records, not a {type(record).__name__}; give run.filter(name) or cap.records"
            )
    for fact in _SHARED_FIELDS:
        values = list(dict.fromkeys(getattr(record, fact) for record in records))
        if len(values) > 1:
            raise NotWholeError(
                f"these are records of {len(values)} {fact}s: {format_list(values)}; give those of one {fact}"
            )


def _shards_of_record(record: Record | StoredRecord) -> list[LocalShard]:
    value = record.value if isinstance(record, Record) else record.load()
    placement = record.placement or framework_of(value).placement(value)
    simulated = simulated_ranks(value, placement)
    if simulated is None:
        return [_make_shard(record.rank, wait_local(value), placement)]
    return [_make_shard(rank, shard, shard_placement) for rank, shard, shard_placement in simulated]


def _make_shard(rank: int | tuple[int, ...], value: Any, placement: Placement | None) -> LocalShard:
    framework = framework_of(value)
    description = framework.describe(value)
    is_array = description.layout == "strided"
    bits = framework.bits(value) if is_array else np.empty(0)
    return LocalShard(
        rank, value, placement or UNPLACED, framework, description.dtype if is_array else "", bits
    )


def _as_unsigned(bits: _Array) -> _Array:
    """One row of unsigned integers per element."""
    flat = np.ascontiguousarray(bits).reshape(-1)
    elements = flat.view(_UNSIGNED_TYPES.get(flat.itemsize, "u8" if flat.itemsize % 8 == 0 else "u1"))
    return elements.reshape(len(flat), -1) if len(flat) else elements.reshape(0, 1)
