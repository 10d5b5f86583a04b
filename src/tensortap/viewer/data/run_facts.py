"""Facts of a run: for its row in the run list, for its page, and its provenance."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.formats.index import index_files
from tensortap.formats.run_layout import INTERNAL_FOLDER, PACKS_FOLDER
from tensortap.render.text import truncate
from tensortap.viewer.data.cached_run import KNOWN, CachedRun
from tensortap.viewer.data.dataset import nested_dict
from tensortap.viewer.data.library import RunLibrary, describe_error, try_open_run
from tensortap.viewer.data.trees import has_calls
from tensortap.viewer.web.responses import DAMAGED_FILE_ERRORS

_WRITING_WITHIN = 15.0  # seconds: a run modified within is being written
_SPARKLINE_BINS = 60
_MAX_SCALARS = 200
_MAX_PATCH = 200_000
_EMPTY_FACTS: dict[str, Any] = {
    **{"command": "", "commit": "", "branch": "", "dirty": None, "started": None, "modified": None},
    **{"steps": {"first": 0, "last": 0, "count": 0}, "ranks": [], "captures": 0, "names": 0, "bytes": 0},
    **{"model": "", "health": {"nan": 0, "inf": 0, "odd": 0, "known": 0, "of": 0, "spark": []}, "tags": {}},
}
_MAX_FACTS = 400
_MAX_LENGTH = 2000
Fact = tuple[str, str]


def run_list_row(library: RunLibrary, run_id: str) -> dict[str, Any]:
    """A row of the run list; a damaged run has its error there."""
    path = library.path(run_id)
    location = {
        "id": library.short_id(run_id),
        "name": path.name,
        "folder": library.folder(path),
        "path": str(path),
    }
    try:
        return {**location, **_cached_facts(library, run_id, path)}
    except DAMAGED_FILE_ERRORS as error:  # a damaged run must not hide the others
        return {**location, **_damaged_run_facts(describe_error(error))}


def _cached_facts(library: RunLibrary, run_id: str, path: Path) -> dict[str, Any]:
    cached, modified = library.row_cache.get(run_id), _last_modified(path)
    if cached is not None and cached[0] == modified and not library.is_open(run_id):
        return cached[1]
    run = try_open_run(library, run_id)
    if isinstance(run, str):
        return _damaged_run_facts(run)
    facts = _summary_facts(run)
    library.row_cache[run_id] = modified, facts
    return facts


def _damaged_run_facts(reason: str) -> dict[str, Any]:
    return {"type": "run", "state": "damaged", "problem": reason, **_EMPTY_FACTS}


def run_page_facts(library: RunLibrary, run_id: str) -> dict[str, Any]:
    """All data of a run's page."""
    run = library.open_run(run_id)
    row, metadata = run_list_row(library, run_id), run.dataset.metadata()
    patch = metadata.get("patch") or b""
    return {
        **row,
        "sentence": health_sentence(run, row),
        "ended": row["modified"],
        "first_odd": first_nonfinite(run),
        "scalars": list_scalars(run),
        "provenance": provenance_cards(metadata),
        "patch": patch[:_MAX_PATCH].decode("utf-8", "replace"),
        "storage": _storage_sizes(run.path),
        "events": _timeline(row, run),
        "problems": [*run.dataset.problems, *filter(None, [metadata.get("problem")])],
        "reproduce": reproduce_command(run),
        "has_calls": has_calls(run),
    }


def reproduce_command(run: CachedRun) -> str | None:
    """The command line that reproduces the run; None if its command was not recorded."""
    has_command = nested_dict(run.dataset.metadata(), "runtime_info", "command")
    return f"tensortap reproduce {shlex.quote(str(run.path))}" if has_command else None


def health_sentence(run: CachedRun, row: dict[str, Any]) -> str:
    """The size of a run and its first NaN or Inf, in one sentence."""
    if not len(run):
        return "nothing has been captured yet" if row["state"] == "writing" else "nothing was captured"
    steps, ranks = row["steps"]["count"], len(row["ranks"])
    over = f" over {steps:,} step{'s' if steps != 1 else ''}" if steps else ""
    on = f" on {ranks} ranks" if ranks > 1 else ""
    summary = f"{len(run):,} captures of {row['names']:,} names{over}{on}"
    nonfinite, health = first_nonfinite(run), row["health"]
    if nonfinite is not None:
        rank = f" on rank {nonfinite['rank']}" if ranks > 1 else ""
        return (
            f"{summary}; first {nonfinite['what']} at step {nonfinite['step']:,} in {nonfinite['name']}{rank}"
        )
    if not health["known"]:
        return f"{summary}; not looked through yet"
    looked = "" if health["known"] == health["of"] else f" in the {health['known']:,} looked at so far"
    return f"{summary}; no NaN or Inf{looked}"


def first_nonfinite(run: CachedRun) -> dict[str, Any] | None:
    """The first record with a NaN or Inf in execution order, among those with known statistics."""
    rows = np.flatnonzero(run.statistics.nonfinite_mask())
    if not len(rows):
        return None
    keys = [run.column(field)[rows] for field in ("rank", "order", "step")]
    row = int(rows[np.lexsort(keys)[0]])
    what = "NaN" if run.statistics.columns["nan"][row] else "Inf"
    moment = {field: int(run.column(field)[row]) for field in ("step", "rank")}
    return {"row": row, "name": run.text("name", row), **moment, "what": what}


def list_scalars(run: CachedRun) -> list[dict[str, Any]]:
    """Names whose values are scalars."""
    codes, names = run.texts("name") or (np.zeros(0, np.int64), [])
    kinds, kind_names = run.texts("kind") or (codes, [])
    counts = np.bincount(codes[_scalar_mask(run)], minlength=len(names))
    scalars = []
    for code in np.flatnonzero(counts)[:_MAX_SCALARS].tolist():
        kind = kind_names[kinds[np.flatnonzero(codes == code)[0]]]
        scalars.append({"name": names[code], "kind": kind, "count": int(counts[code])})
    return scalars


def scalar_series(run: CachedRun, name: str, kind: str | None) -> list[dict[str, Any]]:
    """The scalar values of a name over steps, one series per rank."""
    codes, names = run.texts("name") or (np.zeros(0, np.int64), [])
    mask = _scalar_mask(run) & (codes == (names.index(name) if name in names else -1))
    if kind:
        kinds, kind_names = run.texts("kind") or (codes, [])
        mask &= kinds == (kind_names.index(kind) if kind in kind_names else -1)
    rows = np.flatnonzero(mask)
    run.compute_statistics(rows)
    steps, ranks = run.column("step")[rows], run.column("rank")[rows]
    values = run.statistics.columns["mean"][rows]
    lines = []
    for rank in np.unique(ranks).tolist():
        order = np.flatnonzero(ranks == rank)
        order = order[np.argsort(steps[order], kind="stable")]
        lines.append({"rank": rank, "steps": steps[order].tolist(), "values": values[order].tolist()})
    return lines


def _scalar_mask(run: CachedRun) -> Any:
    codes, shapes = run.texts("shape") or (np.zeros(0, np.int64), [])
    kinds, types = run.texts("dtype") or (codes, [])
    are_one = np.array([set(text.split(",")) <= {"1", ""} for text in shapes], bool)
    are_numbers = np.array(
        [text not in ("str", "dict", "list", "tuple", "NoneType", "bytes") for text in types], bool
    )
    return are_one[codes] & are_numbers[kinds] if len(codes) else np.zeros(0, bool)


def _summary_facts(run: CachedRun) -> dict[str, Any]:
    metadata = run.dataset.metadata()
    git = nested_dict(metadata, "git_info", "project_git_info")
    modified = _last_modified(run.path)
    known = int((run.statistics.known == KNOWN).sum())
    counts = {name: int((run.statistics.columns[name] > 0).sum()) for name in ("nan", "inf")}
    counts["odd"] = int(run.statistics.nonfinite_mask().sum())  # a record may have both
    steps, ranks = np.unique(run.column("step")), np.unique(run.column("rank"))
    _, names = run.texts("name") or (None, [])
    return {
        "type": run.dataset.type,
        "state": _run_state(run, modified),
        "problem": run.dataset.problems[0] if run.dataset.problems else None,
        "command": nested_dict(metadata, "runtime_info", "command").get("full_command", ""),
        "commit": str(git.get("commit_id", ""))[:12],
        "branch": git.get("branch", ""),
        "dirty": git["status"] == "dirty" if "status" in git else None,
        "started": _start_time(run, metadata),
        "modified": modified,
        "steps": {"first": int(steps[0]), "last": int(steps[-1]), "count": len(steps)}
        if len(steps)
        else _EMPTY_FACTS["steps"],
        "ranks": ranks.tolist(),
        "captures": len(run),
        "names": len(names),
        "bytes": int(run.column("nbytes").sum()),
        "model": nested_dict(metadata, "model").get("class", ""),
        "health": {**counts, "known": known, "of": len(run), "spark": _nonfinite_sparkline(run)},
        "tags": nested_dict(metadata, "environment", "tags"),
    }


def _nonfinite_sparkline(run: CachedRun) -> list[int]:
    """Records with NaN or Inf per bin of steps; empty if there are none."""
    nonfinite = np.flatnonzero(run.statistics.nonfinite_mask())
    steps = run.column("step")
    if not len(nonfinite) or not len(steps):
        return []
    low, high = int(steps.min()), int(steps.max())
    bins = min(_SPARKLINE_BINS, high - low + 1)
    counts = np.histogram(steps[nonfinite], bins, (low, high + 1))[0]
    return [int(count) for count in counts]


def _run_state(run: CachedRun, modified: float) -> str:
    if run.dataset.type == "trace":
        return "writing" if time.time() - modified < _WRITING_WITHIN else "finished"
    packs = sorted((run.path / INTERNAL_FOLDER / PACKS_FOLDER).glob("*.npz"))
    if all(_is_closed_zip(pack) for pack in packs):
        return "finished"
    return "writing" if time.time() - modified < _WRITING_WITHIN else "cut off"


def _is_closed_zip(pack: Path) -> bool:
    """Whether it ends with the end-of-central-directory record."""
    with open(pack, "rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 22))
        return stream.read(4) == b"PK\5\6"


def _last_modified(path: Path) -> float:
    files = (
        [path]
        if path.is_file()
        else [*index_files(path / INTERNAL_FOLDER), *(path / INTERNAL_FOLDER / PACKS_FOLDER).glob("*")]
    )
    return max((file.stat().st_mtime for file in files), default=path.stat().st_mtime)


def _start_time(run: CachedRun, metadata: dict[str, Any]) -> float | None:
    timestamp = nested_dict(metadata, "runtime_info").get("timestamp")
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except ValueError:
        times = run.column("time")
        return float(times.min()) if len(times) and times.min() > 0 else None


def _storage_sizes(path: Path) -> list[tuple[str, int]]:
    if path.is_file():
        return [("file", path.stat().st_size)]
    own = path / INTERNAL_FOLDER
    groups = {"packs": (own / PACKS_FOLDER).glob("*"), "index": own.glob("index-*"), "files": path.glob("*")}
    sizes = {
        name: sum(file.stat().st_size for file in files if file.is_file()) for name, files in groups.items()
    }
    return [(name, size) for name, size in sizes.items() if size]


def _timeline(row: dict[str, Any], run: CachedRun) -> list[dict[str, Any]]:
    events = [{"time": row["started"], "what": "started", "text": row["command"] or "the run began"}]
    events += [
        {"time": row["modified"], "what": "problem", "text": problem} for problem in run.dataset.problems
    ]
    nonfinite = first_nonfinite(run)
    if nonfinite is not None:
        when = float(run.column("time")[nonfinite["row"]])
        events.append(
            {
                "time": when,
                "what": "alert",
                "text": f"first {nonfinite['what']}: {nonfinite['name']}, step {nonfinite['step']}",
            }
        )
    ended = {"finished": "the last value was written", "writing": "it is being written"}
    text = ended.get(row["state"], "it was cut off: a pack has no end")
    return [*events, {"time": row["modified"], "what": row["state"], "text": text}]


def provenance_cards(metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One card per topic in the metadata."""
    facts_of_topic = {
        "Command": _command_facts(metadata),
        "Code": _code_facts(metadata),
        "Model": _model_facts(metadata),
        "Packages": flatten(nested_dict(metadata, "packages", "all_packages")),
        "Machine": _machine_facts(metadata),
        "Randomness": flatten(nested_dict(metadata, "environment", "randomness")),
        "Environment": flatten(nested_dict(metadata, "runtime_info", "environment_variables")),
    }
    facts_shown = {
        title: [(key, truncate(value, _MAX_LENGTH, "...")) for key, value in facts if value][:_MAX_FACTS]
        for title, facts in facts_of_topic.items()
    }
    return [{"title": title, "facts": facts} for title, facts in facts_shown.items() if facts]


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
    """The replacement of a monkeypatched function, and where it is defined."""
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
