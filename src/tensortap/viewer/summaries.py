"""A run in a few facts: for its row in the list, and for its own page."""

from __future__ import annotations

import os
import shlex
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.formats.index import index_files
from tensortap.formats.run_layout import OWN, PACKS
from tensortap.viewer.call_lines import has_calls
from tensortap.viewer.counted import KNOWN
from tensortap.viewer.library import RunLibrary, try_open_run, describe_error
from tensortap.viewer.problems import DAMAGED_FILE_ERRORS
from tensortap.viewer.provenance import provenance_cards, nested_dict
from tensortap.viewer.stock import CachedRun

_JUST_NOW = 15.0  # seconds: a run that grew so lately is being written
_SPARK = 60
_MOST_SCALARS = 200
_PATCH = 200_000
_EMPTY: dict[str, Any] = {
    **{"command": "", "commit": "", "branch": "", "dirty": None, "started": None, "modified": None},
    **{"steps": {"first": 0, "last": 0, "count": 0}, "ranks": [], "captures": 0, "names": 0, "bytes": 0},
    **{"model": "", "health": {"nan": 0, "inf": 0, "odd": 0, "known": 0, "of": 0, "spark": []}, "tags": {}},
}


def run_list_row(library: RunLibrary, identity: str) -> dict[str, Any]:
    """The row of a run; one that cannot be opened says why."""
    path = library.path(identity)
    place = {
        "id": library.short(identity),
        "name": path.name,
        "folder": library.folder(path),
        "path": str(path),
    }
    try:
        return {**place, **_short(library, identity, path)}
    except DAMAGED_FILE_ERRORS as error:  # one that is broken must not hide the others
        return {**place, **_damaged(describe_error(error))}


def _short(library: RunLibrary, identity: str, path: Path) -> dict[str, Any]:
    known, modified = library.remembered.get(identity), _modified(path)
    if known is not None and known[0] == modified and not library.is_open(identity):
        return known[1]
    stock = try_open_run(library, identity)
    if isinstance(stock, str):
        return _damaged(stock)
    facts = _facts(stock)
    library.remembered[identity] = modified, facts
    return facts


def _damaged(why: str) -> dict[str, Any]:
    return {"type": "run", "state": "damaged", "problem": why, **_EMPTY}


def run_page_facts(library: RunLibrary, identity: str) -> dict[str, Any]:
    """Everything on the page of a run."""
    stock = library.stock(identity)
    short, metadata = run_list_row(library, identity), stock.book.metadata()
    patch = metadata.get("patch") or b""
    return {
        **short,
        "sentence": health_sentence(stock, short),
        "ended": short["modified"],
        "first_odd": first_nonfinite(stock),
        "scalars": list_scalars(stock),
        "provenance": provenance_cards(metadata),
        "patch": patch[:_PATCH].decode("utf-8", "replace"),
        "storage": _storage(stock.path),
        "events": _events(short, stock),
        "problems": [*stock.book.problems, *filter(None, [metadata.get("problem")])],
        "reproduce": reproduce_command(stock),
        "has_calls": has_calls(stock),
    }


def reproduce_command(stock: CachedRun) -> str | None:
    """The command that makes the run again; None where the run does not say how it was made."""
    has_command = nested_dict(stock.book.metadata(), "runtime_info", "command")
    return f"tensortap reproduce {shlex.quote(str(stock.path))}" if has_command else None


def health_sentence(stock: CachedRun, short: dict[str, Any]) -> str:
    """The health of a run, as one says it."""
    if not len(stock):
        return "nothing has been captured yet" if short["state"] == "writing" else "nothing was captured"
    steps, ranks = short["steps"]["count"], len(short["ranks"])
    over = f" over {steps:,} step{'s' if steps != 1 else ''}" if steps else ""
    on = f" on {ranks} ranks" if ranks > 1 else ""
    what = f"{len(stock):,} captures of {short['names']:,} names{over}{on}"
    odd, health = first_nonfinite(stock), short["health"]
    if odd is not None:
        rank = f" on rank {odd['rank']}" if ranks > 1 else ""
        return f"{what}; first {odd['what']} at step {odd['step']:,} in {odd['name']}{rank}"
    if not health["known"]:
        return f"{what}; not looked through yet"
    looked = "" if health["known"] == health["of"] else f" in the {health['known']:,} looked at so far"
    return f"{what}; no NaN or Inf{looked}"


def first_nonfinite(stock: CachedRun) -> dict[str, Any] | None:
    """The first record with a NaN or an Inf, in the order of execution, among those that were looked at."""
    rows = np.flatnonzero(stock.counted.is_odd())
    if not len(rows):
        return None
    keys = [stock.plain(field)[rows] for field in ("rank", "order", "step")]
    row = int(rows[np.lexsort(keys)[0]])
    what = "NaN" if stock.counted.columns["nan"][row] else "Inf"
    moment = {field: int(stock.plain(field)[row]) for field in ("step", "rank")}
    return {"row": row, "name": stock.text("name", row), **moment, "what": what}


def list_scalars(stock: CachedRun) -> list[dict[str, Any]]:
    """Names whose values are one number each."""
    codes, names = stock.texts("name") or (np.zeros(0, np.int64), [])
    kinds, words = stock.texts("kind") or (codes, [])
    counts = np.bincount(codes[_is_scalar(stock)], minlength=len(names))
    found = []
    for code in np.flatnonzero(counts)[:_MOST_SCALARS].tolist():
        kind = words[kinds[np.flatnonzero(codes == code)[0]]]
        found.append({"name": names[code], "kind": kind, "count": int(counts[code])})
    return found


def scalar_series(stock: CachedRun, name: str, kind: str | None) -> list[dict[str, Any]]:
    """The single numbers of a name, one line for each rank."""
    codes, names = stock.texts("name") or (np.zeros(0, np.int64), [])
    mask = _is_scalar(stock) & (codes == (names.index(name) if name in names else -1))
    if kind:
        kinds, words = stock.texts("kind") or (codes, [])
        mask &= kinds == (words.index(kind) if kind in words else -1)
    rows = np.flatnonzero(mask)
    stock.compute(rows)
    steps, ranks = stock.plain("step")[rows], stock.plain("rank")[rows]
    values = stock.counted.columns["mean"][rows]
    lines = []
    for rank in np.unique(ranks).tolist():
        order = np.flatnonzero(ranks == rank)
        order = order[np.argsort(steps[order], kind="stable")]
        lines.append({"rank": rank, "steps": steps[order].tolist(), "values": values[order].tolist()})
    return lines


def _is_scalar(stock: CachedRun) -> Any:
    codes, shapes = stock.texts("shape") or (np.zeros(0, np.int64), [])
    kinds, types = stock.texts("dtype") or (codes, [])
    are_one = np.array([set(text.split(",")) <= {"1", ""} for text in shapes], bool)
    are_numbers = np.array(
        [text not in ("str", "dict", "list", "tuple", "NoneType", "bytes") for text in types], bool
    )
    return are_one[codes] & are_numbers[kinds] if len(codes) else np.zeros(0, bool)


def _facts(stock: CachedRun) -> dict[str, Any]:
    metadata = stock.book.metadata()
    git = nested_dict(metadata, "git_info", "project_git_info")
    modified = _modified(stock.path)
    known = int((stock.counted.known == KNOWN).sum())
    counts = {name: int((stock.counted.columns[name] > 0).sum()) for name in ("nan", "inf")}
    counts["odd"] = int(stock.counted.is_odd().sum())  # a record may have both
    steps, ranks = np.unique(stock.plain("step")), np.unique(stock.plain("rank"))
    _, names = stock.texts("name") or (None, [])
    return {
        "type": stock.book.type,
        "state": _state(stock, modified),
        "problem": stock.book.problems[0] if stock.book.problems else None,
        "command": nested_dict(metadata, "runtime_info", "command").get("full_command", ""),
        "commit": str(git.get("commit_id", ""))[:12],
        "branch": git.get("branch", ""),
        "dirty": git["status"] == "dirty" if "status" in git else None,
        "started": _started(stock, metadata),
        "modified": modified,
        "steps": {"first": int(steps[0]), "last": int(steps[-1]), "count": len(steps)}
        if len(steps)
        else _EMPTY["steps"],
        "ranks": ranks.tolist(),
        "captures": len(stock),
        "names": len(names),
        "bytes": int(stock.plain("nbytes").sum()),
        "model": nested_dict(metadata, "model").get("class", ""),
        "health": {**counts, "known": known, "of": len(stock), "spark": _spark(stock)},
        "tags": nested_dict(metadata, "environment", "tags"),
    }


def _spark(stock: CachedRun) -> list[int]:
    """How many odd records each part of the steps has; empty where there are none."""
    odd = np.flatnonzero(stock.counted.is_odd())
    steps = stock.plain("step")
    if not len(odd) or not len(steps):
        return []
    low, high = int(steps.min()), int(steps.max())
    bins = min(_SPARK, high - low + 1)
    counts = np.histogram(steps[odd], bins, (low, high + 1))[0]
    return [int(count) for count in counts]


def _state(stock: CachedRun, modified: float) -> str:
    if stock.book.type == "trace":
        return "writing" if time.time() - modified < _JUST_NOW else "finished"
    packs = sorted((stock.path / OWN / PACKS).glob("*.npz"))
    if all(_is_whole(pack) for pack in packs):
        return "finished"
    return "writing" if time.time() - modified < _JUST_NOW else "cut off"


def _is_whole(pack: Path) -> bool:
    """Whether it has the end that a closed archive has."""
    with open(pack, "rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - 22))
        return stream.read(4) == b"PK\5\6"


def _modified(path: Path) -> float:
    files = [path] if path.is_file() else [*index_files(path / OWN), *(path / OWN / PACKS).glob("*")]
    return max((file.stat().st_mtime for file in files), default=path.stat().st_mtime)


def _started(stock: CachedRun, metadata: dict[str, Any]) -> float | None:
    told = nested_dict(metadata, "runtime_info").get("timestamp")
    try:
        return datetime.fromisoformat(str(told)).timestamp()
    except ValueError:
        times = stock.plain("time")
        return float(times.min()) if len(times) and times.min() > 0 else None


def _storage(path: Path) -> list[tuple[str, int]]:
    if path.is_file():
        return [("file", path.stat().st_size)]
    own = path / OWN
    groups = {"packs": (own / PACKS).glob("*"), "index": own.glob("index-*"), "files": path.glob("*")}
    sizes = {
        name: sum(one.stat().st_size for one in files if one.is_file()) for name, files in groups.items()
    }
    return [(name, size) for name, size in sizes.items() if size]


def _events(short: dict[str, Any], stock: CachedRun) -> list[dict[str, Any]]:
    events = [{"time": short["started"], "what": "started", "text": short["command"] or "the run began"}]
    events += [{"time": short["modified"], "what": "problem", "text": told} for told in stock.book.problems]
    odd = first_nonfinite(stock)
    if odd is not None:
        when = float(stock.plain("time")[odd["row"]])
        events.append(
            {"time": when, "what": "alert", "text": f"first {odd['what']}: {odd['name']}, step {odd['step']}"}
        )
    ended = {"finished": "the last value was written", "writing": "it is being written"}
    text = ended.get(short["state"], "it was cut off: a pack has no end")
    return [*events, {"time": short["modified"], "what": short["state"], "text": text}]
