"""The shards that records of several ranks hold: their bits, placements, and whether two are equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.core.errors import NotWholeError, UnsupportedValueError
from tensortap.core.record import Placement, Record
from tensortap.frameworks.base import Framework, framework_of
from tensortap.frameworks.dtensor import simulated_ranks, wait_local
from tensortap.readers.stored import StoredRecord

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
