"""A run directory as a side: its records without reading a value, and what is missing or damaged."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any

from tensortap.comparison.circumstances import read_metadata
from tensortap.comparison.entries import Entry, Side, sort_entries
from tensortap.comparison.modules import class_of
from tensortap.comparison.references import RunValueRef
from tensortap.core.gc_pause import gc_paused
from tensortap.core.record import Kind
from tensortap.formats.index import index_files, parse_placement, parse_site
from tensortap.formats.run_layout import INTERNAL_FOLDER, PACKS_FOLDER
from tensortap.readers.run import Run

_RECENT_SECONDS = 60.0  # seconds
_ZIP_END_MARK = b"PK\5\6"
_ZIP_END_SIZE = 22


def side_from_folder(path: Path) -> Side:
    """The run in this folder; of a folder that holds runs, the newest."""
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
    """Column by column, with no line of ours for each record: that would take longer than comparing them."""
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
    """Each text once, however often it stands there."""
    parsed = {string: None if string is None else parse(string) for string in set(strings)}
    return [parsed[string] for string in strings]


def _parse_shape(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _parse_placement(text: str) -> Any:
    return parse_placement(json.loads(text))


def _run_stamp(path: Path) -> int:
    """Tells the files of a run from others that are written in their place."""
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
    """What tells that the writer has not finished: a pack without its end, half a line of the index."""
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
    """Whether the mark stands that many bytes before the end; an empty file has no end."""
    with open(path, "rb") as stream:
        length = stream.seek(0, 2)
        stream.seek(max(0, length - size))
        return stream.read(len(mark)) == mark


def describe_missing_ranks(ranks: set[int], world: int) -> list[str]:
    """Ranks of which there is no record."""
    # A damaged index may name a rank as high as it likes.
    missing = list(islice((rank for rank in range(world) if rank not in ranks), 9))
    if not missing:
        return []
    numbers = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    subject = f"rank {numbers} has" if len(missing) == 1 else f"ranks {numbers} have"
    return [f"{subject} no records; compare one rank alone by rank=... or --rank"]


def as_ranks(rank: int | tuple[int, ...]) -> tuple[int, ...]:
    """Every rank that a value stands for."""
    return (rank,) if isinstance(rank, int) else rank


def _launched_world_size(metadata: dict[str, Any]) -> int:
    """How many processes the launcher said there are."""
    variables = (metadata.get("runtime_info") or {}).get("environment_variables") or {}
    world = variables.get("WORLD_SIZE", "1") if isinstance(variables, dict) else "1"
    return int(world) if isinstance(world, str) and world.isdecimal() else 1
