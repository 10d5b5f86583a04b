"""How pieces sit in the whole, where nothing says so: the simplest way that explains the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tensortap.comparison.cutting import is_padding
from tensortap.comparison.ways import REPLICATE, Way, joined, owners, ways_for
from tensortap.kernels.numbers import Array

State = Literal["certain", "ambiguous", "assumed", "unexplained"]
# Pieces are explained by a way when this much of the whole, at most, remains.
_EXPLAINED = 0.25
# Equal pieces are copies, unless another way explains the whole nearly to the last digit.
_PLAIN = 0.01
_MARGIN = 3.0  # by how much the next best must be worse
_EXACT = 1e-12
_KINDS = ("replicate", "shard", "partial", "zigzag", "fused", "mesh")
_HUGE = 1e30  # beyond it, a number stands for infinity
_LONG = 1 << 53  # beyond it, a float64 leaves out some integers
_LITTLE = 2.0**-20


@dataclass(frozen=True, slots=True)
class Placing:
    """How pieces make a whole.

    `error` is what remains of the whole, `rivals` are other ways with theirs, best first; `misfits` are the
    positions of pieces that do not fit while the others do. Certain: nothing else explains the numbers, or
    all that do give the same whole. Assumed: only the shapes say so."""

    state: State
    way: Way | None = None
    error: float = math.inf
    rivals: tuple[tuple[Way, float], ...] = ()
    misfits: tuple[int, ...] = ()

    @property
    def is_usable(self) -> bool:
        return self.way is not None and self.state in ("certain", "assumed")

    def __str__(self) -> str:
        rivals = "; ".join(f"{way} leaves {error:.3g}" for way, error in self.rivals[:2])
        if self.state == "ambiguous":
            return f"ambiguous: {self.way} leaves {self.error:.3g}, {rivals}"
        if self.way is None:
            return f"no way explains the numbers{f': {rivals}' if rivals else ''}"
        if self.state == "assumed":
            return f"{self.way}, by the shapes alone: no way explains the numbers"
        return f"{self.way} (leaves {self.error:.3g} of the whole{f'; next {rivals}' if rivals else ''})"


@dataclass(frozen=True, slots=True)
class _Tried:
    way: Way
    error: float
    pieces: Sequence[Array]

    @property
    def wholes(self) -> list[Array]:
        """Made again where they are asked for: those of all ways at once may be too much to hold."""
        return joined(self.way, self.pieces)


def infer(whole: Array, pieces: Sequence[Array]) -> Placing:
    """The way in which the pieces make this whole. A more complex way must be better by a margin, and what
    only gains by averaging noise away is no explanation."""
    zero = _zero_of(whole)
    aim, scale = _settled(_above(whole, zero))
    settled = [_settled(_above(piece, zero), scale)[0] for piece in pieces]
    known = ways_for([one.shape for one in settled], aim.shape)
    # A sum has another zero than its parts.
    ways = (way for way in known if _is_all(way, settled) and not (zero and way.is_reduced))
    tried = [_tried(way, aim, settled) for way in ways]
    if not tried:
        return Placing("unexplained")
    best = min(one.error for one in tried)
    copies = _copies(settled, tried) if best > _PLAIN else None
    if copies is not None:
        return copies
    if best <= _EXPLAINED:
        return _decided(tried, len(pieces), aim)
    return _broken(tried, aim, settled) or _by_shape(tried)


def infer_both(a: Sequence[Array], b: Sequence[Array]) -> tuple[Way, Placing] | str:
    """How the pieces of both sides make the same whole, where neither is known; a sentence where that is
    not settled."""
    found: list[tuple[Way, Placing, Array]] = []
    for way in _simple(a):
        whole = joined(way, a)[0]
        placing = infer(whole, b)
        if placing.state == "certain" and placing.error <= _EXPLAINED:
            found.append((way, placing, whole))
    if not found:
        return "no way explains both"
    best = min(one[1].error for one in found)
    near = [one for one in found if one[1].error <= _MARGIN * best + _EXACT]
    (way, placing, whole), *others = sorted(near, key=_complexity)
    for other, rival, made in others:
        is_as_simple = _complexity((other, rival, made)) == _complexity((way, placing, whole))
        if is_as_simple and (made.shape != whole.shape or _distance(made, whole, whole) > best + _EXACT):
            return f"ambiguous: {way} of A with {placing.way} of B, or {other} with {rival.way}"
    return way, placing


def _zero_of(whole: Array) -> int:
    """From where on large integers are counted, that differ by little: as float64 they would be the same."""
    if whole.dtype.kind not in "iu" or whole.size < 2:
        return 0
    low, high = int(whole.min()), int(whole.max())
    return low if 0 < high - low < min(_LONG, max(abs(low), abs(high)) * _LITTLE) else 0


def _above(piece: Array, zero: int) -> Array:
    """Exactly, whatever a piece holds: it may be of another type."""
    return (piece.astype(object) - zero).astype(np.float64) if zero else piece


def _is_all(way: Way, pieces: Sequence[Array]) -> bool:
    """Whether the whole that this way makes leaves out nothing but padding."""
    if not way.padding:
        return True
    whole = np.concatenate(pieces, axis=way.dim)
    return is_padding([("cut", way.dim, 0, whole.shape[way.dim] - way.padding)], whole)


def _complexity(found: tuple[Way, Placing, Array]) -> int:
    way, placing, _ = found
    return sum(_KINDS.index(one.kind) for one in (way, placing.way) if one is not None)


def _simple(pieces: Sequence[Array]) -> list[Way]:
    """The ways in which pieces alone can make a whole; copies only where they are equal."""
    shapes = {piece.shape for piece in pieces}
    ways = [
        Way("shard", dim)
        for dim in range(pieces[0].ndim)
        if len({(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}) == 1
    ]
    if len(shapes) > 1:
        return ways
    are_copies = all(np.array_equal(pieces[0], other, equal_nan=True) for other in pieces[1:])
    return [REPLICATE] if are_copies else [*ways, Way("partial")]


def _decided(tried: list[_Tried], count: int, aim: Array) -> Placing:
    best = min(tried, key=lambda one: one.error)
    chosen = next(one for one in tried if one.error <= _slack(one, best, count) * best.error + _EXACT)
    others = sorted((one for one in tried if one is not chosen), key=lambda one: one.error)
    ties = [one for one in others if _is_tie(one, chosen, count, aim)]
    rivals = tuple((one.way, one.error) for one in ties or others)
    return Placing("ambiguous" if ties else "certain", chosen.way, chosen.error, rivals)


def _slack(one: _Tried, best: _Tried, count: int) -> float:
    """Adding copies makes less of their noise, by the root of their number: that proves nothing."""
    return 2 * math.sqrt(count) if best.way.is_reduced and not one.way.is_reduced else 1.0


def _is_tie(rival: _Tried, chosen: _Tried, count: int, aim: Array) -> bool:
    """Whether it explains the numbers about as well, and would make another whole of them."""
    margin = _MARGIN * _slack(rival, chosen, count)
    if rival.error > margin * chosen.error + _EXACT or _slack(chosen, rival, count) > 1:
        return False
    return _distance(rival.wholes[0], chosen.wholes[0], aim) > chosen.error + _EXACT


def _broken(tried: list[_Tried], aim: Array, pieces: Sequence[Array]) -> Placing | None:
    """A way that explains at least half of the pieces wholly: the others are wrong, not placed otherwise."""
    found = []
    for one in tried:
        if one.way.kind not in ("partial", "mesh") and not one.way.padding:
            misfits = _misfits(one, aim, pieces)
            if len(misfits) <= len(pieces) // 2:
                found.append((one, misfits))
    if len(found) != 1:
        return None
    one, misfits = found[0]
    return Placing("certain", one.way, one.error, (), misfits)


def _misfits(one: _Tried, aim: Array, pieces: Sequence[Array]) -> tuple[int, ...]:
    if one.way == REPLICATE:
        errors = [_distance(piece, aim, aim) for piece in pieces]
    else:
        owner, apart = owners(one.way, pieces), one.wholes[0] - aim
        errors = [_norm(apart[owner == at]) / (_norm(aim[owner == at]) or 1) for at in range(len(pieces))]
    return tuple(position for position, error in enumerate(errors) if error > _EXPLAINED)


def _copies(pieces: Sequence[Array], tried: list[_Tried]) -> Placing | None:
    """Pieces that are all the same are copies, whatever the whole is."""
    if tried[0].way != REPLICATE or any(not np.array_equal(pieces[0], other) for other in pieces[1:]):
        return None
    return Placing("certain", REPLICATE, tried[0].error)


def _by_shape(tried: list[_Tried]) -> Placing:
    """Where no way explains the numbers they differ under all of them; the only plain one will do."""
    plain = [one for one in tried if one.way.kind in ("replicate", "shard")]
    rivals = tuple((one.way, one.error) for one in sorted(tried, key=lambda one: one.error))
    if len(plain) == 1:
        return Placing("assumed", plain[0].way, plain[0].error, rivals)
    return Placing("unexplained", None, math.inf, rivals)


def _tried(way: Way, aim: Array, pieces: Sequence[Array]) -> _Tried:
    wholes = joined(way, pieces)
    errors = [_distance(one, aim, aim) for one in wholes]
    return _Tried(way, math.sqrt(sum(error**2 for error in errors) / len(errors)), pieces)


def _distance(one: Array, other: Array, aim: Array) -> float:
    apart = _norm(one - other)
    return apart / (_norm(aim) or 1) if apart else 0.0


def _norm(numbers: Array) -> float:
    return float(np.linalg.norm(numbers))


def _settled(numbers: Array, scale: float | None = None) -> tuple[Array, float]:
    """As float64; what is not finite becomes a usual number, the same on both sides."""
    wide = numbers.astype(np.float64)
    odd = ~(np.abs(wide) < _HUGE)
    if scale is None:
        kept = wide[~odd]
        scale = _norm(kept) / math.sqrt(kept.size) if kept.size else 1.0
    if odd.any():
        wide[odd] = np.where(np.isnan(wide[odd]), 2 * scale, np.sign(wide[odd]) * scale)
    return wide, scale
