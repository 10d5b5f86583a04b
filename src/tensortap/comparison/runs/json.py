"""A comparison of two runs as JSON, and saved to a file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tensortap.comparison.diagnosis.verdict import Finding, Origin
from tensortap.comparison.runs import html
from tensortap.comparison.runs import text as text_report
from tensortap.comparison.runs.result import ComparisonResult, Coverage
from tensortap.comparison.sides.entry import Entry

SCHEMA = "tensortap.comparison/1"


def save_comparison(comparison: ComparisonResult, path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix == ".json":
        text = json.dumps(comparison_to_json(comparison), indent=1, allow_nan=False)
    else:
        text = (
            html.render_page(comparison)
            if suffix in (".html", ".htm")
            else text_report.as_text(comparison) + "\n"
        )
    path.write_text(text, encoding="utf-8")


def comparison_to_json(comparison: ComparisonResult) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "a": comparison.a,
        "b": comparison.b,
        "exit_code": comparison.exit_code,
        "headline": text_report.headline(comparison),
        "first": origin_to_json(comparison.origins[0]) if comparison.origins else None,
        "origins": [origin_to_json(origin) for origin in comparison.origins],
        "counts": dict(comparison.counts),
        "gate": [
            {
                "what": explanation.what,
                "state": explanation.state,
                "text": explanation.text,
                "names": list(explanation.names),
            }
            for explanation in comparison.gate
        ],
        "coverage": _coverage_to_json(comparison.coverage),
        "floor": {
            "is_measured": comparison.floor.is_measured,
            "limit": comparison.floor.limit,
            "twins": list(comparison.floor.twins),
            "skipped": list(comparison.floor.skipped),
        },
        "notes": list(comparison.notes),
        "pairs": [finding_to_json(finding) for finding in comparison.table],
    }


def _coverage_to_json(coverage: Coverage) -> dict[str, Any]:
    return {
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


def finding_to_json(finding: Finding) -> dict[str, Any]:
    metrics, noise = finding.metrics, finding.noise
    fields: dict[str, Any] = {
        **_entry_to_json(finding.pair.a),
        "b_name": finding.pair.b.name,
        "how": finding.pair.how,
        "score": finding.pair.score,
        "verdict": finding.verdict,
        "ratio": _to_json_number(finding.ratio),
        "axis": finding.axis,
        "note": finding.note,
        "source": finding.source,
        "noise": [noise.relative_l2, noise.row, noise.column, noise.source, noise.limit],
    }
    if finding.pair.alignment is not None:
        fields["plan"] = list(finding.pair.alignment.details)
    if metrics is not None and not metrics.is_identical:
        fields["metrics"] = {
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
    return fields


def _entry_to_json(entry: Entry) -> dict[str, Any]:
    names = ("name", "kind", "step", "rank", "call", "order", "dtype")
    fields = {name: getattr(entry, name) for name in names}
    return {**fields, "shape": list(entry.shape)}


def _to_json_number(value: Any) -> Any:
    """Infinity and NaN as strings, which JSON lacks."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
