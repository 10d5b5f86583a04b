"""Facts of a run: for its row in the run list, for its page, and its provenance."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.formats.run_layout import INTERNAL_FOLDER, PACKS_FOLDER, nested_dict
from tensortap.readers.listing import (
    RunSummary,
    last_modified,
    mark_being_written,
    runs_being_written,
    summarize_run,
)
from tensortap.render.text import truncate
from tensortap.viewer.data.cached_run import KNOWN, CachedRun
from tensortap.viewer.data.dataset import is_trace
from tensortap.viewer.data.library import ListedRun, RunLibrary, describe_error, try_open_run
from tensortap.viewer.data.trees import has_calls
from tensortap.viewer.web.responses import DAMAGED_FILE_ERRORS

_WRITING_WITHIN = 15.0  # seconds: a trace modified within is being written
_SPARKLINE_BINS = 60
_MAX_SCALARS = 200
_MAX_PATCH = 200_000
_NO_STEPS = {"first": 0, "last": 0, "count": 0}
_MAX_FACTS = 400
_MAX_PROBLEMS = 20
_MAX_LENGTH = 2000
Fact = tuple[str, str]


def list_run(library: RunLibrary, run_id: str, being_written: Set[Path]) -> tuple[RunSummary, dict[str, Any]]:
    """Summary and row of a run in the list; a damaged run has its error there."""
    path = library.path(run_id)
    try:
        listed = _look_up(library, run_id, path)
    except DAMAGED_FILE_ERRORS as error:  # a damaged run must not hide the others
        listed = ListedRun(RunSummary(path, "damaged", (describe_error(error),)))
    summary = _mark_trace_being_written(listed.summary) if is_trace(path) else listed.summary
    summary = mark_being_written(summary, being_written)
    health = listed.health or _health_of_summary(summary)
    facts = summary.facts()
    row = {
        **facts,
        "id": library.short_id(run_id),
        "folder": library.folder(path),
        "type": "trace" if is_trace(path) else "run",
        "problems": facts["problems"][:_MAX_PROBLEMS],
        "problem": summary.problems[0] if summary.problems else None,
        "captures": summary.records,
        "steps": facts["steps"] or _NO_STEPS,
        "health": health,
    }
    return replace(summary, nan=health["nan"], inf=health["inf"], known=health["known"]), row


def _look_up(library: RunLibrary, run_id: str, path: Path) -> ListedRun:
    """Reads the run again if it was modified, and its statistics as long as it is open."""
    listed = library.listed_runs.get(run_id)
    if is_trace(path):
        listed = ListedRun(_summarize_trace(library, run_id))  # from columns that are in memory
    elif listed is None or listed.summary.modified != last_modified(path):
        listed = ListedRun(summarize_run(path))
    if listed.health is None or library.is_open(run_id):
        listed = listed._replace(health=_health(library, run_id, listed.summary))
    library.listed_runs[run_id] = listed
    return listed


def _health(library: RunLibrary, run_id: str, summary: RunSummary) -> dict[str, Any]:
    """Statistics computed so far; a run is opened for them only if something in it is not finite."""
    known = _health_of_summary(summary)
    if not (library.is_open(run_id) or known["odd"]):
        return known
    run = try_open_run(library, run_id)
    if isinstance(run, str):
        return known
    computed = {
        **{name: int((run.statistics.columns[name] > 0).sum()) for name in ("nan", "inf")},
        "odd": int(run.statistics.nonfinite_mask().sum()),  # a record may have both
        "known": int((run.statistics.known == KNOWN).sum()),
        "of": len(run),
        "spark": _nonfinite_sparkline(run),
    }
    return computed if computed["known"] >= known["known"] else known


def _health_of_summary(summary: RunSummary) -> dict[str, Any]:
    return {
        "nan": summary.nan,
        "inf": summary.inf,
        "odd": max(summary.nan, summary.inf),
        "known": summary.known,
        "of": summary.records,
        "spark": [],
    }


def _summarize_trace(library: RunLibrary, run_id: str) -> RunSummary:
    path = library.path(run_id)
    modified = last_modified(path)
    run = try_open_run(library, run_id)
    if isinstance(run, str):
        return RunSummary(path, "damaged", (run,), modified=modified)
    run.refresh()
    _, names = run.texts("name") or (None, [])
    return RunSummary(
        path,
        steps=tuple(np.unique(run.column("step")).tolist()),
        ranks=tuple(np.unique(run.column("rank")).tolist()),
        records=len(run),
        names=len(names),
        nbytes=int(run.column("nbytes").sum()),
        modified=modified,
    )


def _mark_trace_being_written(summary: RunSummary) -> RunSummary:
    """A trace is a file that the viewer itself has open: only its age tells whether it is being written."""
    is_recent = summary.modified is not None and time.time() - summary.modified < _WRITING_WITHIN
    return replace(summary, state="writing") if is_recent and summary.state == "finished" else summary


def run_page_facts(library: RunLibrary, run_id: str) -> dict[str, Any]:
    """All data of a run's page."""
    run = library.open_run(run_id)
    _, row = list_run(library, run_id, runs_being_written())
    metadata = run.dataset.metadata()
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
        "problems": row["problems"] or list(filter(None, [metadata.get("problem")])),
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
    events += [{"time": row["modified"], "what": "problem", "text": problem} for problem in row["problems"]]
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
    ended = {
        "finished": "the last value was written",
        "writing": "it is being written",
        "cut off": "it was cut off: a pack has no end",
        "damaged": "it is damaged",
    }
    text = ended[row["state"]]
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
