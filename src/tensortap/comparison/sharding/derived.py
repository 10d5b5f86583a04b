"""References to values derived from others: assembled shards, reordered values, merged steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tensortap.comparison.layout.layouts import apply_ops
from tensortap.comparison.layout.sampling import ArrayOp
from tensortap.comparison.sharding.placement import ShardPlacement, assemble
from tensortap.comparison.sides.entry import Entry, ValueRef, numeric_operand
from tensortap.comparison.sides.leaf import Operand
from tensortap.core.errors import NotWholeError, UnsupportedValueError
from tensortap.core.record import Placement, Record
from tensortap.frameworks.dtensor import global_indices
from tensortap.kernels.decode import Array, decode, dtype_info
from tensortap.readers.full_tensor import whole


class UnassembledRef(NamedTuple):
    """The shards of one value on several ranks; loads the first until their placement is known.
    `placement` is what the user declared."""

    entries: tuple[Entry, ...]
    placement: ShardPlacement | None = None

    def load(self) -> Any:
        return self.entries[0].load()

    def operand(self) -> Operand | None:
        return self.entries[0].operand()


class JoinedRef(NamedTuple):
    """Shards assembled to the full value; of replicated values, one replica."""

    shards: tuple[ValueRef, ...]
    placement: ShardPlacement
    replica: int = 0

    def load(self) -> Any:
        operand = self.operand()
        return decode(operand.bits, operand.dtype)

    def operand(self) -> Operand:
        operands = [_load_operand(shard) for shard in self.shards]
        dtypes = {operand.dtype for operand in operands}
        if len(dtypes) == 1 and not self.placement.is_reduced:
            return Operand(
                assemble(self.placement, [operand.bits for operand in operands])[self.replica], dtypes.pop()
            )
        full = assemble(self.placement, [decode(operand.bits, operand.dtype) for operand in operands])[
            self.replica
        ]
        return Operand(full, str(full.dtype))


class DeclaredShardsRef(NamedTuple):
    """Shards whose records declare their placement."""

    name: str
    shards: tuple[ValueRef, ...]
    ranks: tuple[int, ...]
    placements: tuple[Placement | None, ...]

    def load(self) -> Any:
        rows = zip(self.shards, self.ranks, self.placements, strict=True)
        return whole(
            [
                Record(self.name, shard.load(), rank=rank, placement=placement)
                for shard, rank, placement in rows
            ]
        )

    def operand(self) -> Operand | None:
        return numeric_operand(self.load())


class ReorderedRef(NamedTuple):
    """A value after some array ops."""

    reference: ValueRef
    ops: tuple[ArrayOp, ...]

    def load(self) -> Any:
        operand = self.operand()
        return decode(operand.bits, operand.dtype)

    def operand(self) -> Operand:
        operand = _load_operand(self.reference)
        return Operand(apply_ops(self.ops, operand.bits), operand.dtype)


class ShardedRef(NamedTuple):
    """The shard of a full value that one rank has under a placement."""

    reference: ValueRef
    placement: Placement

    def load(self) -> Any:
        operand = self.operand()
        return decode(operand.bits, operand.dtype)

    def operand(self) -> Operand:
        operand = _load_operand(self.reference)
        return Operand(operand.bits[np.ix_(*global_indices(self.placement))], operand.dtype)


class WindowsRef(NamedTuple):
    """Windows of values, flattened and concatenated; an empty window is the full value."""

    references: tuple[ValueRef, ...]
    windows: tuple[tuple[tuple[int, int], ...], ...]  # (start, stop) along each axis

    def load(self) -> Any:
        operand = self.operand()
        return decode(operand.bits, operand.dtype)

    def operand(self) -> Operand:
        operands = [_load_operand(reference) for reference in self.references]
        parts = [
            operand.bits[tuple(slice(*limits) for limits in window)].reshape(-1)
            for operand, window in zip(operands, self.windows, strict=True)
        ]
        return Operand(np.concatenate(parts), operands[0].dtype)


class ConcatenatedStepsRef(NamedTuple):
    """The values of several steps as one; `description` says how they were combined."""

    reference: JoinedRef | WindowsRef | ReorderedRef
    description: str

    def load(self) -> Any:
        return self.reference.load()

    def operand(self) -> Operand:
        return self.reference.operand()


class UnresolvedRef(NamedTuple):
    """Shards that cannot be assembled, with the reason."""

    reason: str

    def load(self) -> Any:
        raise NotWholeError(self.reason)

    def operand(self) -> Operand | None:
        raise NotWholeError(self.reason)


def reordered_entry(entry: Entry, ops: tuple[ArrayOp, ...]) -> Entry:
    """The entry after these ops, with its new shape."""
    if not ops:
        return entry
    shape = apply_ops(ops, np.empty(entry.shape, np.bool_)).shape
    return replace(entry, reference=ReorderedRef(entry.reference, ops), shape=shape, checksum="")


def load_numbers(reference: ValueRef) -> Array | None:
    """The decoded numbers of a value; None if it is complex or not numeric."""
    operand = reference.operand()
    if operand is None or dtype_info(operand.dtype).family == "complex":
        return None
    return decode(operand.bits, operand.dtype)


def shards_of(entry: Entry) -> Sequence[Entry]:
    return entry.reference.entries if isinstance(entry.reference, UnassembledRef) else ()


def declared_placement(entry: Entry) -> ShardPlacement | None:
    """The placement that the user declared for the shards of this entry, if any."""
    return entry.reference.placement if isinstance(entry.reference, UnassembledRef) else None


def _load_operand(reference: ValueRef) -> Operand:
    operand = reference.operand()
    if operand is None:
        raise UnsupportedValueError("what is not numbers cannot be put together")
    return operand
