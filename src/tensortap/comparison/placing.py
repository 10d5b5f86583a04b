"""How pieces sit in the whole, where nothing says so: the simplest way that explains the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensortap.comparison.cutting import is_padding
from tensortap.comparison.ways import REPLICATE, ShardPlacement, assemble, candidate_placements, owning_shards
from tensortap.kernels.numbers import Array

PlacementState = Literal["certain", "ambiguous", "assumed", "unexplained"]
# Pieces are explained by a way when this much of the whole, at most, remains.
_MAX_ERROR = 0.25
# Equal pieces are copies, unless another way explains the whole nearly to the last digit.
_NEARLY_EXACT = 0.01
_MARGIN = 3.0  # by how much the next best must be worse
_EPSILON = 1e-12
_KINDS_BY_COMPLEXITY = ("replicate", "shard", "partial", "zigzag", "fused", "mesh")
_HUGE = 1e30  # beyond it, a number stands for infinity
_MAX_EXACT_INT = 1 << 53  # beyond it, a float64 leaves out some integers
_SMALL_RANGE = 2.0**-20


@dataclass(frozen=True, slots=True)
class InferredPlacement:
    """How pieces make a whole.

    `error` is what remains of the whole, `rivals` are other ways with theirs, best first; `misfits` are the
    positions of pieces that do not fit while the others do. Certain: nothing else explains the numbers, or
    all that do give the same whole. Assumed: only the shapes say so."""

    state: PlacementState
    placement: ShardPlacement | None = None
    error: float = math.inf
    rivals: tuple[tuple[ShardPlacement, float], ...] = ()
    misfits: tuple[int, ...] = ()

    @property
    def is_usable(self) -> bool:
        return self.placement is not None and self.state in ("certain", "assumed")

    def __str__(self) -> str:
        rivals = "; ".join(f"{way} leaves {error:.3g}" for way, error in self.rivals[:2])
        if self.state == "ambiguous":
            return f"ambiguous: {self.placement} leaves {self.error:.3g}, {rivals}"
        if self.placement is None:
            return f"no way explains the numbers{f': {rivals}' if rivals else ''}"
        if self.state == "assumed":
            return f"{self.placement}, by the shapes alone: no way explains the numbers"
        return (
            f"{self.placement} (leaves {self.error:.3g} of the whole{f'; next {rivals}' if rivals else ''})"
        )


@dataclass(frozen=True, slots=True)
class _Candidate:
    placement: ShardPlacement
    error: float
    shards: Sequence[Array]

    @property
    def assembled(self) -> list[Array]:
        """Made again where they are asked for: those of all ways at once may be too much to hold."""
        return assemble(self.placement, self.shards)


def infer_placement(whole: Array, pieces: Sequence[Array]) -> InferredPlacement:
    """The way in which the pieces make this whole. A more complex way must be better by a margin, and what
    only gains by averaging noise away is no explanation."""
    zero = _integer_offset(whole)
    aim, scale = _to_finite(_subtract_offset(whole, zero))
    settled = [_to_finite(_subtract_offset(piece, zero), scale)[0] for piece in pieces]
    known = candidate_placements([one.shape for one in settled], aim.shape)
    # A sum has another zero than its parts.
    ways = (way for way in known if _drops_only_padding(way, settled) and not (zero and way.is_reduced))
    tried = [_try_placement(way, aim, settled) for way in ways]
    if not tried:
        return InferredPlacement("unexplained")
    best = min(one.error for one in tried)
    copies = _placement_of_copies(settled, tried) if best > _NEARLY_EXACT else None
    if copies is not None:
        return copies
    if best <= _MAX_ERROR:
        return _choose_candidate(tried, len(pieces), aim)
    return _placement_with_misfits(tried, aim, settled) or _placement_by_shape(tried)


def infer_both_placements(
    a: Sequence[Array], b: Sequence[Array]
) -> tuple[ShardPlacement, InferredPlacement] | str:
    """How the pieces of both sides make the same whole, where neither is known; a sentence where that is
    not settled."""
    found: list[tuple[ShardPlacement, InferredPlacement, Array]] = []
    for way in _placements_without_reference(a):
        whole = assemble(way, a)[0]
        placing = infer_placement(whole, b)
        if placing.state == "certain" and placing.error <= _MAX_ERROR:
            found.append((way, placing, whole))
    if not found:
        return "no way explains both"
    best = min(one[1].error for one in found)
    near = [one for one in found if one[1].error <= _MARGIN * best + _EPSILON]
    (way, placing, whole), *others = sorted(near, key=_complexity)
    for other, rival, made in others:
        is_as_simple = _complexity((other, rival, made)) == _complexity((way, placing, whole))
        if is_as_simple and (
            made.shape != whole.shape or _relative_distance(made, whole, whole) > best + _EPSILON
        ):
            return f"ambiguous: {way} of A with {placing.placement} of B, or {other} with {rival.placement}"
    return way, placing


def _integer_offset(whole: Array) -> int:
    """From where on large integers are counted, that differ by little: as float64 they would be the same."""
    if whole.dtype.kind not in "iu" or whole.size < 2:
        return 0
    low, high = int(whole.min()), int(whole.max())
    return low if 0 < high - low < min(_MAX_EXACT_INT, max(abs(low), abs(high)) * _SMALL_RANGE) else 0


def _subtract_offset(piece: Array, zero: int) -> Array:
    """Exactly, whatever a piece holds: it may be of another type."""
    return (piece.astype(object) - zero).astype(np.float64) if zero else piece


def _drops_only_padding(way: ShardPlacement, pieces: Sequence[Array]) -> bool:
    """Whether the whole that this way makes leaves out nothing but padding."""
    if not way.padding:
        return True
    whole = np.concatenate(pieces, axis=way.dim)
    return is_padding([("cut", way.dim, 0, whole.shape[way.dim] - way.padding)], whole)


def _complexity(found: tuple[ShardPlacement, InferredPlacement, Array]) -> int:
    way, placing, _ = found
    return sum(_KINDS_BY_COMPLEXITY.index(one.kind) for one in (way, placing.placement) if one is not None)


def _placements_without_reference(pieces: Sequence[Array]) -> list[ShardPlacement]:
    """The ways in which pieces alone can make a whole; copies only where they are equal."""
    shapes = {piece.shape for piece in pieces}
    ways = [
        ShardPlacement("shard", dim)
        for dim in range(pieces[0].ndim)
        if len({(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}) == 1
    ]
    if len(shapes) > 1:
        return ways
    are_copies = all(np.array_equal(pieces[0], other, equal_nan=True) for other in pieces[1:])
    return [REPLICATE] if are_copies else [*ways, ShardPlacement("partial")]


def _choose_candidate(tried: list[_Candidate], count: int, aim: Array) -> InferredPlacement:
    best = min(tried, key=lambda one: one.error)
    chosen = next(one for one in tried if one.error <= _slack(one, best, count) * best.error + _EPSILON)
    others = sorted((one for one in tried if one is not chosen), key=lambda one: one.error)
    ties = [one for one in others if _is_tie(one, chosen, count, aim)]
    rivals = tuple((one.placement, one.error) for one in ties or others)
    return InferredPlacement("ambiguous" if ties else "certain", chosen.placement, chosen.error, rivals)


def _slack(one: _Candidate, best: _Candidate, count: int) -> float:
    """Adding copies makes less of their noise, by the root of their number: that proves nothing."""
    return 2 * math.sqrt(count) if best.placement.is_reduced and not one.placement.is_reduced else 1.0


def _is_tie(rival: _Candidate, chosen: _Candidate, count: int, aim: Array) -> bool:
    """Whether it explains the numbers about as well, and would make another whole of them."""
    margin = _MARGIN * _slack(rival, chosen, count)
    if rival.error > margin * chosen.error + _EPSILON or _slack(chosen, rival, count) > 1:
        return False
    return _relative_distance(rival.assembled[0], chosen.assembled[0], aim) > chosen.error + _EPSILON


def _placement_with_misfits(
    tried: list[_Candidate], aim: Array, pieces: Sequence[Array]
) -> InferredPlacement | None:
    """A way that explains at least half of the pieces wholly: the others are wrong, not placed otherwise."""
    found = []
    for one in tried:
        if one.placement.kind not in ("partial", "mesh") and not one.placement.padding:
            misfits = _misfitting_shards(one, aim, pieces)
            if len(misfits) <= len(pieces) // 2:
                found.append((one, misfits))
    if len(found) != 1:
        return None
    one, misfits = found[0]
    return InferredPlacement("certain", one.placement, one.error, (), misfits)


def _misfitting_shards(one: _Candidate, aim: Array, pieces: Sequence[Array]) -> tuple[int, ...]:
    if one.placement == REPLICATE:
        errors = [_relative_distance(piece, aim, aim) for piece in pieces]
    else:
        owner, apart = owning_shards(one.placement, pieces), one.assembled[0] - aim
        errors = [_norm(apart[owner == at]) / (_norm(aim[owner == at]) or 1) for at in range(len(pieces))]
    return tuple(position for position, error in enumerate(errors) if error > _MAX_ERROR)


def _placement_of_copies(pieces: Sequence[Array], tried: list[_Candidate]) -> InferredPlacement | None:
    """Pieces that are all the same are copies, whatever the whole is."""
    if tried[0].placement != REPLICATE or any(not np.array_equal(pieces[0], other) for other in pieces[1:]):
        return None
    return InferredPlacement("certain", REPLICATE, tried[0].error)


def _placement_by_shape(tried: list[_Candidate]) -> InferredPlacement:
    """Where no way explains the numbers they differ under all of them; the only plain one will do."""
    plain = [one for one in tried if one.placement.kind in ("replicate", "shard")]
    rivals = tuple((one.placement, one.error) for one in sorted(tried, key=lambda one: one.error))
    if len(plain) == 1:
        return InferredPlacement("assumed", plain[0].placement, plain[0].error, rivals)
    return InferredPlacement("unexplained", None, math.inf, rivals)


def _try_placement(way: ShardPlacement, aim: Array, pieces: Sequence[Array]) -> _Candidate:
    wholes = assemble(way, pieces)
    errors = [_relative_distance(one, aim, aim) for one in wholes]
    return _Candidate(way, math.sqrt(sum(error**2 for error in errors) / len(errors)), pieces)


def _relative_distance(one: Array, other: Array, aim: Array) -> float:
    apart = _norm(one - other)
    return apart / (_norm(aim) or 1) if apart else 0.0


def _norm(numbers: Array) -> float:
    return float(np.linalg.norm(numbers))


def _to_finite(numbers: Array, scale: float | None = None) -> tuple[Array, float]:
    """As float64; what is not finite becomes a usual number, the same on both sides."""
    wide = numbers.astype(np.float64)
    odd = ~(np.abs(wide) < _HUGE)
    if scale is None:
        kept = wide[~odd]
        scale = _norm(kept) / math.sqrt(kept.size) if kept.size else 1.0
    if odd.any():
        wide[odd] = np.where(np.isnan(wide[odd]), 2 * scale, np.sign(wide[odd]) * scale)
    return wide, scale
