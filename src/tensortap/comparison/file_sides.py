"""A file as a side: a trace, tensors by name, or whatever values one file holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.comparison.entries import Entry, Side, sort_entries
from tensortap.comparison.references import (
    FileLeafRef,
    FileStamp,
    SafetensorsRef,
    TraceValueRef,
    load_file_leaves,
    open_trace_file,
)
from tensortap.core.errors import UnknownFormatError, UntrustedFileError
from tensortap.formats import safetensors
from tensortap.frameworks.base import framework_of

if TYPE_CHECKING:
    from tensortap.readers.trace_file import TraceFile


def side_from_trace_file(path: Path) -> Side:
    """A trace file tells names, steps and ranks; what kind of value each is, and in which order of execution
    they came, it does not."""
    written = safetensors.stamp(path) if path.is_file() else (0, 0)
    trace = open_trace_file(str(path.absolute()), written)
    trace.refresh()
    entries = [
        entry
        for number, name in enumerate(trace.names)
        for entry in _trace_entries(trace, name, number, written)
    ]
    note = "a trace file knows no order of execution: its names stand in the order of the alphabet"
    problems = [] if entries else ["it holds no values"]
    return Side(str(path), sort_entries(entries), problems, [note], {}, str(path))


def side_from_file(path: Path) -> Side:
    """One entry for each leaf of what the file holds."""
    file_path, written = str(path.absolute()), safetensors.stamp(path)
    load_file_leaves.cache_clear()  # a clock may be too slow to tell that it was written again
    entries = []
    for order, (name, leaf) in enumerate(_load_leaves(file_path, written).items()):
        description = framework_of(leaf).describe(leaf)
        dtype = description.dtype if description.layout != "python" else ""
        shape = tuple(description.shape)
        reference = FileLeafRef(file_path, name, written)
        entries.append(
            Entry(name, reference, order=order, dtype=dtype, shape=shape, nbytes=description.nbytes)
        )
    return Side(str(path), entries, [], [], {}, str(path))


def _load_leaves(file_path: str, written: FileStamp) -> dict[str, Any]:
    try:
        return load_file_leaves(file_path, written)
    except UntrustedFileError as error:
        message = str(error).partition("; ")[0]
        raise UntrustedFileError(
            f"{message}; if you trust it, load it yourself and compare what it holds"
        ) from None
    except UnknownFormatError as error:
        message, mark, remainder = str(error).partition("; register_serializer")
        raise UnknownFormatError(f"{message}, {safetensors.SUFFIX}, .h5{mark}{remainder}") from None


def side_from_safetensors(path: Path) -> Side:
    """One entry for each tensor of a .safetensors file, without reading any, in the order of its bytes."""
    file_path, written = str(path.absolute()), safetensors.stamp(path)
    tensors, problems = safetensors.tensors(path)
    entries = []
    for order, tensor in enumerate(tensors):
        reference = SafetensorsRef(
            file_path, written, tensor.offset, tensor.nbytes, tensor.dtype, tensor.shape
        )
        facts = (order, tensor.dtype, tensor.shape, tensor.nbytes)
        entries.append(Entry(tensor.name, reference, "value", 0, 0, 0, *facts))
    if not entries and not problems:
        problems = ["it holds no values"]
    return Side(str(path), entries, problems, [], {}, str(path))


def _trace_entries(trace: TraceFile, name: str, order: int, written: FileStamp) -> list[Entry]:
    traced = trace[name]
    path, dtype, shape = str(trace.path), traced.dtype, tuple(traced.shape[1:])
    calls: dict[tuple[object, object], int] = {}
    entries = []
    for position, (step, rank) in enumerate(zip(traced.steps, traced.ranks, strict=True)):
        call = calls[step, rank] = calls.get((step, rank), -1) + 1
        reference = TraceValueRef(path, name, position, written)
        entries.append(Entry(name, reference, "value", step, rank, call, order, dtype, shape))
    return entries
