"""What `tensortap show` shows: a value of a run or file, or the list of candidates."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensortap.cli.address import Target, chosen, file_values, is_at, named, nothing_at, number_of, part_of
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


_LONGEST_HISTORY, _MOST_READ = 500, 256 << 20  # records and bytes that are looked at for a sparkline


@dataclass
class Subject:
    """`bits` are its numbers in the storage type of `dtype`; None where it is no array, but `other`."""

    facts: dict[str, Any]
    head: list[str]
    bits: Any = None
    dtype: str = ""
    known: Statistics | None = None
    other: Any = None
    history: list[dict[str, Any]] = field(default_factory=list)

    def index(self, text: str) -> Index:
        """What `--slice` says, in brackets or without."""
        return parse_slice(text if text.strip().startswith("[") else f"[{text}]")


def in_run(
    run: Run,
    name: str | None,
    step: int | str | None,
    rank: int | str | None,
    call: int | None,
    *,
    trust: bool,
) -> Subject | list[dict[str, Any]]:
    """The record that is meant; without a name, or with a pattern of several, what there is."""
    if name is None:
        return _listed(run)
    if name not in run:
        like = chosen(run, name, None, None)
        if len(like.names) > 1:
            return _listed(like)
        name = like.names[0]
    cells = run.filter(name).cells()
    asked = {"step": number_of(step, cells["step"]), "rank": number_of(rank, cells["rank"]), "call": call}
    try:
        found = run.find(name, **asked)
    except UnknownNameError:
        places = [dict(zip(asked, place, strict=True)) for place in zip(*map(cells.get, asked), strict=True)]
        raise nothing_at(name, places, asked) from None
    return _of_stored(run, found, trust)


def in_file(path: Path, name: str | None, *, trust: bool) -> Subject | list[dict[str, Any]]:
    values = file_values(path, trust=trust)
    if name is None and len(values) == 1:
        name = next(iter(values))
    if name is None:
        return [_described(name, value) for name, value in values.items()]
    return of_value(path, name, part_of(values, path, name))


def _of_stored(run: Run, found: StoredRecord, trust: bool) -> Subject:
    facts = {
        "run": str(run.path),
        "name": found.name,
        **{key: getattr(found, key) for key in ("kind", "step", "rank", "call", "order", "time")},
        **{key: getattr(found, key) for key in ("framework", "type", "dtype", "shape", "device")},
        "bytes": found.nbytes,
        "file": found.file,
        "checksum": found.checksum,
        "site": None if found.site is None else f"{found.site.file}:{found.site.line} {found.site.function}",
    }
    subject = Subject(facts, _head(found, len(run.filter(found.name))), found.bits, found.dtype)
    if subject.bits is None:
        subject.other = found.load(trust=trust)
        subject.bits, subject.dtype = _numbers(subject.other)
    subject.known = found.statistics
    subject.history = _history(run, found) if subject.bits is not None else []
    return subject


def _head(found: StoredRecord, count: int) -> list[str]:
    where = [f"step {found.step}", f"rank {found.rank}", *([f"call {found.call}"] if found.call else [])]
    several = f"  (one of {count:,} records)" if count > 1 else ""
    what = [f"{found.dtype} {list(found.shape)}" if found.dtype else found.type, size(found.nbytes)]
    lines = [f"{found.name}  {', '.join(where)}{several}"]
    lines.append(", ".join([*what, found.kind, found.framework, *([found.device] if found.device else [])]))
    if found.site is not None:
        lines.append(f"made at {found.site.file}:{found.site.line} in {found.site.function}")
    return lines


def _history(run: Run, shown: StoredRecord) -> list[dict[str, Any]]:
    """The statistics of the same value over the steps, as far as that is quick."""
    same = [
        one
        for one in run.filter(shown.name, kind=shown.kind)
        if one.rank == shown.rank and one.call == shown.call
    ]
    if len(same) < 2 or len(same) > _LONGEST_HISTORY or sum(one.nbytes for one in same) > _MOST_READ:
        return []
    same.sort(key=lambda one: (one.step if isinstance(one.step, int) else one.step[0], one.order))
    rows = [display_row(one) for one in same]
    return [
        {"step": row.step, "mean": _mean(row), "std": row.sigma, "min": row.low, "max": row.high}
        for row in rows
    ]


def _mean(row: ValueRow) -> float | None:
    """A single number is its own."""
    return row.low if row.mean is None else row.mean


def of_value(path: Path, name: str, value: Any) -> Subject:
    told = _described(name, value)
    facts = {"file": str(path), **told}
    what = f"{told['dtype']} {list(told['shape'])}" if told["shape"] is not None else told["dtype"]
    head = [f"{path}{':' if name else ''}{name}", f"{what}, {size(told['bytes'])}"]
    bits, dtype = _numbers(value)
    return Subject(facts, head, bits, dtype, other=value)


def _described(name: str, value: Any) -> dict[str, Any]:
    framework = framework_of(value)
    told = framework.describe(value)
    is_array = framework.name != "python"
    bits, _ = _numbers(value)
    return {
        "name": name,
        "kind": "value",
        "records": 1,
        "dtype": told.dtype if is_array else type(value).__name__,
        "shape": tuple(told.shape) if is_array else None,
        "bytes": 0 if bits is None else int(bits.nbytes),
    }


def _numbers(value: Any) -> tuple[Any, str]:
    framework = framework_of(value)
    if framework.name == "python":
        is_number = isinstance(value, bool | int | float) and (
            isinstance(value, float) or abs(value) < 1 << 63
        )
        return (np.asarray(value), np.asarray(value).dtype.name) if is_number else (None, "")
    told = framework.describe(value)
    if told.layout != "strided" or told.dtype not in DTYPE_TABLE:
        return None, ""
    return framework.bits(value), told.dtype


def _listed(run: Run) -> list[dict[str, Any]]:
    """Each name with how often it is there, and what it was last."""
    cells = run.cells()
    rows: dict[str, dict[str, Any]] = {}
    for at, name in enumerate(cells["name"]):
        before = rows.get(name, {"records": 0, "bytes": 0})
        shape = cells["shape"][at]
        is_array = bool(cells["dtype"][at])
        rows[name] = {
            "name": name,
            "kind": cells["kind"][at],
            "records": before["records"] + 1,
            "dtype": cells["dtype"][at] or cells["type"][at],
            "shape": (tuple(map(int, shape.split(","))) if shape else ()) if is_array else None,
            "bytes": before["bytes"] + cells["nbytes"][at],
        }
    if not rows:
        raise UnknownNameError(f"{run.path} holds no record")
    return [rows[name] for name in run.names]


TRACES = (".h5", ".hdf5")


def in_tensors(path: Path, name: str | None) -> Subject | list[dict[str, Any]]:
    """A tensor as it lies in the file: no library is needed for its type."""
    found = {one.name: one for one in safetensors.read_entries(path)[0]}
    if name is None and len(found) != 1:
        return [_tensor_facts(one) for one in found.values()]
    one = part_of(found, path, next(iter(found)) if name is None else name)
    facts = {"file": str(path), **_tensor_facts(one)}
    bits = safetensors.map_tensor(str(path), safetensors.file_stamp(path), one.offset, one.nbytes, one.dtype, one.shape)
    return Subject(
        facts, [f"{path}:{one.name}", f"{one.dtype} {list(one.shape)}, {size(one.nbytes)}"], bits, one.dtype
    )


def in_trace(
    place: Target, step: int | str | None, rank: int | str | None, call: int | None
) -> Subject | list[dict[str, Any]]:
    """The latest value of a name, or that of a step and a rank; without a name, what there is."""
    from tensortap.readers.trace_file import TraceFile  # with h5py, which other files do without

    trace = TraceFile(place.path)
    if not trace.names:
        raise UnknownNameError(f"{place.path} holds no trace: no dataset in it tells steps and ranks")
    place = named(trace, place)
    if place.name is None:
        return [_traced_facts(trace[name]) for name in trace.names]
    traced = trace[place.name]
    step = number_of(place.step if step is None else step, traced.steps)
    at = _position(traced, step, number_of(rank, traced.ranks), call)
    where = {"step": traced.steps[at], "rank": traced.ranks[at]}
    subject = of_value(place.path, traced.name, traced[at])
    subject.facts |= where
    subject.head[0] += f"  step {where['step']}, rank {where['rank']}"
    return subject


def _position(traced: TracedValues, step: int | None, rank: int | None, call: int | None) -> int:
    moments = list(enumerate(zip(traced.steps, traced.ranks, strict=True)))
    fitting = [at for at, (s, r) in moments if is_at(s, step) and is_at(r, rank)]
    if fitting and (call is None or 0 <= call < len(fitting)):
        return fitting[-1 if call is None else call]
    calls = {at: count for count, at in enumerate(fitting)}
    places = [{"step": s, "rank": r, "call": calls.get(at)} for at, (s, r) in moments]
    raise nothing_at(traced.name, places, {"step": step, "rank": rank, "call": call})


def _traced_facts(traced: TracedValues) -> dict[str, Any]:
    is_array = bool(traced.dtype)
    return {
        "name": traced.name,
        "kind": "value",
        "records": len(traced),
        "dtype": traced.dtype or "object",
        "shape": traced.shape[1:] if is_array else None,
        "bytes": None,
    }


def _tensor_facts(one: safetensors.TensorEntry) -> dict[str, Any]:
    facts = {"name": one.name, "kind": "value", "records": 1}
    return {**facts, "dtype": one.dtype, "shape": one.shape, "bytes": one.nbytes}
