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

from tensortap.core.errand import Errand
from tensortap.core.ranks import ranks
from tensortap.core.settings import is_strict
from tensortap.metadata.another import ask, packages_of
from tensortap.metadata.collect import OWN_FOLDER, Metadata
from tensortap.metadata.packages import installed, normalised, packages_info, versions_digest
from tensortap.metadata.runtime import working_directory
from tensortap.metadata.start import Start, is_of_environment, program_start

log = logging.getLogger("tensortap.run")
DESCRIBED = "described"
PACKAGES = "packages.json"


def describe(asked: Errand) -> None:
    """All of them, by the first process of rank 0 that has a model: it has imported what it needs."""
    if ranks().rank != 0 or not asked.leave_word(DESCRIBED):
        return
    try:
        _metadata(asked).write()
    except OSError:
        if is_strict():
            raise
        log.warning("the metadata of %s could not be written", asked.run, exc_info=True)


def describe_at_end(asked: Errand) -> None:
    """A program without a model: what it has imported. Code and commit are those of its start, where a
    repository has them; else the sources are known now."""
    if not asked.leave_word(DESCRIBED):
        return
    run = Path(asked.run)
    if _is_in_repository(run):
        found = json.dumps(packages_info(installed()), indent=2, ensure_ascii=False)
        asked.leave_word(PACKAGES, found + "\n")
    elif run.is_dir():
        _metadata(asked).write()


def _metadata(asked: Errand) -> Metadata:
    start = program_start(here=asked.here, folder=asked.folder)
    return Metadata(Path(asked.run), start=start)


def describe_interpreter(run: Path, python: str, *, knows_imported: bool) -> None:
    """The program had a Python of its own, and its packages are not those of this process: they are asked
    for, and if it does not answer they are unknown."""
    told = ask(python)
    facts = _facts_of(told) if told is not None else _unknown(python)
    if not knows_imported:
        _put(run / PACKAGES, packages_of(told) if told is not None else {})
    _put(run / OWN_FOLDER / "environment.json", facts, keep=True)


def _facts_of(told: Mapping[str, Any]) -> dict[str, Any]:
    versions = [(normalised(one["name"]), one["version"]) for one in told["packages"]]
    return {
        "interpreter": told["interpreter"],
        "packages": told["packages"],
        "package_set": versions_digest(versions),
    }


def _unknown(python: str) -> dict[str, Any]:
    problem = {"fact": "packages", "reason": f"{python} did not tell what it has"}
    return {"interpreter": None, "packages": None, "package_set": None, "problems": [problem]}


def _put(path: Path, facts: Mapping[str, Any], *, keep: bool = False) -> None:
    """Replace a file of facts; with `keep` what it says besides stays, and problems are added to its own."""
    try:
        before = json.loads(path.read_bytes()) if keep else {}
        problems = [*(before.get("problems") or ()), *(facts.get("problems") or ())]
        told = {**before, **facts, **({"problems": problems} if problems else {})}
        draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        draft.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        draft.replace(path)
    except (OSError, ValueError):
        log.warning("%s could not be written", path, exc_info=True)


@contextmanager
def standing_for(command: Sequence[str]) -> Iterator[Start]:
    """For a moment this process passes for the program that it will start, so that facts are collected."""
    before = sys.argv, sys.orig_argv, sys.executable
    sys.argv = _arguments(command[1:]) if is_python(command[0]) else list(command)
    sys.orig_argv, sys.executable = list(command), command[0] if is_python(command[0]) else sys.executable
    try:
        yield Start(working_directory(), _script(sys.argv))
    finally:
        sys.argv, sys.orig_argv, sys.executable = before


def is_python(program: str) -> bool:
    return os.path.basename(program).startswith("python")


def _script(arguments: Sequence[str]) -> str | None:
    """The file that the program begins with, by whose folder its project is found; ours is not its."""
    named = (word for word in arguments if word.endswith(".py") and os.path.isfile(word))
    found = next(named, None) or next((word for word in arguments[:1] if _is_script(word)), None)
    return None if found is None else os.path.realpath(found)


def _is_script(program: str) -> bool:
    """One that was not installed, and that an interpreter reads."""
    try:
        with open(program, "rb") as file:
            return file.read(2) == b"#!" and not is_of_environment(os.path.realpath(program))
    except OSError:
        return False


def _arguments(words: Sequence[str]) -> list[str]:
    """What a Python shows as its arguments: everything from the script on, or from `-m` and `-c`. In place
    of the file that a module will be found in stands its name."""
    words, position = list(words), 0
    while position < len(words) and words[position].startswith("-") and words[position] != "-":
        option, named = words[position][:2], words[position][2:]
        if option == "-m":
            return [option, *filter(None, [named]), *words[position + 1 :]]
        if option == "-c":
            return [option, *words[position + (1 if named else 2) :]]
        position += 2 if words[position] in ("-W", "-X") else 1
    return words[position:]


def _is_in_repository(run: Path) -> bool:
    try:
        known = json.loads((run / "git_info.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(known.get("project_git_info"))
