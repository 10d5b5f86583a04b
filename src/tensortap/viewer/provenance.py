"""How a run was made, as cards of facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_MOST = 400
_LONGEST = 2000
Fact = tuple[str, str]


def provenance_cards(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A card for each topic that the metadata tells of."""
    found = {
        "Command": _command(metadata),
        "Code": _code(metadata),
        "Model": _model(metadata),
        "Packages": flatten(nested_dict(metadata, "packages", "all_packages")),
        "Machine": _machine(metadata),
        "Randomness": flatten(nested_dict(metadata, "environment", "randomness")),
        "Environment": flatten(nested_dict(metadata, "runtime_info", "environment_variables")),
    }
    shown = {
        title: [(key, _cut(told)) for key, told in facts if told][:_MOST] for title, facts in found.items()
    }
    return [{"title": title, "facts": facts} for title, facts in shown.items() if facts]


def nested_dict(facts: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The dict below these keys; an empty one where there is none."""
    found: Any = facts
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def flatten(nested: Mapping[str, Any], above: str = "") -> Iterator[Fact]:
    for key, told in nested.items():
        if isinstance(told, Mapping):
            yield from flatten(told, f"{above}{key}.")
        else:
            yield f"{above}{key}", "" if told is None else str(told)


def _command(metadata: Mapping[str, Any]) -> Iterator[Fact]:
    info = nested_dict(metadata, "runtime_info")
    command = nested_dict(info, "command")
    yield "command", str(command.get("full_command", ""))
    yield "executable", str(command.get("executable", ""))
    yield "folder", str(info.get("working_directory", ""))
    yield "time", str(info.get("timestamp", ""))


def _code(metadata: Mapping[str, Any]) -> Iterator[Fact]:
    git = nested_dict(metadata, "git_info")
    project = nested_dict(git, "project_git_info")
    yield from flatten({key: told for key, told in project.items() if key not in ("git_log", "git_diff")})
    for commit in project.get("git_log") or ():
        if isinstance(commit, Mapping):
            words = (commit.get("date"), commit.get("author"), commit.get("message"))
            yield (
                f"commit {str(commit.get('commit', ''))[:12]}",
                " · ".join(str(word) for word in words if word),
            )
    for name, told in nested_dict(git, "packages_git_info").items():
        if isinstance(told, Mapping):
            words = (str(told.get("commit_id", ""))[:12], told.get("branch"), told.get("status"))
            yield name, " ".join(str(word) for word in words if word)
    for name, told in nested_dict(git, "runtime_modifications").items():
        yield f"patched {name}", _replaced(told)


def _replaced(told: Any) -> str:
    """What a function was replaced by, and where that comes from."""
    if not isinstance(told, Mapping):
        return str(told)
    where = f" ({told['defined_in']})" if told.get("defined_in") else ""
    return f"by {told.get('replacement', 'something else')}{where}"


def _model(metadata: Mapping[str, Any]) -> Iterator[Fact]:
    model = nested_dict(metadata, "model")
    yield "class", str(model.get("class", ""))
    yield "modules", str(len(nested_dict(model, "modules")) or "")
    yield "weights", str(len(nested_dict(model, "weights")) or "")
    yield from flatten(nested_dict(model, "config"))


def _machine(metadata: Mapping[str, Any]) -> Iterator[Fact]:
    environment = nested_dict(metadata, "environment")
    yield from flatten(nested_dict(environment, "hardware"))
    yield from flatten(nested_dict(environment, "system"))
    yield "python", str(nested_dict(environment, "interpreter").get("version", ""))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
