"""What became of a program that `tensortap run` started: told by its processes, kept in its run."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensortap.core.errand import ABSENT, ARRIVED, Errand
from tensortap.core.errors import TensortapError
from tensortap.formats.index import COLUMNS, index_files, read_rows
from tensortap.formats.run_layout import OWN
from tensortap.metadata.another import is_this
from tensortap.metadata.digest_key import digest_key
from tensortap.metadata.redact import Redactor
from tensortap.recording.described import DESCRIBED, PACKAGES, describe_interpreter, is_python

PROGRAM = "program.json"  # in our corner of the run
_OUTCOME = "outcome.json"
_OF_THE_START = ("run", "notes", "startup", "folder", "here", "is_inner")  # nobody asked for these


@dataclass
class Account:
    """The notes of all processes, together."""

    asked: Errand
    command: list[str]
    status: int | None = None  # below zero, a signal; None while it runs
    seconds: float = 0.0
    processes: list[dict[str, Any]] = field(default_factory=list)
    has_arrived: bool = False
    absent: str = ""  # an interpreter that has no tensortap
    unheard: int = 0  # records of processes that were ended before they could tell

    def read_notes(self) -> None:
        """And throw them away."""
        notes = Path(self.asked.notes)
        self.has_arrived = (notes / ARRIVED).exists()
        with suppress(OSError):
            self.absent = (notes / ABSENT).read_text(encoding="utf-8")
        self.processes = list(filter(None, map(_note, sorted(notes.glob("process-*.json")))))
        with suppress(OSError):
            _replace(Path(self.asked.run) / PACKAGES, (notes / PACKAGES).read_text(encoding="utf-8"))
        self.unheard = self._count_unheard()
        self._describe_interpreter(notes)
        shutil.rmtree(notes, ignore_errors=True)

    def _count_unheard(self) -> int:
        """By the lines of the index, which takes no numpy; processes of one rank may share a file of it."""
        written = sum(map(_rows, index_files(Path(self.asked.run) / OWN)))
        return max(0, written - self.records)

    def _describe_interpreter(self, notes: Path) -> None:
        """Before the program began, the packages of this process were written down as its own."""
        knows_imported = (notes / PACKAGES).exists()
        if self.status is None or ((notes / DESCRIBED).exists() and not knows_imported):
            return  # it was not started, or has told everything itself
        python = self._python(notes)
        if python and not is_this(python) and Path(self.asked.run, OWN).is_dir():
            describe_interpreter(Path(self.asked.run), python, knows_imported=knows_imported)

    def _python(self, notes: Path) -> str:
        """The interpreter of the program; else the first that it started."""
        if is_python(self.command[0]):
            return self.command[0]
        with suppress(OSError):
            return (notes / ARRIVED).read_text(encoding="utf-8")
        return self.absent

    @property
    def records(self) -> int:
        told: int = sum(one["records"] for one in self.processes)
        return told + self.unheard

    @property
    def missing(self) -> list[list[str]]:
        """Names of which nothing was written though it was asked for, each with the reason; what one process
        did not see another may have."""
        told = [one for process in self.processes for one in process["missing"]]
        written = self._written() if told else set()
        return [one for one in told if one[0] not in written]

    def _written(self) -> set[str]:
        names: set[str] = set()
        for index in index_files(Path(self.asked.run) / OWN):
            with suppress(OSError, TensortapError):  # what ended the program may have left anything
                names.update(row[COLUMNS.index("name")] for row in read_rows(index)[0])
        return names

    @property
    def is_silent(self) -> bool:
        """Whether no process could tell anything: it had a model perhaps, perhaps not."""
        is_ended = self.status is not None and self.status < 0
        return not self.processes and (self.unheard > 0 or is_ended)

    @property
    def unmatched(self) -> dict[str, dict[str, Any]]:
        """Patterns that meant something in no process, with what the processes know of them."""
        if self.is_silent:
            return {}
        matched = {text for one in self.processes for text in one["matched"]}
        found: dict[str, dict[str, Any]] = {}
        for text in self.asked.patterns:
            if text not in matched:
                told = (one["unmatched"].get(text) for one in self.processes)
                found[text] = next(filter(None, told), {"reason": "", "near": []})
        return found

    @property
    def facts(self) -> dict[str, Any]:
        """What `--json` writes, and what lies in the run."""
        return {
            "run": self.asked.run,
            "program": Redactor(digest_key).arguments(self.command),
            "options": {
                name: value for name, value in self.asked._asdict().items() if name not in _OF_THE_START
            },
            "exit_code": self.status if self.status is not None and self.status >= 0 else None,
            "signal": -self.status if self.status is not None and self.status < 0 else None,
            "seconds": round(self.seconds, 3),
            "was_watched": self.has_arrived,
            "records": self.records,
            "unmatched": self.unmatched,
            "processes": self.processes,
        }

    def keep(self) -> None:
        """In the run, beside what the program itself told of its end."""
        own = Path(self.asked.run) / OWN
        if not own.is_dir():  # the program may have deleted it
            return
        _replace(own / PROGRAM, json.dumps({"schema": "tensortap.run/1", **self.facts}, indent=2) + "\n")
        if self.status is None:
            return
        outcome = {}
        with suppress(OSError, ValueError):
            outcome = json.loads((own / _OUTCOME).read_text(encoding="utf-8"))
        end = {name: self.facts[name] for name in ("exit_code", "signal", "seconds")}
        _replace(own / _OUTCOME, json.dumps({**outcome, **end}, indent=2) + "\n")


def _note(path: Path) -> dict[str, Any] | None:
    """What a process has told; one that was killed meanwhile has left half of it."""
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found


def _rows(index: Path) -> int:
    """How many whole lines tell of a record; the first one tells of the columns."""
    try:
        with index.open("rb") as lines:
            return sum(line.startswith(b"[") and line.endswith(b"\n") for line in lines)
    except OSError:  # what ended the program may have left anything
        return 0


def _replace(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
