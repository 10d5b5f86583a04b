"""Records of a run in one file for other programs: .npz, .safetensors, HDF5, or a page to look at."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import RefusedError, TensortapError, UnknownFormatError, WriteFailedError
from tensortap.formats.bundles import SAFETENSORS, Named, write_npz, write_safetensors
from tensortap.formats.tree_html import tree_html
from tensortap.readers.cards import value_card
from tensortap.readers.run import Run
from tensortap.readers.stored import StoredRecord
from tensortap.readers.stored_rows import display_row
from tensortap.sinks.hdf5 import HDF5

Format = Literal["npz", "safetensors", "hdf5", "html"]
FORMATS: dict[str, Format] = {
    ".npz": "npz",
    ".safetensors": "safetensors",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".html": "html",
}
_LARGEST_PAGE, _MOST_ROWS = 4_500_000, 20_000
Watch = Callable[[Iterable[StoredRecord], int], Iterable[StoredRecord]]


@dataclass(slots=True)
class Exported:
    """`keys` in the order of the file; `skipped` tells of each record that is not in it, and why;
    `unreadable` counts those of them that the run has lost."""

    path: Path
    keys: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    nbytes: int = 0
    unreadable: int = 0

    def lose(self, key: str, error: Exception) -> None:
        self.skipped[key] = str(error)
        self.unreadable += 1


def export(
    run: Run | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    format: Format | None = None,
    force: bool = False,
    watch: Watch | None = None,
) -> Exported:
    """Write the records of a run, or of a part that `filter` chose, into one file.

    >>> tt.export("runs/20251028_143041", "values.npz")
    >>> tt.export(run.filter("layers.*", step=3), "layers.safetensors")

    The end of the name says which format. A name that occurs once is its own key; else its key tells step,
    rank and call as far as they differ: `loss@step=3`. The file appears when it is whole, or not at all.
    """
    opened = run if isinstance(run, Run) else Run(run)
    target = Path(path)
    chosen = format or FORMATS.get(target.suffix)
    if chosen is None:
        raise UnknownFormatError(f"{target.name} says no format; end it in {', '.join(FORMATS)}")
    if target.exists() and not force:
        raise RefusedError(f"{target} exists; choose another name, or force=True (--force) to replace it")
    done = Exported(target)
    with _whole_file(target) as draft:
        _WRITERS[chosen](opened, draft, done, watch or (lambda records, total: records))
        done.nbytes = draft.stat().st_size
    return done


def keys_of(run: Run) -> list[str]:
    """A key for each record, in its order; no two are alike."""
    cells = run.cells()
    varying: dict[str, dict[str, set[Any]]] = {}
    places = list(zip(cells["name"], cells["step"], cells["rank"], cells["call"], strict=True))
    for name, *where in places:
        seen = varying.setdefault(name, {"step": set(), "rank": set(), "call": set()})
        for field_name, number in zip(seen, where, strict=True):
            seen[field_name].add(number)
    taken: set[str] = set()
    return [_free(_key(name, where, varying[name]), taken) for name, *where in places]


def _key(name: str, where: Sequence[Any], varying: dict[str, set[Any]]) -> str:
    told = [
        f"{what}={_place(number)}"
        for (what, seen), number in zip(varying.items(), where, strict=True)
        if len(seen) > 1
    ]
    return f"{name}@{','.join(told)}" if told else name


def _place(place: Any) -> str:
    return "+".join(map(str, place)) if isinstance(place, tuple) else str(place)


def _free(key: str, taken: set[str]) -> str:
    found, count = key, 1
    while found in taken:
        count += 1
        found = f"{key}.{count}"
    taken.add(found)
    return found


def _arrays(
    run: Run, done: Exported, watch: Watch, known: Iterable[str], *, is_numpy: bool = False
) -> Iterator[Named]:
    """The records that are arrays of these number types, or of any that numpy has; of the others it is told
    why not."""
    for key, one in zip(keys_of(run), watch(run, len(run)), strict=True):
        is_odd = one.dtype not in known
        if is_odd and not (is_numpy and _is_odd_array(one)):
            done.skipped[key] = f"{one.dtype or one.type} has no place in this format"
            continue
        try:
            bits = one.load() if is_odd else _bits(one)
        except (TensortapError, OSError, ValueError) as error:
            done.lose(key, error)
            continue
        if bits is None or bits.dtype.hasobject:
            done.skipped[key] = f"{one.type}, not stored as one block"
            continue
        done.keys.append(key)
        yield Named(key, bits, "" if is_odd else one.dtype)


def _is_odd_array(one: StoredRecord) -> bool:
    """Texts, dates, fields, wide floats: what numpy writes without a pickle, and few others know."""
    return one.framework == "numpy" and one.suffix == ".npy" and one.dtype != "object"


def _bits(one: StoredRecord) -> Any:
    return _number(one) if one.bits is None and one.framework == "python" else one.bits


def _number(one: StoredRecord) -> Any:
    """A number of Python's own, as an array without axes; None for anything else."""
    value = one.load() if not one.shape else None
    return np.asarray(value, one.dtype) if isinstance(value, bool | int | float) else None


def _npz(run: Run, draft: Path, done: Exported, watch: Watch) -> None:
    with draft.open("wb") as stream:
        write_npz(stream, _arrays(run, done, watch, DTYPE_TABLE, is_numpy=True))


def _safetensors(run: Run, draft: Path, done: Exported, watch: Watch) -> None:
    arrays = list(_arrays(run, done, watch, SAFETENSORS))  # memory-mapped: nothing is read yet
    with draft.open("wb") as stream:
        write_safetensors(stream, arrays, {"format": "pt", "run": run.path.absolute().name})


def _hdf5(run: Run, draft: Path, done: Exported, watch: Watch) -> None:
    try:
        _trace(run, draft, done, watch)
    except WriteFailedError as error:
        if error.errno is None:
            raise
        # A draft that was given up has no safe part, and nobody knows its name.
        raise OSError(error.errno, os.strerror(error.errno), str(done.path)) from error


class _Trace(HDF5):
    """Whoever exports is told what is left out, and needs no second word of it in the log."""

    def _skip(self, name: str, error: Exception) -> None:
        self.reasons[name] = str(error)


def _trace(run: Run, draft: Path, done: Exported, watch: Watch) -> None:
    sink = _Trace(draft)
    sink.path = done.path  # what it says of values is about the file as it will be called
    try:
        for one in watch(run, len(run)):
            try:
                record = one.record()
            except (TensortapError, OSError, ValueError) as error:
                done.lose(one.name, error)
                continue
            try:
                sink.write(record)
            except WriteFailedError:
                raise
            except (TensortapError, ValueError) as error:
                done.skipped[one.name] = str(error)
    finally:
        sink.close()
    done.keys.extend(sink.datasets)
    done.skipped.update(sink.reasons)


def _html(run: Run, draft: Path, done: Exported, watch: Watch) -> None:
    """A summary, the tree, and as many cards as five megabytes hold."""
    some = run if len(run) <= _MOST_ROWS else [run[at] for at in range(_MOST_ROWS)]
    rows = [display_row(one) for one in watch(some, len(some))]
    title = escape(run.path.absolute().name)
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:14px/1.5 system-ui,sans-serif;margin:24px;color-scheme:light dark;"
        "background:Canvas;color:CanvasText}</style></head>"
        f"<body><h1>{title}</h1>",
        tree_html(rows, title),
        "<h2>Values</h2>",
    ]
    length = sum(map(len, parts))
    for key, one in zip(keys_of(run), run, strict=True):
        drawn = _drawn(key, one, done)
        if length + len(drawn) > _LARGEST_PAGE:
            done.skipped[key] = "the page is full"
            continue
        length += len(drawn)
        parts.append(drawn)
    more = f"<p>{len(done.skipped):,} more values are not shown</p>" if done.skipped else ""
    draft.write_text("".join([*parts, more, "</body></html>\n"]), "utf-8", "backslashreplace")


def _drawn(key: str, one: StoredRecord, done: Exported) -> str:
    try:
        drawn = value_card(one)
    except (TensortapError, OSError, ValueError) as error:
        done.lose(key, error)
        return f"<p>{escape(key)}: {escape(str(error))}</p>"
    done.keys.append(key)
    return drawn


@contextmanager
def _whole_file(target: Path) -> Iterator[Path]:
    """A draft beside the target, which takes its name at the end; gone when something fails."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist")
    draft = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


_WRITERS: dict[Format, Callable[[Run, Path, Exported, Watch], None]] = {
    "npz": _npz,
    "safetensors": _safetensors,
    "hdf5": _hdf5,
    "html": _html,
}
