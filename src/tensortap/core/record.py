"""Record (what flows from sources to sinks), Series (what is read back), Site and Placement.

Notebook HTML of core types is rendered by higher rooms, found through the registry `cards`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tensortap.core.registry import Registry

Kind = Literal[
    "value",
    "input",
    "output",
    "grad_input",
    "grad_output",
    "param",
    "grad_param",
    "local",
    "grad_local",
    "call",
    "return",
    "grad_return",
    "yield",
    "raise",
]


@dataclass(frozen=True, slots=True)
class Site:
    """The source location at which a value was captured."""

    function: str
    file: str
    line: int
    depth: int = 0
    callers: tuple[str, ...] = ()
    tree: int = 0  # the number of the outermost traced call in the process


@dataclass(frozen=True, slots=True)
class Placement:
    """How a shard is placed in the full tensor: one word per mesh dimension, and the shard's offset."""

    mesh: tuple[int, ...]
    coordinate: tuple[int, ...]
    parts: tuple[str, ...]  # "shard(0)", "replicate", "partial(sum)"
    shape: tuple[int, ...]  # of the full tensor
    offset: tuple[int, ...]  # of this shard in the full tensor


class Record(NamedTuple):
    """One captured value: of one name, at one step, from one process."""

    # A named tuple, since one is created per value: a frozen dataclass takes four times as long.
    name: str
    value: Any
    kind: Kind = "value"
    step: int | tuple[int, ...] = 0
    rank: int | tuple[int, ...] = 0
    call: int = 0
    order: int = 0
    time: float = 0.0
    site: Site | None = None
    placement: Placement | None = None

    def with_value(self, value: Any) -> Record:
        """The same record with another value."""
        return Record(self.name, value, *self[2:])

    def __repr__(self) -> str:
        """A summary, never all elements."""
        where = "".join(
            f" {what} {number}"
            for what, number in (("step", self.step), ("rank", self.rank), ("call", self.call))
            if number
        )
        return f"<Record {self.name!r} {self.kind} {_short_value(self.value)}{where}>"

    def _repr_html_(self) -> str | None:
        return render_card(self)


def first_number(number: int | tuple[int, ...]) -> int:
    """A step or rank; the first one of a merged record."""
    return number if isinstance(number, int) else (number[0] if number else 0)


def _short_value(value: Any) -> str:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    return repr(value) if isinstance(value, (bool, int, float, type(None))) else type(value).__name__


@dataclass(slots=True)
class Series:
    """All records of one name, as columns; callbacks may edit the lists in place."""

    name: str
    values: list[Any] = field(default_factory=list)
    steps: list[Any] = field(default_factory=list)
    ranks: list[Any] = field(default_factory=list)

    @property
    def iterations(self) -> list[Any]:
        return self.steps

    @iterations.setter
    def iterations(self, steps: list[Any]) -> None:
        self.steps = steps

    def add(self, record: Record) -> None:
        self.values.append(record.value)
        self.steps.append(record.step)
        self.ranks.append(record.rank)

    def __len__(self) -> int:
        return len(self.values)

    def _repr_html_(self) -> str | None:
        return render_card(self)


cards: Registry[Callable[[Any], str]] = Registry("cards")


def render_card(value: object) -> str | None:
    """Static HTML for the object, None if no renderer is registered for its type."""
    draw = cards.for_type(type(value))
    return None if draw is None else draw(value)
