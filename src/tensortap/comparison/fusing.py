"""What a reference does in several modules and the other model in one: their outputs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tensortap.comparison.entries import Entry, Reference, Side
from tensortap.comparison.modules import split
from tensortap.comparison.operands import Operand
from tensortap.comparison.references import numbers_of
from tensortap.comparison.shelf import put_together


class Joined(NamedTuple):
    """Values of one shape but for the last axis, along which they are put together."""

    parts: tuple[Reference, ...]

    def load(self) -> Any:
        return put_together([part.load() for part in self.parts], -1)

    def operand(self) -> Operand | None:
        return numbers_of(self.load())


def with_fused(side: Side, fused: Mapping[str, Sequence[str]]) -> Side:
    """The same values, those of modules that are done in one under the name of that one: `{"qkv": ["q", "k",
    "v"]}` makes of the outputs of `attn.q`, `attn.k` and `attn.v` one of `attn.qkv`. Their input is its own.
    """
    if not fused:
        return side
    groups = {key: parts for key, parts in _groups(side, fused).items() if all(parts)}
    made = {id(parts[-1]): _joined(key, parts) for key, parts in groups.items()}
    gone = {id(part) for parts in groups.values() for part in parts} - made.keys()
    return replace(side, entries=[made.get(id(one), one) for one in side.entries if id(one) not in gone])


def _groups(side: Side, fused: Mapping[str, Sequence[str]]) -> dict[tuple[Any, ...], list[Entry | None]]:
    """What belongs together, in the order in which it is fused; None for what is not there."""
    groups: dict[tuple[Any, ...], list[Entry | None]] = {}
    for entry in side.entries:
        module, rest = split(entry.name, entry.kind)
        parent, _, last = module.rpartition(".")
        for name, parts in fused.items():
            if last in parts and entry.kind in ("output", "input"):
                key = parent, name, rest, entry.kind, entry.step, entry.call, entry.rank
                groups.setdefault(key, [None] * len(parts))[list(parts).index(last)] = entry
    return groups


def _joined(key: tuple[Any, ...], parts: Sequence[Entry | None]) -> Entry:
    parent, name, rest, kind = key[:4]
    entries = [part for part in parts if part is not None]
    called = f"{parent}.{name}{rest}" if parent else f"{name}{rest}"
    first = entries[0]
    if kind == "input":
        return replace(first, name=called, class_name="")
    width = sum(entry.shape[-1] if entry.shape else 1 for entry in entries)
    return replace(
        first,
        name=called,
        reference=Joined(tuple(entry.reference for entry in entries)),
        shape=(*first.shape[:-1], width),
        nbytes=sum(entry.nbytes for entry in entries),
        class_name="",
        checksum="",
    )
