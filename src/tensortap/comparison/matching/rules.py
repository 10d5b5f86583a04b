"""Rules that map names of A to names of B, written in TOML with the pattern grammar.

ignore = ["**.rotary_emb"]              # ignored on both sides

[[rule]]
from = "model.layers.*.self_attn"       # a name of A, and everything below it
to = "transformer.h.*.attn"             # its name in B; wildcards are filled in order

[[placement]]
of = "**.up_proj"                       # a value that is sharded over several ranks, on either side
is = "shard(2)"                         # its placement
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensortap.comparison.sharding.placement import DeclaredPlacement, parse_placement_tables
from tensortap.comparison.sides.entry import Entry, is_selected
from tensortap.core.patterns import closest_names

_BRACES = re.compile(r"\{([^{}]*)\}")
_STARS = re.compile(r"\*\*\.|\*+")
_RULES_SYNTAX = 'write [[rule]] tables with from = "..." and to = "...", and a list ignore = ["..."]'


@dataclass(frozen=True, slots=True)
class Rule:
    """Renames what `source` matches to `target`; wildcards are carried over in order."""

    source: str
    target: str
    targets: tuple[tuple[re.Pattern[str], str], ...]

    def rename(self, name: str) -> str | None:
        """The name on the other side; None if the rule does not match."""
        for expression, target in self.targets:
            match = expression.match(name)
            if match is not None:
                return _join_name(_fill_stars(target, match.groups()), name[match.end() :])
        return None


@dataclass(frozen=True, slots=True)
class Rules:
    """Rename rules, applied in order to the output of the one before, and patterns to ignore."""

    rules: tuple[Rule, ...] = ()
    ignore: tuple[str, ...] = ()
    exact: Mapping[str, str] | None = None
    function: Callable[[str], str] | None = None
    placements: tuple[DeclaredPlacement, ...] = ()

    @property
    def has_renames(self) -> bool:
        """Whether any name may change."""
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
        """Report patterns that match no name."""
        patterns = [("ignore", pattern) for pattern in self.ignore]
        patterns += [("the placement of", pattern.pattern) for pattern in self.placements]
        unused = (
            (label, pattern)
            for label, pattern in patterns
            if not any(is_selected(name, [pattern]) for name in names)
        )
        return [f"{label} {pattern!r} matches no name of either side" for label, pattern in unused]

    def drop_ignored(self, entries: list[Entry]) -> list[Entry]:
        """The entries that no ignore pattern matches."""
        if not self.ignore:
            return entries
        return [entry for entry in entries if not is_selected(entry.name, self.ignore)]

    def drop_ignored_weights(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The metadata without the weights that are ignored."""
        model = facts.get("model")
        weights = model.get("weights") if isinstance(model, Mapping) else None
        if not self.ignore or not isinstance(weights, Mapping):
            return dict(facts)
        kept = {name: digest for name, digest in weights.items() if not is_selected(name, self.ignore)}
        return {**facts, "model": {**facts["model"], "weights": kept}}

    def check_unique(self, names: Mapping[str, str], b_names: set[str]) -> None:
        """Raise if rules map two names of A to one of B."""
        before: dict[str, str] = {}
        # Names that the map lists literally come first: they make the clearer message.
        for name in sorted(names, key=lambda name: name not in (self.exact or ())):
            renamed = names[name]
            if renamed != name and renamed in b_names:
                if renamed in before:
                    raise ValueError(
                        f"the map sends both {before[renamed]!r} and {name!r} to {renamed!r}; "
                        "make the rules narrower, so that one name of A has one of B"
                    )
                before[renamed] = name

    def find_problems(self, a: Sequence[str], b: Sequence[str]) -> list[str]:
        """Report rules that match nothing, or lead to names that the other side does not have."""
        problems = []
        names = list(a)
        for number, rule in enumerate(self.rules, 1):
            matching = [name for name in names if rule.rename(name) is not None]
            if not matching:
                problems.append(_describe_unused_rule(number, rule, names, b))
            names = [rule.rename(name) or name for name in names]
        for name in self.exact or ():
            if name and not any(_is_within_module(a_name, name) for a_name in a):
                problems.append(f"the map names {name!r}, which A does not have{_nearest_hint(name, a)}")
        b_names = set(b)
        strays = [(old, new) for old, new in zip(a, map(self.rename, a), strict=True) if new not in b_names]
        moved = [(old, new) for old, new in strays if new != old]
        if moved:
            old, new = moved[0]
            more = f" (and {len(moved) - 1} more)" if len(moved) > 1 else ""
            problems.append(
                f"the map sends {old!r} to {new!r}, which B does not have{_nearest_hint(new, b)}{more}"
            )
        return problems


def _check_name(renamed: Any, name: str) -> str:
    if isinstance(renamed, str):
        return renamed
    raise TypeError(
        f"the map gives {renamed!r} for {name!r}; a function of A's name returns the name that B has for it, "
        "the same one where it is not another"
    )


def load_rules(source: Any) -> Rules:
    """Rules from a TOML file, a dict of names, a dict as parsed from such a file, a function, or None."""
    if source is None:
        return Rules()
    if isinstance(source, Rules):
        return source
    if isinstance(source, (str, os.PathLike)):
        return _from_file(Path(source))
    if isinstance(source, Mapping):
        return _from_mapping(source, "the map")
    if callable(source):
        return Rules(function=source)
    raise TypeError(
        f"a map is a TOML file, a dict from A's names to B's, or a function of A's name, not {source!r}"
    )


def _from_file(path: Path) -> Rules:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a TOML file of rules: {_RULES_SYNTAX}")
    try:
        return _from_mapping(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not TOML ({error}); {_RULES_SYNTAX}") from None


def _from_mapping(mapping: Mapping[str, Any], where: str) -> Rules:
    tables, ignore = mapping.get("rule"), mapping.get("ignore")
    placements = mapping.get("placement")
    is_table = where != "the map" or any(isinstance(table, list) for table in (tables, ignore, placements))
    if not is_table:
        return _from_names(mapping)
    unknown = mapping.keys() - {"rule", "ignore", "placement"}
    if unknown:
        raise ValueError(f"{where} has {sorted(unknown)[0]!r}, which means nothing here; {_RULES_SYNTAX}")
    return Rules(
        tuple(_parse_rule(table, where) for table in tables or ()),
        tuple(map(str, ignore or ())),
        placements=parse_placement_tables(placements or [], where),
    )


def _from_names(mapping: Mapping[str, Any]) -> Rules:
    """Rules from a dict of A's names to B's; keys with wildcards become rules."""
    renames = {str(name): str(target) for name, target in mapping.items()}
    exact = {name: target for name, target in renames.items() if not set("*{") & set(name)}
    rules = [_compile_rule(name, target) for name, target in renames.items() if name not in exact]
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
    for from_pattern, to_pattern in zip(sources, targets, strict=True):
        if len(_STARS.findall(to_pattern)) > len(_STARS.findall(from_pattern)):
            raise ValueError(f"the rule from {source!r} to {target!r} has more stars in its target")
    compiled = zip(map(_compile_pattern, sources), targets, strict=True)
    return Rule(source, target, tuple(compiled))


def _expand_braces(pattern: str) -> list[str]:
    """Every pattern that `{a,b}` stands for, in order."""
    braces = _BRACES.search(pattern)
    if braces is None:
        return [pattern]
    head, tail = pattern[: braces.start()], pattern[braces.end() :]
    return [expanded for choice in braces[1].split(",") for expanded in _expand_braces(head + choice + tail)]


def _compile_pattern(source: str) -> re.Pattern[str]:
    """A regex for a name and whatever is below it: the match ends at a segment boundary."""
    if not source:
        return re.compile("")
    regex = "".join(_regex_of(token) for token in re.split(f"({_STARS.pattern})", source))
    return re.compile(rf"{regex}(?=[.\[]|$)")


def _regex_of(token: str) -> str:
    if token == "**.":
        return r"((?:[^\[]*?\.)?)"
    if token == "**":
        return r"([^\[]*)"
    return r"([^.\[]*)" if token.startswith("*") else re.escape(token)


def _fill_stars(target: str, wildcards: Sequence[str]) -> str:
    remaining = iter(wildcards)
    return _STARS.sub(lambda star: _fit_trailing_dot(next(remaining), star[0]), target)


def _fit_trailing_dot(wildcard: str, star: str) -> str:
    """The text a wildcard matched, with a trailing dot if the target's wildcard has one."""
    bare = wildcard.removesuffix(".")
    return f"{bare}." if bare and star.endswith(".") else bare


def _rename_below_module(name: str, exact: Mapping[str, str]) -> str:
    """Rename by the innermost module that the dict renames."""
    ends = [separator.start() for separator in re.finditer(r"[.\[]", name)]
    module = next((name[:end] for end in reversed(ends) if name[:end] in exact), "")
    return _join_name(exact[module], name[len(module) :]) if module in exact else name


def _is_within_module(name: str, module: str) -> bool:
    return name.startswith(module) and name[len(module) : len(module) + 1] in ("", ".", "[")


def _join_name(module: str, suffix: str) -> str:
    """Join a module path and a suffix; the model itself is `""`, and its output `out`."""
    if module and (suffix == "out" or suffix.startswith(("out[", "out."))):
        return module + suffix[3:]
    if module:
        return module + suffix if not suffix or suffix[0] in ".[" else f"{module}.{suffix}"
    if not suffix or suffix.startswith("["):
        return f"out{suffix}"
    return suffix.removeprefix(".")


def _describe_unused_rule(number: int, rule: Rule, a: Sequence[str], b: Iterable[str]) -> str:
    message = f"rule {number} (from {rule.source!r}) matches no name of A"
    if any(rule.rename(name) is not None for name in b):
        return f"{message}, but names of B: its from and to may be the wrong way round"
    return f"{message}{_nearest_hint(rule.source, a)}"


def _nearest_hint(name: str, names: Iterable[str]) -> str:
    candidates = closest_names(name, names, 1)
    return f"; nearest is {candidates[0]!r}" if candidates else ""
