"""Did-you-mean for wrong paths.

Which part of a path leads nowhere, and what stands at that place instead.

Which part of `pkg.mod:Class.method.var` leads nowhere, and what there is instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from tensortap.core.patterns import Pattern, closest_names
from tensortap.sources.function_names import below, member, members, python_function, python_module, split
from tensortap.sources.probes.install import bindings
from tensortap.sources.probes.probes import attributes, first_argument, function_of, variables
from tensortap.sources.sites import children, class_name, has_forward, stored, unwrapped

_SHOWN = 6


class Unresolved(NamedTuple):
    """The first part of a path that is not there: who does not have it, and what he has."""

    position: int
    owner: str
    known: list[str]


def unresolved(model: Any, segments: Sequence[str]) -> Unresolved | None:
    """None where all parts are there, or a part is a wildcard, which may fail in many places."""
    if any(wildcard in segment for segment in segments for wildcard in "*?[{<"):
        return None
    module, position = unwrapped(model), 0
    while position < len(segments) and (child := dict(children(module)).get(segments[position])) is not None:
        module, position = child, position + 1
    rest = segments[position:]
    if rest and function_of(module, rest[0]) is not None:
        return _in_function(module, rest, position)
    owner = repr(".".join(segments[:position])) if position else "the model"
    return Unresolved(position, owner, _parts(module)) if rest and rest[0] not in ("in", "out") else None


def sentence(unresolved_segment: Unresolved, segments: Sequence[str]) -> str:
    """Whose part is missing, and the whole path with the nearest part in its place."""
    before, segment, after = segments[: unresolved_segment.position], segments[unresolved_segment.position], segments[unresolved_segment.position + 1 :]
    suggestions = closest_names(segment.partition("#")[0], unresolved_segment.known)
    if not suggestions:
        more = ", ..." if len(unresolved_segment.known) > _SHOWN else ""
        return f"{unresolved_segment.owner} has no {segment!r}; it has {', '.join(map(repr, unresolved_segment.known[:_SHOWN]))}{more}."
    paths = (repr(".".join([*before, suggestion, *after])) for suggestion in suggestions)
    return f"{unresolved_segment.owner} has no {segment!r}; did you mean {' or '.join(paths)}?"


def _in_function(module: Any, rest: Sequence[str], position: int) -> Unresolved | None:
    name = f"{class_name(module)}.{rest[0]}"
    if len(rest) > 2 and rest[1] == first_argument(module, rest[0]):
        known = attributes(module)
        return None if rest[2] in known else Unresolved(position + 2, rest[1], known)
    known = variables(module, rest[0])
    is_known = len(rest) < 2 or rest[1].partition("#")[0] in known
    return None if is_known else Unresolved(position + 1, name, known)


def _parts(module: Any) -> list[str]:
    submodules = [name for name, _ in children(module)]
    called = ["forward", *_functions(type(module)), "in", "out"] if has_forward(module) else []
    return list(dict.fromkeys([*submodules, *stored(module), *called]))


def _functions(module_class: type) -> Iterable[str]:
    """The methods that its author wrote, not those of torch."""
    for base in module_class.__mro__:
        if not base.__module__.startswith("torch."):
            methods = (name for name, member in vars(base).items() if isinstance(member, FunctionType))
            yield from (name for name in methods if not name.startswith("__"))


def unknown(pattern: Pattern) -> str:
    parts = split(pattern.alternatives[0])
    assert parts is not None
    name, (first, *rest) = parts
    holder, path = python_module(name), f"{name}:"
    while rest and isinstance(owner := member(holder, first), type):
        holder, path = owner, below(path, first)
        first, *rest = rest
    function = python_function(member(holder, first))
    if function is not None:
        return no_variable(below(path, first), function, ".".join(rest))
    return f"{pattern.text!r} names no function: {_instead(holder, path.rstrip(':'), first)}"


def no_variable(path: str, function: FunctionType, name: str) -> str:
    counts = Counter(binding.name for binding in bindings(function))
    plain, separator, _ = name.partition("#")
    if separator and plain in counts:
        last = counts[plain] - 1
        return f"{path} binds {plain!r} at #0{f' to #{last}' if last else ' alone'}; there is no {name!r}"
    if not counts:
        return f"{path} has no variable {name!r}, nor any other"
    suggestion = _near(plain, list(counts))
    return f"{path} has no variable {name!r}; {suggestion}" + (f" It has {len(counts)}" if suggestion[-1] == "?" else "")


def _instead(holder: Any, path: str, name: str) -> str:
    found_member = None if "*" in name else member(holder, name)
    if isinstance(found_member, ModuleType):
        return f"{name!r} is a module; write '{found_member.__name__}:...'"
    if isinstance(found_member, type):
        return f"{name!r} is a class; add a method of it; {_near('', _names(found_member))}"
    if found_member is not None:
        return f"{name!r} is a {type(found_member).__name__}, which has no Python code to look into"
    holder_kind = "class" if isinstance(holder, type) else "module"
    return f"the {holder_kind} {path!r} has no {name!r}; {_near(name, _names(holder))}"


def _names(holder: Any) -> list[str]:
    """The functions and classes that are defined there."""
    is_listed = {name: isinstance(value, type) or python_function(value) for name, value in members(holder, "*")}
    return [name for name, is_shown in is_listed.items() if is_shown]


def _near(name: str, known: Sequence[str]) -> str:
    suggestions = closest_names(name, known)
    if suggestions:
        return f"did you mean {' or '.join(map(repr, suggestions))}?"
    more = ", ..." if len(known) > _SHOWN else ""
    return f"it has {', '.join(map(repr, known[:_SHOWN])) or 'no functions at all'}{more}"
