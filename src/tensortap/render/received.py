"""Tables of values received from other processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import is_container, leaves
from tensortap.kernels.statistics import statistics
from tensortap.render import html
from tensortap.render.text import ShortRepr, format_table
from tensortap.render.words import escape_unprintable, format_number, pluralize

_MAX_LEAVES = 30
_UNITS = ("B", "KB", "MB", "GB", "TB")
_MINUTE, _HOUR = 60, 3600
_short_repr = ShortRepr()


class ReceivedRecord(NamedTuple):
    """A received record, its sequence number, and when it arrived."""

    number: int
    record: Record
    nbytes: int
    time: float


class ReceivedTable:
    """A title and a table: text in a terminal, HTML in a notebook."""

    def __init__(self, title: str, rows: list[list[str]]) -> None:
        self.title, self.rows = title, rows

    def __str__(self) -> str:
        return f"{self.title}\n{format_table(self.rows)}" if self.rows else self.title

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.table(self.rows, self.title) if self.rows else html.element("p", self.title)


def received_overview(
    title: str, arrivals: Sequence[ReceivedRecord], gone: dict[str, int], is_pinned: Callable[[int], bool]
) -> ReceivedTable:
    """One row per name: its latest value, and how many there are."""
    by_name: dict[str, list[ReceivedRecord]] = {}
    for arrival in arrivals:
        by_name.setdefault(arrival.record.name, []).append(arrival)
    rows = [["name", "latest", "id", "values", "size", "arrived", "rank"]]
    now = time.time()
    for name, entries in by_name.items():
        last = entries[-1]
        pins = sum(is_pinned(entry.number) for entry in entries)
        counts = [str(len(entries))]
        counts += [f"{gone[name]} gone"] if gone.get(name) else []
        counts += [f"{pins} pinned"] if pins else []
        size = format_binary_nbytes(sum(entry.nbytes for entry in entries))
        cells = [
            escape_unprintable(name),
            describe_value(last.record.value),
            str(last.number),
            ", ".join(counts),
            size,
        ]
        rows.append([*cells, format_age(now - last.time), str(last.record.rank)])
    return ReceivedTable(title, rows if by_name else [])


def received_detail(arrival: ReceivedRecord, count: int) -> ReceivedTable:
    """All known facts of one value."""
    record = arrival.record
    rows = [["what", "is"], ["value", describe_value(record.value)]]
    rows += [["id", str(arrival.number)], ["values of this name", str(count)]]
    rows += [["arrived", f"{format_clock(arrival.time)} ({format_age(time.time() - arrival.time)})"]]
    if record.time:
        rows.append(["caught", format_clock(record.time)])
    if record.site is not None:
        rows.append(
            ["at", escape_unprintable(f"{record.site.file}:{record.site.line} in {record.site.function}")]
        )
    rows += [["step, rank, call", f"{record.step}, {record.rank}, {record.call}"]]
    if record.placement is not None:
        rows.append(["placement", f"{', '.join(record.placement.parts)} of {list(record.placement.shape)}"])
    rows += _leaf_rows(record.value)
    return ReceivedTable(escape_unprintable(record.name), rows)


def describe_value(value: Any) -> str:
    """`float32[4,64]`, `dict of 3 parts`, or the value itself if it is a scalar."""
    if is_container(value):
        return f"{type(value).__name__} of {pluralize(sum(1 for _ in leaves(value)), 'part')}"
    framework = framework_of(value)
    if framework.name == "python":
        return _short_repr.format(value)
    description = framework.describe(value)
    shape = f"[{','.join(map(str, description.shape))}]"
    if description.shape or description.layout != "strided":
        return f"{description.dtype}{shape} ({framework.name})"
    try:
        return f"{format_number(framework.to_numpy(value).item())} ({description.dtype})"
    except (UnsupportedValueError, TypeError):  # complex numbers have no order
        return f"{description.dtype}{shape}"


def format_binary_nbytes(nbytes: float) -> str:
    for unit in _UNITS:
        if nbytes < 1000 or unit == _UNITS[-1]:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.3g} {unit}"
        nbytes /= 1024
    raise AssertionError("unreachable")


def format_age(seconds: float) -> str:
    if seconds < 1:
        return "just now"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s ago"
    return f"{seconds / _MINUTE:.0f} min ago" if seconds < 2 * _HOUR else f"{seconds / _HOUR:.0f} h ago"


def format_clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))


def _leaf_rows(value: Any) -> Iterator[list[str]]:
    for count, (path, leaf) in enumerate(leaves(value)):
        if count == _MAX_LEAVES:
            yield ["...", "more parts"]
            return
        if path:
            yield [escape_unprintable(path), describe_value(leaf)]
        yield from ([f"{escape_unprintable(path)} {what}".strip(), text] for what, text in _leaf_facts(leaf))


def _leaf_facts(leaf: Any) -> Iterator[tuple[str, str]]:
    framework = framework_of(leaf)
    if framework.name == "python":
        return
    description = framework.describe(leaf)
    yield "size", format_binary_nbytes(description.nbytes)
    try:
        summary = statistics(framework.bits(leaf), description.dtype)
    except (UnsupportedValueError, KeyError):
        return
    if summary.count > 1 and summary.min is not None and summary.max is not None:
        yield "min, max", f"{format_number(summary.min)}, {format_number(summary.max)}"
        yield "mean, std", f"{format_number(summary.mean or 0.0)}, {format_number(summary.std or 0.0)}"
        yield "norm", format_number(summary.norm)
    if summary.nan or summary.inf:
        yield "not finite", f"{summary.nan} NaN, {summary.inf} Inf"
