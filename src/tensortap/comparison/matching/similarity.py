"""Guess pairs of values without a common name: by module class and order, by content."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tensortap.comparison.sides.entry import Entry, module_of, split_name
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array, decode_block

ScoredPair = tuple[Entry, Entry, float]
_SAMPLE_SIZE = 4096  # numbers sampled per value
_MAX_CANDIDATES = 2000  # values loaded per side
_MAX_DISTANCE = 0.05  # relative; farther values are not paired
_MIN_MARGIN = 3.0  # factor by which the second best must be farther
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
    """Pair modules of one class in execution order, if both sides have equally many."""
    known_a = {module_of(pair.a.name, pair.a.kind) for pair in pairs}
    a_modules, b_modules = (
        _modules_by_class(a, known_a),
        _modules_by_class(b, {module_of(pair.b.name, pair.b.kind) for pair in pairs}),
    )
    partner: dict[str, str] = {}
    for name, modules in a_modules.items():
        if len(modules) == len(b_modules.get(name, ())):
            partner.update(zip(modules, b_modules[name], strict=True))
    return _match_within_modules(a, b, partner, shift)


def match_by_content(
    a: list[Entry], b: list[Entry], pairs: Sequence[PairLike], shift: Mapping[Any, Any]
) -> list[ScoredPair]:
    """Pair values of one shape with nearly the same numbers; then those named by analogy."""
    known_b = {module_of(pair.b.name, pair.b.kind) for pair in pairs}
    known_a = {module_of(pair.a.name, pair.a.kind) for pair in pairs}
    a_groups = _group_by_shape(
        (entry for entry in a if module_of(entry.name, entry.kind) not in known_a), shift
    )
    b_groups = _group_by_shape((entry for entry in b if module_of(entry.name, entry.kind) not in known_b), {})
    pairs_found = [
        pair for key, group in a_groups.items() for pair in _match_nearest(group, b_groups.get(key, []))
    ]
    return [*pairs_found, *_match_by_analogy(a, b, pairs_found, shift)]


def suggest_rules(names: Iterable[tuple[str, str]]) -> str:
    """The shortest TOML rules that rename these names of A to those of B."""
    rules = dict.fromkeys(_rename_rule(*pair) for pair in names)
    tables = [
        f"[[rule]]\nfrom = {_toml_string(source)}\nto = {_toml_string(target)}" for source, target in rules
    ]
    more = [f"# ... and {len(tables) - _MAX_RULES_SHOWN} more"] if len(tables) > _MAX_RULES_SHOWN else []
    return "\n".join([*tables[:_MAX_RULES_SHOWN], *more])


def _toml_string(name: str) -> str:
    """Quote as a TOML string."""
    return json.dumps(name, ensure_ascii=False)


def _modules_by_class(entries: list[Entry], excluded: set[str]) -> dict[str, list[str]]:
    """The module paths of each class, in order of first appearance."""
    by_class: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for entry in entries:
        module = module_of(entry.name, entry.kind)
        if entry.class_name and module not in excluded:
            by_class[entry.class_name][module] = None
    return {name: list(modules) for name, modules in by_class.items()}


def _match_within_modules(
    a: list[Entry], b: list[Entry], partner: Mapping[str, str], shift: Mapping[Any, Any]
) -> list[ScoredPair]:
    """Pair the values of paired modules: by port name, else by position."""
    pairs: list[ScoredPair] = []
    for index in () if not partner else (_index_by_port_name, _index_by_position):
        paired = {id(entry) for a_entry, b_entry, _ in pairs for entry in (a_entry, b_entry)}
        b_by_key = index((entry for entry in b if id(entry) not in paired), lambda entry: entry.step, {})
        unpaired = (entry for entry in a if id(entry) not in paired)
        for key, entry in index(unpaired, lambda entry: shift.get(entry.step, entry.step), partner).items():
            candidate = b_by_key.get(key)
            if candidate is not None and candidate.shape == entry.shape:
                pairs.append((entry, candidate, _SURE))
    return pairs


_EntriesByKey = dict[tuple[Any, ...], Entry]
_StepOf = Callable[[Entry], Any]


def _index_by_port_name(entries: Iterable[Entry], step: _StepOf, partner: Mapping[str, str]) -> _EntriesByKey:
    keyed = {}
    for entry in entries:
        module, port_name = split_name(entry.name, entry.kind)
        module = partner.get(module, "" if partner else module)
        keyed[module, port_name, entry.kind, step(entry), entry.rank, entry.call] = entry
    return {key: entry for key, entry in keyed.items() if key[0]}


def _index_by_position(entries: Iterable[Entry], step: _StepOf, partner: Mapping[str, str]) -> _EntriesByKey:
    """Index by position within a kind: argument names may differ."""
    counted: defaultdict[tuple[Any, ...], int] = defaultdict(int)
    keyed: _EntriesByKey = {}
    for key, entry in _index_by_port_name(entries, step, partner).items():
        position_key = (key[0], *key[2:])
        keyed[*position_key, counted[position_key]] = entry
        counted[position_key] += 1
    return keyed


def _group_by_shape(entries: Iterable[Entry], shift: Mapping[Any, Any]) -> dict[tuple[Any, ...], list[Entry]]:
    """Group entries that could be the same value: by kind, shape, step and rank."""
    groups: defaultdict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for count, entry in enumerate(entries):
        if count < _MAX_CANDIDATES and entry.shape and entry.dtype:
            key = (entry.kind, entry.shape, shift.get(entry.step, entry.step), entry.rank)
            groups[key].append(entry)
    return groups


def _match_nearest(a: list[Entry], b: list[Entry]) -> list[ScoredPair]:
    """Pair each with the nearest one that is still unpaired."""
    a_samples, b_samples = _sample_values(a), _sample_values(b)
    pairs: list[ScoredPair] = []
    for entry, sample in a_samples:
        if not b_samples:
            break
        distances = np.array([_relative_distance(sample, b_sample) for _, b_sample in b_samples])
        best = int(distances.argmin())
        if distances[best] <= _MAX_DISTANCE:
            runners_up = np.delete(distances, best)
            is_clear = not len(runners_up) or runners_up.min() > max(_MIN_MARGIN * distances[best], 1e-6)
            pairs.append((entry, b_samples.pop(best)[0], _LIKELY if is_clear else _POSSIBLE))
    return pairs


def _sample_values(entries: list[Entry]) -> list[tuple[Entry, Array]]:
    """Some numbers of each value; unreadable and constant values are left out."""
    samples = []
    for entry in entries:
        try:
            operand = entry.operand()
        except (TensortapError, OSError, ValueError):
            continue
        if operand is None or not operand.bits.size:
            continue
        flat = operand.bits.reshape(-1)
        chosen = decode_block(flat[:: max(1, -(-flat.size // _SAMPLE_SIZE))], operand.dtype)
        sample = np.nan_to_num(np.abs(chosen) if chosen.dtype.kind == "c" else chosen.astype(np.float64))
        if np.ptp(sample) > 0:
            samples.append((entry, sample))
    return samples


def _relative_distance(a: Array, b: Array) -> float:
    size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return float(np.linalg.norm(a - b)) / size if size else 0.0


def _match_by_analogy(
    a: list[Entry], b: list[Entry], pairs: list[ScoredPair], shift: Mapping[Any, Any]
) -> list[ScoredPair]:
    """If `layers.0.attn` was paired with `h.0.attention`, pair `layers.1.attn` with `h.1.attention`."""
    analogies: dict[str, set[str]] = defaultdict(set)
    for a_entry, b_entry, score in pairs:
        if score >= _LIKELY and _NUMBER.findall(a_entry.name) == _NUMBER.findall(b_entry.name):
            analogies[_numbers_to_stars(a_entry.name)].add(_numbers_to_stars(b_entry.name))
    paired = {id(entry) for a_entry, b_entry, _ in pairs for entry in (a_entry, b_entry)}
    b_by_call = {
        (a_entry.name, a_entry.step, a_entry.rank, a_entry.call): a_entry
        for a_entry in b
        if id(a_entry) not in paired
    }
    analogous: list[ScoredPair] = []
    for entry in a:
        targets = analogies.get(_numbers_to_stars(entry.name), set())
        if id(entry) in paired or len(targets) != 1:
            continue
        name = _fill_stars(next(iter(targets)), _NUMBER.findall(entry.name))
        key = (name, shift.get(entry.step, entry.step), entry.rank, entry.call)
        if key in b_by_call:
            analogous.append((entry, b_by_call.pop(key), _POSSIBLE))
    return analogous


def _numbers_to_stars(name: str) -> str:
    """Replace every number segment of a name by a wildcard."""
    return _NUMBER.sub("*", name)


def _fill_stars(pattern: str, numbers: list[str]) -> str:
    remaining = iter(numbers)
    return re.sub(r"\*", lambda _: next(remaining, "*"), pattern)


def _rename_rule(source: str, target: str) -> tuple[str, str]:
    """A rule between two names, with wildcards if both have the same numbers."""
    are_alike = _NUMBER.findall(source) == _NUMBER.findall(target)
    return (
        _drop_common_suffix(_numbers_to_stars(source), _numbers_to_stars(target))
        if are_alike
        else _drop_common_suffix(source, target)
    )


def _drop_common_suffix(source: str, target: str) -> tuple[str, str]:
    """Drop common last segments: a rule applies to everything below it as well."""
    a, b = source.split("."), target.split(".")
    while len(a) > 1 and len(b) > 1 and a[-1] == b[-1] and (a[:-1] != b[:-1]):
        a, b = a[:-1], b[:-1]
    return ".".join(a), ".".join(b)
