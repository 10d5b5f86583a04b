"""Which part of a path leads nowhere, and what stands at that place instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from tensortap.core.patterns import closest_names
from tensortap.sources.probes import attributes, first_argument, function_of, variables
from tensortap.sources.sites import children, class_name, has_forward, stored, unwrapped

_SHOWN = 6


class Unresolved(NamedTuple):
    """The first part of a path that is not there: who does not have it, and what he has."""

    position: int
    owner: str
    known: list[str]


def unresolved(model: Any, segments: Sequence[str]) -> Unresolved | None:
    """None where all parts are there, or a part is a wildcard, which may fail in many places."""
    if any(letter in segment for segment in segments for letter in "*?[{<"):
        return None
    module, position = unwrapped(model), 0
    while position < len(segments) and (child := dict(children(module)).get(segments[position])) is not None:
        module, position = child, position + 1
    rest = segments[position:]
    if rest and function_of(module, rest[0]) is not None:
        return _in_function(module, rest, position)
    owner = repr(".".join(segments[:position])) if position else "the model"
    return Unresolved(position, owner, _parts(module)) if rest and rest[0] not in ("in", "out") else None


def sentence(found: Unresolved, segments: Sequence[str]) -> str:
    """Whose part is missing, and the whole path with the nearest part in its place."""
    before, part, after = segments[: found.position], segments[found.position], segments[found.position + 1 :]
    near = closest_names(part.partition("#")[0], found.known)
    if not near:
        more = ", ..." if len(found.known) > _SHOWN else ""
        return f"{found.owner} has no {part!r}; it has {', '.join(map(repr, found.known[:_SHOWN]))}{more}."
    meant = (repr(".".join([*before, one, *after])) for one in near)
    return f"{found.owner} has no {part!r}; did you mean {' or '.join(meant)}?"


def _in_function(module: Any, rest: Sequence[str], position: int) -> Unresolved | None:
    name = f"{class_name(module)}.{rest[0]}"
    if len(rest) > 2 and rest[1] == first_argument(module, rest[0]):
        known = attributes(module)
        return None if rest[2] in known else Unresolved(position + 2, rest[1], known)
    known = variables(module, rest[0])
    is_known = len(rest) < 2 or rest[1].partition("#")[0] in known
    return None if is_known else Unresolved(position + 1, name, known)


def _parts(module: Any) -> list[str]:
    own = [name for name, _ in children(module)]
    called = ["forward", *_functions(type(module)), "in", "out"] if has_forward(module) else []
    return list(dict.fromkeys([*own, *stored(module), *called]))


def _functions(kind: type) -> Iterable[str]:
    """The methods that its author wrote, not those of torch."""
    for one in kind.__mro__:
        if not one.__module__.startswith("torch."):
            found = (name for name, held in vars(one).items() if isinstance(held, FunctionType))
            yield from (name for name in found if not name.startswith("__"))
