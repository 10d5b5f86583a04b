"""The records of a run as trees: by module, and by call."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from tensortap.comparison.sides.entry import module_of
from tensortap.formats.index import parse_site
from tensortap.formats.run_layout import nested_dict
from tensortap.viewer.data.cached_run import KNOWN, CachedRun

ModuleNode = dict[str, Any]
_MAX_DEPTH = 64  # deeper modules are counted with their ancestor at this depth
_CALL_KINDS = ("call", "local", "return", "yield", "raise")
_MAX_TREES, _MAX_LINES = 2000, 2000
_NONFINITE = ("nan", "inf")
Array = np.ndarray[Any, Any]
_Bindings = dict[tuple[int, str, str], tuple[str, str]]  # (depth, name, kind): (dtype, shape)


def module_nodes(run: CachedRun) -> list[ModuleNode]:
    """All modules depth-first; `parent` is the index of the parent."""
    classes = nested_dict(run.dataset.metadata(), "model", "modules")
    nodes: dict[str, ModuleNode] = {"": _new_node("", classes)}
    for path, counts in _counts_by_module(run, classes).items():
        _add_missing_ancestors(nodes, path, classes)
        for above in _ancestors(path):
            _add_counts(nodes[above], counts)
    return _depth_first(nodes)


def _counts_by_module(run: CachedRun, classes: dict[str, Any]) -> dict[str, ModuleNode]:
    """Counts of the records of each module, without its submodules."""
    codes, names = run.texts("name") or (np.zeros(0, np.int64), [])
    kinds, kind_names = run.texts("kind") or (codes, [])
    known, nonfinite = run.statistics.known == KNOWN, run.statistics.nonfinite_mask()
    sizes, orders, largest = (
        run.column("nbytes")[: len(run)],
        run.column("order"),
        run.statistics.columns["absmax"],
    )
    rows = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[rows], np.arange(len(names) + 1))
    counts_of_module: dict[str, ModuleNode] = {}
    for code, name in enumerate(names):
        module_rows = rows[bounds[code] : bounds[code + 1]]
        if not len(module_rows):
            continue
        # A module may be named `out`, like the output of a module.
        path = name if name in classes else module_of(name, kind_names[kinds[module_rows[0]]])
        path = ".".join(path.split(".", _MAX_DEPTH)[:_MAX_DEPTH])
        values = largest[module_rows][np.isfinite(largest[module_rows])]
        counts = {
            "names": 1,
            "captures": len(module_rows),
            "bytes": int(sizes[module_rows].sum()),
            "odd": int(nonfinite[module_rows].sum()),
            "known": int(known[module_rows].sum()),
            "absmax": float(values.max()) if len(values) else None,
            "order": int(orders[module_rows].min()),
        }
        _add_counts(counts_of_module.setdefault(path, _empty_counts()), counts)
    return counts_of_module


def _empty_counts() -> ModuleNode:
    return {"names": 0, "captures": 0, "bytes": 0, "odd": 0, "known": 0, "absmax": None, "order": None}


def _new_node(path: str, classes: dict[str, Any]) -> ModuleNode:
    label = path.rpartition(".")[2] or "model"
    return {"path": path, "label": label, "class": str(classes.get(path, "")), **_empty_counts()}


def _add_counts(node: ModuleNode, counts: ModuleNode) -> None:
    for name in ("names", "captures", "bytes", "odd", "known"):
        node[name] += counts[name]
    for name, better in (("absmax", max), ("order", min)):
        both = [number for number in (node[name], counts[name]) if number is not None]
        node[name] = better(both) if both else None


def _add_missing_ancestors(nodes: dict[str, ModuleNode], path: str, classes: dict[str, Any]) -> None:
    for above in _ancestors(path):
        nodes.setdefault(above, _new_node(above, classes))


def _ancestors(path: str) -> list[str]:
    """The path and all its enclosing modules, the model first."""
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[: count + 1]) for count in range(len(parts)))]


def _depth_first(nodes: dict[str, ModuleNode]) -> list[ModuleNode]:
    """A module before its submodules, these in execution order."""
    children: dict[str, list[str]] = {}
    for path in nodes:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    ordered: list[ModuleNode] = []
    stack = [("", -1)]
    while stack:
        path, parent = stack.pop()
        position = len(ordered)
        ordered.append({**nodes[path], "parent": parent})
        below = sorted(
            children.get(path, []), key=lambda child: (nodes[child]["order"] or 0, child), reverse=True
        )
        stack += [(child, position) for child in below]
    return ordered


class _CallTree(NamedTuple):
    key: str
    title: str
    rows: list[int]


def list_call_trees(run: CachedRun) -> dict[str, Any]:
    """One tree per outermost call; without traced calls, one per step of the model."""
    source, trees = _call_trees(run)
    trees_facts = [
        {
            "tree": tree.key,
            "title": tree.title,
            "step": int(run.column("step")[tree.rows[0]]),
            "rank": int(run.column("rank")[tree.rows[0]]),
            "lines": len(tree.rows),
        }
        for tree in trees[:_MAX_TREES]
    ]
    return {"source": source, "trees": trees_facts}


def has_calls(run: CachedRun) -> bool:
    return bool(_call_mask(run).any())


def call_tree_lines(run: CachedRun, key: str, start: int, count: int) -> dict[str, Any]:
    source, trees = _call_trees(run)
    all_rows = rows = next((tree.rows for tree in trees if tree.key == key), [])
    rows = rows[: start + min(count, _MAX_LINES)]
    depths = _site_numbers(run, "depth")[rows].tolist() if source == "calls" else [0] * len(rows)
    before: _Bindings = {}
    lines = []
    for position, (row, depth) in enumerate(zip(rows, depths, strict=True)):
        # The previous binding may be on an earlier page of the list.
        changed = _rebinding_changes(run, row, depth, before)
        if position >= start:
            lines.append({**_line_facts(run, row, source), "changed": changed})
    return {"from": start, "of": len(all_rows), "lines": lines}


def _call_trees(run: CachedRun) -> tuple[str, list[_CallTree]]:
    is_call = _call_mask(run)
    if is_call.any():
        numbers = _site_numbers(run, "tree")
        rows = np.flatnonzero(is_call | (numbers > 0))  # arguments of a call belong to it as well
        return "calls", _group_by_call(run, rows, numbers[rows])
    rows = np.arange(len(run))
    return (
        ("modules", _group_by_call(run, rows, np.zeros(len(rows), np.int64))) if len(rows) else ("none", [])
    )


def _call_mask(run: CachedRun) -> Array:
    """Per record: does it come from a traced function?"""
    kinds, kind_names = run.texts("kind") or (np.zeros(0, np.int64), [])
    return np.isin(kinds, [code for code, kind in enumerate(kind_names) if kind in _CALL_KINDS])


def _group_by_call(run: CachedRun, rows: Array, numbers: Array) -> list[_CallTree]:
    """Rows by outermost call, step and rank, each in execution order."""
    keys = [run.column("order")[rows], numbers, run.column("rank")[rows], run.column("step")[rows]]
    ordered = np.lexsort(keys)
    rows, (number, rank, step) = rows[ordered], (key[ordered] for key in keys[1:])
    is_new = (
        (np.diff(number, prepend=-1) != 0)
        | (np.diff(rank, prepend=-1) != 0)
        | (np.diff(step, prepend=-1) != 0)
    )
    is_new[:1] = True
    starts = np.flatnonzero(is_new)
    trees = []
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True):
        key = f"{number[start] or ''}s{step[start]}r{rank[start]}"
        trees.append(
            _CallTree(
                key, _tree_title(run, int(rows[start]), is_call=bool(number[start])), rows[start:end].tolist()
            )
        )
    return trees


def _site_numbers(run: CachedRun, field: Literal["tree", "depth"]) -> Array:
    """Per record: the number of its outermost call, or its depth below it."""
    codes, texts = run.dataset.texts("site") or (np.zeros(len(run), np.int64), [None])
    numbers = np.array([0 if text is None else getattr(parse_site(text), field) for text in texts], np.int64)
    return numbers[codes]


def _tree_title(run: CachedRun, row: int, *, is_call: bool) -> str:
    rank = int(run.column("rank")[row])
    where = f"step {int(run.column('step')[row])}" + (f", rank {rank}" if rank else "")
    site = run.text("site", row) if is_call else ""
    return f"{site} ({where})" if site else where


def _line_facts(run: CachedRun, row: int, source: str) -> dict[str, Any]:
    site = run.dataset.facts(row).get("site") or {}
    name, kind = run.text("name", row), run.text("kind", row)
    shape = run.text("shape", row)
    depth = int(site.get("depth", 0)) if source == "calls" else _module_depth(name, kind)
    odd = next((statistic for statistic in _NONFINITE if run.statistics.columns[statistic][row] > 0), "")
    return {
        "depth": depth,
        "kind": kind,
        "name": name,
        "row": row,
        "function": site.get("function", ""),
        "file": str(site.get("file", "")).rpartition("/")[2],
        "line": site.get("line"),
        "what": run.text("dtype", row) + (f"[{shape}]" if shape else ""),
        "odd": {"nan": "NaN", "inf": "Inf"}.get(odd, ""),
    }


def _module_depth(name: str, kind: Any) -> int:
    path = module_of(name, kind)
    return path.count(".") + 1 if path else 0


def _rebinding_changes(run: CachedRun, row: int, depth: int, before: _Bindings) -> list[str]:
    """How dtype and shape differ from the previous binding of the name in the same call."""
    if run.text("kind", row) == "call":
        for key in [key for key in before if key[0] >= depth]:
            del before[key]
    now = run.text("dtype", row), run.text("shape", row)
    key = depth, run.text("name", row), run.text("kind", row)
    last, before[key] = before.get(key), now
    if last is None or last == now:
        return []
    changes = zip(("dtype", "shape"), last, now, strict=True)
    return [
        f"{field} {before_value or '-'} -> {after_value or '-'}"
        for field, before_value, after_value in changes
        if before_value != after_value
    ]
