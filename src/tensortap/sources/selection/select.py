"""Pattern to sites, in a model and in functions.

Which sites of a model a pattern means: the model and the pattern are walked together.

What can be selected of functions without a model: `pkg.mod:func.var`, `pkg.mod:Class.method`.

What `!patterns` leave of what others select.
"""

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
from tensortap.sources.function_names import NamedFunction, given_function, named_functions, path_of, split
from tensortap.sources.probes.install import Spot, bindings
from tensortap.sources.probes.probes import attributes, first_argument, function_of
from tensortap.sources.selection.suggest import no_variable, sentence, unknown, unresolved
from tensortap.sources.sites import (
    AFTER_STEP,
    ModuleSite,
    Wanted,
    children,
    class_name,
    classes_of,
    gradient_of,
    has_forward,
    inputs_of,
    site_names,
    sites_of,
    stored,
    unwrapped,
    walk,
)


def selection(model: Any, patterns: Sequence[Any]) -> list[Wanted]:
    """What several patterns mean together: everything that one includes and none excludes."""
    parsed = [parse_pattern(one) if isinstance(one, str) else one for one in patterns or ("**",)]
    for one in parsed:
        if not isinstance(one, Pattern) and not callable(one):
            raise TypeError(f"{one!r} is no pattern; give a text such as 'layers.*', or a function of a site")
    functions = [one for one in parsed if is_of_function(one) and not select(model, one)]
    others = [one for one in parsed if one not in functions]
    is_for_functions = any(not one.excludes for one in functions) and all(map(excludes, others))
    found = [] if is_for_functions else _of_model(model, others)
    return [*found, *function_selection(functions)]


def _of_model(model: Any, parsed: Sequence[Any]) -> list[Wanted]:
    included = [one for one in parsed if not excludes(one)]
    excluded = [wanted for one in parsed if one not in included for wanted in _some(model, one)]
    found = dict.fromkeys(wanted for one in included or [parse_pattern("**")] for wanted in _some(model, one))
    if not excluded:
        return list(found)
    return [kept for wanted in found if (kept := without(wanted, excluded)) is not None]


def select(model: Any, pattern: Pattern | Callable[[ModuleSite], bool]) -> list[Wanted]:
    """The sites that a pattern means, in the order of the model."""
    if not isinstance(pattern, Pattern):
        return [
            Wanted(site)
            for names, module in walk(model)
            for site in sites_of(".".join(names), module)
            if pattern(site)
        ]
    found = _named(unwrapped(model), pattern) or [
        wanted
        for way in pattern.alternatives
        for wanted in _selected(_begin(way), pattern.call, unwrapped(model))
    ]
    return list(dict.fromkeys(found))


def _named(model: Any, pattern: Pattern) -> list[Wanted]:
    """What is meant by a name with letters of the grammar in it (`{`, `@`, `[`), if modules are called so."""
    whole = pattern.text.removeprefix("!")
    for name, call in dict.fromkeys([(whole, None), (pattern.body, pattern.call)]):
        if not _SPECIAL.isdisjoint(name) and (found := _at(model, name.split("."), call)):
            return found
    return []


_SPECIAL = frozenset("{@[")


def _at(module: Any, segments: list[str], call: int | None) -> list[Wanted]:
    names: list[str] = []
    while segments and (child := dict(children(module)).get(segments[0])) is not None:
        names.append(segments.pop(0))
        module = child
    if not _SPECIAL.isdisjoint("".join(segments)):
        return []
    sites = _tail_sites(".".join(names), module, tuple(segments), False)
    return [Wanted(site, _tail_items(tuple(segments), ""), call) for site in sites]


def _some(model: Any, pattern: Pattern | Callable[[ModuleSite], bool]) -> list[Wanted]:
    found = select(model, pattern)
    if not found:
        raise UnknownModuleError(_unknown(model, pattern))
    return found


def _unknown(model: Any, pattern: Any) -> str:
    names = site_names(model)
    if not isinstance(pattern, Pattern):
        return f"the function {pattern!r} selects none of the {len(names)} sites; tt.sites(model) lists them"
    if not names:
        return f"no site {pattern.text!r} in the model: it has no module that can be called, and no parameter"
    return _unknown_variable(model, pattern) or _unknown_part(model, pattern, names)


def _unknown_variable(model: Any, pattern: Pattern) -> str | None:
    """Where all but the last part leads to a function: what that function has."""
    *above, function, name = ("", *pattern.alternatives[0].segments)[
        1 if len(pattern.alternatives[0].segments) > 1 else 0 :
    ]
    for names, module in walk(model):
        is_there = len(names) == len(above) and all(map(segment_matches, above, names))
        found = function_of(module, function) if is_there else None
        if found is not None:
            return no_variable(f"{class_name(module)}.{function}", found, name)
    return None


def _unknown_part(model: Any, pattern: Pattern, names: Sequence[str]) -> str:
    """Where the very first part is unknown, the names of sites that look like the whole say more."""
    segments = pattern.alternatives[0].segments
    found = unresolved(model, segments) if len(pattern.alternatives) == 1 < len(segments) else None
    if found is None or not (found.position or not closest_names(pattern.text.lstrip("!"), names)):
        return _unknown_site(pattern, names)
    where = sentence(found, segments)
    return f"no site {pattern.text!r} in the model: {where} tt.sites(model) lists all {len(names)}"


def _unknown_site(pattern: Pattern, names: Sequence[str]) -> str:
    near = closest_names(pattern.text.lstrip("!"), names) or names[:3]
    return (
        f"no site {pattern.text!r} in the model; did you mean {' or '.join(map(repr, near))}? "
        f"tt.sites(model) lists all {len(names)}"
    )


def _begin(way: Alternative) -> Alternative:
    """A pattern that begins with a class finds it at any depth; one without segments is the model itself."""
    if way.segments == ("",):
        return Alternative((), way.items, way.is_gradient_of_items)
    if way.segments[0].startswith("<"):
        return Alternative((ANY_DEPTH, *way.segments), way.items, way.is_gradient_of_items)
    return way


def _selected(way: Alternative, call: int | None, model: Any) -> list[Wanted]:
    reached = frozenset([0])
    if way.segments[:1] == (ANY_DEPTH,):
        # A class may be the model's own; a name it has none.
        is_class = way.segments[1:2] and way.segments[1].startswith("<")
        reached |= _onwards(way.segments, frozenset([1]), "", model) if is_class else set()
    if way == Alternative((ANY_DEPTH,)):  # the usual one, written out: all modules that can be called
        modules = ((".".join(names), module) for names, module in walk(model) if has_forward(module))
        return [Wanted(ModuleSite(path, "output", module), "", call) for path, module in modules]
    found: list[Wanted] = []
    _descend(found, way, call, "", model, reached, frozenset([id(model)]))
    return found


def _descend(
    found: list[Wanted],
    way: Alternative,
    call: int | None,
    path: str,
    module: Any,
    reached: frozenset[int],
    above: frozenset[int],
) -> None:
    """Walk the model and the pattern together; `reached` are the segments that may come next, `above` the
    modules on the way down, since one may hold its owner."""
    segments = way.segments
    reached = _with_any_depth(segments, reached)
    below = module._modules
    for position in sorted(reached):
        tail = segments[position:]
        if (
            not tail or tail[0] not in below or below[tail[0]] is None
        ):  # a child module of that name comes first
            for site in _tail_sites(path, module, tail, way.is_gradient_of_items):
                inside = tail if site.parameter.count(".") < 2 else tail[1:]  # `forward.self.cache['k']`
                found.append(Wanted(site, _tail_items(inside, way.items), call))
    prefix = f"{path}." if path else ""
    for name, child in children(module):
        onwards = _onwards(segments, reached, name, child)
        if onwards and id(child) not in above:
            _descend(found, way, call, prefix + name, child, onwards, above | {id(child)})


def _with_any_depth(segments: tuple[str, ...], reached: frozenset[int]) -> frozenset[int]:
    if ANY_DEPTH not in segments:
        return reached
    found = set(reached)
    for position in sorted(reached):
        while position < len(segments) and segments[position] == ANY_DEPTH:
            position += 1
            found.add(position)
    return frozenset(found)


def _onwards(segments: tuple[str, ...], reached: frozenset[int], name: str, module: Any) -> frozenset[int]:
    found = set()
    for position in reached:
        if position == len(segments):
            continue
        if segments[position] == ANY_DEPTH:
            found.add(position)
        elif segment_matches(segments[position], name, classes_of(module)):
            found.add(position + 1)
    return frozenset(found)


def _tail_sites(path: str, module: Any, tail: tuple[str, ...], is_gradient: bool) -> Sequence[ModuleSite]:
    """What the last segments of a pattern mean on the module that the first ones have led to."""
    if tail and (tail[0] == ANY_DEPTH or tail == ("*",)):
        return ()  # these stand for modules
    if tail[-1:] == ("grad",):
        tail, is_gradient = tail[:-1], True
    if not tail or tail[0] == "out":
        found = [ModuleSite(path, "output", module)] if has_forward(module) else []
    elif tail[0] == "in":
        found = _inputs(path, module, tail[1:2])
    elif function_of(module, tail[0]) is not None:
        found = _variables(path, module, tail)
    else:
        found = _parameters(path, module, tail)
    if not is_gradient:
        return found
    return [gradient_of(site) for site in found if not site.is_after_step]


def _inputs(path: str, module: Any, wanted: tuple[str, ...]) -> list[ModuleSite]:
    """All inputs are one site, since what a caller hands over is known only when he does; so is a name that
    the signature does not show but `**kwargs` may carry."""
    if not has_forward(module):
        return []
    if not wanted or wanted == ("*",):
        return [ModuleSite(path, "input", module)]
    inputs = inputs_of(module)
    found = [name for name in inputs.names if segment_matches(wanted[0], name)]
    if not found and inputs.is_open and wanted[0].isidentifier():
        found = [wanted[0]]
    return [ModuleSite(path, "input", module, name) for name in found]


def _variables(path: str, module: Any, tail: Sequence[str]) -> list[ModuleSite]:
    """What a method or a helper function returns, or its variables."""
    function, *rest = tail
    if not rest:
        return [ModuleSite(path, "return", module, function)]
    if len(rest) > 1 and rest[0] == first_argument(module, function):
        held = [name for name in attributes(module) if segment_matches(rest[1], name)]
        return [ModuleSite(path, "local", module, f"{function}.{rest[0]}.{name}") for name in held]
    wanted, mark, nth = rest[0].partition("#")
    if mark and nth != "*" and not nth.removeprefix("-").isdigit():
        raise ValueError(f"{rest[0]!r} asks for binding {nth!r}; give a number, {wanted}#0, or {wanted}#*")
    found = function_of(module, function)
    spots = () if found is None else bindings(found)
    bound = dict.fromkeys(spot.name for spot in spots if segment_matches(wanted, spot.name))
    names = [name for name in bound if has_binding(spots, name, nth)]
    own = first_argument(module, function)  # the module itself, which no wildcard means
    return [
        ModuleSite(path, "local", module, f"{function}.{name}{mark}{nth}")
        for name in names
        if name != own or name == wanted
    ]


def _parameters(path: str, module: Any, tail: Sequence[str]) -> list[ModuleSite]:
    is_after_step = tail[-1] == AFTER_STEP
    names = tail[:-1] if is_after_step else tail
    if len(names) != 1 or "*" in names[0]:
        return []
    return [
        ModuleSite(path, "param", module, name, is_after_step)
        for name in stored(module)
        if segment_matches(names[0], name)
    ]


def _tail_items(tail: tuple[str, ...], items: str) -> str:
    """`out.logits[0]` and `in.cache.keys` go on into the value by attribute."""
    if not tail:
        return items
    inside = tail[1:] if tail[:1] == ("out",) else tail[2:]
    inside = inside[:-1] if inside[-1:] == ("grad",) else inside
    return "".join(f".{part}" for part in inside) + items


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
    excluded = [
        one for pattern in patterns if pattern.excludes for one in _some_function_sites(pattern, within)
    ]
    included = [
        one for pattern in patterns if not pattern.excludes for one in _some_function_sites(pattern, within)
    ]
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


def _some_function_sites(pattern: Pattern, within: Any) -> list[Wanted]:
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
        sites = [
            found.site("local", f"{found.name}.{one}") for one in _variables_function_sites(tail[0], spots)
        ]
    for site in sites:
        yield Wanted(gradient_of(site) if is_gradient else site, items, call)


def _variables_function_sites(segment: str, spots: Sequence[Spot]) -> list[str]:
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


def excludes(pattern: Any) -> bool:
    return isinstance(pattern, Pattern) and pattern.excludes


def without(wanted: Wanted, excluded: Sequence[Wanted]) -> Wanted | None:
    """What is left of a site; excluding a module's output excludes all of that module, and excluding what a
    function without a model returns all of that function."""
    site = wanted.site
    if site.function is not None:
        return _function_without(wanted, [one for one in excluded if _is_in_function(one.site, site)])
    here = [one for one in excluded if one.site.path == site.path and _concerns(one, site)]
    if any(not one.items and one.call is None and one.site.parameter in ("", site.parameter) for one in here):
        return None
    return wanted._replace(excluded=tuple(here))


def _concerns(excluded: Wanted, site: ModuleSite) -> bool:
    is_whole_module = excluded.site.kind == "output" and not excluded.items and excluded.call is None
    is_same_kind = excluded.site.kind == site.kind and excluded.site.is_after_step == site.is_after_step
    return is_whole_module or is_same_kind


def _function_without(wanted: Wanted, here: Sequence[Wanted]) -> Wanted | None:
    if any(not one.items and one.call is None for one in here):
        return None
    same = [one._replace(site=wanted.site) for one in here if one.site.kind == wanted.site.kind]
    return wanted._replace(excluded=tuple(same))


def _is_in_function(excluded: ModuleSite, site: ModuleSite) -> bool:
    name, _, nth = excluded.parameter.partition("#")
    its_name, _, its_nth = site.parameter.partition("#")
    if excluded.path != site.path:
        return False
    if excluded.kind == "return":
        return name == its_name.partition(".")[0]
    return excluded.kind == site.kind and name == its_name and nth in ("", its_nth)
