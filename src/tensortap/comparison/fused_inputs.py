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


def pair_fused_inputs(matched: Matching, fused: Iterable[FusedParts]) -> Matching:
    """The same, with the inputs of modules that were found to be one and several paired with each other.

    What was paired by a guess before is no longer a guess."""
    guessed = [pair for pair in matched.pairs if pair.how in _GUESS_METHODS]
    free = (
        _inputs_by_call([*matched.only_a, *(pair.a for pair in guessed)]),
        _inputs_by_call([*matched.only_b, *(pair.b for pair in guessed)]),
    )
    pairs: list[EntryPair] = []
    for whole, parts, is_a in fused:
        if whole.kind == "output":
            mine, others = free if is_a else free[::-1]
            pairs += _input_pairs(
                mine.get(_module_call(whole), []), [others.get(_module_call(one), []) for one in parts], is_a
            )
    taken = {id(entry) for pair in pairs for entry in (pair.a, pair.b)}
    kept = [pair for pair in matched.pairs if pair not in guessed or not {id(pair.a), id(pair.b)} & taken]
    return replace(
        matched,
        pairs=[*kept, *pairs],
        only_a=[one for one in matched.only_a if id(one) not in taken],
        only_b=[one for one in matched.only_b if id(one) not in taken],
    )


def _input_pairs(mine: Sequence[Entry], others: Iterable[Sequence[Entry]], is_a: bool) -> Iterator[EntryPair]:
    """The first input with the first of each part, and so on."""
    for inputs in others:
        for one, other in zip(mine, inputs, strict=False):
            if one.shape == other.shape:
                a, b = (one, other) if is_a else (other, one)
                told = f"{one.name} is what comes into each of the modules that are done in one"
                yield EntryPair(
                    a, b, "parts", alignment=AlignmentNote(a.name, "input of a fused module", (told,))
                )


def _inputs_by_call(entries: Iterable[Entry]) -> dict[_ModuleCall, list[Entry]]:
    found: dict[_ModuleCall, list[Entry]] = {}
    for entry in entries:
        if entry.kind == "input":
            found.setdefault(_module_call(entry), []).append(entry)
    return found


def _module_call(entry: Entry) -> _ModuleCall:
    return module_of(entry.name, entry.kind), entry.step, entry.call, entry.rank
