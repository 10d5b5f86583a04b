"""Error messages for paths that resolve to nothing: which segment is unknown, and what was perhaps meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from tensortap.core.patterns import Pattern, closest_names
from tensortap.sources.function_names import (
    find_python_function,
    get_member,
    import_python_module,
    join_path,
    matching_members,
    split_function_path,
)
from tensortap.sources.probes.install import find_bindings
from tensortap.sources.probes.probes import (
    attribute_names,
    find_function,
    first_argument_name,
    variable_names,
)
from tensortap.sources.sites import child_modules, class_name, has_forward, state_names, unwrap

_MAX_SHOWN = 6


class UnresolvedSegment(NamedTuple):
    """The first unknown segment of a path: its owner, and the names the owner has."""

    position: int
    owner: str
    known: list[str]


def find_unresolved_segment(model: Any, segments: Sequence[str]) -> UnresolvedSegment | None:
    """The first unknown segment; None if all resolve, or for a wildcard, which may fail in many places."""
    if any(wildcard in segment for segment in segments for wildcard in "*?[{<"):
        return None
    module, position = unwrap(model), 0
    while (
        position < len(segments)
        and (child := dict(child_modules(module)).get(segments[position])) is not None
    ):
        module, position = child, position + 1
    rest = segments[position:]
    if rest and find_function(module, rest[0]) is not None:
        return _unresolved_in_function(module, rest, position)
    owner = repr(".".join(segments[:position])) if position else "the model"
    return (
        UnresolvedSegment(position, owner, _known_segments(module))
        if rest and rest[0] not in ("in", "out")
        else None
    )


def describe_unresolved(missing: UnresolvedSegment, segments: Sequence[str]) -> str:
    """A sentence on the unknown segment, with the full paths of the closest names."""
    before, segment, after = (
        segments[: missing.position],
        segments[missing.position],
        segments[missing.position + 1 :],
    )
    suggestions = closest_names(segment.partition("#")[0], missing.known)
    if not suggestions:
        shown, more = missing.known[:_MAX_SHOWN], ", ..." if len(missing.known) > _MAX_SHOWN else ""
        return f"{missing.owner} has no {segment!r}; it has {', '.join(map(repr, shown))}{more}."
    paths = (repr(".".join([*before, suggestion, *after])) for suggestion in suggestions)
    return f"{missing.owner} has no {segment!r}; did you mean {' or '.join(paths)}?"


def _unresolved_in_function(module: Any, rest: Sequence[str], position: int) -> UnresolvedSegment | None:
    name = f"{class_name(module)}.{rest[0]}"
    if len(rest) > 2 and rest[1] == first_argument_name(module, rest[0]):
        known = attribute_names(module)
        return None if rest[2] in known else UnresolvedSegment(position + 2, rest[1], known)
    known = variable_names(module, rest[0])
    is_known = len(rest) < 2 or rest[1].partition("#")[0] in known
    return None if is_known else UnresolvedSegment(position + 1, name, known)


def _known_segments(module: Any) -> list[str]:
    submodules = [name for name, _ in child_modules(module)]
    called = ["forward", *_own_methods(type(module)), "in", "out"] if has_forward(module) else []
    return list(dict.fromkeys([*submodules, *state_names(module), *called]))


def _own_methods(module_class: type) -> Iterable[str]:
    """Methods of the model's classes, without torch's."""
    for base in module_class.__mro__:
        if not base.__module__.startswith("torch."):
            methods = (name for name, member in vars(base).items() if isinstance(member, FunctionType))
            yield from (name for name in methods if not name.startswith("__"))


def describe_unknown_function(pattern: Pattern) -> str:
    parts = split_function_path(pattern.alternatives[0])
    assert parts is not None
    name, (first, *rest) = parts
    holder, path = import_python_module(name), f"{name}:"
    while rest and isinstance(owner := get_member(holder, first), type):
        holder, path = owner, join_path(path, first)
        first, *rest = rest
    function = find_python_function(get_member(holder, first))
    if function is not None:
        return describe_unknown_variable(join_path(path, first), function, ".".join(rest))
    return f"{pattern.text!r} names no function: {_describe_instead(holder, path.rstrip(':'), first)}"


def describe_unknown_variable(path: str, function: FunctionType, name: str) -> str:
    counts = Counter(binding.name for binding in find_bindings(function))
    plain, separator, _ = name.partition("#")
    if separator and plain in counts:
        last = counts[plain] - 1
        return f"{path} binds {plain!r} at #0{f' to #{last}' if last else ' alone'}; there is no {name!r}"
    if not counts:
        return f"{path} has no variable {name!r}, nor any other"
    suggestion = _suggest(plain, list(counts))
    return f"{path} has no variable {name!r}; {suggestion}" + (
        f" It has {len(counts)}" if suggestion[-1] == "?" else ""
    )


def _describe_instead(holder: Any, path: str, name: str) -> str:
    found_member = None if "*" in name else get_member(holder, name)
    if isinstance(found_member, ModuleType):
        return f"{name!r} is a module; write '{found_member.__name__}:...'"
    if isinstance(found_member, type):
        return f"{name!r} is a class; add a method of it; {_suggest('', _defined_names(found_member))}"
    if found_member is not None:
        return f"{name!r} is a {type(found_member).__name__}, which has no Python code to look into"
    holder_kind = "class" if isinstance(holder, type) else "module"
    return f"the {holder_kind} {path!r} has no {name!r}; {_suggest(name, _defined_names(holder))}"


def _defined_names(holder: Any) -> list[str]:
    """The functions and classes defined there."""
    is_listed = {
        name: isinstance(value, type) or find_python_function(value)
        for name, value in matching_members(holder, "*")
    }
    return [name for name, is_shown in is_listed.items() if is_shown]


def _suggest(name: str, known: Sequence[str]) -> str:
    suggestions = closest_names(name, known)
    if suggestions:
        return f"did you mean {' or '.join(map(repr, suggestions))}?"
    more = ", ..." if len(known) > _MAX_SHOWN else ""
    return f"it has {', '.join(map(repr, known[:_MAX_SHOWN])) or 'no functions at all'}{more}"
