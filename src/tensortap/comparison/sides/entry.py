"""Entry and Side: the values of one side of a comparison, where they are stored, their modules.

A reference to a stored value is picklable, so that worker processes load it themselves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tensortap.comparison.sides.leaf import (
    Operand,
    as_operand,
    is_array_like,
    is_big_int,
    is_composite_array,
    is_number,
)
from tensortap.core.errors import CorruptRunError
from tensortap.core.patterns import matches_pattern
from tensortap.core.record import Kind, Placement, Site
from tensortap.formats import safetensors
from tensortap.frameworks.base import Framework, framework_named
from tensortap.frameworks.pytree import leaves
from tensortap.readers.stored_record import ValueReader

if TYPE_CHECKING:
    from tensortap.readers.trace_file import TraceFile


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


_MAX_OPEN = 16  # runs and files kept open per process
FileStamp = tuple[int, int]  # mtime and size of a file, to notice that it was rewritten
FileViews = dict[tuple[str, str], memoryview]  # by run and file


class RunValueRef(NamedTuple):
    """A value of a run, by its byte range: loading it needs no index."""

    path: str
    file: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    framework: str
    start: int
    length: int
    suffix: str
    stamp: int  # changes when the files of the run are rewritten

    def load(self) -> Any:
        values = _open_values(self.path, self.stamp)
        if self.offset >= 0:
            location = (self.offset, self.nbytes, self.dtype, self.shape, self.framework)
            return values.array(self.file, *location)
        return values.deserialize(self.file, self.start, self.length, self.suffix, False)

    def view_bytes(self, nbytes: int, views: FileViews) -> memoryview | None:
        """The bytes of the array in its file, if there are `nbytes` of them; `views` caches mapped files."""
        offset, key = self.offset, self[:2]
        if offset < 0 or self.nbytes != nbytes:
            return None
        file_view, end = views.get(key), offset + nbytes
        if file_view is None or len(file_view) < end:
            file_view = views[key] = _open_values(self.path, self.stamp).view(self.file, end)
        return file_view[offset:end]

    def checksummed_bytes(self) -> memoryview:
        """The bytes its checksum was computed from."""
        end = self.start + self.length
        return _open_values(self.path, self.stamp).view(self.file, end)[end - self.nbytes : end]

    def operand(self) -> Operand | None:
        if self.offset < 0:
            return numeric_operand(self.load())
        values = _open_values(self.path, self.stamp)
        return Operand(values.bits(self.file, *self[2:6]), self.dtype)


class TraceValueRef(NamedTuple):
    """A value of a trace file, by its position in the series of its name."""

    path: str
    name: str
    position: int
    stamp: FileStamp

    def load(self) -> Any:
        return open_trace_file(self.path, self.stamp)[self.name][self.position]

    def operand(self) -> Operand | None:
        return numeric_operand(self.load())


class FileLeafRef(NamedTuple):
    """A leaf of the (nested) value in a file."""

    path: str
    leaf: str
    stamp: FileStamp

    def load(self) -> Any:
        leaves_by_name = load_file_leaves(self.path, self.stamp)
        if self.leaf not in leaves_by_name:
            raise CorruptRunError(f"{self.path} has changed: there is no {self.leaf!r} in it any more")
        return leaves_by_name[self.leaf]

    def operand(self) -> Operand | None:
        return numeric_operand(self.load())


class SafetensorsRef(NamedTuple):
    """A tensor of a .safetensors file, by its byte range in the file with this stamp."""

    path: str
    stamp: FileStamp
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    def load(self) -> Any:
        return _tensor_framework().from_bits(safetensors.map_tensor(*self), self.dtype)

    def operand(self) -> Operand | None:
        return Operand(safetensors.map_tensor(*self), self.dtype)


class InMemoryRef(NamedTuple):
    """A value in the memory of this process; other processes get a copy."""

    value: Any

    def load(self) -> Any:
        return self.value

    def operand(self) -> Operand | None:
        return numeric_operand(self.value)


def numeric_operand(value: Any) -> Operand | None:
    """The numbers of an array or a number; None for anything else, and for composite arrays."""
    if is_number(value):
        return None if is_big_int(value) else as_operand(value)
    return as_operand(value) if is_array_like(value) and not is_composite_array(value) else None


def named_leaves(value: Any) -> dict[str, Any]:
    """The leaves of a value by name: top-level keys are names, and a lone value is called `value`."""
    return {_leaf_name(path): leaf for path, leaf in leaves(value)}


def _leaf_name(path: str) -> str:
    if path.startswith("['"):
        key, mark, suffix = path[2:].partition("']")
        return key + suffix if mark and "\\" not in key else path
    return path or "value"


@lru_cache(maxsize=1)
def _tensor_framework() -> Framework:
    """torch, or numpy if torch is not installed."""
    try:
        return framework_named("torch")
    except ImportError:
        return framework_named("numpy")


@lru_cache(maxsize=_MAX_OPEN)
def _open_values(path: str, written: int) -> ValueReader:
    return ValueReader(Path(path))


@lru_cache(maxsize=_MAX_OPEN)
def open_trace_file(path: str, written: FileStamp) -> TraceFile:
    """Open a trace file once per stamp."""
    from tensortap.readers.trace_file import TraceFile

    return TraceFile(path)


@lru_cache(maxsize=_MAX_OPEN)
def load_file_leaves(path: str, written: FileStamp) -> dict[str, Any]:
    """Load the leaves of a file by name, once per stamp."""
    from tensortap.formats import serializers

    return named_leaves(serializers.load(path))


# Values as they were written or handed over; all others are put together from several.
STORED_REFS = (RunValueRef, TraceValueRef, FileLeafRef, SafetensorsRef, InMemoryRef)
