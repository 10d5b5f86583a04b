"""How the pieces of a value sit in the whole, as a user says it: in the words of the report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tensortap.comparison.entries import is_selected
from tensortap.comparison.ways import REPLICATE, ShardPlacement

_SHARD = re.compile(r"shard\((-?\d+)\)(?: (zigzag)| fused (\d+(?::\d+)+))?")
_PARTIAL = re.compile(r"partial\((sum|mean)\)")
_PLACEMENT_SYNTAX = (
    "replicate, shard(1), shard(1) zigzag, shard(1) fused 1:1:1, partial(sum) or partial(mean)"
)
_TABLE_SYNTAX = 'write [[placement]] tables with of = "a pattern" and is = "shard(1)"'


class DeclaredPlacement(NamedTuple):
    """The names that a pattern means are in pieces that sit so."""

    pattern: str
    placement: ShardPlacement


def parse_placement(declaration: Any) -> ShardPlacement:
    """The way that is called so."""
    text = declaration.strip() if isinstance(declaration, str) else ""
    if text == str(REPLICATE):
        return REPLICATE
    if partial := _PARTIAL.fullmatch(text):
        return ShardPlacement("partial", operation=partial[1])
    shard = _SHARD.fullmatch(text)
    if shard is None:
        raise ValueError(
            f"{declaration!r} says nothing of how pieces sit in a whole; say {_PLACEMENT_SYNTAX}"
        )
    dim, zigzag, sections = shard.groups()
    if sections:
        return ShardPlacement("fused", int(dim), tuple(map(int, sections.split(":"))))
    return ShardPlacement("zigzag" if zigzag else "shard", int(dim))


def parse_declared_placements(dims: Any) -> tuple[DeclaredPlacement, ...]:
    """What a dict of patterns says, `{"**.up": "shard(1)"}`."""
    if dims is None:
        return ()
    if not isinstance(dims, Mapping):
        raise TypeError(f'dims are a dict from patterns to words, {{"**.up": "shard(1)"}}; not {dims!r}')
    return tuple(
        DeclaredPlacement(str(pattern), parse_placement(declaration)) for pattern, declaration in dims.items()
    )


def parse_placement_tables(tables: Any, where: str) -> tuple[DeclaredPlacement, ...]:
    """What the tables of a map say."""
    placements = []
    for table in tables if isinstance(tables, list) else [tables]:
        is_placement = isinstance(table, Mapping) and table.keys() == {"of", "is"}
        if not is_placement or not isinstance(table["of"], str):
            raise ValueError(f"{where} has a placement {table!r}; {_TABLE_SYNTAX}")
        placements.append(DeclaredPlacement(table["of"], parse_placement(table["is"])))
    return tuple(placements)


def find_declared_placement(name: str, declarations: Sequence[DeclaredPlacement]) -> ShardPlacement | None:
    """Of a name that several patterns mean, what the first says."""
    return next(
        (declared.placement for declared in declarations if is_selected(name, [declared.pattern])), None
    )
