"""Values that a model keeps in another arrangement than a reference: what to compare and to put."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tensortap.comparison.layout.layouts import Layout, apply_ops, find_layout
from tensortap.comparison.layout.sampling import ArrayOp, relative_distance
from tensortap.comparison.noise.floor import UNIT_ROUNDOFF
from tensortap.comparison.sharding.derived import ReorderedRef, load_numbers
from tensortap.comparison.sides.entry import Entry, ValueRef
from tensortap.comparison.sides.leaf import Operand
from tensortap.kernels.decode import Array, decode

_FAR = 0.15  # of the whole: what is nearer is no other arrangement
_SAMPLE_SIZE = 256
_FLOATING = {name for name in UNIT_ROUNDOFF if not name.startswith("complex")}


class InverseReorderedRef(NamedTuple):
    """Given numbers in the arrangement of another value; what they do not reach, as padding, stays."""

    given: ValueRef
    like: ValueRef
    steps: tuple[ArrayOp, ...]  # that make of the other value what is given

    def load(self) -> Any:
        operand = self.operand()
        return decode(operand.bits, operand.dtype)

    def operand(self) -> Operand:
        given, like = self.given.operand(), self.like.operand()
        if given is None or like is None:
            raise ValueError("what is not numbers has no arrangement")
        array = decode(like.bits, like.dtype).copy()
        indices = apply_ops(self.steps, np.arange(array.size).reshape(array.shape))
        array.reshape(-1)[indices.reshape(-1)] = decode(given.bits, given.dtype).reshape(-1)
        return Operand(array, str(array.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class AlignedLayouts:
    """A pair in one arrangement, and what to put in the place of the model's own value."""

    other: Entry
    own: Entry
    given: Entry
    layout: Layout


def align_layouts(other: Entry, own: Entry) -> AlignedLayouts | str:
    """The reference's value and the model's own in one arrangement; a sentence where several would do, and
    an empty one where it is as it is."""
    if not {other.dtype, own.dtype} <= _FLOATING:
        return ""
    if other.shape == own.shape and _are_samples_close(other.operand(), own.operand()):
        return ""
    theirs, ours = load_numbers(other.reference), load_numbers(own.reference)
    if theirs is None or ours is None or min(theirs.size, ours.size) < 2:
        return ""
    fit = find_layout(theirs, ours)
    if len(fit.layouts) > 1 and theirs.shape != ours.shape:
        return str(fit)
    layout = fit.layout
    return _apply_layout(other, own, layout) if layout is not None and layout.is_conventional else ""


def _are_samples_close(theirs: Operand | None, ours: Operand | None) -> bool:
    """By a few numbers: most values need no more."""
    if theirs is None or ours is None or not theirs.bits.size:
        return True
    return relative_distance(_sample(theirs), _sample(ours)) <= _FAR


def _sample(operand: Operand) -> Array:
    flat = operand.bits.reshape(-1)
    return decode(flat[:: max(1, flat.size // _SAMPLE_SIZE)], operand.dtype)


def _apply_layout(other: Entry, own: Entry, layout: Layout) -> AlignedLayouts:
    theirs, ours = _reorder(other, layout.a), _reorder(own, layout.b)
    given = replace(
        other,
        reference=InverseReorderedRef(theirs.reference, own.reference, layout.b),
        shape=own.shape,
        checksum="",
    )
    return AlignedLayouts(theirs, ours, given, layout)


def _reorder(entry: Entry, steps: tuple[ArrayOp, ...]) -> Entry:
    if not steps:
        return entry
    shape = apply_ops(steps, np.empty(entry.shape, np.bool_)).shape
    return replace(entry, reference=ReorderedRef(entry.reference, steps), shape=shape, checksum="")
