"""Layouts and fused modules while replaying.

Values that a model keeps in another arrangement than a reference: what to compare and to put.

What a reference does in several modules and the other model in one: their outputs side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tensortap.comparison.alignment.fused import find_fused
from tensortap.comparison.layout.layouts import Layout, apply_ops, find_layout
from tensortap.comparison.layout.sampling import ArrayOp, relative_distance
from tensortap.comparison.matching.match import Matching
from tensortap.comparison.sharding.derived import ReorderedRef, load_numbers
from tensortap.comparison.sides.entry import Entry, Side, ValueRef
from tensortap.comparison.sides.leaf import Operand
from tensortap.comparison.sides.module_names import module_of, split_name
from tensortap.comparison.sides.value_ref import numeric_operand
from tensortap.comparison.values.noise import UNIT_ROUNDOFF
from tensortap.core.patterns import closest_names
from tensortap.kernels.decode import Array, decode
from tensortap.replay.reference import concatenate

_FAR = 0.15  # of the whole: what is nearer is no other arrangement
_SAMPLE_SIZE = 256
_FLOATING = {name for name in UNIT_ROUNDOFF if not name.startswith("complex")}


class InverseReorderedRef(NamedTuple):
    """Given numbers in the arrangement of another value; what they do not reach, as padding, stays."""

    source: ValueRef
    target: ValueRef
    steps: tuple[ArrayOp, ...]  # that make of the other value what is given

    def load(self) -> Any:
        operand = self.operand()
        return decode(operand.bits, operand.dtype)

    def operand(self) -> Operand:
        given, like = self.source.operand(), self.target.operand()
        if given is None or like is None:
            raise ValueError("what is not numbers has no arrangement")
        array = decode(like.bits, like.dtype).copy()
        indices = apply_ops(self.steps, np.arange(array.size).reshape(array.shape))
        array.reshape(-1)[indices.reshape(-1)] = decode(given.bits, given.dtype).reshape(-1)
        return Operand(array, str(array.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class AlignedLayouts:
    """A pair in one arrangement, and what to put in the place of the model's own value."""

    reference: Entry
    candidate: Entry
    replacement: Entry
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


Fused = Mapping[str, Sequence[str]]
_USAGE = 'fused says what one module does of several: {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}'


class ConcatenatedRef(NamedTuple):
    """Values of one shape but for the last axis, along which they are put together."""

    parts: tuple[ValueRef, ...]

    def load(self) -> Any:
        return concatenate([part.load() for part in self.parts], -1)

    def operand(self) -> Operand | None:
        return numeric_operand(self.load())


class FusionGuess(NamedTuple):
    """Modules that were found to be done in one, by their last names."""

    fused: dict[str, list[str]]  # the candidate does in one what the reference does in several
    split_up: dict[str, list[tuple[str, int]]]  # the other way round, with the widths

    def __str__(self) -> str:
        parts = {**self.fused, **{name: [part for part, _ in parts] for name, parts in self.split_up.items()}}
        return "; ".join(f"{name} is taken for {', '.join(these)} in one" for name, these in parts.items())


def check_fused(fused: Any, modules: Sequence[str]) -> Fused:
    """What a user said to be done in one; refused where the model has no such module."""
    if fused is None:
        return {}
    if not isinstance(fused, Mapping) or not all(map(_is_list_of_names, fused.values())):
        raise TypeError(f"{_USAGE}; not {fused!r}")
    known = list(dict.fromkeys(module.rpartition(".")[2] for module in modules))
    for name in fused:
        if name not in known:
            near = closest_names(str(name), known, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"no module of the candidate is called {name!r}; {hint}{_USAGE}")
    return fused


def _is_list_of_names(parts: Any) -> bool:
    return isinstance(parts, (list, tuple)) and bool(parts) and all(isinstance(part, str) for part in parts)


def guess_fused(matched: Matching, renamed: Callable[[str], str]) -> FusionGuess:
    """What only the two sides together have: outputs that lie side by side in one of the other side."""
    renamed_entries = [replace(entry, name=renamed(entry.name)) for entry in matched.only_a]
    original_names = {id(one): entry.name for one, entry in zip(renamed_entries, matched.only_a, strict=True)}
    guess = FusionGuess({}, {})
    for candidate in find_fused(Matching([], _outputs(renamed_entries), _outputs(matched.only_b))):
        whole, parts = candidate.full, candidate.parts
        if candidate.ops or not candidate.is_fused or candidate.placement.dim != len(whole.shape) - 1:
            continue
        if candidate.is_a:
            widths = [(_module_leaf_name(part.name), part.shape[-1]) for part in parts]
            guess.split_up.setdefault(_module_leaf_name(original_names[id(whole)]), widths)
        else:
            guess.fused.setdefault(
                _module_leaf_name(whole.name), [_module_leaf_name(original_names[id(part)]) for part in parts]
            )
    return guess


def _outputs(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.kind == "output"]


def _module_leaf_name(name: str) -> str:
    return module_of(name, "output").rpartition(".")[2]


def concatenate_fused(side: Side, fused: Fused) -> Side:
    """The same values, those of modules that are done in one under the name of that one: `{"qkv": ["q", "k",
    "v"]}` makes of the outputs of `attn.q`, `attn.k` and `attn.v` one of `attn.qkv`. Their input is its own.
    """
    if not fused:
        return side
    groups = {key: parts for key, parts in _group_parts(side, fused).items() if all(parts)}
    joined = {id(parts[-1]): _concatenate_entries(key, parts) for key, parts in groups.items()}
    consumed = {id(part) for parts in groups.values() for part in parts} - joined.keys()
    return replace(
        side, entries=[joined.get(id(entry), entry) for entry in side.entries if id(entry) not in consumed]
    )


def missing_parts(side: Side, fused: Fused) -> list[str]:
    """What is said to be fused, and of which the side has not all parts beside each other."""
    complete = {key[1] for key, parts in _group_parts(side, fused).items() if all(parts)}
    return [
        f"fused: no module of the reference has {', '.join(parts)} beside each other, for {name}"
        for name, parts in fused.items()
        if name not in complete
    ]


def _group_parts(side: Side, fused: Fused) -> dict[tuple[Any, ...], list[Entry | None]]:
    """What belongs together, in the order in which it is fused; None for what is not there."""
    groups: dict[tuple[Any, ...], list[Entry | None]] = {}
    for entry in side.entries:
        module, rest = split_name(entry.name, entry.kind)
        parent, _, last = module.rpartition(".")
        for name, parts in fused.items():
            if last in parts and entry.kind in ("output", "input"):
                key = parent, name, rest, entry.kind, entry.step, entry.call, entry.rank
                groups.setdefault(key, [None] * len(parts))[list(parts).index(last)] = entry
    return groups


def _concatenate_entries(key: tuple[Any, ...], parts: Sequence[Entry | None]) -> Entry:
    parent, name, rest, kind = key[:4]
    entries = [part for part in parts if part is not None]
    name_of_whole = f"{parent}.{name}{rest}" if parent else f"{name}{rest}"
    first = entries[0]
    if kind == "input":
        return replace(first, name=name_of_whole, class_name="")
    width = sum(entry.shape[-1] if entry.shape else 1 for entry in entries)
    return replace(
        first,
        name=name_of_whole,
        reference=ConcatenatedRef(tuple(entry.reference for entry in entries)),
        shape=(*first.shape[:-1], width),
        nbytes=sum(entry.nbytes for entry in entries),
        class_name="",
        checksum="",
    )


def split_fused(side: Side, split_up: Mapping[str, Sequence[tuple[str, int]]]) -> Side:
    """The same values, that of a module which does several in one under the names of those: `{"qkv": [("q",
    64), ("k", 32), ("v", 32)]}` makes three of the output of `attn.qkv`. Its input is that of each."""
    if not split_up:
        return side
    return replace(side, entries=[part for entry in side.entries for part in _split_entry(entry, split_up)])


def _split_entry(entry: Entry, split_up: Mapping[str, Sequence[tuple[str, int]]]) -> list[Entry]:
    module, rest = split_name(entry.name, entry.kind)
    parent, _, last = module.rpartition(".")
    parts = split_up.get(last, ())
    is_fitting = entry.kind == "input" or entry.shape[-1:] == (sum(width for _, width in parts),)
    if not parts or entry.kind not in ("output", "input") or not is_fitting:
        return [entry]
    entries, start = [], 0
    for name, width in parts:
        name_of_part = f"{parent}.{name}{rest}" if parent else f"{name}{rest}"
        part = replace(entry, name=name_of_part, class_name="")
        if entry.kind == "output":
            slice_ref = ReorderedRef(entry.reference, (("cut", len(entry.shape) - 1, start, start + width),))
            part = replace(part, reference=slice_ref, shape=(*entry.shape[:-1], width), checksum="")
        entries.append(part)
        start += width
    return entries
