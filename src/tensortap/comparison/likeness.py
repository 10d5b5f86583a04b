"""Values without a name in common that may be the same thing: by class and order, by what they hold."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tensortap.comparison.entries import Entry
from tensortap.comparison.modules import module_of, split_name
from tensortap.core.errors import TensortapError
from tensortap.kernels.blocks import decode_block
from tensortap.kernels.numbers import Array

ScoredPair = tuple[Entry, Entry, float]
_SAMPLE_SIZE = 4096  # numbers of each value that are looked at
_MAX_CANDIDATES = 2000  # values of a side that are looked into
_MAX_DISTANCE = 0.05  # relative distance within which two values may be the same
_MIN_MARGIN = 3.0  # how much farther the second best has to be
_SURE, _LIKELY, _POSSIBLE = 0.9, 0.8, 0.5
_NUMBER = re.compile(r"(?<=[.\[])\d+(?=[.\[\]]|$)|^\d+(?=[.\[]|$)")
_MAX_RULES_SHOWN = 4


class PairLike(Protocol):
    @property
    def a(self) -> Entry: ...

    @property
    def b(self) -> Entry: ...


def match_by_class(
    a: list[Entry], b: list[Entry], pairs: Sequence[PairLike], shift: Mapping[Any, Any]
) -> list[ScoredPair]:
    """Modules of one class in the order in which they ran, where both sides have as many of them."""
    taken = {module_of(pair.a.name, pair.a.kind) for pair in pairs}
    mine, others = (
        _modules_by_class(a, taken),
        _modules_by_class(b, {module_of(pair.b.name, pair.b.kind) for pair in pairs}),
    )
    partner: dict[str, str] = {}
    for name, modules in mine.items():
        if len(modules) == len(others.get(name, ())):
            partner.update(zip(modules, others[name], strict=True))
    return _match_within_modules(a, b, partner, shift)


def match_by_content(
    a: list[Entry], b: list[Entry], pairs: Sequence[PairLike], shift: Mapping[Any, Any]
) -> list[ScoredPair]:
    """Values of one shape that hold nearly the same numbers; then whatever is named by analogy with them."""
    known_b = {module_of(pair.b.name, pair.b.kind) for pair in pairs}
    known_a = {module_of(pair.a.name, pair.a.kind) for pair in pairs}
    mine = _group_by_shape((one for one in a if module_of(one.name, one.kind) not in known_a), shift)
    others = _group_by_shape((one for one in b if module_of(one.name, one.kind) not in known_b), {})
    found = [pair for key, group in mine.items() for pair in _match_nearest(group, others.get(key, []))]
    return [*found, *_match_by_analogy(a, b, found, shift)]


def suggest_rules(names: Iterable[tuple[str, str]]) -> str:
    """Rules in TOML that would send these names of A to those of B, the shortest that say it."""
    rules = dict.fromkeys(_rename_rule(*pair) for pair in names)
    told = [
        f"[[rule]]\nfrom = {_toml_string(source)}\nto = {_toml_string(target)}" for source, target in rules
    ]
    more = [f"# ... and {len(told) - _MAX_RULES_SHOWN} more"] if len(told) > _MAX_RULES_SHOWN else []
    return "\n".join([*told[:_MAX_RULES_SHOWN], *more])


def _toml_string(name: str) -> str:
    """As a text of TOML, whatever letters it has."""
    return json.dumps(name, ensure_ascii=False)


def _modules_by_class(entries: list[Entry], taken: set[str]) -> dict[str, list[str]]:
    """The paths of the modules of each class, as they first came."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for entry in entries:
        module = module_of(entry.name, entry.kind)
        if entry.class_name and module not in taken:
            found[entry.class_name][module] = None
    return {name: list(modules) for name, modules in found.items()}


def _match_within_modules(
    a: list[Entry], b: list[Entry], partner: Mapping[str, str], shift: Mapping[Any, Any]
) -> list[ScoredPair]:
    """The values of modules that belong together: by what they are of the module, else by their place."""
    found: list[ScoredPair] = []
    for by in () if not partner else (_index_by_port_name, _index_by_position):
        taken = {id(entry) for one, other, _ in found for entry in (one, other)}
        others = by((entry for entry in b if id(entry) not in taken), lambda entry: entry.step, {})
        left = (entry for entry in a if id(entry) not in taken)
        for key, entry in by(left, lambda entry: shift.get(entry.step, entry.step), partner).items():
            other = others.get(key)
            if other is not None and other.shape == entry.shape:
                found.append((entry, other, _SURE))
    return found


_EntriesByKey = dict[tuple[Any, ...], Entry]
_StepOf = Callable[[Entry], Any]


def _index_by_port_name(entries: Iterable[Entry], step: _StepOf, partner: Mapping[str, str]) -> _EntriesByKey:
    keyed = {}
    for entry in entries:
        module, rest = split_name(entry.name, entry.kind)
        module = partner.get(module, "" if partner else module)
        keyed[module, rest, entry.kind, step(entry), entry.rank, entry.call] = entry
    return {key: entry for key, entry in keyed.items() if key[0]}


def _index_by_position(entries: Iterable[Entry], step: _StepOf, partner: Mapping[str, str]) -> _EntriesByKey:
    """Arguments may be called differently: the first input of one is the first of the other."""
    counted: defaultdict[tuple[Any, ...], int] = defaultdict(int)
    keyed: _EntriesByKey = {}
    for key, entry in _index_by_port_name(entries, step, partner).items():
        place = (key[0], *key[2:])
        keyed[*place, counted[place]] = entry
        counted[place] += 1
    return keyed


def _group_by_shape(entries: Iterable[Entry], shift: Mapping[Any, Any]) -> dict[tuple[Any, ...], list[Entry]]:
    """What could be the same thing at all."""
    found: defaultdict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for count, entry in enumerate(entries):
        if count < _MAX_CANDIDATES and entry.shape and entry.dtype:
            key = (entry.kind, entry.shape, shift.get(entry.step, entry.step), entry.rank)
            found[key].append(entry)
    return found


def _match_nearest(a: list[Entry], b: list[Entry]) -> list[ScoredPair]:
    """Each with the nearest that is not taken; the first of several that are as near."""
    mine, others = _sample_values(a), _sample_values(b)
    found: list[ScoredPair] = []
    for entry, sample in mine:
        if not others:
            break
        apart = np.array([_relative_distance(sample, other) for _, other in others])
        best = int(apart.argmin())
        if apart[best] <= _MAX_DISTANCE:
            rest = np.delete(apart, best)
            is_clear = not len(rest) or rest.min() > max(_MIN_MARGIN * apart[best], 1e-6)
            found.append((entry, others.pop(best)[0], _LIKELY if is_clear else _POSSIBLE))
    return found


def _sample_values(entries: list[Entry]) -> list[tuple[Entry, Array]]:
    """Some numbers of each value; what cannot be read, or is the same number throughout, tells nothing."""
    found = []
    for entry in entries:
        try:
            held = entry.operand()
        except (TensortapError, OSError, ValueError):
            continue
        if held is None or not held.bits.size:
            continue
        flat = held.bits.reshape(-1)
        chosen = decode_block(flat[:: max(1, -(-flat.size // _SAMPLE_SIZE))], held.dtype)
        sample = np.nan_to_num(np.abs(chosen) if chosen.dtype.kind == "c" else chosen.astype(np.float64))
        if np.ptp(sample) > 0:
            found.append((entry, sample))
    return found


def _relative_distance(a: Array, b: Array) -> float:
    size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return float(np.linalg.norm(a - b)) / size if size else 0.0


def _match_by_analogy(
    a: list[Entry], b: list[Entry], found: list[ScoredPair], shift: Mapping[Any, Any]
) -> list[ScoredPair]:
    """Where `layers.0.attn` was found to be `h.0.attention`, so is `layers.1.attn`, whatever it holds."""
    known: dict[str, set[str]] = defaultdict(set)
    for one, other, score in found:
        if score >= _LIKELY and _NUMBER.findall(one.name) == _NUMBER.findall(other.name):
            known[_numbers_to_stars(one.name)].add(_numbers_to_stars(other.name))
    taken = {id(entry) for one, other, _ in found for entry in (one, other)}
    others = {(one.name, one.step, one.rank, one.call): one for one in b if id(one) not in taken}
    made: list[ScoredPair] = []
    for entry in a:
        targets = known.get(_numbers_to_stars(entry.name), set())
        if id(entry) in taken or len(targets) != 1:
            continue
        name = _fill_stars(next(iter(targets)), _NUMBER.findall(entry.name))
        key = (name, shift.get(entry.step, entry.step), entry.rank, entry.call)
        if key in others:
            made.append((entry, others.pop(key), _POSSIBLE))
    return made


def _numbers_to_stars(name: str) -> str:
    """The name with a star for each number that is a part of it."""
    return _NUMBER.sub("*", name)


def _fill_stars(pattern: str, found: list[str]) -> str:
    left = iter(found)
    return re.sub(r"\*", lambda _: next(left, "*"), pattern)


def _rename_rule(source: str, target: str) -> tuple[str, str]:
    """With stars where both have the same numbers, else as they are."""
    are_alike = _NUMBER.findall(source) == _NUMBER.findall(target)
    return (
        _drop_common_suffix(_numbers_to_stars(source), _numbers_to_stars(target))
        if are_alike
        else _drop_common_suffix(source, target)
    )


def _drop_common_suffix(source: str, target: str) -> tuple[str, str]:
    """Without the parts at the end that both have: a rule speaks of everything below it as well."""
    a, b = source.split("."), target.split(".")
    while len(a) > 1 and len(b) > 1 and a[-1] == b[-1] and (a[:-1] != b[:-1]):
        a, b = a[:-1], b[:-1]
    return ".".join(a), ".".join(b)
