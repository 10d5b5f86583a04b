"""The records of a run as a tree of calls: who called whom, and what the variables were bound to."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from tensortap.comparison.modules import module_of
from tensortap.formats.index import site_from
from tensortap.viewer.stock import CachedRun

_CALL_KINDS = ("call", "local", "return", "yield", "raise")
_MAX_TREES, _MAX_LINES = 2000, 2000
_NONFINITE = ("nan", "inf")
Array = np.ndarray[Any, Any]
_Bindings = dict[tuple[int, str, str], tuple[str, str]]  # depth, name, kind: type and shape


class _CallTree(NamedTuple):
    key: str
    title: str
    rows: list[int]


def list_call_trees(stock: CachedRun) -> dict[str, Any]:
    """The trees there are: one for each outermost call, else one for each step of a model."""
    source, trees = _call_trees(stock)
    shown = [
        {
            "tree": one.key,
            "title": one.title,
            "step": int(stock.plain("step")[one.rows[0]]),
            "rank": int(stock.plain("rank")[one.rows[0]]),
            "lines": len(one.rows),
        }
        for one in trees[:_MAX_TREES]
    ]
    return {"source": source, "trees": shown}


def has_calls(stock: CachedRun) -> bool:
    return bool(_call_mask(stock).any())


def call_tree_lines(stock: CachedRun, key: str, start: int, count: int) -> dict[str, Any]:
    source, trees = _call_trees(stock)
    found = rows = next((one.rows for one in trees if one.key == key), [])
    rows = rows[: start + min(count, _MAX_LINES)]
    depths = _site_numbers(stock, "depth")[rows].tolist() if source == "calls" else [0] * len(rows)
    before: _Bindings = {}
    lines = []
    for place, (row, depth) in enumerate(zip(rows, depths, strict=True)):
        # What a variable was before it is told where it was last bound, in any page of the list.
        changed = _rebinding_changes(stock, row, depth, before)
        if place >= start:
            lines.append({**_line_facts(stock, row, source), "changed": changed})
    return {"from": start, "of": len(found), "lines": lines}


def _call_trees(stock: CachedRun) -> tuple[str, list[_CallTree]]:
    is_call = _call_mask(stock)
    if is_call.any():
        numbers = _site_numbers(stock, "tree")
        rows = np.flatnonzero(is_call | (numbers > 0))  # what was given to a call belongs to it as well
        return "calls", _group_by_call(stock, rows, numbers[rows])
    rows = np.arange(len(stock))
    return ("modules", _group_by_call(stock, rows, np.zeros(len(rows), np.int64))) if len(rows) else ("none", [])


def _call_mask(stock: CachedRun) -> Array:
    """Of each record, whether a function that was watched has left it."""
    kinds, words = stock.texts("kind") or (np.zeros(0, np.int64), [])
    return np.isin(kinds, [code for code, word in enumerate(words) if word in _CALL_KINDS])


def _group_by_call(stock: CachedRun, rows: Array, numbers: Array) -> list[_CallTree]:
    """By outermost call, step and rank, each in the order of execution."""
    keys = [stock.plain("order")[rows], numbers, stock.plain("rank")[rows], stock.plain("step")[rows]]
    ordered = np.lexsort(keys)
    rows, (number, rank, step) = rows[ordered], (key[ordered] for key in keys[1:])
    is_new = (
        (np.diff(number, prepend=-1) != 0)
        | (np.diff(rank, prepend=-1) != 0)
        | (np.diff(step, prepend=-1) != 0)
    )
    is_new[:1] = True
    starts = np.flatnonzero(is_new)
    found = []
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        key = f"{number[start] or ''}s{step[start]}r{rank[start]}"
        found.append(
            _CallTree(key, _tree_title(stock, int(rows[start]), is_call=bool(number[start])), rows[start:end].tolist())
        )
    return found


def _site_numbers(stock: CachedRun, field: Literal["tree", "depth"]) -> Array:
    """Which outermost call each record belongs to, or how deep below it."""
    codes, texts = stock.book.texts("site") or (np.zeros(len(stock), np.int64), [None])
    numbers = np.array([0 if text is None else getattr(site_from(text), field) for text in texts], np.int64)
    return numbers[codes]


def _tree_title(stock: CachedRun, row: int, *, is_call: bool) -> str:
    rank = int(stock.plain("rank")[row])
    where = f"step {int(stock.plain('step')[row])}" + (f", rank {rank}" if rank else "")
    site = stock.text("site", row) if is_call else ""
    return f"{site} ({where})" if site else where


def _line_facts(stock: CachedRun, row: int, source: str) -> dict[str, Any]:
    site = stock.book.facts(row).get("site") or {}
    name, kind = stock.text("name", row), stock.text("kind", row)
    shape = stock.text("shape", row)
    depth = int(site.get("depth", 0)) if source == "calls" else _module_depth(name, kind)
    odd = next((word for word in _NONFINITE if stock.counted.columns[word][row] > 0), "")
    return {
        "depth": depth,
        "kind": kind,
        "name": name,
        "row": row,
        "function": site.get("function", ""),
        "file": str(site.get("file", "")).rpartition("/")[2],
        "line": site.get("line"),
        "what": stock.text("dtype", row) + (f"[{shape}]" if shape else ""),
        "odd": {"nan": "NaN", "inf": "Inf"}.get(odd, ""),
    }


def _module_depth(name: str, kind: Any) -> int:
    path = module_of(name, kind)
    return path.count(".") + 1 if path else 0


def _rebinding_changes(stock: CachedRun, row: int, depth: int, before: _Bindings) -> list[str]:
    """What is not as it was when the name was last bound in the same call."""
    if stock.text("kind", row) == "call":
        for key in [key for key in before if key[0] >= depth]:
            del before[key]
    now = stock.text("dtype", row), stock.text("shape", row)
    key = depth, stock.text("name", row), stock.text("kind", row)
    last, before[key] = before.get(key), now
    if last is None or last == now:
        return []
    words = zip(("dtype", "shape"), last, now, strict=True)
    return [f"{what} {one or '-'} -> {other or '-'}" for what, one, other in words if one != other]
