"""A captured value as one row for the eyes: what it is, where its numbers lie, and what is odd about it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.record import Kind, Record
from tensortap.frameworks.base import Description, Framework, framework_of
from tensortap.kernels.blocks import block_size, iterate_blocks, decode_block
from tensortap.kernels.numbers import Array
from tensortap.kernels.statistics import statistics

Number = int | float
BARS = 10
_SUMMARY = ("min", "max", "mean", "std", "nan", "inf", "count")
_LONGEST_NOTE = 80


@dataclass(frozen=True, slots=True)
class Row:
    """One value as it is shown. What is no array has no `shape`, and its class as `dtype`; `low`, `high`,
    `mean` and `sigma` speak of the finite numbers, a complex one by its absolute value."""

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


def rows_of(records: Iterable[Record], *, histogram: bool = False) -> list[Row]:
    """The rows of many records, in their order."""
    return [row_of(record, histogram=histogram) for record in records]


def row_of(record: Record, *, histogram: bool = False) -> Row:
    """The row of a record; a value that cannot be read gives a row whose note says why, never an error."""
    try:
        told = _told(record.value, histogram)
    except Exception as error:  # noqa: BLE001  a value of any library may fail in any way; the note tells it
        told = {"dtype": type(record.value).__name__, "note": _failure(error)}
    return Row(record.name, record.kind, record.step, record.rank, record.call, **told)


def _told(value: Any, histogram: bool) -> dict[str, Any]:
    framework = framework_of(value)
    if framework.name != "python":
        return _of_array(framework, value, histogram)
    if isinstance(value, (bool, int, float, complex)):
        return _of_number(value)
    if all(hasattr(value, name) and not callable(getattr(value, name)) for name in _SUMMARY):
        return _of_summary(value)
    return {"dtype": type(value).__name__}


def _of_array(framework: Framework, value: Any, histogram: bool) -> dict[str, Any]:
    told = framework.describe(value)
    row: dict[str, Any] = {"dtype": told.dtype, "shape": tuple(told.shape), "device": told.device}
    reason = _unreadable(told)
    if reason:
        return {**row, "note": reason}
    try:
        bits = framework.bits(value)
        row |= _counted(statistics(bits, told.dtype))
    except Exception as error:  # noqa: BLE001  type and shape are known and worth more than the error
        return {**row, "note": _failure(error)}
    if told.dtype.startswith("complex"):
        row["note"] = "absolute values"
    if histogram and row["low"] is not None:
        row["histogram"] = histogram_of(bits, told.dtype, row["low"], row["high"])
    return row


def _unreadable(told: Description) -> str:
    """Why there is nothing to compute, in a word or two."""
    if told.device in ("meta", "traced"):
        return f"no values ({told.device})"
    if told.layout != "strided":
        return told.layout
    if told.dtype not in DTYPE_TABLE:
        return "not numbers"
    return "empty" if 0 in told.shape else ""


def _of_number(value: complex) -> dict[str, Any]:
    """A plain number is its own lowest and highest; an integer of any size keeps its digits."""
    row: dict[str, Any] = {"dtype": type(value).__name__, "count": 1}
    if isinstance(value, complex):
        value, row["note"] = abs(value), "absolute value"
    if isinstance(value, float) and not math.isfinite(value):
        return {**row, "nan": int(math.isnan(value)), "inf": int(math.isinf(value))}
    return {**row, "low": value, "high": value}


def _of_summary(value: Any) -> dict[str, Any]:
    """Statistics that were kept instead of the value, with what else was kept beside them."""
    shape = getattr(value, "shape", None)
    row = {
        "dtype": str(getattr(value, "dtype", "")).removeprefix("torch."),
        "shape": None if shape is None else tuple(int(size) for size in shape),
        "device": str(getattr(value, "device", "")),
    }
    return {**row, **_counted(value)}


def _counted(found: Any) -> dict[str, Any]:
    parts = (("low", "min"), ("high", "max"), ("mean", "mean"), ("sigma", "std"))
    row: dict[str, Any] = {ours: _finite(getattr(found, theirs)) for ours, theirs in parts}
    return row | {name: int(getattr(found, name) or 0) for name in ("nan", "inf", "count")}


def _finite(number: Any) -> Number | None:
    if number is None:
        return None
    plain = number.item() if hasattr(number, "item") else number
    plain = plain if isinstance(plain, int) else float(plain)
    return plain if isinstance(plain, int) or math.isfinite(plain) else None


def histogram_of(bits: Array, dtype: str, low: Number, high: Number, bars: int = BARS) -> tuple[int, ...]:
    """How many of the finite numbers lie in each equal part between the lowest and the highest."""
    counts = np.zeros(bars, np.int64)
    start, width = float(low) / 2, float(high) / 2 - float(low) / 2  # halved: the whole width may overflow
    with np.errstate(all="ignore"):
        for (part,) in iterate_blocks([bits], block_size(dtype)):
            values = decode_block(part, dtype)
            halves = (np.abs(values) if values.dtype.kind == "c" else values).astype(np.float64) / 2
            halves = halves[np.isfinite(halves)]
            parts = (halves - start) / width * bars if width else np.full(halves.shape, bars / 2)
            counts += np.bincount(np.clip(parts, 0, bars - 1).astype(np.intp), minlength=bars)
    return tuple(counts.tolist())


def _failure(error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return f"cannot be read: {said if len(said) <= _LONGEST_NOTE else said[: _LONGEST_NOTE - 3] + '...'}"
