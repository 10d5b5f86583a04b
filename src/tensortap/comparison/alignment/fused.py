"""Pair fused with split values: fused projections and their inputs, hidden states with a separate
residual."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, permutations

from tensortap.comparison.layout.layouts import find_layout
from tensortap.comparison.layout.sampling import ArrayOp, SampledConcatenation, relative_distance
from tensortap.comparison.matching.match import EntryPair, Matching
from tensortap.comparison.sharding.derived import JoinedRef, ReorderedRef, load_numbers
from tensortap.comparison.sharding.placement import ShardPlacement, assemble, shape_without
from tensortap.comparison.sides.entry import AlignmentNote, Entry, module_of
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array

_MAX_ERROR, _MARGIN = 0.1, 3.0
_MAX_PARTS, _MAX_CANDIDATES = 3, 8
_SUM = ShardPlacement("partial")
_ModuleCall = tuple[object, ...]
FusedInputs = tuple[
    Entry, Sequence[Entry], bool
]  # the full value, its parts, and whether the full value is of A
_GUESS_METHODS = ("class", "content")


@dataclass(slots=True)
class _NumbersCache:
    """The numbers of entries, each loaded once."""

    _arrays: dict[int, Array | None] = field(default_factory=dict)

    def load(self, entry: Entry) -> Array | None:
        if id(entry) not in self._arrays:
            self._arrays[id(entry)] = load_numbers(entry.reference)
        return self._arrays[id(entry)]

    def load_all(self, entries: Sequence[Entry]) -> list[Array] | None:
        loaded = [self.load(entry) for entry in entries]
        arrays = [array for array in loaded if array is not None]
        return arrays if len(arrays) == len(loaded) else None


@dataclass(frozen=True, slots=True, eq=False)
class FusedMatch:
    """A full value, the values of the other side that make it up, and how."""

    full: Entry
    parts: list[Entry]
    placement: ShardPlacement
    ops: tuple[ArrayOp, ...]
    is_a: bool  # whether the full value is of A

    @property
    def is_fused(self) -> bool:
        return self.placement is not _SUM


def pair_fused(matching: Matching) -> Matching:
    """Pair values that only one side has with those of the other that make them up."""
    matches = find_fused(matching)
    if not matches:
        return matching
    paired = {id(entry) for fused in matches for entry in (fused.full, *fused.parts)}
    pairs = [pair for fused in matches for pair in _fused_pairs(fused)]
    only = [
        [entry for entry in side if id(entry) not in paired] for side in (matching.only_a, matching.only_b)
    ]
    summaries = ", ".join(
        dict.fromkeys(pair.alignment.summary for pair in pairs if pair.alignment is not None)
    )
    note = f"{len(pairs)} pairs are kept as one value on one side and as several on the other: {summaries}"
    messages = [*matching.messages, note]
    updated = replace(
        matching, pairs=[*matching.pairs, *pairs], only_a=only[0], only_b=only[1], messages=messages
    )
    updated = pair_fused_inputs(
        updated,
        [
            (fused_match.full, fused_match.parts, fused_match.is_a)
            for fused_match in matches
            if fused_match.is_fused
        ],
    )
    return replace(updated, pairs=sorted(updated.pairs, key=lambda pair: _execution_order(pair.a)))


def find_fused(matching: Matching) -> list[FusedMatch]:
    """Find every value of one side that unpaired values of the other make up."""
    matches: list[FusedMatch] = []
    for full_entries, part_entries, is_a in (
        (matching.only_a, matching.only_b, True),
        (matching.only_b, matching.only_a, False),
    ):
        paired = {id(entry) for fused in matches for entry in (fused.full, *fused.parts)}
        candidates = CandidatesByShape(
            [entry for entry in part_entries if id(entry) not in paired and entry.dtype]
        )
        for entry in full_entries:
            fused_match = (
                _find_parts(entry, candidates, is_a) if id(entry) not in paired and entry.dtype else None
            )
            if fused_match is not None:
                candidates.remove(fused_match.parts)
                matches.append(fused_match)
    return matches


def _find_parts(full: Entry, candidates: CandidatesByShape, is_a: bool) -> FusedMatch | None:
    """The values that make it up; None unless there is exactly one decomposition."""
    numbers = _NumbersCache()
    try:
        decompositions = [
            *_residual_sums(full, candidates, numbers),
            *_fused_sections(full, candidates, numbers),
        ]
    except (TensortapError, OSError, ValueError):
        return None
    return FusedMatch(full, *decompositions[0], is_a) if len(decompositions) == 1 else None


_Decomposition = tuple[list[Entry], ShardPlacement, tuple[ArrayOp, ...]]


def _residual_sums(
    full: Entry, candidates: CandidatesByShape, numbers: _NumbersCache
) -> Iterator[_Decomposition]:
    """Hidden states and residual, if the other side has added them already."""
    parts = candidates.with_names(full, (f"{full.name}[0]", f"{full.name}[1]"))
    if len(parts) == 2 and all(part.shape == full.shape for part in parts):
        error = _remaining_error(full, parts, _SUM, numbers)
        if error <= _MAX_ERROR and all(
            _remaining_error(full, [part], _SUM, numbers) > _MARGIN * error for part in parts
        ):
            yield parts, _SUM, ()


def _fused_sections(
    full: Entry, candidates: CandidatesByShape, numbers: _NumbersCache
) -> Iterator[_Decomposition]:
    """Query, key and value, or gate and up, in one projection."""
    for axis in dict.fromkeys((len(full.shape) - 1, 0)) if full.shape else ():
        fitting_parts = candidates.with_shape(full, axis, _MAX_CANDIDATES)
        full_numbers = numbers.load(full) if len(fitting_parts) > 1 else None
        if full_numbers is None:
            continue
        sampled = SampledConcatenation(full_numbers, axis)
        for count in range(2, _MAX_PARTS + 1):
            for parts in permutations(fitting_parts, count):
                if sum(part.shape[axis] for part in parts) == full.shape[axis]:
                    ops = _fused_layout(full, list(parts), ShardPlacement("shard", axis), numbers, sampled)
                    if ops is not None:
                        yield list(parts), ShardPlacement("shard", axis), ops


def _fused_layout(
    full: Entry,
    parts: list[Entry],
    placement: ShardPlacement,
    numbers: _NumbersCache,
    sampled: SampledConcatenation,
) -> tuple[ArrayOp, ...] | None:
    """The ops that turn the full value into its concatenated parts; None if there are none."""
    arrays, full_numbers = numbers.load_all(parts), numbers.load(full)
    if arrays is None or full_numbers is None:
        return None
    if (
        sampled.could_match(arrays, _MAX_ERROR)
        and _remaining_error(full, parts, placement, numbers) <= _MAX_ERROR
    ):
        return ()
    if [part.order for part in parts] != sorted(part.order for part in parts):
        return None
    layout = find_layout(assemble(placement, arrays)[0], full_numbers).layout
    return layout.b if layout is not None and layout.is_conventional else None


def _fused_pairs(fused: FusedMatch) -> Iterator[EntryPair]:
    full, parts, placement, ops = fused.full, fused.parts, fused.placement, fused.ops
    summary = f"fused along axis {placement.dim}" if fused.is_fused else "a residual beside"
    names = ", ".join(part.name for part in parts)
    if fused.is_a or not fused.is_fused:
        reference = JoinedRef(tuple(part.reference for part in parts), placement)
        counterpart = replace(parts[0], name=names, reference=reference, shape=full.shape, checksum="")
        reordered = replace(full, reference=ReorderedRef(full.reference, ops), checksum="") if ops else full
        detail = f"equal up to {summary}: {full.name} is {names}"
        note = AlignmentNote(reordered.name if fused.is_a else names, summary, (detail,))
        yield (
            EntryPair(reordered, counterpart, "parts", alignment=note)
            if fused.is_a
            else EntryPair(counterpart, reordered, "parts", alignment=note)
        )
        return
    start = 0
    for part in parts:
        end = start + part.shape[placement.dim]
        cut: ArrayOp = ("cut", placement.dim, start, end)
        reference_b = ReorderedRef(full.reference, (*ops, cut))
        counterpart = replace(full, reference=reference_b, shape=part.shape, checksum="")
        detail = f"equal up to {summary}: it is {start} to {end - 1} of {full.name}"
        yield EntryPair(part, counterpart, "parts", alignment=AlignmentNote(part.name, summary, (detail,)))
        start = end


def _remaining_error(
    full: Entry, parts: Sequence[Entry], placement: ShardPlacement, numbers: _NumbersCache
) -> float:
    full_numbers, arrays = numbers.load(full), numbers.load_all(parts)
    return (
        float("inf")
        if full_numbers is None or arrays is None
        else relative_distance(full_numbers, assemble(placement, arrays)[0])
    )


def _execution_order(entry: Entry) -> tuple[int, int, int]:
    return entry.first_step, entry.order, entry.first_rank


def pair_fused_inputs(matching: Matching, fused: Iterable[FusedInputs]) -> Matching:
    """Pair the inputs of fused modules with those of the modules they replace.

    This replaces pairs that were guessed before.
    """
    guessed = [pair for pair in matching.pairs if pair.how in _GUESS_METHODS]
    free = (
        _inputs_by_call([*matching.only_a, *(pair.a for pair in guessed)]),
        _inputs_by_call([*matching.only_b, *(pair.b for pair in guessed)]),
    )
    pairs: list[EntryPair] = []
    for full, parts, is_a in fused:
        if full.kind == "output":
            full_inputs, part_inputs = free if is_a else free[::-1]
            pairs += _input_pairs(
                full_inputs.get(_module_call(full), []),
                [part_inputs.get(_module_call(part), []) for part in parts],
                is_a,
            )
    paired = {id(entry) for pair in pairs for entry in (pair.a, pair.b)}
    kept = [pair for pair in matching.pairs if pair not in guessed or not {id(pair.a), id(pair.b)} & paired]
    return replace(
        matching,
        pairs=[*kept, *pairs],
        only_a=[entry for entry in matching.only_a if id(entry) not in paired],
        only_b=[entry for entry in matching.only_b if id(entry) not in paired],
    )


def _input_pairs(
    full_inputs: Sequence[Entry], part_inputs: Iterable[Sequence[Entry]], is_a: bool
) -> Iterator[EntryPair]:
    """Pair inputs by position."""
    for inputs in part_inputs:
        for full_input, part_input in zip(full_inputs, inputs, strict=False):
            if full_input.shape == part_input.shape:
                a, b = (full_input, part_input) if is_a else (part_input, full_input)
                detail = f"{full_input.name} is what comes into each of the modules that are done in one"
                yield EntryPair(
                    a, b, "parts", alignment=AlignmentNote(a.name, "input of a fused module", (detail,))
                )


def _inputs_by_call(entries: Iterable[Entry]) -> dict[_ModuleCall, list[Entry]]:
    by_call: dict[_ModuleCall, list[Entry]] = {}
    for entry in entries:
        if entry.kind == "input":
            by_call.setdefault(_module_call(entry), []).append(entry)
    return by_call


def _module_call(entry: Entry) -> _ModuleCall:
    return module_of(entry.name, entry.kind), entry.step, entry.call, entry.rank


class CandidatesByShape:
    """The unpaired values of a side, indexed by call, name, parent and shape."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._positions = {id(entry): position for position, entry in enumerate(entries)}
        self._groups: defaultdict[Hashable, dict[int, Entry]] = defaultdict(dict)
        for index, entry in enumerate(entries):
            for key in _lookup_keys(entry):
                self._groups[key][index] = entry

    def with_names(self, full: Entry, names: Sequence[str]) -> list[Entry]:
        """Those of the same call with one of these names, in the order of the side."""
        return self._ordered([self._group((_call_key(full), name)) for name in names])

    def with_shape(self, full: Entry, axis: int, limit: int) -> list[Entry]:
        """Those of the same call with the same shape but for one axis, and the same parent or name prefix."""
        shape_key = _call_key(full), axis, shape_without(full.shape, axis)
        groups = [self._group((*shape_key, "in", _parent(full))), self._group((*shape_key, "of", full.name))]
        return self._ordered([dict(islice(group.items(), limit)) for group in groups])[:limit]

    def remove(self, entries: Sequence[Entry]) -> None:
        """Remove entries that have been paired."""
        for entry in entries:
            for key in _lookup_keys(entry):
                self._groups[key].pop(self._positions[id(entry)], None)

    def _group(self, key: Hashable) -> dict[int, Entry]:
        return self._groups.get(key, {})

    def _ordered(self, groups: Sequence[dict[int, Entry]]) -> list[Entry]:
        by_position = {position: entry for group in groups for position, entry in group.items()}
        return [by_position[position] for position in sorted(by_position)]


def _lookup_keys(entry: Entry) -> Iterator[Hashable]:
    call_key = _call_key(entry)
    yield call_key, entry.name
    for axis in {len(entry.shape) - 1, 0} if entry.shape else ():
        shape_key = call_key, axis, shape_without(entry.shape, axis)
        yield (*shape_key, "in", _parent(entry))
        for container in _containers(entry.name):
            yield (*shape_key, "of", container)


def _containers(name: str) -> Iterator[str]:
    """The names it may be a part of: `block[1][0]` of `block` and of `block[1]`."""
    at = name.find("[")
    while at >= 0:
        yield name[:at]
        at = name.find("[", at + 1)


def _call_key(entry: Entry) -> Hashable:
    return entry.kind, entry.step, entry.call, entry.rank


def _parent(entry: Entry) -> str:
    """The path of the parent module; for weights and inputs, that of their module's parent."""
    path = entry.name.split(".")
    return ".".join(path[:-2] if entry.kind in ("param", "grad_param", "input") else path[:-1])
