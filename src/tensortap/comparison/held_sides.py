"""Values in memory as a side: a capture, records, or a dict of values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensortap.comparison.entries import Entry, Side, in_order
from tensortap.comparison.modules import class_of
from tensortap.comparison.references import Held, leaves_of
from tensortap.comparison.run_side import all_of, missing_ranks, of_run
from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.readers.run import Run
from tensortap.recording.captured import Captured


def of_capture(capture: Captured) -> Side:
    """What a capture holds; one that wrote a run is read from there, with the facts beside it."""
    if capture.run is not None:
        return of_run(Run(capture.run))
    side = of_records(capture.records, capture.classes)
    missing = [f"{one.name} was selected and gave no record: {one.reason}" for one in capture.missing]
    dropped = [f"{capture.dropped} of the oldest records were dropped: the limit"] if capture.dropped else []
    return Side("capture", side.entries, dropped, missing)


def of_records(records: Sequence[Record], classes: Mapping[str, str] | None = None) -> Side:
    # Records that somebody made by hand were never numbered: they stand in the order of the list.
    is_numbered = any(record.order for record in records)
    entries = [
        _entry(record, record.order if is_numbered else position, classes or {})
        for position, record in enumerate(records)
    ]
    ranks = {rank for entry in entries for rank in all_of(entry.rank)}
    # The records of one process alone are what that process has.
    problems = missing_ranks(ranks, max(ranks) + 1) if len(ranks) > 1 else []
    return Side("records", in_order(entries), problems)


def of_values(values: Mapping[str, Any]) -> Side:
    """Values by name, in the order of the dict; a nested one is a value for each leaf."""
    return of_records([Record(name, leaf) for name, leaf in leaves_of(dict(values)).items()])


def _entry(record: Record, order: int, classes: Mapping[str, str]) -> Entry:
    told = framework_of(record.value).describe(record.value)
    dtype = told.dtype if told.layout != "python" else ""
    return Entry(
        record.name,
        Held(record.value),
        record.kind,
        record.step,
        record.rank,
        record.call,
        order,
        dtype,
        tuple(told.shape),
        told.nbytes,
        record.site,
        record.placement,
        class_of(record.name, classes, record.kind),
    )
