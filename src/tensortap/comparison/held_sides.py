"""Values in memory as a side: a capture, records, or a dict of values by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensortap.comparison.entries import Entry, Side, sort_entries
from tensortap.comparison.modules import class_of
from tensortap.comparison.references import InMemoryRef, named_leaves
from tensortap.comparison.run_side import as_ranks, describe_missing_ranks, side_from_run
from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.readers.run import Run
from tensortap.recording.captured import Captured


def side_from_capture(capture: Captured) -> Side:
    """What a capture holds; one that wrote a run is read from there, with the facts beside it."""
    if capture.run is not None:
        return side_from_run(Run(capture.run))
    side = side_from_records(capture.records, capture.classes)
    missing = [f"{site.name} was selected and gave no record: {site.reason}" for site in capture.missing]
    dropped = [f"{capture.dropped} of the oldest records were dropped: the limit"] if capture.dropped else []
    return Side("capture", side.entries, dropped, missing)


def side_from_records(records: Sequence[Record], classes: Mapping[str, str] | None = None) -> Side:
    # Records that somebody made by hand were never numbered: they stand in the order of the list.
    is_numbered = any(record.order for record in records)
    entries = [
        _entry_from_record(record, record.order if is_numbered else position, classes or {})
        for position, record in enumerate(records)
    ]
    ranks = {rank for entry in entries for rank in as_ranks(entry.rank)}
    # The records of one process alone are what that process has.
    problems = describe_missing_ranks(ranks, max(ranks) + 1) if len(ranks) > 1 else []
    return Side("records", sort_entries(entries), problems)


def side_from_values(values: Mapping[str, Any]) -> Side:
    """Values by name, in the order of the dict; a nested one is a value for each leaf."""
    return side_from_records([Record(name, leaf) for name, leaf in named_leaves(dict(values)).items()])


def _entry_from_record(record: Record, order: int, classes: Mapping[str, str]) -> Entry:
    description = framework_of(record.value).describe(record.value)
    dtype = description.dtype if description.layout != "python" else ""
    return Entry(
        record.name,
        InMemoryRef(record.value),
        record.kind,
        record.step,
        record.rank,
        record.call,
        order,
        dtype,
        tuple(description.shape),
        description.nbytes,
        record.site,
        record.placement,
        class_of(record.name, classes, record.kind),
    )
