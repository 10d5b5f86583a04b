"""The modules of a run as a tree: what was captured in each, and how healthy it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.comparison.sides.module_names import module_of
from tensortap.viewer.counted import KNOWN
from tensortap.viewer.provenance import nested_dict
from tensortap.viewer.stock import CachedRun

ModuleNode = dict[str, Any]
_MAX_DEPTH = 64  # of a name with more parts, the rest belongs to the last one


def module_nodes(run: CachedRun) -> list[ModuleNode]:
    """In the order of the tree; each knows the place of the one above it."""
    classes = nested_dict(run.dataset.metadata(), "model", "modules")
    nodes: dict[str, ModuleNode] = {"": _new_node("", classes)}
    for path, counts in _counts_by_module(run, classes).items():
        _add_missing_ancestors(nodes, path, classes)
        for above in _ancestors(path):
            _add_counts(nodes[above], counts)
    return _depth_first(nodes)


def _counts_by_module(run: CachedRun, classes: dict[str, Any]) -> dict[str, ModuleNode]:
    """What the records of each module come to."""
    codes, names = run.texts("name") or (np.zeros(0, np.int64), [])
    kinds, kind_names = run.texts("kind") or (codes, [])
    known, odd = run.statistics.known == KNOWN, run.statistics.nonfinite_mask()
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
        # A module may be called `out`, as what leaves one is.
        path = name if name in classes else module_of(name, kind_names[kinds[module_rows[0]]])
        path = ".".join(path.split(".", _MAX_DEPTH)[:_MAX_DEPTH])
        values = largest[module_rows][np.isfinite(largest[module_rows])]
        counts = {
            "names": 1,
            "captures": len(module_rows),
            "bytes": int(sizes[module_rows].sum()),
            "odd": int(odd[module_rows].sum()),
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
    """The path itself and all that hold it, the model first."""
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[: count + 1]) for count in range(len(parts)))]


def _depth_first(nodes: dict[str, ModuleNode]) -> list[ModuleNode]:
    """A module before its parts, and parts as they were first seen."""
    children: dict[str, list[str]] = {}
    for path in nodes:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    ordered: list[ModuleNode] = []
    stack = [("", -1)]
    while stack:
        path, parent = stack.pop()
        place = len(ordered)
        ordered.append({**nodes[path], "parent": parent})
        below = sorted(
            children.get(path, []), key=lambda child: (nodes[child]["order"] or 0, child), reverse=True
        )
        stack += [(child, place) for child in below]
    return ordered
