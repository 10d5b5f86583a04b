"""Layouts and fused modules while replaying: bring the reference's values into the candidate's form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tensortap.comparison.alignment.fused import find_fused
from tensortap.comparison.layout.layouts import Layout, apply_ops, find_layout
from tensortap.comparison.layout.sampling import ArrayOp, relative_distance
from tensortap.comparison.matching.match import Matching
from tensortap.comparison.sharding.derived import ReorderedRef, load_numbers, reordered_entry
from tensortap.comparison.sides.entry import Entry, Side, ValueRef, module_of, numeric_operand, split_name
from tensortap.comparison.sides.leaf import Operand
from tensortap.comparison.values.noise import UNIT_ROUNDOFF
from tensortap.core.patterns import closest_names
from tensortap.frameworks.torch_precision import concatenate
from tensortap.kernels.decode import Array, decode

_FAR = 0.15  # relative L2: closer values have the same layout
_SAMPLE_SIZE = 256
_FLOATING = {name for name in UNIT_ROUNDOFF if not name.startswith("complex")}


class InverseReorderedRef(NamedTuple):
    """The source in the layout of the target; elements without a source (padding) keep the target's."""

    source: ValueRef
    target: ValueRef
    ops: tuple[ArrayOp, ...]  # that turn the target's layout into the source's

    def load(self) -> Any:
        operand = self.operand()
        return decode(operand.bits, operand.dtype)

    def operand(self) -> Operand:
        source, target = self.source.operand(), self.target.operand()
        if source is None or target is None:
            raise ValueError("what is not numbers has no arrangement")
        array = decode(target.bits, target.dtype).copy()
        indices = apply_ops(self.ops, np.arange(array.size).reshape(array.shape))
        array.reshape(-1)[indices.reshape(-1)] = decode(source.bits, source.dtype).reshape(-1)
        return Operand(array, str(array.dtype))


@dataclass(frozen=True, slots=True, eq=False)
class AlignedLayouts:
    """A pair in one layout, and the replacement of the candidate's value."""

    reference: Entry
    candidate: Entry
    replacement: Entry
    layout: Layout


def align_layouts(reference: Entry, candidate: Entry) -> AlignedLayouts | str:
    """Both entries in one layout; else a reason if several layouts fit, or "" if none or the same does."""
    if not {reference.dtype, candidate.dtype} <= _FLOATING:
        return ""
    if reference.shape == candidate.shape and _are_samples_close(reference.operand(), candidate.operand()):
        return ""
    a, b = load_numbers(reference.reference), load_numbers(candidate.reference)
    if a is None or b is None or min(a.size, b.size) < 2:
        return ""
    fit = find_layout(a, b)
    if len(fit.layouts) > 1 and a.shape != b.shape:
        return str(fit)
    layout = fit.layout
    return (
        _apply_layout(reference, candidate, layout) if layout is not None and layout.is_conventional else ""
    )


def _are_samples_close(a: Operand | None, b: Operand | None) -> bool:
    """Whether a sample of the numbers is close: that decides most pairs."""
    if a is None or b is None or not a.bits.size:
        return True
    return relative_distance(_sample(a), _sample(b)) <= _FAR


def _sample(operand: Operand) -> Array:
    flat = operand.bits.reshape(-1)
    return decode(flat[:: max(1, flat.size // _SAMPLE_SIZE)], operand.dtype)


def _apply_layout(reference: Entry, candidate: Entry, layout: Layout) -> AlignedLayouts:
    a, b = reordered_entry(reference, layout.a), reordered_entry(candidate, layout.b)
    replacement = replace(
        reference,
        reference=InverseReorderedRef(a.reference, candidate.reference, layout.b),
        shape=candidate.shape,
        checksum="",
    )
    return AlignedLayouts(a, b, replacement, layout)


Fused = Mapping[str, Sequence[str]]
_USAGE = 'fused says what one module does of several: {"qkv_proj": ["q_proj", "k_proj", "v_proj"]}'


class ConcatenatedRef(NamedTuple):
    """Values concatenated along the last axis, as the outputs of a fused projection."""

    parts: tuple[ValueRef, ...]

    def load(self) -> Any:
        return concatenate([part.load() for part in self.parts], -1)

    def operand(self) -> Operand | None:
        return numeric_operand(self.load())


class FusionGuess(NamedTuple):
    """Guessed fused modules, by the last component of their names."""

    fused: dict[str, list[str]]  # the candidate's module -> the reference's modules
    split_up: dict[str, list[tuple[str, int]]]  # the reference's module -> the candidate's, with their widths

    def __str__(self) -> str:
        parts = {**self.fused, **{name: [part for part, _ in parts] for name, parts in self.split_up.items()}}
        return "; ".join(f"{name} is taken for {', '.join(names)} in one" for name, names in parts.items())


def check_fused(fused: Any, modules: Sequence[str]) -> Fused:
    """The user's `fused=`, validated: each key is a module of the candidate."""
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
    """Guess fused modules: unmatched outputs of one side whose concatenation is an output of the other."""
    renamed_entries = [replace(entry, name=renamed(entry.name)) for entry in matched.only_a]
    original_names = {
        id(renamed_entry): entry.name
        for renamed_entry, entry in zip(renamed_entries, matched.only_a, strict=True)
    }
    guess = FusionGuess({}, {})
    for candidate in find_fused(Matching([], _outputs(renamed_entries), _outputs(matched.only_b))):
        full, parts = candidate.full, candidate.parts
        if candidate.ops or not candidate.is_fused or candidate.placement.dim != len(full.shape) - 1:
            continue
        if candidate.is_a:
            widths = [(_module_leaf_name(part.name), part.shape[-1]) for part in parts]
            guess.split_up.setdefault(_module_leaf_name(original_names[id(full)]), widths)
        else:
            guess.fused.setdefault(
                _module_leaf_name(full.name), [_module_leaf_name(original_names[id(part)]) for part in parts]
            )
    return guess


def _outputs(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.kind == "output"]


def _module_leaf_name(name: str) -> str:
    return module_of(name, "output").rpartition(".")[2]


def concatenate_fused(side: Side, fused: Fused) -> Side:
    """Concatenate the outputs of fused modules: `{"qkv": ["q", "k", "v"]}` turns the outputs of `attn.q`,
    `attn.k` and `attn.v` into one of `attn.qkv`, whose input is theirs."""
    if not fused:
        return side
    groups = {key: parts for key, parts in _group_parts(side, fused).items() if all(parts)}
    joined = {id(parts[-1]): _concatenate_entries(key, parts) for key, parts in groups.items()}
    consumed = {id(part) for parts in groups.values() for part in parts} - joined.keys()
    return replace(
        side, entries=[joined.get(id(entry), entry) for entry in side.entries if id(entry) not in consumed]
    )


def missing_parts(side: Side, fused: Fused) -> list[str]:
    """A message for each fused module whose parts the side does not all have as siblings."""
    complete = {key[1] for key, parts in _group_parts(side, fused).items() if all(parts)}
    return [
        f"fused: no module of the reference has {', '.join(parts)} beside each other, for {name}"
        for name, parts in fused.items()
        if name not in complete
    ]


def _group_parts(side: Side, fused: Fused) -> dict[tuple[Any, ...], list[Entry | None]]:
    """Entries of each fused module in the order of its parts; None for a missing one."""
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
    fused_name = f"{parent}.{name}{rest}" if parent else f"{name}{rest}"
    first = entries[0]
    if kind == "input":
        return replace(first, name=fused_name, class_name="")
    width = sum(entry.shape[-1] if entry.shape else 1 for entry in entries)
    return replace(
        first,
        name=fused_name,
        reference=ConcatenatedRef(tuple(entry.reference for entry in entries)),
        shape=(*first.shape[:-1], width),
        nbytes=sum(entry.nbytes for entry in entries),
        class_name="",
        checksum="",
    )


def split_fused(side: Side, split_up: Mapping[str, Sequence[tuple[str, int]]]) -> Side:
    """Split the outputs of fused modules: `{"qkv": [("q", 64), ("k", 32), ("v", 32)]}` turns the output of
    `attn.qkv` into three, each with its input."""
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
        part_name = f"{parent}.{name}{rest}" if parent else f"{name}{rest}"
        part = replace(entry, name=part_name, class_name="")
        if entry.kind == "output":
            slice_ref = ReorderedRef(entry.reference, (("cut", len(entry.shape) - 1, start, start + width),))
            part = replace(part, reference=slice_ref, shape=(*entry.shape[:-1], width), checksum="")
        entries.append(part)
        start += width
    return entries
