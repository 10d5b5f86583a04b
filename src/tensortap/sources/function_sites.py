"""What can be selected of functions without a model: `pkg.mod:func.var`, `pkg.mod:Class.method`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tensortap.core.errors import UnknownNameError
from tensortap.core.patterns import Alternative, Pattern, parse_pattern, segment_matches
from tensortap.sources.exclusion import without
from tensortap.sources.named_functions import NamedFunction, given_function, named_functions, path_of, split
from tensortap.sources.sites import ModuleSite, Wanted, gradient_of
from tensortap.sources.swapping import Spot, bindings
from tensortap.sources.unknown_functions import no_variable, unknown

RETURN = "return"  # no variable can be called so
_NTH = re.compile(r"-?\d{1,9}|\*")


def is_of_function(pattern: Any) -> bool:
    """Whether a pattern is written like a value of a function."""
    return isinstance(pattern, Pattern) and split(pattern.alternatives[0]) is not None


def selection_without_model(function: Any, patterns: Sequence[Any]) -> list[Wanted]:
    """What patterns mean inside of one function; without one, those that name a function themselves."""
    parsed = [parse_pattern(one) for one in patterns if isinstance(one, str)]
    if function is not None:
        if len(parsed) < len(patterns):
            raise TypeError(f"the names of variables are texts, not {patterns!r}")
        return function_selection(parsed, function)
    named = [one for one in parsed if is_of_function(one)]
    return [] if all(one.excludes for one in named) else function_selection(named)


def function_selection(patterns: Sequence[Pattern], within: Any = None) -> list[Wanted]:
    """What such patterns mean together; `within` a function, the others are names of its variables."""
    excluded = [one for pattern in patterns if pattern.excludes for one in _some(pattern, within)]
    included = [one for pattern in patterns if not pattern.excludes for one in _some(pattern, within)]
    if within is not None and all(pattern.excludes for pattern in patterns):
        included = [one for text in (RETURN, "*") for one in _inside(within, parse_pattern(text))]
    return [kept for one in dict.fromkeys(included) if (kept := without(one, excluded)) is not None]


def bound_at(site: ModuleSite) -> list[str]:
    """What it is (an argument, a local, what is returned), and the lines where it comes to be."""
    code = site.function.__code__
    name = site.parameter.partition(".")[2].partition("#")[0]
    bound = [spot for spot in bindings(site.function) if spot.name == name]
    is_argument = any(spot.kind == "argument" for spot in bound)
    lines = ", ".join(str(line) for line in dict.fromkeys(spot.line for spot in bound))
    word = site.kind if site.kind != "local" else "argument" if is_argument else "local"
    return [word, f"{Path(code.co_filename).name}:{lines or code.co_firstlineno}"]


def _some(pattern: Pattern, within: Any) -> list[Wanted]:
    if within is not None and not is_of_function(pattern):
        found = _inside(within, pattern)
        if not found:
            given = given_function(within)
            raise UnknownNameError(no_variable(path_of(within), given.function, pattern.body))
        return found
    found = [
        one
        for way in pattern.alternatives
        for function, tail in named_functions(way)
        for one in _values(function, tail, way, pattern.call)
    ]
    if not found:
        raise UnknownNameError(unknown(pattern))
    return found


def _inside(function: Any, pattern: Pattern) -> list[Wanted]:
    found = given_function(function)
    return [one for way in pattern.alternatives for one in _values(found, way.segments, way, pattern.call)]


def _values(
    found: NamedFunction, tail: tuple[str, ...], way: Alternative, call: int | None
) -> Iterator[Wanted]:
    """What the segments after a function mean: what it returns, or its variables, and parts of these."""
    spots = bindings(found.function)
    is_gradient = way.is_gradient_of_items
    # A variable comes before the word.
    if tail[-1:] == ("grad",) and (len(tail) > 1 or all(spot.name != "grad" for spot in spots)):
        tail, is_gradient = tail[:-1], True
    items = "".join(f".{part}" for part in tail[1:]) + way.items
    if tail[:1] in ((), (RETURN,), ("",)):
        sites = [found.site("return", found.name)]
    else:
        sites = [found.site("local", f"{found.name}.{one}") for one in _variables(tail[0], spots)]
    for site in sites:
        yield Wanted(gradient_of(site) if is_gradient else site, items, call)


def _variables(segment: str, spots: Sequence[Spot]) -> list[str]:
    wanted, mark, nth = segment.partition("#")
    if mark and not _NTH.fullmatch(nth):
        return []
    names = dict.fromkeys(spot.name for spot in spots if segment_matches(wanted, spot.name))
    if "*" in wanted:  # what a method is called on is rarely meant, and may be all of a program
        names = {name: None for name in names if name not in ("self", "cls")}
    return [f"{name}{mark}{nth}" for name in names if has_binding(spots, name, nth)]


def has_binding(spots: Sequence[Spot], name: str, nth: str) -> bool:
    """Whether there is a `name#nth`; every one has a `name` and a `name#*`."""
    count = sum(spot.name == name for spot in spots)
    return not nth or nth == "*" or -count <= int(nth) < count
