"""What `show` shows of files that hold many values by name: traces in HDF5, and .safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.cli.choice import is_at, nothing_at, number_of
from tensortap.cli.output import size
from tensortap.cli.subject import Subject, of_value
from tensortap.cli.target import Target, named, part_of
from tensortap.core.errors import UnknownNameError
from tensortap.formats import safetensors

if TYPE_CHECKING:
    from tensortap.readers.trace_file import TracedValues

TRACES = (".h5", ".hdf5")


def in_tensors(path: Path, name: str | None) -> Subject | list[dict[str, Any]]:
    """A tensor as it lies in the file: no library is needed for its type."""
    found = {one.name: one for one in safetensors.tensors(path)[0]}
    if name is None and len(found) != 1:
        return [_tensor_facts(one) for one in found.values()]
    one = part_of(found, path, next(iter(found)) if name is None else name)
    facts = {"file": str(path), **_tensor_facts(one)}
    bits = safetensors.bits(str(path), safetensors.stamp(path), one.offset, one.nbytes, one.dtype, one.shape)
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


def _tensor_facts(one: safetensors.Tensor) -> dict[str, Any]:
    facts = {"name": one.name, "kind": "value", "records": 1}
    return {**facts, "dtype": one.dtype, "shape": one.shape, "bytes": one.nbytes}
