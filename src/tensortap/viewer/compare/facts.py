"""Page data of a comparison: its headline, origins, one of its pairs, its name matching."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from tensortap.comparison.diagnosis.symptoms import describe_symptoms
from tensortap.comparison.diagnosis.verdict import GREEN, Finding, Origin
from tensortap.comparison.matching.similarity import suggest_rules
from tensortap.comparison.runs import text
from tensortap.comparison.runs.compare import Comparison
from tensortap.comparison.runs.json import comparison_to_json, origin_to_json
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.sides.leaf import Operand
from tensortap.comparison.sides.provenance import compare_provenance
from tensortap.core.errors import TensortapError
from tensortap.core.patterns import closest_names
from tensortap.viewer.compare.code_suspects import find_suspects
from tensortap.viewer.compare.jobs import ComparisonJob
from tensortap.viewer.compare.pair_columns import pair_of_origin
from tensortap.viewer.data import tensor
from tensortap.viewer.data.cached_run import CachedRun
from tensortap.viewer.data.dataset import RunDataset
from tensortap.viewer.data.library import RunLibrary
from tensortap.viewer.data.run_facts import reproduce_command
from tensortap.viewer.web.responses import NO_ROW

_MAX_ORIGINS, _MAX_NAMES, _MAX_UNMATCHED, _MAX_SIMILAR = 200, 50, 2000, 50
_FORWARD_KINDS = ("output", "own code", "local")
_MAX_FILES, _MAX_LINES, _MAX_LINE_LENGTH = 20, 400, 500  # the last is in characters
_MAX_SYMPTOM_BYTES = 64 << 20
_SIGNIFICANCE = 4  # standard errors
Array = np.ndarray[Any, Any]
_MEANINGS = {
    "own code": "its inputs and what its parts gave are equal, so the fault lies between them",
    "output": "its inputs, and whatever it has called, are equal",
    "backward": "the forward pass and all gradients before it are equal",
    "data": "what was given to the model differs",
    "param": "a parameter differs",
}


def comparison_facts(library: RunLibrary, job: ComparisonJob) -> dict[str, Any]:
    """Computed once per job: it visits every pair."""
    if job.facts is None:
        job.facts = _compute_comparison_facts(library, job)
    return job.facts


def _compute_comparison_facts(library: RunLibrary, job: ComparisonJob) -> dict[str, Any]:
    comparison = job.comparison
    report = comparison_to_json(replace(comparison, table=()))  # pairs are fetched as columns
    datasets = _run_datasets(job)
    origins = [_origin_facts(origin, job, datasets) for origin in comparison.origins[:_MAX_ORIGINS]]
    coverage = {
        **report["coverage"],
        "only_a": len(comparison.coverage.only_a),
        "only_b": len(comparison.coverage.only_b),
    }
    return {
        "a": _side_facts(library, job.a, comparison.a),
        "b": _side_facts(library, job.b, comparison.b),
        "headline": text.headline(comparison),
        "sentence": headline_sentence(comparison, origins[0]["site"] if origins else ""),
        "state": _comparison_state(job),
        "exit_code": comparison.exit_code,
        "first": origins[0] if origins else None,
        "origins": origins,
        "counts": comparison.counts,
        "lines": text.as_text(comparison).splitlines(),
        "gate": [
            {**precondition, "names": precondition["names"][:_MAX_NAMES]} for precondition in report["gate"]
        ],
        "changes": _code_changes(datasets),
        "suspects": _suspects_of_first(comparison, datasets),
        "coverage": coverage,
        "floor": report["floor"],
        "notes": report["notes"],
        "pairs": len(comparison.table),
        "growth": error_growth(comparison),
    }


def pair_facts(library: RunLibrary, job: ComparisonJob, number: int, address: str) -> dict[str, Any]:
    finding = job.pairs.table[number]
    fields = ("verdict", "ratio", "step", "rank", "call", "kind", "note", "source", "axis", "name")
    rows = [int(side[number]) for side in job.pairs.rows]
    a, b = (
        _entry_facts(library, run, row, entry)
        for run, row, entry in zip((job.a, job.b), rows, (finding.pair.a, finding.pair.b), strict=True)
    )
    return {
        "pair": number,
        **{name: getattr(finding, name) for name in fields},
        "b_name": finding.pair.b.name,
        "how": finding.pair.how,
        "score": finding.pair.score,
        "plan": list(finding.pair.alignment.details) if finding.pair.alignment is not None else [],
        "a": a,
        "b": b,
        "metrics": _metrics_facts(finding, float(job.pairs.errors["ulp"][number])),
        "symptoms": symptoms_of(finding),
        "story": text.describe_pair(finding, job.comparison.origins),
        "python": _pair_loading_code(job, rows),
    }


def _pair_loading_code(job: ComparisonJob, rows: Sequence[int]) -> str:
    """Python code that loads both values; empty where a side is not a stored record."""
    if job.a is None or job.b is None or NO_ROW in rows:
        return ""
    a, b = (tensor.loading_expression(run, row) for run, row in zip((job.a, job.b), rows, strict=True))
    return f"import tensortap as tt\n\na = {a}\nb = {b}"


def name_matching_facts(job: ComparisonJob, saved: str | None, can_save: bool) -> dict[str, Any]:
    """How names were matched, which are unmatched, and rules that would match them."""
    comparison = job.comparison
    guessed = [finding.pair for finding in comparison.table if finding.pair.how in ("class", "content")]
    groups = Counter((pair.a.name, pair.b.name, pair.how) for pair in guessed)
    scores = {(pair.a.name, pair.b.name, pair.how): pair.score for pair in guessed}
    only_a, only_b = _group_by_name(comparison.coverage.only_a), _group_by_name(comparison.coverage.only_b)
    names_in_b = [row["name"] for row in only_b]
    similar = [
        {"a": row["name"], "b": close[0]}
        for row in only_a[:_MAX_SIMILAR]
        if (close := closest_names(row["name"], names_in_b, 1))
    ]
    proposed = [(a, b) for a, b, _ in groups] + [(match["a"], match["b"]) for match in similar]
    return {
        "how": dict(Counter(finding.pair.how for finding in comparison.table)),
        "only_a": only_a[:_MAX_UNMATCHED],
        "only_b": only_b[:_MAX_UNMATCHED],
        "guesses": [
            {"a": key[0], "b": key[1], "how": key[2], "score": scores[key], "count": count}
            for key, count in groups.items()
        ],
        "near": similar,
        "rules": suggest_rules(proposed) if proposed else "",
        "saved": saved,
        "can_save": can_save,
    }


def _side_facts(library: RunLibrary, run: CachedRun | None, label: str) -> dict[str, Any]:
    name = label.rstrip("/").rpartition("/")[2]
    return {
        "id": None if run is None else library.short_id(run.run_id),
        "label": label,
        "name": name,
        "reproduce": None if run is None else reproduce_command(run),
    }


def _comparison_state(job: ComparisonJob) -> str:
    comparison = job.comparison
    if comparison.is_different:
        return "different"
    return (
        "nothing"
        if not comparison.coverage.pairs
        else "same"
        if comparison.coverage.is_whole
        else "incomplete"
    )


def _run_datasets(job: ComparisonJob) -> list[RunDataset]:
    datasets = [run.dataset for run in (job.a, job.b) if run is not None]
    return [dataset for dataset in datasets if isinstance(dataset, RunDataset)]


def _origin_facts(origin: Origin, job: ComparisonJob, datasets: Sequence[RunDataset]) -> dict[str, Any]:
    """An origin whose records have no call site gets the forward() of its module."""
    facts = {**origin_to_json(origin), "pair": pair_of_origin(origin, job.pairs)}
    code = (
        datasets[0].code.of_module(origin.name)
        if len(datasets) == 2 and origin.kind in _FORWARD_KINDS
        else None
    )
    if facts["site"] or code is None:
        return facts
    return {**facts, "site": f"{code.forward.file}:{code.forward.first}"}


def _suspects_of_first(comparison: Comparison, datasets: Sequence[RunDataset]) -> list[dict[str, Any]]:
    first = comparison.first
    return [] if first is None else find_suspects(first, finding_at_origin(comparison, first), datasets)


def _code_changes(datasets: Sequence[RunDataset]) -> list[dict[str, Any]]:
    """Uncommitted lines in which the code of the two runs differs."""
    if len(datasets) < 2:
        return []
    provenance_diff = compare_provenance(datasets[0].run, datasets[1].run)
    changes = [change for topic in provenance_diff.topics for change in topic.changes][:_MAX_FILES]
    return [
        {**asdict(change), "file": change.file[:_MAX_LINE_LENGTH], "hunks": _truncate_lines(change.hunks)}
        for change in changes
    ]


def _truncate_lines(lines: Sequence[str]) -> list[str]:
    more = [f"... {len(lines) - _MAX_LINES:,} more lines"] if len(lines) > _MAX_LINES else []
    return [line[:_MAX_LINE_LENGTH] for line in lines[:_MAX_LINES]] + more


def _entry_facts(library: RunLibrary, run: CachedRun | None, row: int, entry: Entry) -> dict[str, Any]:
    if run is not None and row != NO_ROW:
        return tensor.record_facts(run, row, f"/api/run/{library.short_id(run.run_id)}/row/{row}")
    names = ("name", "kind", "step", "rank", "call", "order", "dtype", "nbytes")
    site = entry.site
    location = {"file": site.file, "line": site.line, "function": site.function} if site is not None else None
    shape, operand = list(entry.shape), _readable_operand(entry)
    return {
        **{name: getattr(entry, name) for name in names},
        "shape": shape,
        "row": None,
        "site": location,
        "view": tensor.default_view(shape),
        "statistics": None if operand is None else tensor.operand_statistics(operand),
        "value": tensor.scalar_value(operand),
        "python": "",
    }


def _readable_operand(entry: Entry) -> Operand | None:
    try:
        return entry.operand()
    except (TensortapError, OSError, ValueError, KeyError):
        return None


def _metrics_facts(finding: Finding, ulp: float) -> dict[str, Any] | None:
    metrics = finding.metrics
    if metrics is None:
        return None
    plain = ("relative_l2", "row", "column", "worst_row", "worst_column", "cosine_distance", "gain", "bias")
    more = ("mismatches", "count", "norms", "nan", "inf", "reason", "is_identical")
    largest = metrics.absolute
    return {
        **{name: getattr(metrics, name) for name in (*plain, *more)},
        "max_abs": None if largest is None else largest.size,
        "max_at": None if largest is None else list(largest.index),
        "ulp": ulp,
    }


def _group_by_name(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for entry in entries:
        shape = ",".join(map(str, entry.shape))
        facts = {"name": entry.name, "count": 0, "kind": entry.kind, "shape": shape, "dtype": entry.dtype}
        rows.setdefault(entry.name, facts)["count"] += 1
    return list(rows.values())


def headline_sentence(comparison: Comparison, site: str = "") -> str:
    """The first difference in one sentence; `site` is the code location that produced it."""
    first = comparison.first
    if first is None:
        return _sentence_without_difference(comparison)
    finding = finding_at_origin(comparison, first)
    before = _count_equal_steps(comparison, first)
    start = f"Equal for {before:,} step{'s' if before != 1 else ''}. " if before else ""
    rank = f", rank {first.rank}" if _count_ranks(comparison) > 1 else ""
    made_at = f", made at {site.rpartition('/')[2]}" if site else ""
    where = f"step {first.step}, {first.where}{rank}{made_at}"
    return f"{start}First difference: {where}. {_describe_first(first, finding)}"


def finding_at_origin(comparison: Comparison, origin: Origin) -> Finding | None:
    key = origin.seen_at, origin.step, origin.rank, origin.call
    return next(
        (
            finding
            for finding in comparison.table
            if (finding.name, finding.step, finding.rank, finding.call) == key
        ),
        None,
    )


def symptoms_of(finding: Finding) -> list[str]:
    """Symptoms of a difference (scaled, shifted, ...); none for values too large to analyse at once."""
    return describe_symptoms(finding) if finding.pair.a.nbytes <= _MAX_SYMPTOM_BYTES else []


def error_growth(comparison: Comparison) -> dict[str, Any] | None:
    """How fast the error of the first difference grows over steps; None with fewer than four points."""
    first = comparison.first
    if first is None:
        return None
    points = [
        (finding.step, finding.metrics.relative_l2)
        for finding in comparison.table
        if finding.name == first.seen_at
        and finding.rank == first.rank
        and finding.metrics is not None
        and finding.step >= first.step
    ]
    sound = [(step, size) for step, size in points if size > 0 and math.isfinite(size)]
    if len({step for step, _ in sound}) < 4:
        return None
    steps, sizes = np.array(sound, np.float64).T
    doubling = _doubling_steps(steps, np.log2(sizes))
    if doubling is None:
        return {"doubling": None, "text": "the error does not clearly grow from step to step"}
    return {"doubling": doubling, "text": f"the error doubles every {doubling:.3g} steps"}


def _doubling_steps(steps: Array, doublings: Array) -> float | None:
    """Doubling time of a log-linear fit, in steps; None if it never doubles within the data, or if the slope
    is not significant."""
    centred = steps - steps.mean()
    spread = float((centred**2).sum())
    slope = float((centred * doublings).sum()) / spread
    residuals = doublings - doublings.mean() - slope * centred
    standard_error = math.sqrt(float((residuals**2).sum()) / (len(steps) - 2) / spread)
    is_seen = slope * float(np.ptp(steps)) >= 1
    return 1 / slope if is_seen and slope > _SIGNIFICANCE * standard_error else None


def _sentence_without_difference(comparison: Comparison) -> str:
    pairs = comparison.coverage.pairs
    if not pairs:
        return "Nothing to compare: no value has a partner on the other side."
    identical = comparison.counts.get("identical", 0)
    summary = f"The same within noise: {identical:,} of {pairs:,} pairs are identical, the others nearly so"
    if identical == sum(comparison.counts.values()):
        summary = f"Identical: all {pairs:,} pairs are the same, bit for bit"
    gaps = "" if comparison.coverage.is_whole else "; not everything could be compared"
    unsure = " (the noise was not measured)" if comparison.coverage.uncalibrated and identical < pairs else ""
    return f"{summary}{unsure}{gaps}."


def _describe_first(first: Origin, finding: Finding | None) -> str:
    parts = [_MEANINGS.get(first.kind, "")] if not first.note else [first.note]
    if finding is not None:
        metrics = finding.metrics
        if metrics is not None and metrics.count and metrics.mismatches:
            parts.append(f"it differs in {100 * metrics.mismatches / metrics.count:.3g} % of its elements")
        parts += symptoms_of(finding)[:2]
    text = "; ".join(filter(None, parts))
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _count_equal_steps(comparison: Comparison, first: Origin) -> int:
    before = {finding.step for finding in comparison.table if finding.step < first.step}
    return len(before - {finding.step for finding in comparison.table if finding.verdict not in GREEN})


def _count_ranks(comparison: Comparison) -> int:
    return len({finding.rank for finding in comparison.table})
