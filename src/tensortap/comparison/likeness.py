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

Found = tuple[Entry, Entry, float]
_SAMPLE = 4096  # numbers of each value that are looked at
_MOST = 2000  # values of a side that are looked into
_NEAR = 0.05  # relative distance within which two values may be the same
_CLEAR = 3.0  # how much farther the second best has to be
_SURE, _LIKELY, _POSSIBLE = 0.9, 0.8, 0.5
_NUMBER = re.compile(r"(?<=[.\[])\d+(?=[.\[\]]|$)|^\d+(?=[.\[]|$)")
_SHOWN = 4


class Paired(Protocol):
    @property
    def a(self) -> Entry: ...

    @property
    def b(self) -> Entry: ...


def by_class(
    a: list[Entry], b: list[Entry], pairs: Sequence[Paired], shift: Mapping[Any, Any]
) -> list[Found]:
    """Modules of one class in the order in which they ran, where both sides have as many of them."""
    taken = {module_of(pair.a.name, pair.a.kind) for pair in pairs}
    mine, others = _modules(a, taken), _modules(b, {module_of(pair.b.name, pair.b.kind) for pair in pairs})
    partner: dict[str, str] = {}
    for name, modules in mine.items():
        if len(modules) == len(others.get(name, ())):
            partner.update(zip(modules, others[name], strict=True))
    return _below(a, b, partner, shift)


def by_content(
    a: list[Entry], b: list[Entry], pairs: Sequence[Paired], shift: Mapping[Any, Any]
) -> list[Found]:
    """Values of one shape that hold nearly the same numbers; then whatever is named by analogy with them."""
    known_b = {module_of(pair.b.name, pair.b.kind) for pair in pairs}
    known_a = {module_of(pair.a.name, pair.a.kind) for pair in pairs}
    mine = _groups((one for one in a if module_of(one.name, one.kind) not in known_a), shift)
    others = _groups((one for one in b if module_of(one.name, one.kind) not in known_b), {})
    found = [pair for key, group in mine.items() for pair in _nearest(group, others.get(key, []))]
    return [*found, *_by_analogy(a, b, found, shift)]


def suggested_rules(names: Iterable[tuple[str, str]]) -> str:
    """Rules in TOML that would send these names of A to those of B, the shortest that say it."""
    rules = dict.fromkeys(_rule(*pair) for pair in names)
    told = [f"[[rule]]\nfrom = {_text(source)}\nto = {_text(target)}" for source, target in rules]
    more = [f"# ... and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return "\n".join([*told[:_SHOWN], *more])


def _text(name: str) -> str:
    """As a text of TOML, whatever letters it has."""
    return json.dumps(name, ensure_ascii=False)


def _modules(entries: list[Entry], taken: set[str]) -> dict[str, list[str]]:
    """The paths of the modules of each class, as they first came."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for entry in entries:
        module = module_of(entry.name, entry.kind)
        if entry.class_name and module not in taken:
            found[entry.class_name][module] = None
    return {name: list(modules) for name, modules in found.items()}


def _below(
    a: list[Entry], b: list[Entry], partner: Mapping[str, str], shift: Mapping[Any, Any]
) -> list[Found]:
    """The values of modules that belong together: by what they are of the module, else by their place."""
    found: list[Found] = []
    for by in () if not partner else (_by_port, _by_place):
        taken = {id(entry) for one, other, _ in found for entry in (one, other)}
        others = by((entry for entry in b if id(entry) not in taken), lambda entry: entry.step, {})
        left = (entry for entry in a if id(entry) not in taken)
        for key, entry in by(left, lambda entry: shift.get(entry.step, entry.step), partner).items():
            other = others.get(key)
            if other is not None and other.shape == entry.shape:
                found.append((entry, other, _SURE))
    return found


_Keys = dict[tuple[Any, ...], Entry]
_StepOf = Callable[[Entry], Any]


def _by_port(entries: Iterable[Entry], step: _StepOf, partner: Mapping[str, str]) -> _Keys:
    keyed = {}
    for entry in entries:
        module, rest = split_name(entry.name, entry.kind)
        module = partner.get(module, "" if partner else module)
        keyed[module, rest, entry.kind, step(entry), entry.rank, entry.call] = entry
    return {key: entry for key, entry in keyed.items() if key[0]}


def _by_place(entries: Iterable[Entry], step: _StepOf, partner: Mapping[str, str]) -> _Keys:
    """Arguments may be called differently: the first input of one is the first of the other."""
    counted: defaultdict[tuple[Any, ...], int] = defaultdict(int)
    keyed: _Keys = {}
    for key, entry in _by_port(entries, step, partner).items():
        place = (key[0], *key[2:])
        keyed[*place, counted[place]] = entry
        counted[place] += 1
    return keyed


def _groups(entries: Iterable[Entry], shift: Mapping[Any, Any]) -> dict[tuple[Any, ...], list[Entry]]:
    """What could be the same thing at all."""
    found: defaultdict[tuple[Any, ...], list[Entry]] = defaultdict(list)
    for count, entry in enumerate(entries):
        if count < _MOST and entry.shape and entry.dtype:
            key = (entry.kind, entry.shape, shift.get(entry.step, entry.step), entry.rank)
            found[key].append(entry)
    return found


def _nearest(a: list[Entry], b: list[Entry]) -> list[Found]:
    """Each with the nearest that is not taken; the first of several that are as near."""
    mine, others = _sampled(a), _sampled(b)
    found: list[Found] = []
    for entry, sample in mine:
        if not others:
            break
        apart = np.array([_distance(sample, other) for _, other in others])
        best = int(apart.argmin())
        if apart[best] <= _NEAR:
            rest = np.delete(apart, best)
            is_clear = not len(rest) or rest.min() > max(_CLEAR * apart[best], 1e-6)
            found.append((entry, others.pop(best)[0], _LIKELY if is_clear else _POSSIBLE))
    return found


def _sampled(entries: list[Entry]) -> list[tuple[Entry, Array]]:
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
        chosen = decode_block(flat[:: max(1, -(-flat.size // _SAMPLE))], held.dtype)
        sample = np.nan_to_num(np.abs(chosen) if chosen.dtype.kind == "c" else chosen.astype(np.float64))
        if np.ptp(sample) > 0:
            found.append((entry, sample))
    return found


def _distance(a: Array, b: Array) -> float:
    size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return float(np.linalg.norm(a - b)) / size if size else 0.0


def _by_analogy(a: list[Entry], b: list[Entry], found: list[Found], shift: Mapping[Any, Any]) -> list[Found]:
    """Where `layers.0.attn` was found to be `h.0.attention`, so is `layers.1.attn`, whatever it holds."""
    known: dict[str, set[str]] = defaultdict(set)
    for one, other, score in found:
        if score >= _LIKELY and _NUMBER.findall(one.name) == _NUMBER.findall(other.name):
            known[_general(one.name)].add(_general(other.name))
    taken = {id(entry) for one, other, _ in found for entry in (one, other)}
    others = {(one.name, one.step, one.rank, one.call): one for one in b if id(one) not in taken}
    made: list[Found] = []
    for entry in a:
        targets = known.get(_general(entry.name), set())
        if id(entry) in taken or len(targets) != 1:
            continue
        name = _filled(next(iter(targets)), _NUMBER.findall(entry.name))
        key = (name, shift.get(entry.step, entry.step), entry.rank, entry.call)
        if key in others:
            made.append((entry, others.pop(key), _POSSIBLE))
    return made


def _general(name: str) -> str:
    """The name with a star for each number that is a part of it."""
    return _NUMBER.sub("*", name)


def _filled(pattern: str, found: list[str]) -> str:
    left = iter(found)
    return re.sub(r"\*", lambda _: next(left, "*"), pattern)


def _rule(source: str, target: str) -> tuple[str, str]:
    """With stars where both have the same numbers, else as they are."""
    are_alike = _NUMBER.findall(source) == _NUMBER.findall(target)
    return _shortened(_general(source), _general(target)) if are_alike else _shortened(source, target)


def _shortened(source: str, target: str) -> tuple[str, str]:
    """Without the parts at the end that both have: a rule speaks of everything below it as well."""
    a, b = source.split("."), target.split(".")
    while len(a) > 1 and len(b) > 1 and a[-1] == b[-1] and (a[:-1] != b[:-1]):
        a, b = a[:-1], b[:-1]
    return ".".join(a), ".".join(b)
