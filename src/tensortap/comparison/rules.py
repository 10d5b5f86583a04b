"""Rules that say which name of one side is which of the other, written in TOML with the grammar of paths.

ignore = ["**.rotary_emb"]              # left out on both sides

[[rule]]
from = "model.layers.*.self_attn"       # a name of A, and of whatever lies below it
to = "transformer.h.*.attn"             # what B calls it; each star is filled in turn

[[placement]]
of = "**.up_proj"                       # a value of either side that is in pieces on several ranks
is = "shard(2)"                         # how these sit in the whole
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensortap.comparison.declared_ways import DeclaredPlacement, parse_placement_tables
from tensortap.comparison.entries import Entry, is_selected
from tensortap.core.paths import closest_names

_BRACES = re.compile(r"\{([^{}]*)\}")
_STARS = re.compile(r"\*\*\.|\*+")
_RULES_SYNTAX = 'write [[rule]] tables with from = "..." and to = "...", and a list ignore = ["..."]'


@dataclass(frozen=True, slots=True)
class Rule:
    """Names that `source` matches are called as `target` says; stars are carried over in their order."""

    source: str
    target: str
    targets: tuple[tuple[re.Pattern[str], str], ...]

    def rename(self, name: str) -> str | None:
        """The other side's name; None where the rule does not speak of this one."""
        for expression, target in self.targets:
            found = expression.match(name)
            if found is not None:
                return _join_name(_fill_stars(target, found.groups()), name[found.end() :])
        return None


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules in their order, each applied to what the one before has made; and patterns to leave out."""

    rules: tuple[Rule, ...] = ()
    ignore: tuple[str, ...] = ()
    exact: Mapping[str, str] | None = None
    function: Callable[[str], str] | None = None
    placements: tuple[DeclaredPlacement, ...] = ()

    @property
    def has_renames(self) -> bool:
        """Whether any name may be called otherwise."""
        return bool(self.rules or self.exact or self.function)

    def rename(self, name: str) -> str:
        if self.function is not None:
            return _check_name(self.function(name), name)
        if self.exact is not None and name in self.exact:
            return self.exact[name]
        before = name
        for rule in self.rules:
            renamed = rule.rename(name)
            name = name if renamed is None else renamed
        return _rename_below_module(name, self.exact) if self.exact and name == before else name

    def describe_unused_patterns(self, names: Collection[str]) -> list[str]:
        """Patterns that mean nothing."""
        patterns = [("ignore", one) for one in self.ignore]
        patterns += [("the placement of", one.pattern) for one in self.placements]
        none = ((what, one) for what, one in patterns if not any(is_selected(name, [one]) for name in names))
        return [f"{what} {one!r} matches no name of either side" for what, one in none]

    def drop_ignored(self, entries: list[Entry]) -> list[Entry]:
        """Without what is ignored."""
        if not self.ignore:
            return entries
        return [entry for entry in entries if not is_selected(entry.name, self.ignore)]

    def drop_ignored_weights(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What is known of a model, without the weights that are ignored."""
        model = facts.get("model")
        weights = model.get("weights") if isinstance(model, Mapping) else None
        if not self.ignore or not isinstance(weights, Mapping):
            return dict(facts)
        kept = {name: one for name, one in weights.items() if not is_selected(name, self.ignore)}
        return {**facts, "model": {**facts["model"], "weights": kept}}

    def check_unique(self, names: Mapping[str, str], known: set[str]) -> None:
        """Raise where rules send two names of A to one of B."""
        before: dict[str, str] = {}
        # Those that the map itself names come first: they are the clearer words.
        for name in sorted(names, key=lambda name: name not in (self.exact or ())):
            renamed = names[name]
            if renamed != name and renamed in known:
                if renamed in before:
                    raise ValueError(
                        f"the map sends both {before[renamed]!r} and {name!r} to {renamed!r}; "
                        "make the rules narrower, so that one name of A has one of B"
                    )
                before[renamed] = name

    def find_problems(self, a: Sequence[str], b: Sequence[str]) -> list[str]:
        """Rules that match nothing, or lead to names that the other side does not have."""
        found = []
        names = list(a)
        for number, rule in enumerate(self.rules, 1):
            spoken = [name for name in names if rule.rename(name) is not None]
            if not spoken:
                found.append(_describe_unused_rule(number, rule, names, b))
            names = [rule.rename(name) or name for name in names]
        for name in self.exact or ():
            if name and not any(_is_within_module(one, name) for one in a):
                found.append(f"the map names {name!r}, which A does not have{_nearest_hint(name, a)}")
        known = set(b)
        strays = [(old, new) for old, new in zip(a, map(self.rename, a), strict=True) if new not in known]
        moved = [(old, new) for old, new in strays if new != old]
        if moved:
            old, new = moved[0]
            others = f" (and {len(moved) - 1} more)" if len(moved) > 1 else ""
            found.append(
                f"the map sends {old!r} to {new!r}, which B does not have{_nearest_hint(new, b)}{others}"
            )
        return found


def _check_name(made: Any, name: str) -> str:
    if isinstance(made, str):
        return made
    raise TypeError(
        f"the map gives {made!r} for {name!r}; a function of A's name returns the name that B has for it, "
        "the same one where it is not another"
    )


def load_rules(given: Any) -> Rules:
    """Rules from a TOML file, a dict of names or of what such a file holds, a function, or nothing."""
    if given is None:
        return Rules()
    if isinstance(given, Rules):
        return given
    if isinstance(given, (str, os.PathLike)):
        return _from_file(Path(given))
    if isinstance(given, Mapping):
        return _from_mapping(given, "the map")
    if callable(given):
        return Rules(function=given)
    raise TypeError(
        f"a map is a TOML file, a dict from A's names to B's, or a function of A's name, not {given!r}"
    )


def _from_file(path: Path) -> Rules:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a TOML file of rules: {_RULES_SYNTAX}")
    try:
        return _from_mapping(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML ({error}); {_RULES_SYNTAX}") from None


def _from_mapping(given: Mapping[str, Any], where: str) -> Rules:
    tables, ignore = given.get("rule"), given.get("ignore")
    placements = given.get("placement")
    is_table = where != "the map" or any(isinstance(one, list) for one in (tables, ignore, placements))
    if not is_table:
        return _from_names(given)
    unknown = given.keys() - {"rule", "ignore", "placement"}
    if unknown:
        raise ValueError(f"{where} has {sorted(unknown)[0]!r}, which means nothing here; {_RULES_SYNTAX}")
    return Rules(
        tuple(_parse_rule(table, where) for table in tables or ()),
        tuple(map(str, ignore or ())),
        placements=parse_placement_tables(placements or [], where),
    )


def _from_names(given: Mapping[str, Any]) -> Rules:
    """A dict from names of A to names of B; with stars each is a rule."""
    texts = {str(name): str(other) for name, other in given.items()}
    exact = {name: other for name, other in texts.items() if not set("*{") & set(name)}
    rules = [_compile_rule(name, other) for name, other in texts.items() if name not in exact]
    return Rules(tuple(rules), exact=exact)


def _parse_rule(table: Any, where: str) -> Rule:
    is_rule = isinstance(table, Mapping) and table.keys() == {"from", "to"}
    if not is_rule or not all(isinstance(text, str) for text in table.values()):
        raise ValueError(f"{where} has a rule {table!r}; {_RULES_SYNTAX}")
    return _compile_rule(table["from"], table["to"])


def _compile_rule(source: str, target: str) -> Rule:
    sources, targets = _expand_braces(source), _expand_braces(target)
    if len(targets) == 1:
        targets *= len(sources)
    if len(sources) != len(targets):
        raise ValueError(
            f"the rule from {source!r} to {target!r} has {len(sources)} choices on one side and "
            f"{len(targets)} on the other; braces are taken pair by pair"
        )
    for one, other in zip(sources, targets, strict=True):
        if len(_STARS.findall(other)) > len(_STARS.findall(one)):
            raise ValueError(f"the rule from {source!r} to {target!r} has more stars in its target")
    ways = zip(map(_compile_pattern, sources), targets, strict=True)
    return Rule(source, target, tuple(ways))


def _expand_braces(text: str) -> list[str]:
    """Each text that `{a,b}` stands for, in order."""
    braces = _BRACES.search(text)
    if braces is None:
        return [text]
    head, tail = text[: braces.start()], text[braces.end() :]
    return [made for choice in braces[1].split(",") for made in _expand_braces(head + choice + tail)]


def _compile_pattern(source: str) -> re.Pattern[str]:
    """A name, and what is below it: the match ends where a part of a name does."""
    if not source:
        return re.compile("")
    written = "".join(_regex_of(piece) for piece in re.split(f"({_STARS.pattern})", source))
    return re.compile(rf"{written}(?=[.\[]|$)")


def _regex_of(piece: str) -> str:
    if piece == "**.":
        return r"((?:[^\[]*?\.)?)"
    if piece == "**":
        return r"([^\[]*)"
    return r"([^.\[]*)" if piece.startswith("*") else re.escape(piece)


def _fill_stars(target: str, found: Sequence[str]) -> str:
    left = iter(found)
    return _STARS.sub(lambda star: _fit_trailing_dot(next(left), star[0]), target)


def _fit_trailing_dot(found: str, star: str) -> str:
    """What a star stood for, with a dot behind it where the target wants one."""
    bare = found.removesuffix(".")
    return f"{bare}." if bare and star.endswith(".") else bare


def _rename_below_module(name: str, exact: Mapping[str, str]) -> str:
    """The name of what belongs to a module that is called otherwise: the innermost counts."""
    ends = [found.start() for found in re.finditer(r"[.\[]", name)]
    module = next((name[:end] for end in reversed(ends) if name[:end] in exact), "")
    return _join_name(exact[module], name[len(module) :]) if module in exact else name


def _is_within_module(name: str, module: str) -> bool:
    return name.startswith(module) and name[len(module) : len(module) + 1] in ("", ".", "[")


def _join_name(module: str, rest: str) -> str:
    """A module and what follows its name; the model itself has no name, and its output is `out`."""
    if module and (rest == "out" or rest.startswith(("out[", "out."))):
        return module + rest[3:]
    if module:
        return module + rest if not rest or rest[0] in ".[" else f"{module}.{rest}"
    if not rest or rest.startswith("["):
        return f"out{rest}"
    return rest.removeprefix(".")


def _describe_unused_rule(number: int, rule: Rule, a: Sequence[str], b: Iterable[str]) -> str:
    told = f"rule {number} (from {rule.source!r}) matches no name of A"
    if any(rule.rename(name) is not None for name in b):
        return f"{told}, but names of B: its from and to may be the wrong way round"
    return f"{told}{_nearest_hint(rule.source, a)}"


def _nearest_hint(name: str, known: Iterable[str]) -> str:
    found = closest_names(name, known, 1)
    return f"; nearest is {found[0]!r}" if found else ""
