"""What `tensortap show` shows: a value of a run or file, or the list of candidates."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensortap.cli.address import (
    ValueAddress,
    find_leaf,
    load_leaves,
    matches_number,
    no_value_error,
    resolve_number,
    select_records,
    split_step,
)
from tensortap.cli.output import size
from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnknownNameError
from tensortap.formats import safetensors
from tensortap.frameworks.base import framework_of
from tensortap.kernels.statistics import Statistics
from tensortap.live.protocol import parse_slice
from tensortap.readers.run import Run
from tensortap.readers.stored_record import StoredRecord, display_row
from tensortap.render.plots import Index
from tensortap.render.value_rows import ValueRow

if TYPE_CHECKING:
    from tensortap.readers.trace_file import TracedValues


_MAX_HISTORY, _MAX_HISTORY_BYTES = 500, 256 << 20  # records and bytes to read for a sparkline


@dataclass
class ShownValue:
    """`bits` is the array in the storage type of `dtype`; None if it is no array but another `value`."""

    facts: dict[str, Any]
    header: list[str]
    bits: Any = None
    dtype: str = ""
    known_statistics: Statistics | None = None
    value: Any = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def parse_index(self, text: str) -> Index:
        """Parse `--slice`, with or without brackets."""
        return parse_slice(text if text.strip().startswith("[") else f"[{text}]")


def find_in_run(
    run: Run,
    name: str | None,
    step: int | str | None,
    rank: int | str | None,
    call: int | None,
    *,
    trust: bool,
) -> ShownValue | list[dict[str, Any]]:
    """The addressed record; without a name, or with a pattern for several, the list of names."""
    if name is None:
        return _list_names(run)
    if name not in run:
        matching = select_records(run, name, None, None)
        if len(matching.names) > 1:
            return _list_names(matching)
        name = matching.names[0]
    cells = run.filter(name).cells()
    options = {
        "step": resolve_number(step, cells["step"]),
        "rank": resolve_number(rank, cells["rank"]),
        "call": call,
    }
    try:
        record = run.find(name, **options)
    except UnknownNameError:
        occurrences = [
            dict(zip(options, occurrence, strict=True))
            for occurrence in zip(*map(cells.get, options), strict=True)
        ]
        raise no_value_error(name, occurrences, options) from None
    return _show_record(run, record, trust)


def find_in_file(path: Path, name: str | None, *, trust: bool) -> ShownValue | list[dict[str, Any]]:
    values = load_leaves(path, trust=trust)
    if name is None and len(values) == 1:
        name = next(iter(values))
    if name is None:
        return [_value_facts(name, value) for name, value in values.items()]
    return make_shown_value(path, name, find_leaf(values, path, name))


def _show_record(run: Run, record: StoredRecord, trust: bool) -> ShownValue:
    facts = {
        "run": str(run.path),
        "name": record.name,
        **{key: getattr(record, key) for key in ("kind", "step", "rank", "call", "order", "time")},
        **{key: getattr(record, key) for key in ("framework", "type", "dtype", "shape", "device")},
        "bytes": record.nbytes,
        "file": record.file,
        "checksum": record.checksum,
        "site": None
        if record.site is None
        else f"{record.site.file}:{record.site.line} {record.site.function}",
    }
    subject = ShownValue(
        facts, _record_header(record, len(run.filter(record.name))), record.bits, record.dtype
    )
    if subject.bits is None:
        subject.value = record.load(trust=trust)
        subject.bits, subject.dtype = _bits_and_dtype(subject.value)
    subject.known_statistics = record.statistics
    subject.history = _statistics_over_steps(run, record) if subject.bits is not None else []
    return subject


def _record_header(record: StoredRecord, count: int) -> list[str]:
    coordinates = [
        f"step {record.step}",
        f"rank {record.rank}",
        *([f"call {record.call}"] if record.call else []),
    ]
    count_note = f"  (one of {count:,} records)" if count > 1 else ""
    description = [
        f"{record.dtype} {list(record.shape)}" if record.dtype else record.type,
        size(record.nbytes),
    ]
    lines = [f"{record.name}  {', '.join(coordinates)}{count_note}"]
    lines.append(
        ", ".join([*description, record.kind, record.framework, *([record.device] if record.device else [])])
    )
    if record.site is not None:
        lines.append(f"made at {record.site.file}:{record.site.line} in {record.site.function}")
    return lines


def _statistics_over_steps(run: Run, shown: StoredRecord) -> list[dict[str, Any]]:
    """Statistics of the same value over the steps; empty if that would take long."""
    occurrences = [
        record
        for record in run.filter(shown.name, kind=shown.kind)
        if record.rank == shown.rank and record.call == shown.call
    ]
    if (
        len(occurrences) < 2
        or len(occurrences) > _MAX_HISTORY
        or sum(record.nbytes for record in occurrences) > _MAX_HISTORY_BYTES
    ):
        return []
    occurrences.sort(
        key=lambda record: (record.step if isinstance(record.step, int) else record.step[0], record.order)
    )
    rows = [display_row(record) for record in occurrences]
    return [
        {"step": row.step, "mean": _mean_or_value(row), "std": row.sigma, "min": row.low, "max": row.high}
        for row in rows
    ]


def _mean_or_value(row: ValueRow) -> float | None:
    """The mean; for a single number, the number."""
    return row.low if row.mean is None else row.mean


def make_shown_value(path: Path, name: str, value: Any) -> ShownValue:
    facts_of_value = _value_facts(name, value)
    facts = {"file": str(path), **facts_of_value}
    description = (
        f"{facts_of_value['dtype']} {list(facts_of_value['shape'])}"
        if facts_of_value["shape"] is not None
        else facts_of_value["dtype"]
    )
    head = [f"{path}{':' if name else ''}{name}", f"{description}, {size(facts_of_value['bytes'])}"]
    bits, dtype = _bits_and_dtype(value)
    return ShownValue(facts, head, bits, dtype, value=value)


def _value_facts(name: str, value: Any) -> dict[str, Any]:
    framework = framework_of(value)
    description = framework.describe(value)
    is_array = framework.name != "python"
    bits, _ = _bits_and_dtype(value)
    return {
        "name": name,
        "kind": "value",
        "records": 1,
        "dtype": description.dtype if is_array else type(value).__name__,
        "shape": tuple(description.shape) if is_array else None,
        "bytes": 0 if bits is None else int(bits.nbytes),
    }


def _bits_and_dtype(value: Any) -> tuple[Any, str]:
    framework = framework_of(value)
    if framework.name == "python":
        is_number = isinstance(value, bool | int | float) and (
            isinstance(value, float) or abs(value) < 1 << 63
        )
        return (np.asarray(value), np.asarray(value).dtype.name) if is_number else (None, "")
    description = framework.describe(value)
    if description.layout != "strided" or description.dtype not in DTYPE_TABLE:
        return None, ""
    return framework.bits(value), description.dtype


def _list_names(run: Run) -> list[dict[str, Any]]:
    """Facts of each name: the number of its records, and the latest dtype and shape."""
    cells = run.cells()
    rows: dict[str, dict[str, Any]] = {}
    for row, name in enumerate(cells["name"]):
        previous = rows.get(name, {"records": 0, "bytes": 0})
        shape = cells["shape"][row]
        is_array = bool(cells["dtype"][row])
        rows[name] = {
            "name": name,
            "kind": cells["kind"][row],
            "records": previous["records"] + 1,
            "dtype": cells["dtype"][row] or cells["type"][row],
            "shape": (tuple(map(int, shape.split(","))) if shape else ()) if is_array else None,
            "bytes": previous["bytes"] + cells["nbytes"][row],
        }
    if not rows:
        raise UnknownNameError(f"{run.path} holds no record")
    return [rows[name] for name in run.names]


TRACE_SUFFIXES = (".h5", ".hdf5")


def find_in_safetensors(path: Path, name: str | None) -> ShownValue | list[dict[str, Any]]:
    """A tensor mapped from the file, without its framework; without a name, the list of tensors."""
    entries = {entry.name: entry for entry in safetensors.read_entries(path)[0]}
    if name is None and len(entries) != 1:
        return [_tensor_facts(entry) for entry in entries.values()]
    tensor = find_leaf(entries, path, next(iter(entries)) if name is None else name)
    facts = {"file": str(path), **_tensor_facts(tensor)}
    bits = safetensors.map_tensor(
        str(path), safetensors.file_stamp(path), tensor.offset, tensor.nbytes, tensor.dtype, tensor.shape
    )
    return ShownValue(
        facts,
        [f"{path}:{tensor.name}", f"{tensor.dtype} {list(tensor.shape)}, {size(tensor.nbytes)}"],
        bits,
        tensor.dtype,
    )


def find_in_trace(
    address: ValueAddress, step: int | str | None, rank: int | str | None, call: int | None
) -> ShownValue | list[dict[str, Any]]:
    """The latest value of a name, or that of a step and rank; without a name, the list of names."""
    from tensortap.readers.trace_file import TraceFile  # imported lazily: it needs h5py

    trace = TraceFile(address.path)
    if not trace.names:
        raise UnknownNameError(f"{address.path} holds no trace: no dataset in it tells steps and ranks")
    address = split_step(trace, address)
    if address.name is None:
        return [_traced_facts(trace[name]) for name in trace.names]
    values = trace[address.name]
    step = resolve_number(address.step if step is None else step, values.steps)
    position = _find_position(values, step, resolve_number(rank, values.ranks), call)
    coordinates = {"step": values.steps[position], "rank": values.ranks[position]}
    subject = make_shown_value(address.path, values.name, values[position])
    subject.facts |= coordinates
    subject.header[0] += f"  step {coordinates['step']}, rank {coordinates['rank']}"
    return subject


def _find_position(values: TracedValues, step: int | None, rank: int | None, call: int | None) -> int:
    coordinates = list(enumerate(zip(values.steps, values.ranks, strict=True)))
    matching = [
        position
        for position, (step_at, rank_at) in coordinates
        if matches_number(step_at, step) and matches_number(rank_at, rank)
    ]
    if matching and (call is None or 0 <= call < len(matching)):
        return matching[-1 if call is None else call]
    calls = {position: count for count, position in enumerate(matching)}
    occurrences = [
        {"step": step_at, "rank": rank_at, "call": calls.get(position)}
        for position, (step_at, rank_at) in coordinates
    ]
    raise no_value_error(values.name, occurrences, {"step": step, "rank": rank, "call": call})


def _traced_facts(values: TracedValues) -> dict[str, Any]:
    is_array = bool(values.dtype)
    return {
        "name": values.name,
        "kind": "value",
        "records": len(values),
        "dtype": values.dtype or "object",
        "shape": values.shape[1:] if is_array else None,
        "bytes": None,
    }


def _tensor_facts(entry: safetensors.TensorEntry) -> dict[str, Any]:
    facts = {"name": entry.name, "kind": "value", "records": 1}
    return {**facts, "dtype": entry.dtype, "shape": entry.shape, "bytes": entry.nbytes}
