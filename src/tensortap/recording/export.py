"""Export records of a run to one file for other programs: .npz, .safetensors, HDF5 or an HTML page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import RefusedError, TensortapError, UnknownFormatError, WriteFailedError
from tensortap.formats.safetensors import SAFETENSORS_DTYPES, NamedArray, write_npz, write_safetensors
from tensortap.readers.cards import value_card
from tensortap.readers.run import Run
from tensortap.readers.stored_record import StoredRecord, display_row
from tensortap.render import html
from tensortap.render.value_tree_html import render_value_tree_html
from tensortap.sinks.hdf5 import HDF5

Format = Literal["npz", "safetensors", "hdf5", "html"]
FORMATS: dict[str, Format] = {
    ".npz": "npz",
    ".safetensors": "safetensors",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".html": "html",
}
_MAX_PAGE_BYTES, _MAX_ROWS = 4_500_000, 20_000
_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:24px;color-scheme:light dark;"
    "background:Canvas;color:CanvasText}"
)
ProgressWrapper = Callable[[Iterable[StoredRecord], int], Iterable[StoredRecord]]


@dataclass(slots=True)
class Exported:
    """`keys` in the order of the file; `skipped` maps each omitted record to the reason; `unreadable` counts
    those among them that could not be read."""

    path: Path
    keys: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    nbytes: int = 0
    unreadable: int = 0

    def add_unreadable(self, key: str, error: Exception) -> None:
        self.skipped[key] = str(error)
        self.unreadable += 1


def export(
    run: Run | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,
    force: bool = False,
    watch: ProgressWrapper | None = None,
) -> Exported:
    """Write the records of a run, or of a part that `filter` chose, into one file.

    >>> tt.export("runs/20251028_143041", "values.npz")
    >>> tt.export(run.filter("layers.*", step=3), "layers.safetensors")

    The end of the name says which format. A name that occurs once is its own key; else its key tells step,
    rank and call as far as they differ: `loss@step=3`. The file appears when it is whole, or not at all.
    """
    source_run = run if isinstance(run, Run) else Run(run)
    target = Path(path)
    chosen_format = format or FORMATS.get(target.suffix)
    if chosen_format is None:
        raise UnknownFormatError(f"{target.name} says no format; end it in {', '.join(FORMATS)}")
    if target.exists() and not force:
        raise RefusedError(f"{target} exists; choose another name, or force=True (--force) to replace it")
    exported = Exported(target)
    with _replace_atomically(target) as draft:
        _WRITERS[chosen_format](source_run, draft, exported, watch or (lambda records, total: records))
        exported.nbytes = draft.stat().st_size
    return exported


def record_keys(run: Run) -> list[str]:
    """A unique key for each record, in the order of the run."""
    cells = run.cells()
    varying: dict[str, dict[str, set[Any]]] = {}
    coordinates = list(zip(cells["name"], cells["step"], cells["rank"], cells["call"], strict=True))
    for name, *values in coordinates:
        seen = varying.setdefault(name, {"step": set(), "rank": set(), "call": set()})
        for field_name, number in zip(seen, values, strict=True):
            seen[field_name].add(number)
    taken: set[str] = set()
    return [_unused_key(_record_key(name, values, varying[name]), taken) for name, *values in coordinates]


def _record_key(name: str, values: Sequence[Any], varying: dict[str, set[Any]]) -> str:
    varying_fields = [
        f"{field_name}={_format_coordinate(number)}"
        for (field_name, seen), number in zip(varying.items(), values, strict=True)
        if len(seen) > 1
    ]
    return f"{name}@{','.join(varying_fields)}" if varying_fields else name


def _format_coordinate(coordinate: Any) -> str:
    return "+".join(map(str, coordinate)) if isinstance(coordinate, tuple) else str(coordinate)


def _unused_key(key: str, taken: set[str]) -> str:
    candidate, count = key, 1
    while candidate in taken:
        count += 1
        candidate = f"{key}.{count}"
    taken.add(candidate)
    return candidate


def _array_records(
    run: Run, exported: Exported, watch: ProgressWrapper, known: Iterable[str], *, is_numpy: bool = False
) -> Iterator[NamedArray]:
    """The records that are arrays of these dtypes, or with `is_numpy` of any numpy dtype; the others are
    added to `exported.skipped`."""
    for key, stored in zip(record_keys(run), watch(run, len(run)), strict=True):
        is_odd = stored.dtype not in known
        if is_odd and not (is_numpy and _is_numpy_only(stored)):
            exported.skipped[key] = f"{stored.dtype or stored.type} has no place in this format"
            continue
        try:
            bits = stored.load() if is_odd else _record_bits(stored)
        except (TensortapError, OSError, ValueError) as error:
            exported.add_unreadable(key, error)
            continue
        if bits is None or bits.dtype.hasobject:
            exported.skipped[key] = f"{stored.type}, not stored as one block"
            continue
        exported.keys.append(key)
        yield NamedArray(key, bits, "" if is_odd else stored.dtype)


def _is_numpy_only(stored: StoredRecord) -> bool:
    """Is it a string, datetime, structured or long double array, which only numpy stores without pickle?"""
    return stored.framework == "numpy" and stored.suffix == ".npy" and stored.dtype != "object"


def _record_bits(stored: StoredRecord) -> Any:
    return _python_number(stored) if stored.bits is None and stored.framework == "python" else stored.bits


def _python_number(stored: StoredRecord) -> Any:
    """A Python number as a zero-dimensional array; None for anything else."""
    value = stored.load() if not stored.shape else None
    return np.asarray(value, stored.dtype) if isinstance(value, bool | int | float) else None


def _write_npz(run: Run, draft: Path, exported: Exported, watch: ProgressWrapper) -> None:
    with draft.open("wb") as stream:
        write_npz(stream, _array_records(run, exported, watch, DTYPE_TABLE, is_numpy=True))


def _write_safetensors(run: Run, draft: Path, exported: Exported, watch: ProgressWrapper) -> None:
    arrays = list(_array_records(run, exported, watch, SAFETENSORS_DTYPES))  # memory-mapped, not read yet
    with draft.open("wb") as stream:
        write_safetensors(stream, arrays, {"format": "pt", "run": run.path.absolute().name})


def _write_hdf5(run: Run, draft: Path, exported: Exported, watch: ProgressWrapper) -> None:
    try:
        _write_trace(run, draft, exported, watch)
    except WriteFailedError as error:
        if error.errno is None:
            raise
        # The draft is deleted, so the error must not refer to it.
        raise OSError(error.errno, os.strerror(error.errno), str(exported.path)) from error


class _QuietHDF5(HDF5):
    """An HDF5 sink that does not log skipped values: the export returns them."""

    def _skip(self, name: str, error: Exception) -> None:
        self.reasons[name] = str(error)


def _write_trace(run: Run, draft: Path, exported: Exported, watch: ProgressWrapper) -> None:
    sink = _QuietHDF5(draft)
    sink.path = exported.path  # its messages name the final file
    try:
        for stored in watch(run, len(run)):
            try:
                record = stored.record()
            except (TensortapError, OSError, ValueError) as error:
                exported.add_unreadable(stored.name, error)
                continue
            try:
                sink.write(record)
            except WriteFailedError:
                raise
            except (TensortapError, ValueError) as error:
                exported.skipped[stored.name] = str(error)
    finally:
        sink.close()
    exported.keys.extend(sink.datasets)
    exported.skipped.update(sink.reasons)


def _write_html(run: Run, draft: Path, exported: Exported, watch: ProgressWrapper) -> None:
    """Write an HTML page with the value tree, and as many value cards as fit into the size limit."""
    shown_records = run if len(run) <= _MAX_ROWS else [run[at] for at in range(_MAX_ROWS)]
    rows = [display_row(stored) for stored in watch(shown_records, len(shown_records))]
    title = run.path.absolute().name
    parts = [
        html.page_start(title, _STYLE),
        html.element("h1", title),
        render_value_tree_html(rows, title),
        html.element("h2", "Values"),
    ]
    length = sum(map(len, parts))
    for key, record in zip(record_keys(run), run, strict=True):
        card = _render_card(key, record, exported)
        if length + len(card) > _MAX_PAGE_BYTES:
            exported.skipped[key] = "the page is full"
            continue
        length += len(card)
        parts.append(card)
    skipped = f"{len(exported.skipped):,} more values are not shown"
    more = html.element("p", skipped) if exported.skipped else ""
    draft.write_text("".join([*parts, more, html.PAGE_END]), "utf-8", "backslashreplace")


def _render_card(key: str, stored: StoredRecord, exported: Exported) -> html.Html:
    try:
        card = value_card(stored)
    except (TensortapError, OSError, ValueError) as error:
        exported.add_unreadable(key, error)
        return html.element("p", f"{key}: {error}")
    exported.keys.append(key)
    return card


@contextmanager
def _replace_atomically(target: Path) -> Iterator[Path]:
    """Yield a draft path beside the target, renamed to it on success and deleted on failure."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist")
    draft = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


_WRITERS: dict[Format, Callable[[Run, Path, Exported, ProgressWrapper], None]] = {
    "npz": _write_npz,
    "safetensors": _write_safetensors,
    "hdf5": _write_hdf5,
    "html": _write_html,
}
