"""What flows from sources to sinks (Record) and what is read back (Series)."""

from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "value",
    "input",
    "output",
    "grad_input",
    "grad_output",
    "param",
    "grad_param",
    "local",
    "call",
    "return",
]


@dataclass(frozen=True, slots=True)
class Site:
    """Where in the code a value was seen."""

    function: str
    file: str
    line: int
    depth: int = 0
    callers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """How a piece sits in the whole: one word per mesh dimension, and where the piece begins."""

    mesh: tuple[int, ...]
    coordinate: tuple[int, ...]
    parts: tuple[str, ...]  # "shard(0)", "replicate", "partial(sum)"
    shape: tuple[int, ...]  # of the whole
    offset: tuple[int, ...]  # of this piece in the whole


@dataclass(frozen=True, slots=True, init=False)
class Record:
    """One value, seen at one place, at one moment, by one process."""

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

    def __init__(
        self,
        name: str,
        value: Any,
        kind: Kind = "value",
        step: int | tuple[int, ...] = 0,
        rank: int | tuple[int, ...] = 0,
        call: int = 0,
        order: int = 0,
        time: float = 0.0,
        site: Site | None = None,
        placement: Placement | None = None,
    ) -> None:
        # What a frozen dataclass would write here takes twice as long, and this runs for every value.
        _set_name(self, name)
        _set_value(self, value)
        _set_kind(self, kind)
        _set_step(self, step)
        _set_rank(self, rank)
        _set_call(self, call)
        _set_order(self, order)
        _set_time(self, time)
        _set_site(self, site)
        _set_placement(self, placement)

    def with_value(self, value: Any) -> "Record":
        """The same moment with another value; `dataclasses.replace` takes four times as long."""
        return Record(
            self.name,
            value,
            self.kind,
            self.step,
            self.rank,
            self.call,
            self.order,
            self.time,
            self.site,
            self.placement,
        )


_SETTERS = [vars(Record)[name].__set__ for name in Record.__slots__]
_set_name, _set_value, _set_kind, _set_step, _set_rank, *_REST = _SETTERS
_set_call, _set_order, _set_time, _set_site, _set_placement = _REST


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

    def add(self, record: Record) -> None:
        self.values.append(record.value)
        self.steps.append(record.step)
        self.ranks.append(record.rank)

    def __len__(self) -> int:
        return len(self.values)
