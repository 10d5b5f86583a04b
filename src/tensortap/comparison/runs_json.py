"""A comparison of two runs as data, and as a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensortap.comparison import runs_html, runs_report
from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding, Origin

if TYPE_CHECKING:
    from tensortap.comparison.runs import Comparison

SCHEMA = "tensortap.comparison/1"


def save_comparison(found: Comparison, path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix == ".json":
        text = json.dumps(comparison_to_json(found), indent=1, allow_nan=False)
    else:
        text = runs_html.render_page(found) if suffix in (".html", ".htm") else runs_report.as_text(found) + "\n"
    path.write_text(text, encoding="utf-8")


def comparison_to_json(found: Comparison) -> dict[str, Any]:
    coverage = found.coverage
    return {
        "schema": SCHEMA,
        "a": found.a,
        "b": found.b,
        "exit_code": found.exit_code,
        "headline": runs_report.headline(found),
        "first": origin_to_json(found.origins[0]) if found.origins else None,
        "origins": [origin_to_json(one) for one in found.origins],
        "counts": dict(found.counts),
        "gate": [
            {"what": one.what, "state": one.state, "text": one.text, "names": list(one.names)}
            for one in found.gate
        ],
        "coverage": {
            "is_whole": coverage.is_whole,
            "pairs": coverage.pairs,
            "only_a": [_entry_to_json(entry) for entry in coverage.only_a],
            "only_b": [_entry_to_json(entry) for entry in coverage.only_b],
            "unreadable": list(coverage.unreadable),
            "unaligned": list(coverage.unaligned),
            "behind_ties": coverage.behind_ties,
            "opaque": coverage.opaque,
            "ignored": coverage.ignored,
            "uncalibrated": coverage.uncalibrated,
            "problems": list(coverage.problems),
        },
        "floor": {
            "is_measured": found.floor.is_measured,
            "limit": found.floor.limit,
            "twins": list(found.floor.twins),
            "skipped": list(found.floor.skipped),
        },
        "notes": list(found.notes),
        "pairs": [finding_to_json(one) for one in found.table],
    }


def origin_to_json(origin: Origin) -> dict[str, Any]:
    names = (
        "name",
        "kind",
        "verdict",
        "step",
        "rank",
        "call",
        "seen_at",
        "axis",
        "class_name",
        "site",
        "note",
    )
    return {**{name: getattr(origin, name) for name in names}, "ratio": _to_json_number(origin.ratio)}


def finding_to_json(found: Finding) -> dict[str, Any]:
    metrics, noise = found.metrics, found.noise
    told: dict[str, Any] = {
        **_entry_to_json(found.pair.a),
        "b_name": found.pair.b.name,
        "how": found.pair.how,
        "score": found.pair.score,
        "verdict": found.verdict,
        "ratio": _to_json_number(found.ratio),
        "axis": found.axis,
        "note": found.note,
        "source": found.source,
        "noise": [noise.relative_l2, noise.row, noise.column, noise.source, noise.limit],
    }
    if found.pair.alignment is not None:
        told["plan"] = list(found.pair.alignment.details)
    if metrics is not None and not metrics.is_identical:
        told["metrics"] = {
            name: _to_json_number(getattr(metrics, name))
            for name in (
                "relative_l2",
                "row",
                "column",
                "cosine_distance",
                "gain",
                "bias",
                "mismatches",
                "count",
            )
        }
    return told


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    names = ("name", "kind", "step", "rank", "call", "order", "dtype")
    told = {name: getattr(entry, name) for name in names}
    return {**told, "shape": list(entry.shape)}


def _to_json_number(value: Any) -> Any:
    """JSON has no infinity: text instead."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
