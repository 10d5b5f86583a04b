"""Resolve patterns to sites by walking model and pattern together; `!patterns` exclude."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensortap.core.errors import UnknownModuleError
from tensortap.core.patterns import (
    ANY_DEPTH,
    Alternative,
    Pattern,
    closest_names,
    parse_pattern,
    segment_matches,
)
from tensortap.sources.probes.install import find_bindings
from tensortap.sources.probes.probes import attribute_names, find_function, first_argument_name
from tensortap.sources.selection.function_sites import (
    has_binding,
    is_function_pattern,
    resolve_function_patterns,
)
from tensortap.sources.selection.suggest import (
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
    subtract_exclusions,
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


def is_exclusion(pattern: Any) -> bool:
    return isinstance(pattern, Pattern) and pattern.excludes
