"""What comes into a module that does the work of several: the same as comes into each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tensortap.comparison.entries import Entry
from tensortap.comparison.match import EntryPair, Matching
from tensortap.comparison.modules import module_of
from tensortap.comparison.plans import AlignmentNote

_ModuleCall = tuple[object, ...]
FusedParts = tuple[Entry, Sequence[Entry], bool]  # the one value, its parts, and whether the one is of A
_GUESS_METHODS = ("class", "content")


def pair_fused_inputs(matching: Matching, fused: Iterable[FusedParts]) -> Matching:
    """The same, with the inputs of modules that were found to be one and several paired with each other.

    What was paired by a guess before is no longer a guess."""
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
    """The first input with the first of each part, and so on."""
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
