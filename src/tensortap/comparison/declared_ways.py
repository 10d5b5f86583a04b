"""How the pieces of a value sit in the whole, as a user says it: in the words of the report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tensortap.comparison.entries import is_selected
from tensortap.comparison.ways import REPLICATE, Way

_SHARD = re.compile(r"shard\((-?\d+)\)(?: (zigzag)| fused (\d+(?::\d+)+))?")
_PARTIAL = re.compile(r"partial\((sum|mean)\)")
_WORDS = "replicate, shard(1), shard(1) zigzag, shard(1) fused 1:1:1, partial(sum) or partial(mean)"
_WRITE = 'write [[placement]] tables with of = "a pattern" and is = "shard(1)"'


class Declaration(NamedTuple):
    """The names that a pattern means are in pieces that sit so."""

    pattern: str
    way: Way


def way_of(words: Any) -> Way:
    """The way that is called so."""
    text = words.strip() if isinstance(words, str) else ""
    if text == str(REPLICATE):
        return REPLICATE
    if partial := _PARTIAL.fullmatch(text):
        return Way("partial", operation=partial[1])
    shard = _SHARD.fullmatch(text)
    if shard is None:
        raise ValueError(f"{words!r} says nothing of how pieces sit in a whole; say {_WORDS}")
    dim, zigzag, sections = shard.groups()
    if sections:
        return Way("fused", int(dim), tuple(map(int, sections.split(":"))))
    return Way("zigzag" if zigzag else "shard", int(dim))


def declared(dims: Any) -> tuple[Declaration, ...]:
    """What a dict of patterns says, `{"**.up": "shard(1)"}`."""
    if dims is None:
        return ()
    if not isinstance(dims, Mapping):
        raise TypeError(f'dims are a dict from patterns to words, {{"**.up": "shard(1)"}}; not {dims!r}')
    return tuple(Declaration(str(pattern), way_of(words)) for pattern, words in dims.items())


def declared_in(tables: Any, where: str) -> tuple[Declaration, ...]:
    """What the tables of a map say."""
    found = []
    for table in tables if isinstance(tables, list) else [tables]:
        is_one = isinstance(table, Mapping) and table.keys() == {"of", "is"}
        if not is_one or not isinstance(table["of"], str):
            raise ValueError(f"{where} has a placement {table!r}; {_WRITE}")
        found.append(Declaration(table["of"], way_of(table["is"])))
    return tuple(found)


def way_for(name: str, declarations: Sequence[Declaration]) -> Way | None:
    """Of a name that several patterns mean, what the first says."""
    return next((one.way for one in declarations if is_selected(name, [one.pattern])), None)
