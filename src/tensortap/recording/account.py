"""What became of a program that `tensortap run` started: told by its processes, kept in its run."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensortap.core.errors import TensortapError
from tensortap.core.launch_spec import NO_TENSORTAP_MARKER, REACHED_MARKER, LaunchSpec
from tensortap.formats.index import COLUMNS, index_files, read_rows
from tensortap.formats.run_layout import INTERNAL_FOLDER
from tensortap.metadata.packages import is_this
from tensortap.metadata.redaction import Redactor, digest_key
from tensortap.recording.described import (
    FACTS_MARKER,
    PACKAGES_FILE,
    is_python_executable,
    write_interpreter_facts,
)

PROGRAM_FILE = "program.json"  # in our corner of the run
_OUTCOME_FILE = "outcome.json"
_INTERNAL_FIELDS = ("run", "notes", "startup", "folder", "here", "is_inner")  # nobody asked for these


@dataclass
class RunOutcome:
    """The notes of all processes, together."""

    spec: LaunchSpec
    command: list[str]
    status: int | None = None  # below zero, a signal; None while it runs
    seconds: float = 0.0
    processes: list[dict[str, Any]] = field(default_factory=list)
    was_watched: bool = False
    python_without_tensortap: str = ""  # an interpreter that has no tensortap
    unreported: int = 0  # records of processes that were ended before they could tell

    def read_reports(self) -> None:
        """And throw them away."""
        notes = Path(self.spec.notes)
        self.was_watched = (notes / REACHED_MARKER).exists()
        with suppress(OSError):
            self.python_without_tensortap = (notes / NO_TENSORTAP_MARKER).read_text(encoding="utf-8")
        self.processes = list(filter(None, map(_read_report, sorted(notes.glob("process-*.json")))))
        with suppress(OSError):
            _write_atomically(
                Path(self.spec.run) / PACKAGES_FILE, (notes / PACKAGES_FILE).read_text(encoding="utf-8")
            )
        self.unreported = self._count_unreported()
        self._add_interpreter_facts(notes)
        shutil.rmtree(notes, ignore_errors=True)

    def _count_unreported(self) -> int:
        """By the lines of the index, which takes no numpy; processes of one rank may share a file of it."""
        written = sum(map(_count_rows, index_files(Path(self.spec.run) / INTERNAL_FOLDER)))
        return max(0, written - self.records)

    def _add_interpreter_facts(self, notes: Path) -> None:
        """Before the program began, the packages of this process were written down as its own."""
        knows_imported = (notes / PACKAGES_FILE).exists()
        if self.status is None or ((notes / FACTS_MARKER).exists() and not knows_imported):
            return  # it was not started, or has told everything itself
        python = self._program_python(notes)
        if python and not is_this(python) and Path(self.spec.run, INTERNAL_FOLDER).is_dir():
            write_interpreter_facts(Path(self.spec.run), python, knows_imported=knows_imported)

    def _program_python(self, notes: Path) -> str:
        """The interpreter of the program; else the first that it started."""
        if is_python_executable(self.command[0]):
            return self.command[0]
        with suppress(OSError):
            return (notes / REACHED_MARKER).read_text(encoding="utf-8")
        return self.python_without_tensortap

    @property
    def records(self) -> int:
        reported: int = sum(process["records"] for process in self.processes)
        return reported + self.unreported

    @property
    def missing(self) -> list[list[str]]:
        """Names of which nothing was written though it was asked for, each with the reason; what one process
        did not see another may have."""
        reported = [name_and_reason for process in self.processes for name_and_reason in process["missing"]]
        written = self._names_written() if reported else set()
        return [name_and_reason for name_and_reason in reported if name_and_reason[0] not in written]

    def _names_written(self) -> set[str]:
        names: set[str] = set()
        for index in index_files(Path(self.spec.run) / INTERNAL_FOLDER):
            with suppress(OSError, TensortapError):  # what ended the program may have left anything
                names.update(row[COLUMNS.index("name")] for row in read_rows(index)[0])
        return names

    @property
    def has_no_report(self) -> bool:
        """Whether no process could tell anything: it had a model perhaps, perhaps not."""
        is_ended = self.status is not None and self.status < 0
        return not self.processes and (self.unreported > 0 or is_ended)

    @property
    def unmatched(self) -> dict[str, dict[str, Any]]:
        """Patterns that meant something in no process, with what the processes know of them."""
        if self.has_no_report:
            return {}
        matched = {text for process in self.processes for text in process["matched"]}
        unmatched: dict[str, dict[str, Any]] = {}
        for text in self.spec.patterns:
            if text not in matched:
                explanations = (process["unmatched"].get(text) for process in self.processes)
                unmatched[text] = next(filter(None, explanations), {"reason": "", "near": []})
        return unmatched

    @property
    def facts(self) -> dict[str, Any]:
        """What `--json` writes, and what lies in the run."""
        return {
            "run": self.spec.run,
            "program": Redactor(digest_key).arguments(self.command),
            "options": {
                name: value for name, value in self.spec._asdict().items() if name not in _INTERNAL_FIELDS
            },
            "exit_code": self.status if self.status is not None and self.status >= 0 else None,
            "signal": -self.status if self.status is not None and self.status < 0 else None,
            "seconds": round(self.seconds, 3),
            "was_watched": self.was_watched,
            "records": self.records,
            "unmatched": self.unmatched,
            "processes": self.processes,
        }

    def save(self) -> None:
        """In the run, beside what the program itself told of its end."""
        own = Path(self.spec.run) / INTERNAL_FOLDER
        if not own.is_dir():  # the program may have deleted it
            return
        _write_atomically(
            own / PROGRAM_FILE, json.dumps({"schema": "tensortap.run/1", **self.facts}, indent=2) + "\n"
        )
        if self.status is None:
            return
        outcome = {}
        with suppress(OSError, ValueError):
            outcome = json.loads((own / _OUTCOME_FILE).read_text(encoding="utf-8"))
        end = {name: self.facts[name] for name in ("exit_code", "signal", "seconds")}
        _write_atomically(own / _OUTCOME_FILE, json.dumps({**outcome, **end}, indent=2) + "\n")


def _read_report(path: Path) -> dict[str, Any] | None:
    """What a process has told; one that was killed meanwhile has left half of it."""
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return report


def _count_rows(index: Path) -> int:
    """How many whole lines tell of a record; the first one tells of the columns."""
    try:
        with index.open("rb") as lines:
            return sum(line.startswith(b"[") and line.endswith(b"\n") for line in lines)
    except OSError:  # what ended the program may have left anything
        return 0


def _write_atomically(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
