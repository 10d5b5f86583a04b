"""Compare how two runs were made: code, packages, environment, configuration, hardware, random state."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tensortap.comparison.sides import run_facts
from tensortap.comparison.sides.run_facts import Facts
from tensortap.readers.run import Run

TopicState = Literal["same", "different", "not recorded", "cannot be read"]
_ABSENT = "-"
_HIDDEN = ("<redacted:", "<not recorded")
# Shell and terminal variables: they differ between any two shells, and mean nothing.
_IGNORED_VARIABLES = {
    *("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLORTERM", "COLUMNS", "LINES", "LS_COLORS", "PS1", "WINDOWID"),
    *("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "XDG_SESSION_ID", "TMUX", "TMUX_PANE"),
    *("STY", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER"),
}
Where = Literal["only in A", "only in B", "in both, not the same"]
_FILE = re.compile(rb"^diff --git ", re.MULTILINE)
_NAME = re.compile(rb'^(?:\+\+\+|---) "?[ab]/(.*?)"?\t?$', re.MULTILINE)
_HEADER = re.compile(rb'"?a/.*? "?b/(.*?)"?$', re.MULTILINE)
_CONTEXT_LINES = 2
_MAX_FILE_LINES, _MAX_LINES = 3000, 15_000  # longer files are not diffed: difflib is quadratic


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact that differs, with its value on each side."""

    key: str
    a: Any
    b: Any

    def __str__(self) -> str:
        if _is_hidden(self.a) and _is_hidden(self.b):
            return f"{self.key}: changed (the values are not recorded)"
        return f"{self.key}: {_format_value(self.a)} -> {_format_value(self.b)}"


@dataclass(frozen=True, slots=True)
class Topic:
    """The facts on one topic: `count` were compared, and `is_partial` if others cannot be read; `changes`
    are of uncommitted code."""

    name: str
    state: TopicState
    count: int = 0
    facts: tuple[Fact, ...] = ()
    changes: tuple[Change, ...] = ()
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Provenance:
    """Every topic, and the errors of files that cannot be read."""

    topics: tuple[Topic, ...]
    problems: tuple[str, ...] = ()


def compare_provenance(a: Run, b: Run) -> Provenance:
    """Compare topic by topic; what either side did not record, or cannot be read, is not compared."""
    a_metadata, a_errors, a_files = run_facts.read_metadata(a)
    b_metadata, b_errors, b_files = run_facts.read_metadata(b)
    lost = {*a_errors, *b_errors}
    a_metadata, b_metadata = (
        {name: type(value)() if name in lost else value for name, value in side.items()}
        for side in (a_metadata, b_metadata)
    )
    topics = {
        name: _compare_topic(name, facts(a_metadata), facts(b_metadata)) for name, facts in _TOPICS.items()
    }
    # A side with a repository has no file list.
    file_changes = diff_files(a_files, b_files) if a_files and b_files and "sources" not in lost else []
    topics["code"] = _add_changes(
        topics["code"], (*diff_patches(a_metadata["patch"], b_metadata["patch"]), *file_changes)
    )
    checked = (
        _mark_partial(topic) if lost & _METADATA_PARTS[name] else topic for name, topic in topics.items()
    )
    return Provenance(tuple(checked), (*a_errors.values(), *b_errors.values()))


def _mark_partial(topic: Topic) -> Topic:
    return replace(
        topic, is_partial=True, state="cannot be read" if topic.state == "not recorded" else topic.state
    )


def _compare_topic(name: str, a: Facts, b: Facts) -> Topic:
    if not a or not b:
        return Topic(name, "not recorded")
    keys = _changed_keys(a, b) if name == "environment" else list(run_facts.describe_differences(a, b))
    differing = tuple(Fact(key, a.get(key, _ABSENT), b.get(key, _ABSENT)) for key in keys)
    return Topic(name, "different" if differing else "same", len({*a, *b}), differing)


def _add_changes(topic: Topic, changes: tuple[Change, ...]) -> Topic:
    """Add line-level changes to the code topic, and drop the digest facts of the files they cover."""
    if topic.state == "not recorded" or not changes:
        return topic
    files = {f"{run_facts.FILE_PREFIX}{change.file}" for change in changes}
    facts = tuple(fact for fact in topic.facts if fact.key not in files)
    return replace(topic, state="different", facts=facts, changes=changes)


def _changed_keys(a: Facts, b: Facts) -> list[str]:
    return [key for key in dict.fromkeys([*a, *b]) if a.get(key, _ABSENT) != b.get(key, _ABSENT)]


def _environment_variables(metadata: Mapping[str, Any]) -> Facts:
    """Environment variables except noise, and the working directory; redacted values still compare as
    digests."""
    runtime = metadata.get("runtime_info") or {}
    variables = runtime.get("environment_variables") or {}
    kept = {name: value for name, value in variables.items() if name not in _IGNORED_VARIABLES}
    folder = runtime.get("working_directory")
    return {**kept, "working directory": folder} if folder and kept else kept


def _hardware_facts(metadata: Mapping[str, Any]) -> Facts:
    """The machine and its libraries, without environment variables, which are their own topic."""
    return run_facts.extract_facts("environment", {**metadata, "runtime_info": {}})


def _facts_reader(topic: str) -> Callable[[Mapping[str, Any]], Facts]:
    return lambda metadata: run_facts.extract_facts(topic, metadata)


def _is_hidden(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(_HIDDEN)


def _format_value(value: Any) -> str:
    return "(not recorded)" if _is_hidden(value) else " ".join(str(value).split())


_TOPICS: dict[str, Callable[[Mapping[str, Any]], Facts]] = {
    "code": _facts_reader("code"),
    "packages": _facts_reader("packages"),
    "environment": _environment_variables,
    "configuration": _facts_reader("configuration"),
    "hardware": _hardware_facts,
    "randomness": _facts_reader("randomness"),
}
# Which parts of the metadata each topic is read from.
_METADATA_PARTS = {
    "code": {"git_info", "patch", "sources", "environment"},
    "packages": {"packages"},
    "environment": {"runtime_info"},
    "configuration": {"runtime_info", "environment", "model"},
    "hardware": {"environment"},
    "randomness": {"environment"},
}


@dataclass(frozen=True, slots=True)
class Change:
    """A file that differs between the two; `hunks` are the differing lines."""

    file: str
    where: Where
    added: int
    removed: int
    hunks: tuple[str, ...]


def diff_patches(a: bytes, b: bytes) -> list[Change]:
    """Files that only one patch changes, or both change differently."""
    a_files, b_files = _split_by_file(a), _split_by_file(b)
    names = [name for name in dict.fromkeys([*a_files, *b_files]) if a_files.get(name) != b_files.get(name)]
    return [_diff_patched_file(name, a_files.get(name), b_files.get(name)) for name in names]


def diff_files(a: Mapping[str, bytes], b: Mapping[str, bytes]) -> list[Change]:
    """Files that only one program has, or that differ; beyond a total number of lines, without hunks."""
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    remaining_lines = _MAX_LINES
    changes = []
    for name in names:
        sides = _split_lines(a.get(name)), _split_lines(b.get(name))
        remaining_lines -= max(map(len, sides))
        changes.append(_diff_file(name, a.get(name), b.get(name), remaining_lines))
    return changes


def _diff_file(name: str, a: bytes | None, b: bytes | None, remaining_lines: int) -> Change:
    where: Where = "only in A" if b is None else "only in B" if a is None else "in both, not the same"
    if any(b"\0" in side for side in (a, b) if side is not None):
        return Change(name, where, 0, 0, ("binary",))
    a_lines, b_lines = _split_lines(a), _split_lines(b)
    if a is not None and b is not None and _without_line_ends(a_lines) == _without_line_ends(b_lines):
        return Change(name, where, 0, 0, ("only the ends of lines differ",))
    if remaining_lines < 0 or max(len(a_lines), len(b_lines)) > _MAX_FILE_LINES:
        return Change(name, where, 0, 0, (f"{len(a_lines):,} lines and {len(b_lines):,}",))
    lines = list(difflib.unified_diff(a_lines, b_lines, n=_CONTEXT_LINES, lineterm=""))[2:]
    return Change(name, where, *_count_changed_lines(lines), tuple(lines))


def _split_lines(content: bytes | None) -> list[str]:
    """Split into lines, without an empty one after the final newline."""
    text = (content or b"").decode(errors="backslashreplace")
    return text.removesuffix("\n").split("\n") if text else []


def _without_line_ends(lines: list[str]) -> list[str]:
    return [line.rstrip("\r") for line in lines]


def _split_by_file(patch: bytes) -> dict[str, bytes]:
    parts = _FILE.split(patch)[1:]
    return {_patched_file(part): part for part in parts}


def _patched_file(part: bytes) -> str:
    names = _NAME.findall(part) or _HEADER.findall(part.partition(b"\n")[0])
    return names[-1].decode(errors="backslashreplace") if names else "?"


def _diff_patched_file(name: str, a: bytes | None, b: bytes | None) -> Change:
    a_lines, b_lines = _hunk_lines(a), _hunk_lines(b)
    if b is None or a is None:
        where: Where = "only in A" if b is None else "only in B"
        return Change(name, where, *_count_changed_lines(a_lines or b_lines), tuple(a_lines or b_lines))
    if max(len(a_lines), len(b_lines)) > _MAX_FILE_LINES:
        return Change(
            name,
            "in both, not the same",
            *_count_changed_lines(b_lines),
            ("too many lines to set side by side",),
        )
    between = difflib.unified_diff(a_lines, b_lines, "A", "B", n=_CONTEXT_LINES, lineterm="")
    return Change(name, "in both, not the same", *_count_changed_lines(b_lines), tuple(between))


def _hunk_lines(part: bytes | None) -> list[str]:
    """The hunks without their header; a binary change as one line."""
    if part is None:
        return []
    lines = part.decode(errors="backslashreplace").splitlines()
    if any(line.startswith("GIT binary patch") for line in lines):
        digest = hashlib.blake2b(part, digest_size=6).hexdigest()
        return [f"binary, {len(part):,} bytes of patch, {digest}"]
    start = next((at for at, line in enumerate(lines) if line.startswith("@@")), len(lines))
    return lines[start:] or lines[1:]


def _count_changed_lines(lines: list[str]) -> tuple[int, int]:
    """Numbers of added and removed lines."""
    added = sum(line.startswith("+") for line in lines)
    return added, sum(line.startswith("-") for line in lines)
