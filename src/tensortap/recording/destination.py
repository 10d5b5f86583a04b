"""Where a capture's records go (`to=`), what is kept of each value (`keep=`), and how much (`limit=`)."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tensortap.core.protocols import Sink
from tensortap.core.ranks import rank_info
from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.frameworks.retention import RetentionPolicy, detached_reference, retention_policy
from tensortap.readers.run import Run
from tensortap.render.value_rows import value_row
from tensortap.render.words import (
    describe_anomaly,
    describe_type,
    escape_unprintable,
    format_range,
    format_std_trend,
    pluralize,
)
from tensortap.sinks.memory import Memory
from tensortap.sinks.open import open_sink
from tensortap.sinks.run_directory import RunDirectory

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?i?)B?\s*", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


class Destination:
    """The sinks of a capture, and how their records are read back."""

    def __init__(self, to: Any, keep: Any, limit: Any) -> None:
        destinations = to if isinstance(to, (list, tuple)) else [to]
        self.sinks = [_sink_for(destination, keep, limit) for destination in destinations]

    def move_policy_to_source(self) -> RetentionPolicy | None:
        """The retention policy of the memory sink, for the source to apply, which saves a second record; None
        unless memory is the only sink."""
        if len(self.sinks) != 1 or self.memory is None:
            return None
        keep, self.memory.keep = self.memory.keep, None
        return keep

    @property
    def memory(self) -> Memory | None:
        return next((sink for sink in self.sinks if isinstance(sink, Memory)), None)

    @property
    def run(self) -> Path | None:
        """The path of the run directory that is written, if any."""
        inner_sinks = (getattr(sink, "inner", sink) for sink in self.sinks)
        return next((sink.path for sink in inner_sinks if isinstance(sink, RunDirectory)), None)

    @property
    def trace(self) -> Path | None:
        """The path of the HDF5 file that is written, if any."""
        hdf5 = sys.modules.get("tensortap.sinks.hdf5")  # if it is not loaded, none is written
        inner_sinks = (getattr(sink, "inner", sink) for sink in self.sinks)
        return next(
            (sink.path for sink in inner_sinks if hdf5 is not None and isinstance(sink, hdf5.HDF5)), None
        )

    @property
    def elsewhere_note(self) -> str:
        """A message where the records cannot be read back here, else an empty string."""
        if self.memory is not None or self.run is not None or self.trace is not None:
            return ""
        count = max((sink.count for sink in self.sinks if isinstance(sink, RetainingSink)), default=0)
        return f"{pluralize(count, 'record')} went where to= says, and none is held here"

    def records(self) -> list[Record]:
        """The records, read from memory, else from this rank's part of the run, else from the HDF5 trace."""
        if self.memory is not None:
            return list(self.memory.records)
        for sink in self.sinks if self.run is not None or self.trace is not None else ():
            sink.flush()
        if self.run is not None:
            return [stored.record() for stored in Run(self.run).filter(rank=rank_info().rank)]
        return [] if self.trace is None else _read_trace(self.trace)


class RetainingSink:
    """Applies a retention policy to each value before an inner sink, which is closed only if it `is_ours`."""

    def __init__(self, inner: Sink, keep: RetentionPolicy | None, *, is_ours: bool) -> None:
        self.inner, self._keep, self._is_ours = inner, keep, is_ours
        self.count = 0

    def write(self, record: Record) -> None:
        self.count += 1
        self.inner.write(record if self._keep is None else record.with_value(self._keep(record.value)))

    def flush(self) -> None:
        self.inner.flush()

    def close(self) -> None:
        if self._is_ours:
            self.inner.close()
        else:
            self.inner.flush()


class CallbackSink:
    """A sink that calls a function with every record."""

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self.write = function

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class TapSink(CallbackSink):
    """A sink that emits every record into a tap of the user."""

    def __init__(self, tap: Tap) -> None:
        super().__init__(tap.emit)
        self.flush = tap.flush  # type: ignore[method-assign]


def parse_size(limit: str) -> int:
    """`"2GiB"`, `"500 MB"` as a number of bytes."""
    match = _SIZE.fullmatch(limit)
    if match is None:
        raise ValueError(f"limit is {limit!r}; give a size such as '2GiB' or '500MB', or a number of records")
    unit = match[2].lower()
    return int(float(match[1]) * {**_UNITS, **_BINARY}[unit])


def _read_trace(path: Path) -> list[Record]:
    """The records of an HDF5 trace, which stores values, steps and ranks, but no kinds and calls."""
    from tensortap.readers.trace_file import TraceFile

    file = TraceFile(path)
    all_series = [file.load(name) for name in file.names]
    records = [
        Record(series.name, value, step=step, rank=rank)
        for series in all_series
        for value, step, rank in zip(series.values, series.steps, series.ranks, strict=True)
    ]
    return sorted(records, key=lambda record: record.step)


def _sink_for(to: Any, keep: Any, limit: Any) -> Sink:
    if to is None:
        return Memory(keep=_retention_policy("cow" if keep is None else keep), **_memory_limits(limit))
    if to is print:
        return RetainingSink(CallbackSink(_print_record), _explicit_policy(keep), is_ours=True)
    if isinstance(to, (str, os.PathLike)):
        return RetainingSink(open_sink(os.fspath(to)), _explicit_policy(keep), is_ours=True)
    if isinstance(to, Tap):
        return RetainingSink(TapSink(to), _explicit_policy(keep), is_ours=False)
    if isinstance(to, Memory):
        return to
    if all(hasattr(to, method) for method in ("write", "flush", "close")):
        return RetainingSink(to, _explicit_policy(keep), is_ours=False)
    if callable(to):
        return RetainingSink(
            CallbackSink(to), _retention_policy("cow" if keep is None else keep), is_ours=True
        )
    raise TypeError(
        f"to is {to!r}; give a folder, an address, print, a function of the record, a sink or a Tap"
    )


def _explicit_policy(keep: Any) -> RetentionPolicy | None:
    """The policy that the user chose, if any: a sink that writes at once needs no copy by default."""
    return None if keep is None else _retention_policy(keep)


def _retention_policy(keep: Any) -> RetentionPolicy:
    """The policy for `keep=`; a user's function gets detached values, which keep no autograd graph alive."""
    policy = retention_policy(keep)
    return (lambda value: detached_reference(policy(detached_reference(value)))) if callable(keep) else policy


def _memory_limits(limit: Any) -> dict[str, int]:
    if limit is None:
        return {"most_bytes": _half_of_memory()}
    if isinstance(limit, str):
        return {"most_bytes": parse_size(limit)}
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return {"most": limit}
    raise ValueError(f"limit is {limit!r}; give a size such as '2GiB' or '500MB', or a number of records")


def _half_of_memory() -> int:
    """The default limit: a capture forgotten in a loop must not use up the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError, AttributeError):
        return 8 << 30


def _print_record(record: Record) -> None:
    """Print a record as one line and flush, so that the last ones survive a crash."""
    row = value_row(record)
    columns = [
        describe_type([row], "", "cpu"),
        " .. ".join(filter(None, format_range([row]))),
        format_std_trend([row]),
    ]
    columns.append(describe_anomaly(row, False, False))
    call = f"@{record.call}" if record.call else ""
    print(
        f"{record.step}  {escape_unprintable(record.name)}{call}  {'  '.join(filter(None, columns))}",
        flush=True,
    )


def fetch_pending_summaries(records: Iterable[Record]) -> None:
    """Copy all summaries that are still on a device, in one transfer."""
    waiting = [record.value for record in records if getattr(record.value, "waits", None) is not None]
    if waiting:
        from tensortap.frameworks.torch_summary import fetch_summaries

        fetch_summaries(waiting)
