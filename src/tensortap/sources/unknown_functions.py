"""Which part of `pkg.mod:Class.method.var` leads nowhere, and what there is instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

from tensortap.core.patterns import Pattern, closest_names
from tensortap.sources.named_functions import below, member, members, python_function, split
from tensortap.sources.python_modules import python_module
from tensortap.sources.swapping import bindings

_SHOWN = 6


def unknown(pattern: Pattern) -> str:
    found = split(pattern.alternatives[0])
    assert found is not None
    name, (first, *rest) = found
    holder, path = python_module(name), f"{name}:"
    while rest and isinstance(one := member(holder, first), type):
        holder, path = one, below(path, first)
        first, *rest = rest
    function = python_function(member(holder, first))
    if function is not None:
        return no_variable(below(path, first), function, ".".join(rest))
    return f"{pattern.text!r} names no function: {_instead(holder, path.rstrip(':'), first)}"


def no_variable(path: str, function: FunctionType, name: str) -> str:
    counts = Counter(spot.name for spot in bindings(function))
    plain, mark, _ = name.partition("#")
    if mark and plain in counts:
        last = counts[plain] - 1
        return f"{path} binds {plain!r} at #0{f' to #{last}' if last else ' alone'}; there is no {name!r}"
    if not counts:
        return f"{path} has no variable {name!r}, nor any other"
    near = _near(plain, list(counts))
    return f"{path} has no variable {name!r}; {near}" + (f" It has {len(counts)}" if near[-1] == "?" else "")


def _instead(holder: Any, path: str, name: str) -> str:
    found = None if "*" in name else member(holder, name)
    if isinstance(found, ModuleType):
        return f"{name!r} is a module; write '{found.__name__}:...'"
    if isinstance(found, type):
        return f"{name!r} is a class; add a method of it; {_near('', _names(found))}"
    if found is not None:
        return f"{name!r} is a {type(found).__name__}, which has no Python code to look into"
    what = "class" if isinstance(holder, type) else "module"
    return f"the {what} {path!r} has no {name!r}; {_near(name, _names(holder))}"


def _names(holder: Any) -> list[str]:
    """The functions and classes that are defined there."""
    is_one = {name: isinstance(one, type) or python_function(one) for name, one in members(holder, "*")}
    return [name for name, found in is_one.items() if found]


def _near(name: str, known: Sequence[str]) -> str:
    near = closest_names(name, known)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    more = ", ..." if len(known) > _SHOWN else ""
    return f"it has {', '.join(map(repr, known[:_SHOWN])) or 'no functions at all'}{more}"
