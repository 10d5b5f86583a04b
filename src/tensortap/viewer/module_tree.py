"""The modules of a run as a tree: what was captured in each, and how healthy it is."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.comparison.modules import module_of
from tensortap.viewer.counted import KNOWN
from tensortap.viewer.provenance import nested_dict
from tensortap.viewer.stock import CachedRun

ModuleNode = dict[str, Any]
_DEEPEST = 64  # of a name with more parts, the rest belongs to the last one


def module_nodes(stock: CachedRun) -> list[ModuleNode]:
    """In the order of the tree; each knows the place of the one above it."""
    classes = nested_dict(stock.book.metadata(), "model", "modules")
    found: dict[str, ModuleNode] = {"": _node("", classes)}
    for path, counts in _captured(stock, classes).items():
        _make(found, path, classes)
        for above in _above(path):
            _add(found[above], counts)
    return _in_order(found)


def _captured(stock: CachedRun, classes: dict[str, Any]) -> dict[str, ModuleNode]:
    """What the records of each module come to."""
    codes, names = stock.texts("name") or (np.zeros(0, np.int64), [])
    kinds, words = stock.texts("kind") or (codes, [])
    known, odd = stock.counted.known == KNOWN, stock.counted.is_odd()
    sizes, orders, largest = (
        stock.plain("nbytes")[: len(stock)],
        stock.plain("order"),
        stock.counted.columns["absmax"],
    )
    rows = np.argsort(codes, kind="stable")
    bounds = np.searchsorted(codes[rows], np.arange(len(names) + 1))
    found: dict[str, ModuleNode] = {}
    for code, name in enumerate(names):
        mine = rows[bounds[code] : bounds[code + 1]]
        if not len(mine):
            continue
        # A module may be called `out`, as what leaves one is.
        path = name if name in classes else module_of(name, words[kinds[mine[0]]])
        path = ".".join(path.split(".", _DEEPEST)[:_DEEPEST])
        values = largest[mine][np.isfinite(largest[mine])]
        counts = {
            "names": 1,
            "captures": len(mine),
            "bytes": int(sizes[mine].sum()),
            "odd": int(odd[mine].sum()),
            "known": int(known[mine].sum()),
            "absmax": float(values.max()) if len(values) else None,
            "order": int(orders[mine].min()),
        }
        _add(found.setdefault(path, _empty()), counts)
    return found


def _empty() -> ModuleNode:
    return {"names": 0, "captures": 0, "bytes": 0, "odd": 0, "known": 0, "absmax": None, "order": None}


def _node(path: str, classes: dict[str, Any]) -> ModuleNode:
    label = path.rpartition(".")[2] or "model"
    return {"path": path, "label": label, "class": str(classes.get(path, "")), **_empty()}


def _add(node: ModuleNode, counts: ModuleNode) -> None:
    for name in ("names", "captures", "bytes", "odd", "known"):
        node[name] += counts[name]
    for name, better in (("absmax", max), ("order", min)):
        both = [one for one in (node[name], counts[name]) if one is not None]
        node[name] = better(both) if both else None


def _make(found: dict[str, ModuleNode], path: str, classes: dict[str, Any]) -> None:
    for above in _above(path):
        found.setdefault(above, _node(above, classes))


def _above(path: str) -> list[str]:
    """The path itself and all that hold it, the model first."""
    parts = path.split(".") if path else []
    return ["", *(".".join(parts[: count + 1]) for count in range(len(parts)))]


def _in_order(found: dict[str, ModuleNode]) -> list[ModuleNode]:
    """A module before its parts, and parts as they were first seen."""
    children: dict[str, list[str]] = {}
    for path in found:
        if path:
            children.setdefault(path.rpartition(".")[0], []).append(path)
    ordered: list[ModuleNode] = []
    waiting = [("", -1)]
    while waiting:
        path, parent = waiting.pop()
        place = len(ordered)
        ordered.append({**found[path], "parent": parent})
        below = sorted(children.get(path, []), key=lambda one: (found[one]["order"] or 0, one), reverse=True)
        waiting += [(child, place) for child in below]
    return ordered
