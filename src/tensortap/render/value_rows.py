"""A captured value as one display row: dtype, shape, range, and anomalies."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.record import Kind, Record
from tensortap.frameworks.base import Description, Framework, framework_of
from tensortap.kernels.statistics import statistics
from tensortap.render.histogram import Bins, Number, compute_histogram

HISTOGRAM_BINS = 10
_SUMMARY_FIELDS = ("min", "max", "mean", "std", "nan", "inf", "count")
_MAX_NOTE_LENGTH = 80


@dataclass(frozen=True, slots=True)
class ValueRow:
    """One value as displayed. Non-arrays have no `shape`, and their class as `dtype`; `low`, `high`,
    `mean` and `sigma` are over the finite elements, complex ones by absolute value."""

    name: str
    kind: Kind = "value"
    step: int | tuple[int, ...] = 0
    rank: int | tuple[int, ...] = 0
    call: int = 0
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    device: str = ""
    low: Number | None = None
    high: Number | None = None
    mean: float | None = None
    sigma: float | None = None
    nan: int = 0
    inf: int = 0
    count: int = 0
    histogram: tuple[int, ...] | None = None
    note: str = ""


def value_rows(records: Iterable[Record], *, histogram: bool = False) -> list[ValueRow]:
    """The rows of many records, in order."""
    return [value_row(record, histogram=histogram) for record in records]


def value_row(record: Record, *, histogram: bool = False) -> ValueRow:
    """The row of a record; a value that cannot be read gives a row whose note says why, never an error."""
    try:
        cells = _describe_value(record.value, histogram)
    except Exception as error:  # noqa: BLE001 - a value of any library may fail in any way; noted
        cells = {"dtype": type(record.value).__name__, "note": _describe_failure(error)}
    return ValueRow(record.name, record.kind, record.step, record.rank, record.call, **cells)


def _describe_value(value: Any, histogram: bool) -> dict[str, Any]:
    framework = framework_of(value)
    if framework.name != "python":
        return _array_cells(framework, value, histogram)
    if isinstance(value, (bool, int, float, complex)):
        return _number_cells(value)
    if all(hasattr(value, name) and not callable(getattr(value, name)) for name in _SUMMARY_FIELDS):
        return _summary_cells(value)
    return {"dtype": type(value).__name__}


def _array_cells(framework: Framework, value: Any, histogram: bool) -> dict[str, Any]:
    description = framework.describe(value)
    row: dict[str, Any] = {
        "dtype": description.dtype,
        "shape": tuple(description.shape),
        "device": description.device,
    }
    reason = _unreadable_reason(description)
    if reason:
        return {**row, "note": reason}
    try:
        bits = framework.bits(value)
        row |= _statistics_cells(statistics(bits, description.dtype))
    except Exception as error:  # noqa: BLE001 - type and shape are known and worth more; noted
        return {**row, "note": _describe_failure(error)}
    if description.dtype.startswith("complex"):
        row["note"] = "absolute values"
    if histogram and row["low"] is not None:
        bins = Bins(row["low"], row["high"], HISTOGRAM_BINS)
        row["histogram"] = compute_histogram(bits, description.dtype, bins)
    return row


def _unreadable_reason(description: Description) -> str:
    """Why there is nothing to compute, in a word or two."""
    if description.device in ("meta", "traced"):
        return f"no values ({description.device})"
    if description.layout != "strided":
        return description.layout
    if description.dtype not in DTYPE_TABLE:
        return "not numbers"
    return "empty" if 0 in description.shape else ""


def _number_cells(value: complex) -> dict[str, Any]:
    """A plain number is its own minimum and maximum; integers keep all their digits."""
    row: dict[str, Any] = {"dtype": type(value).__name__, "count": 1}
    if isinstance(value, complex):
        value, row["note"] = abs(value), "absolute value"
    if isinstance(value, float) and not math.isfinite(value):
        return {**row, "nan": int(math.isnan(value)), "inf": int(math.isinf(value))}
    return {**row, "low": value, "high": value}


def _summary_cells(value: Any) -> dict[str, Any]:
    """Statistics that were retained instead of the value, with its metadata."""
    shape = getattr(value, "shape", None)
    row = {
        "dtype": str(getattr(value, "dtype", "")).removeprefix("torch."),
        "shape": None if shape is None else tuple(int(size) for size in shape),
        "device": str(getattr(value, "device", "")),
    }
    return {**row, **_statistics_cells(value)}


def _statistics_cells(summary: Any) -> dict[str, Any]:
    parts = (("low", "min"), ("high", "max"), ("mean", "mean"), ("sigma", "std"))
    row: dict[str, Any] = {ours: _finite_or_none(getattr(summary, theirs)) for ours, theirs in parts}
    return row | {name: int(getattr(summary, name) or 0) for name in ("nan", "inf", "count")}


def _finite_or_none(number: Any) -> Number | None:
    if number is None:
        return None
    plain = number.item() if hasattr(number, "item") else number
    plain = plain if isinstance(plain, int) else float(plain)
    return plain if isinstance(plain, int) or math.isfinite(plain) else None


def _describe_failure(error: Exception) -> str:
    message = " ".join(str(error).split()) or type(error).__name__
    if len(message) > _MAX_NOTE_LENGTH:
        message = message[: _MAX_NOTE_LENGTH - 3] + "..."
    return f"cannot be read: {message}"
