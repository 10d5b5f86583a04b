"""Entry and Side: the values of one side of a comparison, their modules, and how a pair was aligned."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Protocol

from tensortap.comparison.sides.leaf import Operand
from tensortap.core.patterns import matches_pattern
from tensortap.core.record import Kind, Placement, Site

TOKEN_IDS = "input_ids"  # the input of a language model
_MAX_NAMES_SHOWN = 4  # names


class ValueRef(Protocol):
    """Where a value is stored; picklable, so that worker processes can load it themselves."""

    def load(self) -> Any: ...

    def operand(self) -> Operand | None: ...


# Not frozen: one is created per value, and frozen dataclasses are five times slower. Never mutated.
@dataclass(slots=True, eq=False)
class Entry:
    """One value of a side: its metadata, known without loading it, and where it is stored."""

    name: str
    reference: ValueRef
    kind: Kind = "value"
    step: int | tuple[int, ...] = 0
    rank: int | tuple[int, ...] = 0
    call: int = 0
    order: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    nbytes: int = 0
    site: Site | None = None
    placement: Placement | None = None
    class_name: str = ""  # of its module; empty if unknown
    checksum: str = ""  # of its bytes, if the writer computed one

    def load(self) -> Any:
        """Return the value, memory-mapped if it is an array; raises if the file is corrupt."""
        return self.reference.load()

    def operand(self) -> Operand | None:
        """Return its numbers without importing the framework they came from; None if it is not numeric."""
        return self.reference.operand()

    @property
    def first_step(self) -> int:
        return self.step if isinstance(self.step, int) else lowest_of(self.step)

    @property
    def first_rank(self) -> int:
        return self.rank if isinstance(self.rank, int) else lowest_of(self.rank)

    @property
    def is_token_ids(self) -> bool:
        return self.kind == "input" and self.name.endswith(TOKEN_IDS)

    def __str__(self) -> str:
        call = f"@{self.call}" if self.call else ""
        where = [f"step {self.step}" if self.step != 0 else "", f"rank {self.rank}" if self.rank != 0 else ""]
        moment = ", ".join(filter(None, where))
        return f"{self.name}{call}{f' ({moment})' if moment else ''}"


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The values of one side in execution order: by step, then order, then rank."""

    label: str
    entries: list[Entry]
    problems: list[str] = field(default_factory=list)  # what makes a comparison incomplete
    notes: list[str] = field(default_factory=list)  # remarks that are not problems
    metadata: dict[str, Any] = field(default_factory=dict)
    path: str = ""
    world_size: int = 0  # 0 if unknown

    @property
    def is_whole(self) -> bool:
        return not self.problems

    @property
    def names(self) -> list[str]:
        """Every name once, in order."""
        return list(dict.fromkeys(entry.name for entry in self.entries))

    @property
    def ranks(self) -> list[int]:
        return sorted({lowest_of(rank) for rank in {entry.rank for entry in self.entries}})

    @property
    def steps(self) -> list[int]:
        return sorted({lowest_of(step) for step in {entry.step for entry in self.entries}})

    def select(self, *patterns: str, step: int | None = None, rank: int | None = None) -> Side:
        """Keep the values whose name matches a pattern, of one step, of one rank."""
        if not patterns and step is None and rank is None:
            return self
        selected = [
            entry
            for entry in self.entries
            if step in (None, entry.first_step)
            and rank in (None, entry.first_rank)
            and (not patterns or is_selected(entry.name, patterns))
        ]
        problems = [problem for problem in self.problems if rank is None or not problem.startswith("rank")]
        if self.entries and not selected:
            problems.append(self._describe_empty_selection(patterns, step, rank))
        return replace(self, entries=selected, problems=problems)

    def _describe_empty_selection(self, patterns: Sequence[str], step: int | None, rank: int | None) -> str:
        """Say that no value meets the criteria, and what there is instead."""
        criteria = [" or ".join(map(repr, patterns))] if patterns else []
        criteria += [
            f"of {label} {number}" for label, number in (("step", step), ("rank", rank)) if number is not None
        ]
        names = ", ".join(map(repr, self.names[:_MAX_NAMES_SHOWN])) + (
            ", ..." if len(self.names) > _MAX_NAMES_SHOWN else ""
        )
        message = f"none of its {len(self.entries):,} values is {' and '.join(criteria)}"
        steps, ranks = _describe_range("step", self.steps), _describe_range("rank", self.ranks)
        return f"{message}; it has {names} in {steps} of {ranks}"


def _describe_range(label: str, numbers: list[int]) -> str:
    low, high = numbers[0], numbers[-1]
    return f"{label} {low}" if low == high else f"{label}s {low} to {high}"


def is_selected(name: str, patterns: Sequence[str]) -> bool:
    """Whether any pattern matches the name and no pattern starting with `!` excludes it."""
    included = [pattern for pattern in patterns if not pattern.startswith("!")]
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    is_meant = not included or any(matches_pattern(pattern, name) for pattern in included)
    return is_meant and not any(matches_pattern(pattern, name) for pattern in excluded)


def lowest_of(numbers: int | tuple[int, ...]) -> int:
    """The lowest number of a step or rank that may stand for several."""
    return numbers if isinstance(numbers, int) else min(numbers, default=0)


def sort_entries(entries: list[Entry]) -> list[Entry]:
    """Sort by step, then execution order, then rank."""
    numbers = {entry.step for entry in entries} | {entry.rank for entry in entries}
    if all(isinstance(number, int) for number in numbers):
        return sorted(entries, key=attrgetter("step", "order", "rank"))
    return sorted(entries, key=lambda entry: (entry.first_step, entry.order, entry.first_rank))


@dataclass(frozen=True, slots=True)
class AlignmentNote:
    """How the values of one pair were aligned; `print` it.

    `summary` is short (`shard(1)`, `its shape`). A pair whose note is not usable was not compared, and
    `details` give the reason.
    """

    name: str
    summary: str
    details: tuple[str, ...]
    is_usable: bool = True
    gap: str = ""  # the part of the value that was not compared
    replica_mismatch: str = ""  # that replicas differ, though they should be equal

    @property
    def is_layout_change(self) -> bool:
        """Whether the values are equal only up to a layout."""
        return any(line.startswith("equal up to") for line in self.details)

    def extended(self, summary: str, detail: str) -> AlignmentNote:
        """Return a copy with one more step appended."""
        return replace(
            self, summary="; ".join(filter(None, [self.summary, summary])), details=(*self.details, detail)
        )

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.summary}", *(f"  {line}" for line in self.details)])


def describe_gaps(notes: Iterable[AlignmentNote | None]) -> list[str]:
    """Report what was not compared of several values, grouped by gap."""
    names: dict[str, list[str]] = {}
    for note in notes:
        if note is not None and note.gap:
            names.setdefault(note.gap, []).append(note.name)
    return [f"{gap}, of {_list_names(affected)}; the rest was compared" for gap, affected in names.items()]


def _list_names(names: list[str]) -> str:
    more = f", ... {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + more


OUTPUTS: tuple[Kind, ...] = ("output", "grad_output")
_INPUTS: tuple[Kind, ...] = ("input", "grad_input")
_ANY, _IN, _FORWARD = (
    re.compile(rf"(?:^|\.)(?:{words})(?=\.|\[|$)") for words in ("in|out|forward", "in", "forward")
)
_FIELD = re.compile(r"\.out(?=\.[^\W\d])")  # before a field name; a module may be called `out` too
_MODEL_OUTPUT = re.compile(r"(?:out|<[^<>]*>)(?=\.|\[|$)")  # the output of the model itself
_ITEMS = re.compile(r"\[.*$", re.DOTALL)


@lru_cache(maxsize=1 << 16)
def module_of(name: str, kind: Kind = "value") -> str:
    """The path of the module that this output, input, variable or parameter belongs to; `""` is the model.

    >>> module_of("layers.0.attn.in.x", "input")
    'layers.0.attn'
    """
    return split_name(name, kind)[0]


@lru_cache(maxsize=1 << 16)
def split_name(name: str, kind: Kind = "value") -> tuple[str, str]:
    """The module of a name, and the rest of it: `("layers.0", ".in.x")`."""
    plain = _without_grad_suffix(name, kind)
    if kind in ("param", "grad_param"):
        module = plain.rpartition(".")[0]
        return module, name[len(module) :]
    marker = _MODEL_OUTPUT.match(plain) if kind in OUTPUTS else None
    marker = marker or _last_io_marker(plain, _io_marker(kind))
    module = plain[: marker.start()] if marker is not None else _ITEMS.sub("", plain)
    return module, name[len(module) :]


def class_of(name: str, classes: Mapping[str, str], kind: Kind = "value") -> str:
    """The class of the module that a name belongs to; empty if unknown."""
    if not classes:
        return ""
    class_name = classes.get(stem_of(name, kind)) if kind in OUTPUTS else None
    return class_name or classes.get(module_of(name, kind), "")


def stem_of(name: str, kind: Kind) -> str:
    """A name without its item indices and `.grad` suffix."""
    return _ITEMS.sub("", _without_grad_suffix(name, kind))


def _without_grad_suffix(name: str, kind: Kind) -> str:
    """Strip `.grad`, unless the kind rules it out: a module may be called `grad`."""
    return name.removesuffix(".grad") if kind == "value" or kind.startswith("grad") else name


def _io_marker(kind: Kind) -> re.Pattern[str]:
    if kind == "value":
        return _ANY
    return _FIELD if kind in OUTPUTS else _IN if kind in _INPUTS else _FORWARD


def _last_io_marker(name: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Find the last marker before any item index: a module may itself be called `in`."""
    last = None
    for match in pattern.finditer(name):
        if "[" in name[: match.start()]:
            break
        last = match
    return last


_MAX_NAMES_IN_GAP = 8
