"""Resolve patterns to sites: of a model, by walking model and pattern together, and of functions without a
model (`pkg.mod:func.var`); `!patterns` exclude."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tensortap.core.errors import UnknownModuleError, UnknownNameError
from tensortap.core.patterns import (
    ANY_DEPTH,
    Alternative,
    Pattern,
    closest_names,
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
from tensortap.sources.probes.probes import attribute_names, find_function, first_argument_name
from tensortap.sources.probes.rewrite import Binding
from tensortap.sources.selection.suggest import (
    describe_unknown_function,
    describe_unknown_variable,
    describe_unresolved,
    find_unresolved_segment,
)
from tensortap.sources.sites import (
    AFTER_STEP,
    ModuleSite,
    SelectedSite,
    child_modules,
    class_name,
    class_names,
    forward_signature,
    gradient_of,
    has_forward,
    site_names,
    sites_of,
    state_names,
    unwrap,
    walk_modules,
)


def resolve_patterns(model: Any, patterns: Sequence[Any]) -> list[SelectedSite]:
    """The sites that at least one pattern includes and none excludes."""
    parsed = [
        parse_pattern(pattern) if isinstance(pattern, str) else pattern for pattern in patterns or ("**",)
    ]
    for candidate in parsed:
        if not isinstance(candidate, Pattern) and not callable(candidate):
            raise TypeError(
                f"{candidate!r} is no pattern; give a text such as 'layers.*', or a function of a site"
            )
    functions = [
        pattern for pattern in parsed if is_function_pattern(pattern) and not resolve_pattern(model, pattern)
    ]
    others = [pattern for pattern in parsed if pattern not in functions]
    is_for_functions = any(not pattern.excludes for pattern in functions) and all(map(is_exclusion, others))
    selected = [] if is_for_functions else _resolve_in_model(model, others)
    return [*selected, *resolve_function_patterns(functions)]


def _resolve_in_model(model: Any, parsed: Sequence[Any]) -> list[SelectedSite]:
    included = [pattern for pattern in parsed if not is_exclusion(pattern)]
    excluded = [
        site for pattern in parsed if pattern not in included for site in _resolve_or_raise(model, pattern)
    ]
    selected = dict.fromkeys(
        site for pattern in included or [parse_pattern("**")] for site in _resolve_or_raise(model, pattern)
    )
    if not excluded:
        return list(selected)
    return [remaining for site in selected if (remaining := subtract_exclusions(site, excluded)) is not None]


def resolve_pattern(model: Any, pattern: Pattern | Callable[[ModuleSite], bool]) -> list[SelectedSite]:
    """The sites that a pattern matches, in model order."""
    if not isinstance(pattern, Pattern):
        return [
            SelectedSite(site)
            for names, module in walk_modules(model)
            for site in sites_of(".".join(names), module)
            if pattern(site)
        ]
    selected = _resolve_literal_name(unwrap(model), pattern) or [
        site
        for alternative in pattern.alternatives
        for site in _match_alternative(_normalize(alternative), pattern.call, unwrap(model))
    ]
    return list(dict.fromkeys(selected))


def _resolve_literal_name(model: Any, pattern: Pattern) -> list[SelectedSite]:
    """Match literally a name with grammar characters (`{`, `@`, `[`), if there are such modules."""
    full_text = pattern.text.removeprefix("!")
    for name, call in dict.fromkeys([(full_text, None), (pattern.body, pattern.call)]):
        if not _GRAMMAR_LETTERS.isdisjoint(name) and (selected := _sites_at(model, name.split("."), call)):
            return selected
    return []


_GRAMMAR_LETTERS = frozenset("{@[")


def _sites_at(module: Any, segments: list[str], call: int | None) -> list[SelectedSite]:
    names: list[str] = []
    while segments and (child := dict(child_modules(module)).get(segments[0])) is not None:
        names.append(segments.pop(0))
        module = child
    if not _GRAMMAR_LETTERS.isdisjoint("".join(segments)):
        return []
    sites = _tail_sites(".".join(names), module, tuple(segments), False)
    return [SelectedSite(site, _tail_items(tuple(segments), ""), call) for site in sites]


def _resolve_or_raise(model: Any, pattern: Pattern | Callable[[ModuleSite], bool]) -> list[SelectedSite]:
    selected = resolve_pattern(model, pattern)
    if not selected:
        raise UnknownModuleError(_describe_unknown(model, pattern))
    return selected


def _describe_unknown(model: Any, pattern: Any) -> str:
    names = site_names(model)
    if not isinstance(pattern, Pattern):
        return f"the function {pattern!r} selects none of the {len(names)} sites; tt.sites(model) lists them"
    if not names:
        return f"no site {pattern.text!r} in the model: it has no module that can be called, and no parameter"
    return _describe_unknown_variable(model, pattern) or _describe_unknown_segment(model, pattern, names)


def _describe_unknown_variable(model: Any, pattern: Pattern) -> str | None:
    """If all but the last segment resolve to a function: the variables it has."""
    *above, function, name = ("", *pattern.alternatives[0].segments)[
        1 if len(pattern.alternatives[0].segments) > 1 else 0 :
    ]
    for names, module in walk_modules(model):
        is_match = len(names) == len(above) and all(map(segment_matches, above, names))
        target = find_function(module, function) if is_match else None
        if target is not None:
            return describe_unknown_variable(f"{class_name(module)}.{function}", target, name)
    return None


def _describe_unknown_segment(model: Any, pattern: Pattern, names: Sequence[str]) -> str:
    """The unknown segment; if it is the first, similar site names are more helpful."""
    segments = pattern.alternatives[0].segments
    unresolved_segment = (
        find_unresolved_segment(model, segments) if len(pattern.alternatives) == 1 < len(segments) else None
    )
    if unresolved_segment is None or not (
        unresolved_segment.position or not closest_names(pattern.text.lstrip("!"), names)
    ):
        return _describe_unknown_site(pattern, names)
    description = describe_unresolved(unresolved_segment, segments)
    return f"no site {pattern.text!r} in the model: {description} tt.sites(model) lists all {len(names)}"


def _describe_unknown_site(pattern: Pattern, names: Sequence[str]) -> str:
    suggestions = closest_names(pattern.text.lstrip("!"), names) or names[:3]
    return (
        f"no site {pattern.text!r} in the model; did you mean {' or '.join(map(repr, suggestions))}? "
        f"tt.sites(model) lists all {len(names)}"
    )


def _normalize(alternative: Alternative) -> Alternative:
    """A pattern that begins with a class matches at any depth; one without segments is the model itself."""
    if alternative.segments == ("",):
        return Alternative((), alternative.items, alternative.is_gradient_of_items)
    if alternative.segments[0].startswith("<"):
        return Alternative(
            (ANY_DEPTH, *alternative.segments), alternative.items, alternative.is_gradient_of_items
        )
    return alternative


def _match_alternative(alternative: Alternative, call: int | None, model: Any) -> list[SelectedSite]:
    positions = frozenset([0])
    if alternative.segments[:1] == (ANY_DEPTH,):
        # The model itself has a class, but no name.
        is_class = alternative.segments[1:2] and alternative.segments[1].startswith("<")
        positions |= _advance(alternative.segments, frozenset([1]), "", model) if is_class else set()
    if alternative == Alternative((ANY_DEPTH,)):  # the common case, as a fast path: all callable modules
        modules = ((".".join(names), module) for names, module in walk_modules(model) if has_forward(module))
        return [SelectedSite(ModuleSite(path, "output", module), "", call) for path, module in modules]
    selected: list[SelectedSite] = []
    _descend(selected, alternative, call, "", model, positions, frozenset([id(model)]))
    return selected


def _descend(
    selected: list[SelectedSite],
    alternative: Alternative,
    call: int | None,
    path: str,
    module: Any,
    positions: frozenset[int],
    ancestors: frozenset[int],
) -> None:
    """Walk the model and the pattern together; `reached` are the segments that may come next, `above` the
    modules on the way down, since one may hold its owner."""
    segments = alternative.segments
    positions = _skip_any_depth(segments, positions)
    submodules = module._modules
    for position in sorted(positions):
        tail = segments[position:]
        if (
            not tail or tail[0] not in submodules or submodules[tail[0]] is None
        ):  # a child module of that name comes first
            for site in _tail_sites(path, module, tail, alternative.is_gradient_of_items):
                item_segments = (
                    tail if site.parameter.count(".") < 2 else tail[1:]
                )  # `forward.self.cache['k']`
                selected.append(SelectedSite(site, _tail_items(item_segments, alternative.items), call))
    prefix = f"{path}." if path else ""
    for name, child in child_modules(module):
        next_positions = _advance(segments, positions, name, child)
        if next_positions and id(child) not in ancestors:
            _descend(
                selected, alternative, call, prefix + name, child, next_positions, ancestors | {id(child)}
            )


def _skip_any_depth(segments: tuple[str, ...], positions: frozenset[int]) -> frozenset[int]:
    if ANY_DEPTH not in segments:
        return positions
    expanded = set(positions)
    for position in sorted(positions):
        while position < len(segments) and segments[position] == ANY_DEPTH:
            position += 1
            expanded.add(position)
    return frozenset(expanded)


def _advance(segments: tuple[str, ...], positions: frozenset[int], name: str, module: Any) -> frozenset[int]:
    advanced = set()
    for position in positions:
        if position == len(segments):
            continue
        if segments[position] == ANY_DEPTH:
            advanced.add(position)
        elif segment_matches(segments[position], name, class_names(module)):
            advanced.add(position + 1)
    return frozenset(advanced)


def _tail_sites(path: str, module: Any, tail: tuple[str, ...], is_gradient: bool) -> Sequence[ModuleSite]:
    """The sites that the last segments match on the module that the first ones resolved to."""
    if tail and (tail[0] == ANY_DEPTH or tail == ("*",)):
        return ()  # these match modules
    if tail[-1:] == ("grad",):
        tail, is_gradient = tail[:-1], True
    if not tail or tail[0] == "out":
        sites = [ModuleSite(path, "output", module)] if has_forward(module) else []
    elif tail[0] == "in":
        sites = _input_sites(path, module, tail[1:2])
    elif find_function(module, tail[0]) is not None:
        sites = _variable_sites(path, module, tail)
    else:
        sites = _parameter_sites(path, module, tail)
    if not is_gradient:
        return sites
    return [gradient_of(site) for site in sites if not site.is_after_step]


def _input_sites(path: str, module: Any, name_patterns: tuple[str, ...]) -> list[ModuleSite]:
    """All inputs are one site, since the actual arguments are known only at the call; so is a name that is
    not in the signature but may be passed in `**kwargs`."""
    if not has_forward(module):
        return []
    if not name_patterns or name_patterns == ("*",):
        return [ModuleSite(path, "input", module)]
    inputs = forward_signature(module)
    names = [name for name in inputs.names if segment_matches(name_patterns[0], name)]
    if not names and inputs.is_variadic and name_patterns[0].isidentifier():
        names = [name_patterns[0]]
    return [ModuleSite(path, "input", module, name) for name in names]


def _variable_sites(path: str, module: Any, tail: Sequence[str]) -> list[ModuleSite]:
    """The return value of a method or helper function, or its variables."""
    function, *rest = tail
    if not rest:
        return [ModuleSite(path, "return", module, function)]
    if len(rest) > 1 and rest[0] == first_argument_name(module, function):
        matching_names = [name for name in attribute_names(module) if segment_matches(rest[1], name)]
        return [ModuleSite(path, "local", module, f"{function}.{rest[0]}.{name}") for name in matching_names]
    name_pattern, separator, nth = rest[0].partition("#")
    if separator and nth != "*" and not nth.removeprefix("-").isdigit():
        raise ValueError(
            f"{rest[0]!r} asks for binding {nth!r}; give a number, {name_pattern}#0, or {name_pattern}#*"
        )
    target = find_function(module, function)
    function_bindings = () if target is None else find_bindings(target)
    bound = dict.fromkeys(
        binding.name for binding in function_bindings if segment_matches(name_pattern, binding.name)
    )
    names = [name for name in bound if has_binding(function_bindings, name, nth)]
    module_argument = first_argument_name(module, function)  # `self`, which no wildcard matches
    return [
        ModuleSite(path, "local", module, f"{function}.{name}{separator}{nth}")
        for name in names
        if name != module_argument or name == name_pattern
    ]


def _parameter_sites(path: str, module: Any, tail: Sequence[str]) -> list[ModuleSite]:
    is_after_step = tail[-1] == AFTER_STEP
    names = tail[:-1] if is_after_step else tail
    if len(names) != 1 or "*" in names[0]:
        return []
    return [
        ModuleSite(path, "param", module, name, is_after_step)
        for name in state_names(module)
        if segment_matches(names[0], name)
    ]


def _tail_items(tail: tuple[str, ...], items: str) -> str:
    """The items in `out.logits[0]` and `in.cache.keys`: attributes of the value."""
    if not tail:
        return items
    item_segments = tail[1:] if tail[:1] == ("out",) else tail[2:]
    item_segments = item_segments[:-1] if item_segments[-1:] == ("grad",) else item_segments
    return "".join(f".{part}" for part in item_segments) + items


RETURN = "return"  # not a valid variable name
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


def is_exclusion(pattern: Any) -> bool:
    return isinstance(pattern, Pattern) and pattern.excludes


def subtract_exclusions(selected: SelectedSite, excluded: Sequence[SelectedSite]) -> SelectedSite | None:
    """The rest of a selected site, or None. Excluding a module's output excludes all of that module;
    excluding the return value of a function without a model excludes all of that function."""
    site = selected.site
    if site.function is not None:
        return _subtract_from_function(
            selected, [exclusion for exclusion in excluded if _is_in_function(exclusion.site, site)]
        )
    applicable = [
        exclusion
        for exclusion in excluded
        if exclusion.site.path == site.path and _applies_to(exclusion, site)
    ]
    if any(
        not exclusion.items and exclusion.call is None and exclusion.site.parameter in ("", site.parameter)
        for exclusion in applicable
    ):
        return None
    return selected._replace(excluded=tuple(applicable))


def _applies_to(excluded: SelectedSite, site: ModuleSite) -> bool:
    is_whole_module = excluded.site.kind == "output" and not excluded.items and excluded.call is None
    is_same_kind = excluded.site.kind == site.kind and excluded.site.is_after_step == site.is_after_step
    return is_whole_module or is_same_kind


def _subtract_from_function(
    selected: SelectedSite, applicable: Sequence[SelectedSite]
) -> SelectedSite | None:
    if any(not exclusion.items and exclusion.call is None for exclusion in applicable):
        return None
    same_kind = [
        exclusion._replace(site=selected.site)
        for exclusion in applicable
        if exclusion.site.kind == selected.site.kind
    ]
    return selected._replace(excluded=tuple(same_kind))


def _is_in_function(excluded: ModuleSite, site: ModuleSite) -> bool:
    name, _, nth = excluded.parameter.partition("#")
    site_name, _, site_nth = site.parameter.partition("#")
    if excluded.path != site.path:
        return False
    if excluded.kind == "return":
        return name == site_name.partition(".")[0]
    return excluded.kind == site.kind and name == site_name and nth in ("", site_nth)
