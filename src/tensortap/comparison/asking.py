"""Which values of a reference a replay asks for, and what of the candidate's modules they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from tensortap.comparison.sides.entry import Entry, Side
from tensortap.comparison.sides.module_names import split_name
from tensortap.core.record import Kind

_REPLAYED = ("output", "input", "value")


def infer_kinds(side: Side, renamed: Callable[[str], str]) -> Side:
    """The same; of a side that knows names alone, as a dict or what was dumped, each value is the output of
    the module of its name, or the input where the candidate's name says so."""
    if any(entry.kind in ("output", "input") for entry in side.entries):
        return side
    return replace(side, entries=[_infer_kind(entry, renamed(entry.name)) for entry in side.entries])


def select_entries(
    entries: Sequence[Entry], renamed: Callable[[str], str], sites: Collection[tuple[str, str]] | None
) -> list[Entry]:
    """The values that are meant: those of these sites, or whatever can be replayed."""
    if sites is None:
        return [entry for entry in entries if entry.kind in _REPLAYED]
    modules = [split_name(renamed(entry.name), entry.kind)[0] for entry in entries]
    return [entry for entry, module in zip(entries, modules, strict=True) if (module, entry.kind) in sites]


def _infer_kind(entry: Entry, name: str) -> Entry:
    if entry.kind != "value":
        return entry
    port = split_name(name, "value")[1].lstrip(".").partition(".")[0].partition("[")[0]
    kinds: dict[str, Kind] = {"in": "input", "forward": "value"}
    return replace(entry, kind=kinds.get(port, "output"))
