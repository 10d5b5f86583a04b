"""How two runs were made, topic by topic, from their code to the state of their random generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tensortap.comparison import circumstances
from tensortap.comparison.circumstances import Facts
from tensortap.comparison.patches import Change, diff_files, diff_patches
from tensortap.readers.run import Run

TopicState = Literal["same", "different", "not recorded", "cannot be read"]
_ABSENT = "-"
_HIDDEN = ("<redacted:", "<not recorded")
# Of the shell and the terminal: they differ between any two moments, and nothing follows from them.
_IGNORED_VARIABLES = {
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
        return f"{self.key}: {_format_value(self.a)} -> {_format_value(self.b)}"


@dataclass(frozen=True, slots=True)
class Topic:
    """`count` facts were set side by side, and where it `is_partial` others cannot be read; `changes` are of
    code that no commit has."""

    name: str
    state: TopicState
    count: int = 0
    facts: tuple[Fact, ...] = ()
    changes: tuple[Change, ...] = ()
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Provenance:
    """Every topic, and what is wrong with files that cannot be read."""

    topics: tuple[Topic, ...]
    problems: tuple[str, ...] = ()


def compare_provenance(a: Run, b: Run) -> Provenance:
    """Where a side recorded nothing, nothing is claimed; what a side has lost is taken from both."""
    a_metadata, a_errors, a_files = circumstances.read_metadata(a)
    b_metadata, b_errors, b_files = circumstances.read_metadata(b)
    lost = {*a_errors, *b_errors}
    a_metadata, b_metadata = (
        {name: type(value)() if name in lost else value for name, value in side.items()}
        for side in (a_metadata, b_metadata)
    )
    topics = {
        name: _compare_topic(name, facts(a_metadata), facts(b_metadata)) for name, facts in _TOPICS.items()
    }
    # Where one side has a repository instead, its files are not known.
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
    keys = _changed_keys(a, b) if name == "environment" else list(circumstances.describe_differences(a, b))
    differing = tuple(Fact(key, a.get(key, _ABSENT), b.get(key, _ABSENT)) for key in keys)
    return Topic(name, "different" if differing else "same", len({*a, *b}), differing)


def _add_changes(topic: Topic, changes: tuple[Change, ...]) -> Topic:
    """The topic of the code, with the lines that differ; a file they are of needs no digest."""
    if topic.state == "not recorded" or not changes:
        return topic
    files = {f"{circumstances.FILE_PREFIX}{change.file}" for change in changes}
    facts = tuple(fact for fact in topic.facts if fact.key not in files)
    return replace(topic, state="different", facts=facts, changes=changes)


def _changed_keys(a: Facts, b: Facts) -> list[str]:
    return [key for key in dict.fromkeys([*a, *b]) if a.get(key, _ABSENT) != b.get(key, _ABSENT)]


def _environment_variables(metadata: Mapping[str, Any]) -> Facts:
    """Of the environment all but noise, and the folder; what is kept as a digest still says changed."""
    runtime = metadata.get("runtime_info") or {}
    variables = runtime.get("environment_variables") or {}
    kept = {name: value for name, value in variables.items() if name not in _IGNORED_VARIABLES}
    folder = runtime.get("working_directory")
    return {**kept, "working directory": folder} if folder and kept else kept


def _hardware_facts(metadata: Mapping[str, Any]) -> Facts:
    """The machine and its libraries; the variables are a topic of their own."""
    return circumstances.extract_facts("environment", {**metadata, "runtime_info": {}})


def _facts_reader(topic: str) -> Callable[[Mapping[str, Any]], Facts]:
    return lambda metadata: circumstances.extract_facts(topic, metadata)


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
# Which parts of the metadata each is read from.
_METADATA_PARTS = {
    "code": {"git_info", "patch", "sources", "environment"},
    "packages": {"packages"},
    "environment": {"runtime_info"},
    "configuration": {"runtime_info", "environment", "model"},
    "hardware": {"environment"},
    "randomness": {"environment"},
}
