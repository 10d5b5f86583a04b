"""The facts of a program that `tensortap run` started, told by one process of it for all."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensortap.core.launch_spec import LaunchSpec
from tensortap.core.ranks import rank_info
from tensortap.core.settings import is_strict
from tensortap.metadata.collect import OWN_FOLDER, Metadata
from tensortap.metadata.packages import (
    ask,
    installed,
    normalised,
    packages_info,
    packages_of,
    versions_digest,
)
from tensortap.metadata.process import Start, is_of_environment, program_start, working_directory

log = logging.getLogger("tensortap.run")
FACTS_MARKER = "described"
PACKAGES_FILE = "packages.json"


def write_program_facts(spec: LaunchSpec) -> None:
    """All of them, by the first process of rank 0 that has a model: it has imported what it needs."""
    if rank_info().rank != 0 or not spec.write_marker(FACTS_MARKER):
        return
    try:
        _metadata(spec).write()
    except OSError:
        if is_strict():
            raise
        log.warning("the metadata of %s could not be written", spec.run, exc_info=True)


def write_program_facts_at_exit(spec: LaunchSpec) -> None:
    """A program without a model: what it has imported. Code and commit are those of its start, where a
    repository has them; else the sources are known now."""
    if not spec.write_marker(FACTS_MARKER):
        return
    run = Path(spec.run)
    if _is_in_repository(run):
        packages = json.dumps(packages_info(installed()), indent=2, ensure_ascii=False)
        spec.write_marker(PACKAGES_FILE, packages + "\n")
    elif run.is_dir():
        _metadata(spec).write()


def _metadata(spec: LaunchSpec) -> Metadata:
    start = program_start(here=spec.here, folder=spec.folder)
    return Metadata(Path(spec.run), start=start)


def write_interpreter_facts(run: Path, python: str, *, knows_imported: bool) -> None:
    """The program had a Python of its own, and its packages are not those of this process: they are asked
    for, and if it does not answer they are unknown."""
    answer = ask(python)
    facts = _interpreter_facts(answer) if answer is not None else _unknown_interpreter_facts(python)
    if not knows_imported:
        _write_facts(run / PACKAGES_FILE, packages_of(answer) if answer is not None else {})
    _write_facts(run / OWN_FOLDER / "environment.json", facts, keep=True)


def _interpreter_facts(answer: Mapping[str, Any]) -> dict[str, Any]:
    versions = [(normalised(package["name"]), package["version"]) for package in answer["packages"]]
    return {
        "interpreter": answer["interpreter"],
        "packages": answer["packages"],
        "package_set": versions_digest(versions),
    }


def _unknown_interpreter_facts(python: str) -> dict[str, Any]:
    problem = {"fact": "packages", "reason": f"{python} did not tell what it has"}
    return {"interpreter": None, "packages": None, "package_set": None, "problems": [problem]}


def _write_facts(path: Path, facts: Mapping[str, Any], *, keep: bool = False) -> None:
    """Replace a file of facts; with `keep` what it says besides stays, and problems are added to its own."""
    try:
        before = json.loads(path.read_bytes()) if keep else {}
        problems = [*(before.get("problems") or ()), *(facts.get("problems") or ())]
        merged = {**before, **facts, **({"problems": problems} if problems else {})}
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        draft.write_text(json.dumps(merged, indent=2) + "\n", encoding="utf-8")
        draft.replace(path)
    except (OSError, ValueError):
        log.warning("%s could not be written", path, exc_info=True)


@contextmanager
def patched_argv(command: Sequence[str]) -> Iterator[Start]:
    """For a moment this process passes for the program that it will start, so that facts are collected."""
    before = sys.argv, sys.orig_argv, sys.executable
    sys.argv = _python_argv(command[1:]) if is_python_executable(command[0]) else list(command)
    sys.orig_argv, sys.executable = (
        list(command),
        command[0] if is_python_executable(command[0]) else sys.executable,
    )
    try:
        yield Start(working_directory(), _find_script(sys.argv))
    finally:
        sys.argv, sys.orig_argv, sys.executable = before


def is_python_executable(program: str) -> bool:
    return os.path.basename(program).startswith("python")


def _find_script(arguments: Sequence[str]) -> str | None:
    """The file that the program begins with, by whose folder its project is found; ours is not its."""
    scripts = (word for word in arguments if word.endswith(".py") and os.path.isfile(word))
    script = next(scripts, None) or next((word for word in arguments[:1] if _is_script(word)), None)
    return None if script is None else os.path.realpath(script)


def _is_script(program: str) -> bool:
    """One that was not installed, and that an interpreter reads."""
    try:
        with open(program, "rb") as file:
            return file.read(2) == b"#!" and not is_of_environment(os.path.realpath(program))
    except OSError:
        return False


def _python_argv(words: Sequence[str]) -> list[str]:
    """What a Python shows as its arguments: everything from the script on, or from `-m` and `-c`. In place
    of the file that a module will be found in stands its name."""
    words, position = list(words), 0
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        option, attached = words[position][:2], words[position][2:]
        if option == "-m":
            return [option, *filter(None, [attached]), *words[position + 1 :]]
        if option == "-c":
            return [option, *words[position + (1 if attached else 2) :]]
        position += 2 if words[position] in ("-W", "-X") else 1
    return words[position:]


def _is_in_repository(run: Path) -> bool:
    try:
        git_info = json.loads((run / "git_info.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(git_info.get("project_git_info"))
