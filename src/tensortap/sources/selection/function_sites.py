"""Resolve `pkg.mod:func.var` patterns to sites of functions without a model: return values and variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tensortap.core.errors import UnknownNameError
from tensortap.core.patterns import (
    Alternative,
    Pattern,
    parse_pattern,
    segment_matches,
)
from tensortap.sources.function_names import (
    NamedFunction,
    function_path,
    resolve_functions,
    split_function_path,
    to_named_function,
)
from tensortap.sources.probes.install import find_bindings
from tensortap.sources.probes.rewrite import RETURN, Binding
from tensortap.sources.selection.suggest import (
    describe_unknown_function,
    describe_unknown_variable,
)
from tensortap.sources.sites import (
    ModuleSite,
    SelectedSite,
    gradient_of,
    subtract_exclusions,
)

_BINDING_INDEX = re.compile(r"-?\d{1,9}|\*")


def is_function_pattern(pattern: Any) -> bool:
    """Whether a pattern has the form `pkg.mod:func`."""
    return isinstance(pattern, Pattern) and split_function_path(pattern.alternatives[0]) is not None


def resolve_without_model(function: Any, patterns: Sequence[Any]) -> list[SelectedSite]:
    """The sites of patterns within one function; without one, of the patterns that name a function."""
    parsed = [parse_pattern(pattern) for pattern in patterns if isinstance(pattern, str)]
    if function is not None:
        if len(parsed) < len(patterns):
            raise TypeError(f"the names of variables are texts, not {patterns!r}")
        return resolve_function_patterns(parsed, function)
    function_patterns = [pattern for pattern in parsed if is_function_pattern(pattern)]
    return (
        []
        if all(pattern.excludes for pattern in function_patterns)
        else resolve_function_patterns(function_patterns)
    )


def resolve_function_patterns(patterns: Sequence[Pattern], within: Any = None) -> list[SelectedSite]:
    """The sites of function patterns; `within` a function, other patterns match its variables."""
    excluded = [
        selected
        for pattern in patterns
        if pattern.excludes
        for selected in _resolve_function_or_raise(pattern, within)
    ]
    included = [
        selected
        for pattern in patterns
        if not pattern.excludes
        for selected in _resolve_function_or_raise(pattern, within)
    ]
    if within is not None and all(pattern.excludes for pattern in patterns):
        included = [
            selected for text in (RETURN, "*") for selected in _resolve_within(within, parse_pattern(text))
        ]
    return [
        remaining
        for selected in dict.fromkeys(included)
        if (remaining := subtract_exclusions(selected, excluded)) is not None
    ]


def describe_binding(site: ModuleSite) -> list[str]:
    """Its kind (argument, local, return) and the lines that bind it."""
    code = site.function.__code__
    name = site.parameter.partition(".")[2].partition("#")[0]
    name_bindings = [binding for binding in find_bindings(site.function) if binding.name == name]
    is_argument = any(binding.kind == "argument" for binding in name_bindings)
    lines = ", ".join(str(line) for line in dict.fromkeys(binding.line for binding in name_bindings))
    label = site.kind if site.kind != "local" else "argument" if is_argument else "local"
    return [label, f"{Path(code.co_filename).name}:{lines or code.co_firstlineno}"]


def _resolve_function_or_raise(pattern: Pattern, within: Any) -> list[SelectedSite]:
    if within is not None and not is_function_pattern(pattern):
        selected_sites = _resolve_within(within, pattern)
        if not selected_sites:
            enclosing = to_named_function(within)
            raise UnknownNameError(
                describe_unknown_variable(function_path(within), enclosing.function, pattern.body)
            )
        return selected_sites
    selected_sites = [
        selected
        for alternative in pattern.alternatives
        for function, tail in resolve_functions(alternative)
        for selected in _function_value_sites(function, tail, alternative, pattern.call)
    ]
    if not selected_sites:
        raise UnknownNameError(describe_unknown_function(pattern))
    return selected_sites


def _resolve_within(function: Any, pattern: Pattern) -> list[SelectedSite]:
    named_function = to_named_function(function)
    return [
        selected
        for alternative in pattern.alternatives
        for selected in _function_value_sites(named_function, alternative.segments, alternative, pattern.call)
    ]


def _function_value_sites(
    named_function: NamedFunction, tail: tuple[str, ...], alternative: Alternative, call: int | None
) -> Iterator[SelectedSite]:
    """The sites that the segments after a function match: its return value, variables, and items of these."""
    function_bindings = find_bindings(named_function.function)
    is_gradient = alternative.is_gradient_of_items
    # A variable named `grad` takes precedence.
    if tail[-1:] == ("grad",) and (
        len(tail) > 1 or all(binding.name != "grad" for binding in function_bindings)
    ):
        tail, is_gradient = tail[:-1], True
    items = "".join(f".{part}" for part in tail[1:]) + alternative.items
    if tail[:1] in ((), (RETURN,), ("",)):
        sites = [named_function.site("return", named_function.name)]
    else:
        sites = [
            named_function.site("local", f"{named_function.name}.{variable}")
            for variable in _matching_variables(tail[0], function_bindings)
        ]
    for site in sites:
        yield SelectedSite(gradient_of(site) if is_gradient else site, items, call)


def _matching_variables(segment: str, function_bindings: Sequence[Binding]) -> list[str]:
    name_pattern, separator, nth = segment.partition("#")
    if separator and not _BINDING_INDEX.fullmatch(nth):
        return []
    names = dict.fromkeys(
        binding.name for binding in function_bindings if segment_matches(name_pattern, binding.name)
    )
    if "*" in name_pattern:  # self is rarely meant, and may hold the whole program
        names = {name: None for name in names if name not in ("self", "cls")}
    return [f"{name}{separator}{nth}" for name in names if has_binding(function_bindings, name, nth)]


def has_binding(function_bindings: Sequence[Binding], name: str, nth: str) -> bool:
    """Whether there is a `name#nth`; `name` and `name#*` always exist."""
    count = sum(binding.name == name for binding in function_bindings)
    return not nth or nth == "*" or -count <= int(nth) < count
