"""The index as columns: parsed once, kept in a cache beside it, opened without touching each row."""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.core.paths import regex
from tensortap.formats.index import COLUMNS, index_files, read_rows

_CODED = ("name", "kind", "framework", "type", "dtype", "shape", "device", "file", "suffix", "site")
_JSON = ("placement", "statistics")
_WHOLE = ("call", "order", "nbytes", "start", "length")
_ODD = np.iinfo(np.int64).min  # stands for a step or rank that is a tuple
_WORTH_CACHING = 2000
_TAIL = 256
_NO_ROWS = np.empty(0, np.int64)
Array = np.ndarray[Any, Any]


class Coded:
    """A column of few different texts: codes, and the texts they stand for."""

    def __init__(self, codes: Array, texts: list[Any]) -> None:
        self.codes = codes
        self.texts = texts

    def __getitem__(self, row: int) -> Any:
        return self.texts[self.codes[row]]

    def rows_of(self, text: str) -> Array:
        """The rows that hold exactly this text, in order."""
        code = self._codes_by_text.get(text)
        if code is None:
            return _NO_ROWS
        rows, bounds = self._rows_by_code
        return rows[bounds[code] : bounds[code + 1]]

    @cached_property
    def _codes_by_text(self) -> dict[Any, int]:
        return {text: code for code, text in enumerate(self.texts)}

    @cached_property
    def _rows_by_code(self) -> tuple[Array, list[int]]:
        rows = np.argsort(self.codes, kind="stable")
        return rows, np.searchsorted(self.codes[rows], np.arange(len(self.texts) + 1)).tolist()

    def rows_like(self, path: str) -> Array:
        """A mask of the rows whose text the path matches."""
        hits = np.zeros(len(self.texts), bool)
        hits[self._texts_like(path)] = True
        return hits[self.codes]

    def _texts_like(self, path: str) -> list[int] | Array:
        if any("\n" in text for text in self.texts):
            pattern = re.compile(regex(path))
            return [code for code, text in enumerate(self.texts) if pattern.fullmatch(text)]
        # One search over all texts, a line each, costs a tenth of a match per text.
        blob = "\n".join(self.texts)
        found = [hit.start() for hit in re.finditer(f"^{regex(path)}$", blob, re.MULTILINE)]
        lengths = np.fromiter(map(len, self.texts), np.int64, len(self.texts))
        starts = np.cumsum(lengths + 1) - lengths - 1
        return np.searchsorted(starts, found)


class Columns:
    """Every record of a run; `refresh` adds what was appended since."""

    def __init__(self, own: Path, cache: Path) -> None:
        self._own = own
        self._cache = cache
        self.problems: list[str] = []
        self._files: dict[str, list[int]] = {}
        self.plain: dict[str, Array] = {}
        self.coded: dict[str, Coded] = {}
        self._take([])
        self._load_cache()
        self.refresh()

    def __len__(self) -> int:
        return len(self.plain["order"])

    def refresh(self) -> int:
        """Read rows that are new; return how many."""
        rows: list[list[Any]] = []
        for path in index_files(self._own):
            rows += self._new_rows(path)
        if rows:
            self._take(rows)
        if len(rows) >= _WORTH_CACHING:
            self._save_cache()
        return len(rows)

    def step(self, row: int) -> int | tuple[int, ...]:
        return self._number("step", row)

    def rank(self, row: int) -> int | tuple[int, ...]:
        return self._number("rank", row)

    def _number(self, column: str, row: int) -> int | tuple[int, ...]:
        number = int(self.plain[column][row])
        return number if number != _ODD else tuple(json.loads(self.coded[f"odd_{column}"][row]))

    def _new_rows(self, path: Path) -> list[list[Any]]:
        end = self._files.get(path.name, [0, 0])[0]
        if path.stat().st_size == end:
            return []
        rows, end, problems = read_rows(path, end)
        self._files[path.name] = [end, _fingerprint(path, end)]
        self.problems += problems
        return rows

    def _take(self, rows: list[list[Any]]) -> None:
        columns = (
            dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(COLUMNS, ())
        )
        for name in _CODED:
            self._extend_coded(name, columns[name])
        for name in _JSON:
            self._extend_coded(name, [None if cell is None else json.dumps(cell) for cell in columns[name]])
        for name in ("step", "rank"):
            self._extend_numbers(name, columns[name])
        for name in _WHOLE:
            self._extend(name, np.array(columns[name], np.int64))
        self._extend("time", np.array(columns["time"], np.float64))
        self._extend("offset", np.array([-1 if at is None else at for at in columns["offset"]], np.int64))
        self._extend("checksum", np.array([text or "" for text in columns["checksum"]], "S21"))

    def _extend(self, name: str, cells: Array) -> None:
        known = self.plain.get(name)
        self.plain[name] = cells if known is None else np.concatenate([known, cells])

    def _extend_numbers(self, name: str, cells: Iterable[Any]) -> None:
        cells = list(cells)
        try:
            numbers = np.array(cells, np.int64).reshape(len(cells))
            odd: list[Any] = [None] * len(cells)
        except ValueError:
            numbers = np.array([cell if isinstance(cell, int) else _ODD for cell in cells], np.int64)
            odd = [None if isinstance(cell, int) else json.dumps(cell) for cell in cells]
        self._extend(name, numbers)
        self._extend_coded(f"odd_{name}", odd)

    def _extend_coded(self, name: str, cells: Iterable[Any]) -> None:
        known = self.coded.get(name)
        seen = dict(known._codes_by_text) if known else {}
        codes = np.array([seen.setdefault(cell, len(seen)) for cell in cells], np.int32)
        joined = np.concatenate([known.codes, codes]) if known else codes
        self.coded[name] = Coded(joined, list(seen))

    def _save_cache(self) -> None:
        """Best effort: a folder that cannot be written is read without a cache."""
        arrays: dict[str, Any] = {
            **self.plain,
            **{f"codes_{name}": column.codes for name, column in self.coded.items()},
        }
        facts = {
            "columns": COLUMNS,
            "files": self._files,
            "problems": self.problems,
            "texts": {name: column.texts for name, column in self.coded.items()},
        }
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        draft = self._cache / f"columns.{os.getpid()}.npz"
        with contextlib.suppress(OSError):
            self._cache.mkdir(exist_ok=True)
            np.savez(draft, allow_pickle=False, **arrays)
            draft.replace(self._cache / "columns.npz")

    def _load_cache(self) -> None:
        try:
            with np.load(self._cache / "columns.npz") as stored:
                arrays = {name: stored[name] for name in stored.files}
            facts = json.loads(arrays.pop("facts").tobytes())
        except (OSError, ValueError, KeyError, EOFError, zlib.error):
            return
        if facts["columns"] != list(COLUMNS) or not self._is_current(facts["files"]):
            return
        self._files, self.problems = facts["files"], facts["problems"]
        self.coded = {
            name: Coded(arrays.pop(f"codes_{name}"), texts) for name, texts in facts["texts"].items()
        }
        self.plain = arrays

    def _is_current(self, files: dict[str, list[int]]) -> bool:
        return all(
            (path := self._own / name).exists()
            and path.stat().st_size >= end
            and _fingerprint(path, end) == mark
            for name, (end, mark) in files.items()
        )


def _fingerprint(path: Path, end: int) -> int:
    """A checksum of the last bytes that were read: another file of that name will not have them."""
    start = max(0, end - _TAIL)
    with open(path, "rb") as stream:
        stream.seek(start)
        return zlib.crc32(stream.read(end - start))
