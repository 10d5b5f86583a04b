"""Load anything that can be compared as a Side: runs, trace files, files, captures, records, values."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.comparison.sides.entry import Entry as Entry
from tensortap.comparison.sides.entry import (
    FileLeafRef,
    FileStamp,
    InMemoryRef,
    RunValueRef,
    SafetensorsRef,
    TraceValueRef,
    class_of,
    load_file_leaves,
    named_leaves,
    open_trace_file,
    sort_entries,
)
from tensortap.comparison.sides.entry import Side as Side
from tensortap.comparison.sides.run_facts import read_metadata
from tensortap.core.errors import UnknownFormatError, UntrustedFileError
from tensortap.core.interpreter import gc_paused
from tensortap.core.record import Kind, Record
from tensortap.formats import safetensors
from tensortap.formats.index import index_files, parse_placement, parse_site
from tensortap.formats.run_layout import INTERNAL_FOLDER, PACKS_FOLDER
from tensortap.frameworks.base import framework_of
from tensortap.readers.run import Run
from tensortap.recording.captured import Captured

if TYPE_CHECKING:
    from tensortap.readers.trace_file import TraceFile

_TRACE_SUFFIXES = (".h5", ".hdf5")
_RECENT_SECONDS = 60.0  # seconds
_ZIP_END_MARK = b"PK\5\6"
_ZIP_END_SIZE = 22


def patterns_of(only: Any) -> list[str]:
    """One pattern or several, as a list."""
    patterns = [only] if isinstance(only, str) else list(only) if isinstance(only, Iterable) else None
    if patterns is None or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"only takes a pattern such as '**.mlp', or several of them, not {only!r}")
    return patterns


def check_executor(executor: Any) -> None:
    """Raise TypeError unless it is None or has a `submit` method."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "executor takes an executor of concurrent.futures, such as ThreadPoolExecutor(4), "
            f"not {executor!r}; without one, threads are used"
        )


def load_side(source: Any, label: str = "") -> Side:
    """Load what can be compared: a run or a folder of runs, a trace file, a file of values, a capture,
    records, or values by name.

    >>> load_side("runs/20251028_143041")
    >>> load_side(cap)
    >>> load_side({"logits": before})
    """
    if isinstance(source, Side):
        return source
    side = _load_path(Path(source)) if isinstance(source, (str, os.PathLike)) else _side_from_object(source)
    return replace(side, label=label) if label else side


def _load_path(path: Path) -> Side:

    if path.suffix.lower() in _TRACE_SUFFIXES:
        return side_from_trace_file(path)
    if path.suffix.lower() == safetensors.SUFFIX and path.is_file():
        return side_from_safetensors(path)
    return side_from_file(path) if path.is_file() else side_from_folder(path)


def _side_from_object(source: Any) -> Side:
    if isinstance(source, Run):
        return side_from_run(source)
    if isinstance(source, Captured):
        return side_from_capture(source)
    if isinstance(source, Mapping):
        return side_from_values(source)
    if isinstance(source, Sequence) and all(isinstance(record, Record) for record in source):
        return side_from_records(source)
    if type(source).__name__ == "TraceFile":
        return _load_path(source.path)
    raise TypeError(
        f"cannot compare a {type(source).__name__}; give a run, a folder of runs, a .h5 file, "
        "a file of values, a capture, a list of records, or a dict of values by name"
    )


def side_from_folder(path: Path) -> Side:
    """Load the run in this folder; of a folder of runs, the newest."""
    runs = (
        []
        if (path / INTERNAL_FOLDER).is_dir()
        else sorted(own.parent for own in path.glob(f"*/{INTERNAL_FOLDER}"))
    )
    if not runs:
        return side_from_run(Run(path))
    side = side_from_run(Run(runs[-1]))
    if len(runs) > 1:
        side.notes.append(f"{path} holds {len(runs)} runs; the newest is taken: {runs[-1].name}")
    return side


def side_from_run(run: Run) -> Side:
    metadata, damaged, _ = read_metadata(run)
    problems = [f"the facts beside its values cannot be read: {error}" for error in damaged.values()]
    model = metadata["model"]
    with gc_paused():
        entries = sort_entries(_run_entries(run, model.get("modules") or {}))
    if not entries:
        problems.append("it holds no records")
    ranks_seen = {rank for ranks in {entry.rank for entry in entries} for rank in as_ranks(ranks)}
    world = max(_launched_world_size(metadata), max(ranks_seen, default=-1) + 1)
    problems += [*run.problems, *_describe_unfinished_files(run.path)]
    problems += [] if run.is_narrowed or not entries else describe_missing_ranks(ranks_seen, world)
    return Side(str(run.path), entries, problems, [], metadata, str(run.path), world)


def _run_entries(run: Run, classes: dict[str, str]) -> list[Entry]:
    """Build entries column by column: a Python loop over records would take longer than comparing them."""
    cells = run.cells(without=("type", "device", "statistics"))
    name, kind, dtype, nbytes = (cells[column] for column in ("name", "kind", "dtype", "nbytes"))
    shape, site = _parse_unique(cells["shape"], _parse_shape), _parse_unique(cells["site"], parse_site)
    storage = (cells[column] for column in ("framework", "start", "length", "suffix"))
    location = repeat(str(run.path.absolute())), cells["file"], cells["offset"]
    ref_fields = zip(*location, nbytes, dtype, shape, *storage, repeat(_run_stamp(run.path)), strict=False)
    reference = map(partial(tuple.__new__, RunValueRef), ref_fields)
    call_columns = (cells[column] for column in ("step", "rank", "call", "order"))
    placement, checksum = (
        _parse_unique(cells["placement"], _parse_placement),
        map(bytes.decode, cells["checksum"]),
    )
    facts = (dtype, shape, nbytes, site, placement, _class_names(name, kind, classes), checksum)
    return list(map(Entry, name, reference, kind, *call_columns, *facts))


def _class_names(names: list[str], kinds: list[Kind], classes: dict[str, str]) -> Iterable[str]:
    if not classes:
        return repeat("")
    return [class_of(name, classes, kind) for name, kind in zip(names, kinds, strict=True)]


def _parse_unique(strings: list[Any], parse: Callable[[str], Any]) -> list[Any]:
    """Parse each distinct string once."""
    parsed = {string: None if string is None else parse(string) for string in set(strings)}
    return [parsed[string] for string in strings]


def _parse_shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _parse_placement(text: str) -> Any:
    return parse_placement(json.loads(text))


def _run_stamp(path: Path) -> int:
    """A checksum of file metadata that changes when the files of a run are rewritten."""
    own = path / INTERNAL_FOLDER
    statuses = [
        (file.name, _file_status(file)) for file in (path, *index_files(own), *sorted(_pack_files(own)))
    ]
    return zlib.crc32(repr(statuses).encode())


def _file_status(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError:  # it is gone since it was listed
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _pack_files(own: Path) -> Iterable[Path]:
    return (own / PACKS_FOLDER).glob("*.npz")


def _describe_unfinished_files(path: Path) -> list[str]:
    """Report packs without a zip end record and index files whose last line is incomplete."""
    own = path / INTERNAL_FOLDER
    unfinished_packs = [pack for pack in sorted(_pack_files(own)) if not _has_zip_end(pack)]
    unfinished_indexes = [index for index in index_files(own) if not _ends_with(index, b"\n", 1)]
    files = [*unfinished_packs, *unfinished_indexes]
    if not files:
        return []
    age = max(0.0, time.time() - max(file.stat().st_mtime for file in files))
    names = ", ".join(file.name for file in files[:3])
    if age < _RECENT_SECONDS:
        return [f"it is still being written, or was cut off just now ({names}); what is there so far counts"]
    return [f"it was cut off, or its writer sleeps: {names} has no end; what is there counts"]


def _has_zip_end(pack: Path) -> bool:
    return _ends_with(pack, _ZIP_END_MARK, _ZIP_END_SIZE)


def _ends_with(path: Path, mark: bytes, size: int) -> bool:
    """Whether the mark stands `size` bytes before the end of the file; False for an empty file."""
    with open(path, "rb") as stream:
        length = stream.seek(0, 2)
        stream.seek(max(0, length - size))
        return stream.read(len(mark)) == mark


def describe_missing_ranks(ranks: set[int], world: int) -> list[str]:
    """Report the ranks without a record."""
    # A damaged index may name a rank as high as it likes.
    missing = list(islice((rank for rank in range(world) if rank not in ranks), 9))
    if not missing:
        return []
    numbers = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    subject = f"rank {numbers} has" if len(missing) == 1 else f"ranks {numbers} have"
    return [f"{subject} no records; compare one rank alone by rank=... or --rank"]


def as_ranks(rank: int | tuple[int, ...]) -> tuple[int, ...]:
    """Every rank that a value stands for, as a tuple."""
    return (rank,) if isinstance(rank, int) else rank


def _launched_world_size(metadata: dict[str, Any]) -> int:
    """WORLD_SIZE as the launcher set it; 1 if unset."""
    variables = (metadata.get("runtime_info") or {}).get("environment_variables") or {}
    world = variables.get("WORLD_SIZE", "1") if isinstance(variables, dict) else "1"
    return int(world) if isinstance(world, str) and world.isdecimal() else 1


def side_from_trace_file(path: Path) -> Side:
    """Load a trace file, which records names, steps and ranks, but neither kinds nor execution order."""
    written = safetensors.file_stamp(path) if path.is_file() else (0, 0)
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
    """Load a file of values, with one entry per leaf."""
    file_path, written = str(path.absolute()), safetensors.file_stamp(path)
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
    """List the tensors of a .safetensors file in the order of their offsets, without reading any."""
    file_path, written = str(path.absolute()), safetensors.file_stamp(path)
    tensors, problems = safetensors.read_entries(path)
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


def side_from_capture(capture: Captured) -> Side:
    """Load a capture; if it wrote a run, from there, with its metadata."""
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
    """Load values by name, in dict order; nested values give one entry per leaf."""
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
