"""How two runs were made, topic by topic, from their code to the state of their random generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tensortap.comparison import circumstances
from tensortap.comparison.circumstances import Facts
from tensortap.comparison.patches import Change, changes, file_changes
from tensortap.readers.run import Run

State = Literal["same", "different", "not recorded", "cannot be read"]
_ABSENT = "-"
_HIDDEN = ("<redacted:", "<not recorded")
# Of the shell and the terminal: they differ between any two moments, and nothing follows from them.
_NOISE = {
    *("_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLORTERM", "COLUMNS", "LINES", "LS_COLORS", "PS1", "WINDOWID"),
    *("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "XDG_SESSION_ID", "TMUX", "TMUX_PANE"),
    *("STY", "PYTEST_CURRENT_TEST", "PYTEST_XDIST_WORKER"),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that differs, as it is on each side."""

    key: str
    a: Any
    b: Any

    def __str__(self) -> str:
        if _is_hidden(self.a) and _is_hidden(self.b):
            return f"{self.key}: changed (the values are not recorded)"
        return f"{self.key}: {_shown(self.a)} -> {_shown(self.b)}"


@dataclass(frozen=True, slots=True)
class Topic:
    """`count` facts were set side by side, and where it `is_partial` others cannot be read; `changes` are of
    code that no commit has."""

    name: str
    state: State
    count: int = 0
    facts: tuple[Fact, ...] = ()
    changes: tuple[Change, ...] = ()
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Provenance:
    """Every topic, and what is wrong with files that cannot be read."""

    topics: tuple[Topic, ...]
    problems: tuple[str, ...] = ()


def provenance(a: Run, b: Run) -> Provenance:
    """Where a side recorded nothing, nothing is claimed; what a side has lost is taken from both."""
    one, wrong, files = circumstances.read_metadata(a)
    other, wrong_too, other_files = circumstances.read_metadata(b)
    lost = {*wrong, *wrong_too}
    one, other = (
        {name: type(told)() if name in lost else told for name, told in side.items()} for side in (one, other)
    )
    topics = {name: _topic(name, facts(one), facts(other)) for name, facts in _TOPICS.items()}
    # Where one side has a repository instead, its files are not known.
    beside = file_changes(files, other_files) if files and other_files and "sources" not in lost else []
    topics["code"] = _with(topics["code"], (*changes(one["patch"], other["patch"]), *beside))
    found = (_partly(topic) if lost & _PARTS[name] else topic for name, topic in topics.items())
    return Provenance(tuple(found), (*wrong.values(), *wrong_too.values()))


def _partly(topic: Topic) -> Topic:
    return replace(
        topic, is_partial=True, state="cannot be read" if topic.state == "not recorded" else topic.state
    )


def _topic(name: str, a: Facts, b: Facts) -> Topic:
    if not a or not b:
        return Topic(name, "not recorded")
    keys = _variables_apart(a, b) if name == "environment" else list(circumstances.describe_differences(a, b))
    found = tuple(Fact(key, a.get(key, _ABSENT), b.get(key, _ABSENT)) for key in keys)
    return Topic(name, "different" if found else "same", len({*a, *b}), found)


def _with(topic: Topic, found: tuple[Change, ...]) -> Topic:
    """The topic of the code, with the lines that differ; a file they are of needs no digest."""
    if topic.state == "not recorded" or not found:
        return topic
    files = {f"{circumstances.FILE_PREFIX}{change.file}" for change in found}
    facts = tuple(fact for fact in topic.facts if fact.key not in files)
    return replace(topic, state="different", facts=facts, changes=found)


def _variables_apart(a: Facts, b: Facts) -> list[str]:
    return [key for key in dict.fromkeys([*a, *b]) if a.get(key, _ABSENT) != b.get(key, _ABSENT)]


def _variables(metadata: Mapping[str, Any]) -> Facts:
    """Of the environment all but noise, and the folder; what is kept as a digest still says changed."""
    runtime = metadata.get("runtime_info") or {}
    found = runtime.get("environment_variables") or {}
    told = {name: value for name, value in found.items() if name not in _NOISE}
    folder = runtime.get("working_directory")
    return {**told, "working directory": folder} if folder and told else told


def _hardware(metadata: Mapping[str, Any]) -> Facts:
    """The machine and its libraries; the variables are a topic of their own."""
    return circumstances.extract_facts("environment", {**metadata, "runtime_info": {}})


def _facts(what: str) -> Callable[[Mapping[str, Any]], Facts]:
    return lambda metadata: circumstances.extract_facts(what, metadata)


def _is_hidden(told: Any) -> bool:
    return isinstance(told, str) and told.startswith(_HIDDEN)


def _shown(told: Any) -> str:
    return "(not recorded)" if _is_hidden(told) else " ".join(str(told).split())


_TOPICS: dict[str, Callable[[Mapping[str, Any]], Facts]] = {
    "code": _facts("code"),
    "packages": _facts("packages"),
    "environment": _variables,
    "configuration": _facts("configuration"),
    "hardware": _hardware,
    "randomness": _facts("randomness"),
}
# Which parts of the metadata each is read from.
_PARTS = {
    "code": {"git_info", "patch", "sources", "environment"},
    "packages": {"packages"},
    "environment": {"runtime_info"},
    "configuration": {"runtime_info", "environment", "model"},
    "hardware": {"environment"},
    "randomness": {"environment"},
}
