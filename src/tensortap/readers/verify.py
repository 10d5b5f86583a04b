"""Verify a run: every file against the index by length and checksum, packs, metadata, unknown files."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile, ZipFile

import numpy as np

from tensortap.core.filesystem import scan_folder
from tensortap.formats.index import index_files
from tensortap.formats.index_columns import IndexColumns
from tensortap.formats.run_layout import ENVIRONMENT_FILE, INTERNAL_FOLDER, MODEL_FILE, PACKS_FOLDER
from tensortap.formats.serializers import known_suffixes
from tensortap.kernels.hashing import checksum

DamageKind = Literal["index", "missing", "short", "changed", "outside", "unreadable", "pack", "metadata"]
# The index itself is read, not its cache, and none can be written.
_NO_CACHE = Path(os.devnull)
_METADATA_FILES = (
    "runtime_info.json",
    "packages.json",
    "git_info.json",
    f"{INTERNAL_FOLDER}/{ENVIRONMENT_FILE}",
    f"{INTERNAL_FOLDER}/{MODEL_FILE}",
)


@dataclass(frozen=True, slots=True)
class Damage:
    """`name` is that of the unreadable value, if one is affected."""

    kind: DamageKind
    file: str
    text: str
    name: str = ""


@dataclass(slots=True)
class VerificationReport:
    """`strays` are value files that the index does not list and `notes` are oddities without loss; neither is
    damage. `unsummed` values have no checksum, or xxhash is not installed."""

    path: Path
    records: int = 0
    nbytes: int = 0
    summed: int = 0
    unsummed: int = 0
    damage: list[Damage] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class RunVerification:
    """Verifies one run, in steps for a progress bar: `for _ in verification`, then `verification.report`."""

    def __init__(self, path: Path) -> None:
        self.report = VerificationReport(path)
        self._path = path
        self._columns = IndexColumns(path / INTERNAL_FOLDER, _NO_CACHE)
        self.report.records = len(self._columns)
        self._files = self._rows_by_file()

    def __len__(self) -> int:
        return len(self._columns)

    def __iter__(self) -> Iterator[None]:
        """Yields once per value."""
        self._check_index()
        for file, rows in self._files.items():
            yield from self._check_file(file, rows)
        for metadata_file in _METADATA_FILES:
            self._check_metadata(metadata_file)
        self._find_strays()

    def _rows_by_file(self) -> dict[str, list[int]]:
        """The index rows of each file, by their offset in it."""
        column = self._columns.coded["file"]
        rows_by_file: dict[str, list[int]] = {}
        for row in np.lexsort((self._columns.plain["start"], column.codes)).tolist():
            rows_by_file.setdefault(column[row], []).append(row)
        return rows_by_file

    def _check_index(self) -> None:
        for problem in self._columns.problems:
            self._add_damage("index", INTERNAL_FOLDER, problem)
        for index in index_files(self._path / INTERNAL_FOLDER):
            data = index.read_bytes()
            if data and not data.endswith(b"\n"):
                self.report.notes.append(
                    f"{INTERNAL_FOLDER}/{index.name} ends within a line: its writer was cut off"
                )

    def _check_file(self, file: str, rows: list[int]) -> Iterator[None]:
        unsummed = self.report.unsummed
        try:
            with open(self._resolve_inside(file), "rb") as stream:
                length = os.fstat(stream.fileno()).st_size
                memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if length else b""
                for row in rows:
                    self._check_value(file, row, memory, length)
                    yield
        except _OutsideRunError:
            self._add_damage(
                "outside", file, "lies outside the run, and was not opened", self._describe_names(rows)
            )
            yield from (None for _ in rows)
        except OSError as error:
            kind: DamageKind = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
            text = (
                "is in the index but not on disk"
                if kind == "missing"
                else (error.strerror or str(error)).lower()
            )
            self._add_damage(kind, file, text, self._describe_names(rows))
            yield from (None for _ in rows)
            return
        if file.startswith(f"{INTERNAL_FOLDER}/{PACKS_FOLDER}/"):
            self._check_pack(file, rows, self.report.unsummed - unsummed)

    def _check_value(self, file: str, row: int, memory: Any, length: int) -> None:
        plain, name = self._columns.plain, str(self._columns.coded["name"][row])
        start, nbytes = int(plain["start"][row]), int(plain["nbytes"][row])
        end = start + int(plain["length"][row])
        if end > length or start < 0 or nbytes < 0 or end - nbytes < start:
            self._add_damage("short", file, f"ends at byte {length:,}, the value at {end:,}", name)
            return
        self.report.nbytes += nbytes
        expected = plain["checksum"][row].decode()
        actual = checksum(memoryview(memory)[end - nbytes : end]) if expected else None
        if actual is None:
            self.report.unsummed += 1
        elif actual != expected:
            self._add_damage(
                "changed", file, f"bytes {end - nbytes:,} to {end:,} are not those that were written", name
            )
        else:
            self.report.summed += 1

    def _check_pack(self, file: str, rows: list[int], unsummed: int) -> None:
        """Check the zip directory that numpy reads; without it nothing is lost, since the index has it all.
        Its CRCs stand in for checksums that the index lacks."""
        try:
            with ZipFile(self._path / file) as pack:
                members = pack.namelist()
                broken = pack.testzip() if unsummed else None
        except (BadZipFile, OSError, ValueError) as error:
            self.report.notes.append(
                f"{file} has no directory ({error}): np.load cannot open it, tensortap can"
            )
            return
        if len(members) < len(rows):
            self._add_damage("pack", file, f"lists {len(members):,} values, the index {len(rows):,}")
        if broken is not None:
            self._add_damage("changed", file, f"its part {broken} is not what was written")
        elif unsummed:
            self.report.unsummed -= unsummed
            self.report.summed += unsummed

    def _check_metadata(self, name: str) -> None:
        try:
            content = json.loads((self._path / name).read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._add_damage("metadata", name, f"cannot be read: {error}")
            return
        if not isinstance(content, dict):
            self._add_damage("metadata", name, "is JSON, but holds no facts")

    def _find_strays(self) -> None:
        suffixes = tuple(known_suffixes())
        for folder in ("", f"{INTERNAL_FOLDER}/{PACKS_FOLDER}/"):
            for entry in scan_folder(self._path / folder):
                file = folder + entry.name
                if entry.name.endswith(suffixes) and file not in self._files:
                    self.report.strays.append(file)

    def _resolve_inside(self, file: str) -> Path:
        """The path of a file; raises if `..` or a link leads out of the run."""
        path = self._path / file
        if not path.resolve().is_relative_to(self._path.resolve()):
            raise _OutsideRunError
        return path

    def _describe_names(self, rows: list[int]) -> str:
        names = list(dict.fromkeys(str(self._columns.coded["name"][row]) for row in rows))
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"

    def _add_damage(self, kind: DamageKind, file: str, text: str, name: str = "") -> None:
        self.report.damage.append(Damage(kind, file, text, name))


class _OutsideRunError(Exception):
    """The file lies outside the run."""
