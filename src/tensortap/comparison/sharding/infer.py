"""Infer the placement of shards from their numbers: the simplest one that explains the full value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensortap.comparison.layout.layouts import is_padding
from tensortap.comparison.layout.sampling import HUGE
from tensortap.comparison.sharding.placement import (
    REPLICATE,
    ShardPlacement,
    assemble,
    candidate_placements,
    owning_shards,
)
from tensortap.kernels.decode import Array

PlacementState = Literal["certain", "ambiguous", "assumed", "unexplained"]
# Maximal relative error for a placement to explain the shards.
_MAX_ERROR = 0.25
# Equal shards are replicas, unless another placement explains the full value nearly exactly.
_NEARLY_EXACT = 0.01
_MARGIN = 3.0  # factor by which the next best must be worse
_EPSILON = 1e-12
_KINDS_BY_COMPLEXITY = ("replicate", "shard", "partial", "zigzag", "fused", "mesh")
_MAX_EXACT_INT = 1 << 53  # beyond it, float64 cannot represent all integers
_SMALL_RANGE = 2.0**-20


@dataclass(frozen=True, slots=True)
class InferredPlacement:
    """How shards make up the full value.

    `error` is the relative error that remains, `rivals` are other placements with theirs, best first;
    `misfits` are the positions of shards that do not fit while the others do. Certain: no other placement
    explains the numbers, or all that do give the same full value. Assumed: by the shapes only.
    """

    state: PlacementState
    placement: ShardPlacement | None = None
    error: float = math.inf
    rivals: tuple[tuple[ShardPlacement, float], ...] = ()
    misfits: tuple[int, ...] = ()

    @property
    def is_usable(self) -> bool:
        return self.placement is not None and self.state in ("certain", "assumed")

    def __str__(self) -> str:
        rivals = "; ".join(f"{placement} leaves {error:.3g}" for placement, error in self.rivals[:2])
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
        """Assembled on each access: those of all candidates at once may not fit into memory."""
        return assemble(self.placement, self.shards)


def infer_placement(full: Array, shards: Sequence[Array]) -> InferredPlacement:
    """The placement under which the shards make up this full value. A more complex one must be better by a
    margin, and averaging noise away does not count as better."""
    offset = _integer_offset(full)
    target, scale = _to_finite(_subtract_offset(full, offset))
    finite_shards = [_to_finite(_subtract_offset(shard, offset), scale)[0] for shard in shards]
    known_placements = candidate_placements(
        [finite_shard.shape for finite_shard in finite_shards], target.shape
    )
    # A sum has another offset than its parts.
    placements = (
        placement
        for placement in known_placements
        if _drops_only_padding(placement, finite_shards) and not (offset and placement.is_reduced)
    )
    candidates = [_try_placement(placement, target, finite_shards) for placement in placements]
    if not candidates:
        return InferredPlacement("unexplained")
    best = min(candidate.error for candidate in candidates)
    copies = _placement_of_copies(finite_shards, candidates) if best > _NEARLY_EXACT else None
    if copies is not None:
        return copies
    if best <= _MAX_ERROR:
        return _choose_candidate(candidates, len(shards), target)
    return _placement_with_misfits(candidates, target, finite_shards) or _placement_by_shape(candidates)


def infer_both_placements(
    a: Sequence[Array], b: Sequence[Array]
) -> tuple[ShardPlacement, InferredPlacement] | str:
    """The placements under which the shards of both sides make the same full value; a message if
    ambiguous."""
    fits: list[tuple[ShardPlacement, InferredPlacement, Array]] = []
    for placement in _placements_without_reference(a):
        full = assemble(placement, a)[0]
        inferred = infer_placement(full, b)
        if inferred.state == "certain" and inferred.error <= _MAX_ERROR:
            fits.append((placement, inferred, full))
    if not fits:
        return "no way explains both"
    best = min(fit[1].error for fit in fits)
    best_fits = [fit for fit in fits if fit[1].error <= _MARGIN * best + _EPSILON]
    (placement, inferred, full), *other_fits = sorted(best_fits, key=_complexity)
    for other_placement, rival, other_full in other_fits:
        is_as_simple = _complexity((other_placement, rival, other_full)) == _complexity(
            (placement, inferred, full)
        )
        if is_as_simple and (
            other_full.shape != full.shape or _relative_distance(other_full, full, full) > best + _EPSILON
        ):
            return (
                f"ambiguous: {placement} of A with {inferred.placement} of B, "
                f"or {other_placement} with {rival.placement}"
            )
    return placement, inferred


def _integer_offset(full: Array) -> int:
    """An offset for large integers in a narrow range, which would be equal as float64."""
    if full.dtype.kind not in "iu" or full.size < 2:
        return 0
    low, high = int(full.min()), int(full.max())
    return low if 0 < high - low < min(_MAX_EXACT_INT, max(abs(low), abs(high)) * _SMALL_RANGE) else 0


def _subtract_offset(shard: Array, offset: int) -> Array:
    """Subtract exactly, whatever the dtype of the shard."""
    return (shard.astype(object) - offset).astype(np.float64) if offset else shard


def _drops_only_padding(placement: ShardPlacement, shards: Sequence[Array]) -> bool:
    """Whether this placement drops nothing but padding."""
    if not placement.padding:
        return True
    full = np.concatenate(shards, axis=placement.dim)
    return is_padding([("cut", placement.dim, 0, full.shape[placement.dim] - placement.padding)], full)


def _complexity(fit: tuple[ShardPlacement, InferredPlacement, Array]) -> int:
    placement, inferred, _ = fit
    return sum(
        _KINDS_BY_COMPLEXITY.index(each.kind) for each in (placement, inferred.placement) if each is not None
    )


def _placements_without_reference(shards: Sequence[Array]) -> list[ShardPlacement]:
    """Placements possible from the shards alone; replicate only if they are equal."""
    shapes = {shard.shape for shard in shards}
    placements = [
        ShardPlacement("shard", dim)
        for dim in range(shards[0].ndim)
        if len({(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}) == 1
    ]
    if len(shapes) > 1:
        return placements
    are_copies = all(np.array_equal(shards[0], shard, equal_nan=True) for shard in shards[1:])
    return [REPLICATE] if are_copies else [*placements, ShardPlacement("partial")]


def _choose_candidate(candidates: list[_Candidate], count: int, target: Array) -> InferredPlacement:
    best = min(candidates, key=lambda candidate: candidate.error)
    chosen = next(
        candidate
        for candidate in candidates
        if candidate.error <= _slack(candidate, best, count) * best.error + _EPSILON
    )
    remaining = sorted(
        (candidate for candidate in candidates if candidate is not chosen),
        key=lambda candidate: candidate.error,
    )
    ties = [candidate for candidate in remaining if _is_tie(candidate, chosen, count, target)]
    rivals = tuple((candidate.placement, candidate.error) for candidate in ties or remaining)
    return InferredPlacement("ambiguous" if ties else "certain", chosen.placement, chosen.error, rivals)


def _slack(candidate: _Candidate, best: _Candidate, count: int) -> float:
    """Summing copies reduces their noise by the square root of their number, which is no evidence."""
    return 2 * math.sqrt(count) if best.placement.is_reduced and not candidate.placement.is_reduced else 1.0


def _is_tie(rival: _Candidate, chosen: _Candidate, count: int, target: Array) -> bool:
    """Whether it explains the numbers about as well, but gives another full value."""
    margin = _MARGIN * _slack(rival, chosen, count)
    if rival.error > margin * chosen.error + _EPSILON or _slack(chosen, rival, count) > 1:
        return False
    return _relative_distance(rival.assembled[0], chosen.assembled[0], target) > chosen.error + _EPSILON


def _placement_with_misfits(
    candidates: list[_Candidate], target: Array, shards: Sequence[Array]
) -> InferredPlacement | None:
    """A placement that fully explains at least half of the shards: the others are wrong, not misplaced."""
    fits = []
    for candidate in candidates:
        if candidate.placement.kind not in ("partial", "mesh") and not candidate.placement.padding:
            misfits = _misfitting_shards(candidate, target, shards)
            if len(misfits) <= len(shards) // 2:
                fits.append((candidate, misfits))
    if len(fits) != 1:
        return None
    candidate, misfits = fits[0]
    return InferredPlacement("certain", candidate.placement, candidate.error, (), misfits)


def _misfitting_shards(candidate: _Candidate, target: Array, shards: Sequence[Array]) -> tuple[int, ...]:
    if candidate.placement == REPLICATE:
        errors = [_relative_distance(shard, target, target) for shard in shards]
    else:
        owner, residual = owning_shards(candidate.placement, shards), candidate.assembled[0] - target
        errors = [
            _norm(residual[owner == position]) / (_norm(target[owner == position]) or 1)
            for position in range(len(shards))
        ]
    return tuple(position for position, error in enumerate(errors) if error > _MAX_ERROR)


def _placement_of_copies(shards: Sequence[Array], candidates: list[_Candidate]) -> InferredPlacement | None:
    """Shards that are all equal are replicated, whatever the full value is."""
    if candidates[0].placement != REPLICATE or any(
        not np.array_equal(shards[0], shard) for shard in shards[1:]
    ):
        return None
    return InferredPlacement("certain", REPLICATE, candidates[0].error)


def _placement_by_shape(candidates: list[_Candidate]) -> InferredPlacement:
    """If no placement explains the numbers, the only plain one that the shapes allow."""
    plain = [candidate for candidate in candidates if candidate.placement.kind in ("replicate", "shard")]
    rivals = tuple(
        (candidate.placement, candidate.error)
        for candidate in sorted(candidates, key=lambda candidate: candidate.error)
    )
    if len(plain) == 1:
        return InferredPlacement("assumed", plain[0].placement, plain[0].error, rivals)
    return InferredPlacement("unexplained", None, math.inf, rivals)


def _try_placement(placement: ShardPlacement, target: Array, shards: Sequence[Array]) -> _Candidate:
    replicas = assemble(placement, shards)
    errors = [_relative_distance(replica, target, target) for replica in replicas]
    return _Candidate(placement, math.sqrt(sum(error**2 for error in errors) / len(errors)), shards)


def _relative_distance(a: Array, b: Array, target: Array) -> float:
    apart = _norm(a - b)
    return apart / (_norm(target) or 1) if apart else 0.0


def _norm(numbers: Array) -> float:
    return float(np.linalg.norm(numbers))


def _to_finite(numbers: Array, scale: float | None = None) -> tuple[Array, float]:
    """Convert to float64, with non-finite values replaced by ordinary ones, consistently on both sides."""
    wide = numbers.astype(np.float64)
    odd = ~(np.abs(wide) < HUGE)
    if scale is None:
        kept = wide[~odd]
        scale = _norm(kept) / math.sqrt(kept.size) if kept.size else 1.0
    if odd.any():
        wide[odd] = np.where(np.isnan(wide[odd]), 2 * scale, np.sign(wide[odd]) * scale)
    return wide, scale
