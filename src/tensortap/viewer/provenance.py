"""How a run was made, as cards of facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MAX_FACTS = 400
_MAX_LENGTH = 2000
Fact = tuple[str, str]


def provenance_cards(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A card for each topic that the metadata tells of."""
    facts_of_topic = {
        "Command": _command_facts(metadata),
        "Code": _code_facts(metadata),
        "Model": _model_facts(metadata),
        "Packages": flatten(nested_dict(metadata, "packages", "all_packages")),
        "Machine": _machine_facts(metadata),
        "Randomness": flatten(nested_dict(metadata, "environment", "randomness")),
        "Environment": flatten(nested_dict(metadata, "runtime_info", "environment_variables")),
    }
    shown = {
        title: [(key, _truncate(value)) for key, value in facts if value][:_MAX_FACTS]
        for title, facts in facts_of_topic.items()
    }
    return [{"title": title, "facts": facts} for title, facts in shown.items() if facts]


def nested_dict(facts: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The dict below these keys; an empty one where there is none."""
    value: Any = facts
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}


def flatten(nested: Mapping[str, Any], above: str = "") -> Iterator[Fact]:
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", "" if value is None else str(value)


def _command_facts(metadata: Mapping[str, Any]) -> Iterator[Fact]:
    info = nested_dict(metadata, "runtime_info")
    command = nested_dict(info, "command")
    yield "command", str(command.get("full_command", ""))
    yield "executable", str(command.get("executable", ""))
    yield "folder", str(info.get("working_directory", ""))
    yield "time", str(info.get("timestamp", ""))


def _code_facts(metadata: Mapping[str, Any]) -> Iterator[Fact]:
    git = nested_dict(metadata, "git_info")
    project = nested_dict(git, "project_git_info")
    yield from flatten({key: value for key, value in project.items() if key not in ("git_log", "git_diff")})
    for commit in project.get("git_log") or ():
        if isinstance(commit, Mapping):
            parts = (commit.get("date"), commit.get("author"), commit.get("message"))
            yield (
                f"commit {str(commit.get('commit', ''))[:12]}",
                " · ".join(str(part) for part in parts if part),
            )
    for name, facts in nested_dict(git, "packages_git_info").items():
        if isinstance(facts, Mapping):
            parts = (str(facts.get("commit_id", ""))[:12], facts.get("branch"), facts.get("status"))
            yield name, " ".join(str(part) for part in parts if part)
    for name, replacement in nested_dict(git, "runtime_modifications").items():
        yield f"patched {name}", _describe_replacement(replacement)


def _describe_replacement(replacement: Any) -> str:
    """What a function was replaced by, and where that comes from."""
    if not isinstance(replacement, Mapping):
        return str(replacement)
    where = f" ({replacement['defined_in']})" if replacement.get("defined_in") else ""
    return f"by {replacement.get('replacement', 'something else')}{where}"


def _model_facts(metadata: Mapping[str, Any]) -> Iterator[Fact]:
    model = nested_dict(metadata, "model")
    yield "class", str(model.get("class", ""))
    yield "modules", str(len(nested_dict(model, "modules")) or "")
    yield "weights", str(len(nested_dict(model, "weights")) or "")
    yield from flatten(nested_dict(model, "config"))


def _machine_facts(metadata: Mapping[str, Any]) -> Iterator[Fact]:
    environment = nested_dict(metadata, "environment")
    yield from flatten(nested_dict(environment, "hardware"))
    yield from flatten(nested_dict(environment, "system"))
    yield "python", str(nested_dict(environment, "interpreter").get("version", ""))


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..."
