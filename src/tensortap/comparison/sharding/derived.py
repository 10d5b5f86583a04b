"""Values that are made of others: pieces that were put together, and values in another arrangement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tensortap.comparison.layout.layouts import apply_ops
from tensortap.comparison.layout.sampling import ArrayOp
from tensortap.comparison.sharding.placement import ShardPlacement, assemble
from tensortap.comparison.sides.entry import Entry, ValueRef
from tensortap.comparison.sides.leaf import Operand
from tensortap.comparison.sides.value_ref import numeric_operand
from tensortap.core.errors import NotWholeError, UnsupportedValueError
from tensortap.core.record import Placement, Record
from tensortap.frameworks.dtensor import global_indices
from tensortap.kernels.decode import Array, decode, dtype_info
from tensortap.readers.full_tensor import whole


class UnassembledRef(NamedTuple):
    """One name of several ranks at one moment; until it is known how they make a whole, the first.
    `way` is what a user says of that."""

    entries: tuple[Entry, ...]
    placement: ShardPlacement | None = None

    def load(self) -> Any:
        return self.entries[0].load()

    def operand(self) -> Operand | None:
        return self.entries[0].operand()


class JoinedRef(NamedTuple):
    """Pieces that make a whole; of copies, the one that is meant."""

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
    """Pieces that say themselves how they sit in the whole."""

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
    """A value in another arrangement."""

    reference: ValueRef
    ops: tuple[ArrayOp, ...]

    def load(self) -> Any:
        operand = self.operand()
        return decode(operand.bits, operand.dtype)

    def operand(self) -> Operand:
        operand = _load_operand(self.reference)
        return Operand(apply_ops(self.ops, operand.bits), operand.dtype)


class ShardedRef(NamedTuple):
    """The piece of a whole that one rank has, as a placement tells it."""

    reference: ValueRef
    placement: Placement

    def load(self) -> Any:
        operand = self.operand()
        return decode(operand.bits, operand.dtype)

    def operand(self) -> Operand:
        operand = _load_operand(self.reference)
        return Operand(operand.bits[np.ix_(*global_indices(self.placement))], operand.dtype)


class WindowsRef(NamedTuple):
    """Parts of values, one number after the other; an empty place is all of it."""

    references: tuple[ValueRef, ...]
    windows: tuple[tuple[tuple[int, int], ...], ...]  # from where to where along each axis

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
    """What several steps gave, as one; `told` says how."""

    reference: JoinedRef | WindowsRef | ReorderedRef
    description: str

    def load(self) -> Any:
        return self.reference.load()

    def operand(self) -> Operand:
        return self.reference.operand()


class UnresolvedRef(NamedTuple):
    """Pieces of which nobody knows how they make a whole."""

    reason: str

    def load(self) -> Any:
        raise NotWholeError(self.reason)

    def operand(self) -> Operand | None:
        raise NotWholeError(self.reason)


def load_numbers(reference: ValueRef) -> Array | None:
    """The numbers of a value, to compute with; None for what has none."""
    operand = reference.operand()
    if operand is None or dtype_info(operand.dtype).family == "complex":
        return None
    return decode(operand.bits, operand.dtype)


def shards_of(entry: Entry) -> Sequence[Entry]:
    return entry.reference.entries if isinstance(entry.reference, UnassembledRef) else ()


def declared_placement(entry: Entry) -> ShardPlacement | None:
    """How a user says that the pieces sit in the whole."""
    return entry.reference.placement if isinstance(entry.reference, UnassembledRef) else None


def _load_operand(reference: ValueRef) -> Operand:
    operand = reference.operand()
    if operand is None:
        raise UnsupportedValueError("what is not numbers cannot be put together")
    return operand
