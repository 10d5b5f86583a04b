"""The outcome of a program that `tensortap run` started, from the reports of its processes, and its facts."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensortap.core.errors import TensortapError
from tensortap.core.filesystem import replace_file, working_directory
from tensortap.core.launch_spec import NO_TENSORTAP_MARKER, REACHED_MARKER, LaunchSpec
from tensortap.core.ranks import rank_info
from tensortap.core.settings import is_strict
from tensortap.formats.index import COLUMNS, index_files, read_rows
from tensortap.formats.run_layout import INTERNAL_FOLDER
from tensortap.metadata.collect import OWN_FOLDER, Metadata
from tensortap.metadata.packages import (
    is_current_interpreter,
    list_installed,
    normalise_name,
    packages_info,
    packages_info_of,
    query_interpreter,
    versions_digest,
)
from tensortap.metadata.process import ProgramStart, find_program_start, is_installed_file
from tensortap.metadata.redaction import Redactor, digest_key

PROGRAM_FILE = "program.json"  # in the run's internal folder
_OUTCOME_FILE = "outcome.json"
_INTERNAL_FIELDS = ("run", "notes", "startup", "folder", "here", "is_inner")  # not options of the user


@dataclass
class RunOutcome:
    """The reports of all processes, merged."""

    spec: LaunchSpec
    command: list[str]
    status: int | None = None  # exit code; negative: the signal that ended it; None while it runs
    seconds: float = 0.0
    processes: list[dict[str, Any]] = field(default_factory=list)
    was_watched: bool = False
    python_without_tensortap: str = ""  # path of such an interpreter that the program started
    unreported: int = 0  # records of processes that were killed before they could report

    def read_reports(self) -> None:
        """Read the report of every process, then delete them."""
        notes = Path(self.spec.notes)
        self.was_watched = (notes / REACHED_MARKER).exists()
        with suppress(OSError):
            self.python_without_tensortap = (notes / NO_TENSORTAP_MARKER).read_text(encoding="utf-8")
        self.processes = list(filter(None, map(_read_report, sorted(notes.glob("process-*.json")))))
        with suppress(OSError):
            replace_file(Path(self.spec.run) / PACKAGES_FILE, (notes / PACKAGES_FILE).read_bytes())
        self.unreported = self._count_unreported()
        self._add_interpreter_facts(notes)
        shutil.rmtree(notes, ignore_errors=True)

    def _count_unreported(self) -> int:
        """Count index lines, which needs no numpy; processes of one rank may share an index file."""
        written = sum(map(_count_rows, index_files(Path(self.spec.run) / INTERNAL_FOLDER)))
        return max(0, written - self.records)

    def _add_interpreter_facts(self, notes: Path) -> None:
        """Replace the packages, recorded from this process at the start, by those of the program's Python."""
        knows_imported = (notes / PACKAGES_FILE).exists()
        if self.status is None or ((notes / FACTS_MARKER).exists() and not knows_imported):
            return  # it was not started, or has written everything itself
        python = self._program_python(notes)
        if python and not is_current_interpreter(python) and Path(self.spec.run, INTERNAL_FOLDER).is_dir():
            write_interpreter_facts(Path(self.spec.run), python, knows_imported=knows_imported)

    def _program_python(self, notes: Path) -> str:
        """The program's interpreter, else the first one that it started."""
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
        """Selected names without a record in any process, each with the reason."""
        reported = [name_and_reason for process in self.processes for name_and_reason in process["missing"]]
        written = self._names_written() if reported else set()
        return [name_and_reason for name_and_reason in reported if name_and_reason[0] not in written]

    def _names_written(self) -> set[str]:
        names: set[str] = set()
        for index in index_files(Path(self.spec.run) / INTERNAL_FOLDER):
            with suppress(OSError, TensortapError):  # a killed program may leave an incomplete file
                names.update(row[COLUMNS.index("name")] for row in read_rows(index)[0])
        return names

    @property
    def has_no_report(self) -> bool:
        """Was every process killed before it could report? Whether there was a model is then unknown."""
        is_ended = self.status is not None and self.status < 0
        return not self.processes and (self.unreported > 0 or is_ended)

    @property
    def unmatched(self) -> dict[str, dict[str, Any]]:
        """Patterns that matched in no process, with the reported reason and nearest names."""
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
        """What `--json` writes, and `program.json` in the run."""
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
        """Write the facts into the run, and merge the end into the outcome that the program itself wrote."""
        own = Path(self.spec.run) / INTERNAL_FOLDER
        if not own.is_dir():  # the program may have deleted it
            return
        _replace_json(own / PROGRAM_FILE, {"schema": "tensortap.run/1", **self.facts})
        if self.status is None:
            return
        outcome = {}
        with suppress(OSError, ValueError):
            outcome = json.loads((own / _OUTCOME_FILE).read_text(encoding="utf-8"))
        end = {name: self.facts[name] for name in ("exit_code", "signal", "seconds")}
        _replace_json(own / _OUTCOME_FILE, {**outcome, **end})


def _replace_json(path: Path, content: Mapping[str, Any]) -> None:
    replace_file(path, (json.dumps(content, indent=2) + "\n").encode())


def _read_report(path: Path) -> dict[str, Any] | None:
    """The report of a process; None where it was killed while writing it."""
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return report


def _count_rows(index: Path) -> int:
    """The number of complete record lines; the first line of an index lists its columns."""
    try:
        with index.open("rb") as lines:
            return sum(line.startswith(b"[") and line.endswith(b"\n") for line in lines)
    except OSError:  # a killed program may leave an incomplete file
        return 0


log = logging.getLogger("tensortap.run")
FACTS_MARKER = "described"
PACKAGES_FILE = "packages.json"


def write_program_facts(spec: LaunchSpec) -> None:
    """Collect and write all facts, once: in the first process of rank 0 that calls a model."""
    if rank_info().rank != 0 or not spec.write_marker(FACTS_MARKER):
        return
    try:
        _metadata(spec).write()
    except OSError:
        if is_strict():
            raise
        log.warning("the metadata of %s could not be written", spec.run, exc_info=True)


def write_program_facts_at_exit(spec: LaunchSpec) -> None:
    """For a program without a model: write the imported packages; code and commit were recorded at the start
    where there is a repository, else all facts are written now."""
    if not spec.write_marker(FACTS_MARKER):
        return
    run = Path(spec.run)
    if _is_in_repository(run):
        packages = json.dumps(packages_info(list_installed()), indent=2, ensure_ascii=False)
        spec.write_marker(PACKAGES_FILE, packages + "\n")
    elif run.is_dir():
        _metadata(spec).write()


def _metadata(spec: LaunchSpec) -> Metadata:
    start = find_program_start(here=spec.here, folder=spec.folder)
    return Metadata(Path(spec.run), start=start)


def write_interpreter_facts(run: Path, python: str, *, knows_imported: bool) -> None:
    """Query the packages of the program's own interpreter; recorded as unknown where it does not answer."""
    answer = query_interpreter(python)
    facts = _interpreter_facts(answer) if answer is not None else _unknown_interpreter_facts(python)
    if not knows_imported:
        _write_facts(run / PACKAGES_FILE, packages_info_of(answer) if answer is not None else {})
    _write_facts(run / OWN_FOLDER / "environment.json", facts, keep=True)


def _interpreter_facts(answer: Mapping[str, Any]) -> dict[str, Any]:
    versions = [(normalise_name(package["name"]), package["version"]) for package in answer["packages"]]
    return {
        "interpreter": answer["interpreter"],
        "packages": answer["packages"],
        "package_set": versions_digest(versions),
    }


def _unknown_interpreter_facts(python: str) -> dict[str, Any]:
    problem = {"fact": "packages", "reason": f"{python} did not tell what it has"}
    return {"interpreter": None, "packages": None, "package_set": None, "problems": [problem]}


def _write_facts(path: Path, facts: Mapping[str, Any], *, keep: bool = False) -> None:
    """Replace a JSON file of facts; with `keep` merge into it, and append to its problems."""
    try:
        before = json.loads(path.read_bytes()) if keep else {}
        problems = [*(before.get("problems") or ()), *(facts.get("problems") or ())]
        _replace_json(path, {**before, **facts, **({"problems": problems} if problems else {})})
    except (OSError, ValueError):
        log.warning("%s could not be written", path, exc_info=True)


@contextmanager
def patched_argv(command: Sequence[str]) -> Iterator[ProgramStart]:
    """Set `sys.argv` and `sys.executable` to those of the program to start, while its facts are collected."""
    before = sys.argv, sys.orig_argv, sys.executable
    sys.argv = _python_argv(command[1:]) if is_python_executable(command[0]) else list(command)
    sys.orig_argv, sys.executable = (
        list(command),
        command[0] if is_python_executable(command[0]) else sys.executable,
    )
    try:
        yield ProgramStart(working_directory(), _find_script(sys.argv))
    finally:
        sys.argv, sys.orig_argv, sys.executable = before


def is_python_executable(program: str) -> bool:
    return os.path.basename(program).startswith("python")


def _find_script(arguments: Sequence[str]) -> str | None:
    """The script that the program starts with, whose folder locates its project."""
    scripts = (word for word in arguments if word.endswith(".py") and os.path.isfile(word))
    script = next(scripts, None) or next((word for word in arguments[:1] if _is_script(word)), None)
    return None if script is None else os.path.realpath(script)


def _is_script(program: str) -> bool:
    """Is it a file with a shebang line, outside of the environment's installed programs?"""
    try:
        with open(program, "rb") as file:
            return file.read(2) == b"#!" and not is_installed_file(os.path.realpath(program))
    except OSError:
        return False


def _python_argv(arguments: Sequence[str]) -> list[str]:
    """`sys.argv` of a Python with these arguments: from the script, `-m` or `-c` on, with the name of a
    module in place of its file."""
    arguments, position = list(arguments), 0
    while position < len(arguments) and arguments[position].startswith("-") and arguments[position] != "-":
        option, attached = arguments[position][:2], arguments[position][2:]
        if option == "-m":
            return [option, *filter(None, [attached]), *arguments[position + 1 :]]
        if option == "-c":
            return [option, *arguments[position + (1 if attached else 2) :]]
        position += 2 if arguments[position] in ("-W", "-X") else 1
    return arguments[position:]


def _is_in_repository(run: Path) -> bool:
    try:
        git_info = json.loads((run / "git_info.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(git_info.get("project_git_info"))
