"""The index as columns: parsed once, cached beside the index, opened without touching each row."""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from tensortap.core.interpreter import gc_paused
from tensortap.core.patterns import pattern_regex
from tensortap.formats.index import COLUMNS, has_valid_types, index_files, read_rows

_CODED_COLUMNS = ("name", "kind", "framework", "type", "dtype", "shape", "device", "file", "suffix", "site")
_JSON_COLUMNS = ("placement", "statistics")
_INT64_COLUMNS = ("call", "order", "nbytes", "start", "length")
_NOT_INT64 = np.iinfo(np.int64).min  # placeholder for a step or rank that is a tuple or exceeds int64
_INT64_RANGE = range(_NOT_INT64 + 1, -_NOT_INT64)
_MIN_ROWS_TO_CACHE = 2000
_FINGERPRINT_NBYTES = 256
_CACHE_ERRORS = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    BadZipFile,
    zlib.error,
)
_NO_ROWS = np.empty(0, np.int64)
Array = np.ndarray[Any, Any]


class CodedColumn:
    """A dictionary-encoded string column: codes, and the strings they stand for."""

    def __init__(self, codes: Array, texts: list[Any]) -> None:
        self.codes = codes
        self.texts = texts

    def __getitem__(self, row: int) -> Any:
        return self.texts[self.codes[row]]

    def cells(self, rows: slice | Array) -> list[Any]:
        """The strings of these rows."""
        codes = self.codes[rows]
        if len(self.texts) == 1:
            return self.texts * len(codes)
        return list(map(self.texts.__getitem__, codes.tolist()))

    def rows_equal(self, text: str) -> Array:
        """The rows that hold exactly this string, in order."""
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

    def has_text(self, text: str) -> bool:
        """Whether any row may hold exactly this string."""
        lines, starts = self._joined_texts
        return text in self.texts if starts is None or "\n" in text else f"\n{text}\n" in lines

    def mask_equal(self, text: str) -> Array:
        """A mask of the rows that hold exactly this string."""
        return (
            self.codes == self.texts.index(text) if self.has_text(text) else np.zeros(len(self.codes), bool)
        )

    def mask_matching(self, path: str) -> Array:
        """A mask of the rows whose string matches the pattern, apart from `!` and `@2`."""
        hits = np.zeros(len(self.texts), bool)
        hits[self._matching_codes(path)] = True
        return hits[self.codes]

    def _matching_codes(self, path: str) -> list[int] | Array:
        lines, starts = self._joined_texts
        if starts is None:
            pattern = re.compile(pattern_regex(path))
            return [code for code, text in enumerate(self.texts) if pattern.fullmatch(text)]
        # One search over the joined strings costs a tenth of a match per string; the leading line break
        # in the pattern lets the search skip to the next possible match.
        hits = [hit.start() for hit in re.finditer(rf"\n{pattern_regex(path)}(?=\n)", lines)]
        return np.searchsorted(starts, hits)

    @cached_property
    def _joined_texts(self) -> tuple[str, Array | None]:
        """All strings, one per line, and where each starts; empty if a string contains a line break."""
        lines = "\n".join(["", *self.texts, ""])
        if lines.count("\n") != len(self.texts) + 1:
            return "", None
        lengths = np.fromiter(map(len, self.texts), np.int64, len(self.texts))
        return lines, np.cumsum(lengths + 1) - lengths - 1


class IndexColumns:
    """The columns of every record of a run; `refresh` reads appended rows."""

    def __init__(self, own: Path, cache: Path) -> None:
        self._own = own
        self._cache = cache
        self.problems: list[str] = []
        self._files: dict[str, list[int]] = {}
        self.plain: dict[str, Array] = {}
        self.coded: dict[str, CodedColumn] = {}
        self._append_rows([])
        self._load_cache()
        self.refresh()

    def __len__(self) -> int:
        return len(self.plain["order"])

    def refresh(self) -> int:
        """Read new rows; returns how many."""
        rows: list[list[Any]] = []
        with gc_paused():  # millions of cells without references
            for path in index_files(self._own):
                rows += self._new_rows(path)
            if rows:
                self._append_valid_rows(rows)
        if len(rows) >= _MIN_ROWS_TO_CACHE:
            self._save_cache()
        return len(rows)

    def step(self, row: int) -> int | tuple[int, ...]:
        return self._number("step", row)

    def rank(self, row: int) -> int | tuple[int, ...]:
        return self._number("rank", row)

    def cells(self, rows: Array | None, without: Container[str] = ()) -> dict[str, list[Any]]:
        """Every column as a list, for these rows or all: much faster than row by row."""
        chosen = slice(None) if rows is None else rows
        by_column = {name: column[chosen].tolist() for name, column in self.plain.items()}
        for name, coded in self.coded.items():
            if name not in without:
                by_column[name] = coded.cells(chosen)
        for name in ("step", "rank"):
            wide = by_column.pop(f"odd_{name}")
            if self.coded[f"odd_{name}"].texts == [None]:
                continue
            numbers = zip(by_column[name], wide, strict=True)
            by_column[name] = [number if text is None else _parse_wide_cell(text) for number, text in numbers]
        return by_column

    def _number(self, column: str, row: int) -> int | tuple[int, ...]:
        number = int(self.plain[column][row])
        if number != _NOT_INT64:
            return number
        return _parse_wide_cell(self.coded[f"odd_{column}"][row])

    def _new_rows(self, path: Path) -> list[list[Any]]:
        end = self._files.get(path.name, [0, 0])[0]
        if path.stat().st_size == end:
            return []
        rows, end, problems = read_rows(path, end)
        self._files[path.name] = [end, _tail_fingerprint(path, end)]
        self.problems += problems
        return rows

    def _append_valid_rows(self, rows: list[list[Any]]) -> None:
        """Append rows; a row with cells of wrong types must not cost the others."""
        before = dict(self.plain), dict(self.coded)
        try:
            self._append_rows(rows)
        except (TypeError, ValueError, OverflowError):
            self.plain, self.coded = before
            sound = [row for row in rows if has_valid_types(row)]
            self.problems.append(f"{len(rows) - len(sound)} rows of the index have cells of a wrong type")
            self._append_rows(sound)

    def _append_rows(self, rows: list[list[Any]]) -> None:
        columns = (
            dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(COLUMNS, ())
        )
        for name in _CODED_COLUMNS:
            self._extend_coded(name, columns[name])
        for name in _JSON_COLUMNS:
            self._extend_coded(name, [None if cell is None else json.dumps(cell) for cell in columns[name]])
        for name in ("step", "rank"):
            self._extend_numbers(name, columns[name])
        for name in _INT64_COLUMNS:
            self._extend(name, np.array(columns[name], np.int64))
        self._extend("time", np.array(columns["time"], np.float64))
        self._extend("offset", np.array([-1 if at is None else at for at in columns["offset"]], np.int64))
        self._extend("checksum", np.array([text or "" for text in columns["checksum"]], "S21"))

    def _extend(self, name: str, cells: Array) -> None:
        known = self.plain.get(name)
        self.plain[name] = cells if known is None else np.concatenate([known, cells])

    def _extend_numbers(self, name: str, cells: Iterable[Any]) -> None:
        cells = list(cells)
        wide: list[Any] = [None] * len(cells)
        if set(map(type, cells)) <= {int} and all(map(_INT64_RANGE.__contains__, cells)):
            numbers = np.array(cells, np.int64)
        else:
            numbers = np.array([cell if _is_int64(cell) else _NOT_INT64 for cell in cells], np.int64)
            wide = [None if _is_int64(cell) else json.dumps(cell) for cell in cells]
        self._extend(name, numbers)
        self._extend_coded(f"odd_{name}", wide)

    def _extend_coded(self, name: str, cells: Sequence[Any]) -> None:
        known = self.coded.get(name)
        texts = dict.fromkeys([*(known.texts if known else ()), *dict.fromkeys(cells)])
        seen = {text: code for code, text in enumerate(texts)}
        codes = np.fromiter(map(seen.__getitem__, cells), np.int32, len(cells))
        if not {str, type(None)} >= set(map(type, seen)):
            raise TypeError(f"{name} holds more than texts")
        joined = np.concatenate([known.codes, codes]) if known else codes
        self.coded[name] = CodedColumn(joined, list(seen))

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
            with open(self._cache / "columns.npz", "rb") as stream, np.load(stream) as stored:
                arrays = {name: stored[name] for name in stored.files}
            facts = json.loads(arrays.pop("facts").tobytes())
            if facts["columns"] != list(COLUMNS) or not self._is_current(facts["files"]):
                return
            coded = {
                name: CodedColumn(arrays.pop(f"codes_{name}"), texts)
                for name, texts in facts["texts"].items()
            }
            files, problems = facts["files"], facts["problems"]
        except _CACHE_ERRORS:
            return
        if set(coded) != set(self.coded) or set(arrays) != set(self.plain):
            return
        self._files, self.problems, self.coded, self.plain = files, problems, coded, arrays

    def _is_current(self, files: dict[str, list[int]]) -> bool:
        return all(
            (path := self._own / name).exists()
            and path.stat().st_size >= end
            and _tail_fingerprint(path, end) == mark
            for name, (end, mark) in files.items()
        )


def _parse_wide_cell(text: str) -> int | tuple[int, ...]:
    number = json.loads(text)
    return number if isinstance(number, int) else tuple(number)


def _is_int64(cell: Any) -> bool:
    return type(cell) is int and cell in _INT64_RANGE


def _tail_fingerprint(path: Path, end: int) -> int:
    """A checksum of the last bytes read, to detect that the file was replaced."""
    start = max(0, end - _FINGERPRINT_NBYTES)
    with open(path, "rb") as stream:
        stream.seek(start)
        return zlib.crc32(stream.read(end - start))
