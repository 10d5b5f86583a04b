"""A comparison, one of its pairs, and its names, as a page wants them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from tensortap.comparison import runs_report
from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding, Origin
from tensortap.comparison.likeness import suggested_rules
from tensortap.comparison.operands import Operand
from tensortap.comparison.provenance import provenance
from tensortap.comparison.runs import Comparison
from tensortap.comparison.runs_json import comparison_to_json, origin_to_json
from tensortap.core.errors import TensortapError
from tensortap.core.paths import closest_names
from tensortap.viewer import sentences, tensors
from tensortap.viewer.answers import NO_ROW
from tensortap.viewer.books import RunDataset
from tensortap.viewer.comparisons import ComparisonJob
from tensortap.viewer.divergence_map import pair_of_origin
from tensortap.viewer.library import RunLibrary
from tensortap.viewer.stock import CachedRun
from tensortap.viewer.summaries import reproduce_command
from tensortap.viewer.suspects import find_suspects

_MAX_ORIGINS, _MAX_NAMES, _MAX_UNMATCHED, _MAX_SIMILAR = 200, 50, 2000, 50
_FORWARD_KINDS = ("output", "own code", "local")
_MAX_FILES, _MAX_LINES, _MAX_LINE_LENGTH = 20, 400, 500  # letters of a line


def comparison_facts(library: RunLibrary, job: ComparisonJob) -> dict[str, Any]:
    """Made once: it looks at every pair."""
    if job.facts is None:
        job.facts = _compute_comparison_facts(library, job)
    return job.facts


def _compute_comparison_facts(library: RunLibrary, job: ComparisonJob) -> dict[str, Any]:
    found = job.comparison
    told = comparison_to_json(replace(found, table=()))  # pairs are asked for in columns
    books = _run_datasets(job)
    origins = [_origin_facts(one, job, books) for one in found.origins[:_MAX_ORIGINS]]
    coverage = {
        **told["coverage"],
        "only_a": len(found.coverage.only_a),
        "only_b": len(found.coverage.only_b),
    }
    return {
        "a": _side_facts(library, job.a, found.a),
        "b": _side_facts(library, job.b, found.b),
        "headline": runs_report.headline(found),
        "sentence": sentences.headline_sentence(found, origins[0]["site"] if origins else ""),
        "state": _comparison_state(job),
        "exit_code": found.exit_code,
        "first": origins[0] if origins else None,
        "origins": origins,
        "counts": found.counts,
        "lines": runs_report.as_text(found).splitlines(),
        "gate": [{**one, "names": one["names"][:_MAX_NAMES]} for one in told["gate"]],
        "changes": _code_changes(books),
        "suspects": _suspects_of_first(found, books),
        "coverage": coverage,
        "floor": told["floor"],
        "notes": told["notes"],
        "pairs": len(found.table),
        "growth": sentences.error_growth(found),
    }


def pair_facts(library: RunLibrary, job: ComparisonJob, number: int, address: str) -> dict[str, Any]:
    one = job.pairs.table[number]
    known = ("verdict", "ratio", "step", "rank", "call", "kind", "note", "source", "axis", "name")
    rows = [int(side[number]) for side in job.pairs.rows]
    a, b = (
        _entry_facts(library, stock, row, entry)
        for stock, row, entry in zip((job.a, job.b), rows, (one.pair.a, one.pair.b), strict=True)
    )
    return {
        "pair": number,
        **{name: getattr(one, name) for name in known},
        "b_name": one.pair.b.name,
        "how": one.pair.how,
        "score": one.pair.score,
        "plan": list(one.pair.plan.told) if one.pair.plan is not None else [],
        "a": a,
        "b": b,
        "metrics": _metrics_facts(one, float(job.pairs.errors["ulp"][number])),
        "symptoms": sentences.symptoms_of(one),
        "story": runs_report.describe_pair(one, job.comparison.origins),
        "python": _pair_loading_code(job, rows),
    }


def _pair_loading_code(job: ComparisonJob, rows: Sequence[int]) -> str:
    """The lines that load both; nothing where a side is no file that could be loaded again."""
    if job.a is None or job.b is None or NO_ROW in rows:
        return ""
    a, b = (tensors.loading_expression(stock, row) for stock, row in zip((job.a, job.b), rows, strict=True))
    return f"import tensortap as tt\n\na = {a}\nb = {b}"


def name_matching_facts(job: ComparisonJob, saved: str | None, can_save: bool) -> dict[str, Any]:
    """How names were paired, which have no partner, and the rules that would pair them."""
    found = job.comparison
    guessed = [one.pair for one in found.table if one.pair.how in ("class", "content")]
    groups = Counter((one.a.name, one.b.name, one.how) for one in guessed)
    scores = {(one.a.name, one.b.name, one.how): one.score for one in guessed}
    only_a, only_b = _group_by_name(found.coverage.only_a), _group_by_name(found.coverage.only_b)
    others = [row["name"] for row in only_b]
    near = [
        {"a": row["name"], "b": close[0]}
        for row in only_a[:_MAX_SIMILAR]
        if (close := closest_names(row["name"], others, 1))
    ]
    proposed = [(a, b) for a, b, _ in groups] + [(one["a"], one["b"]) for one in near]
    return {
        "how": dict(Counter(one.pair.how for one in found.table)),
        "only_a": only_a[:_MAX_UNMATCHED],
        "only_b": only_b[:_MAX_UNMATCHED],
        "guesses": [
            {"a": key[0], "b": key[1], "how": key[2], "score": scores[key], "count": count}
            for key, count in groups.items()
        ],
        "near": near,
        "rules": suggested_rules(proposed) if proposed else "",
        "saved": saved,
        "can_save": can_save,
    }


def _side_facts(library: RunLibrary, stock: CachedRun | None, label: str) -> dict[str, Any]:
    name = label.rstrip("/").rpartition("/")[2]
    return {
        "id": None if stock is None else library.short(stock.identity),
        "label": label,
        "name": name,
        "reproduce": None if stock is None else reproduce_command(stock),
    }


def _comparison_state(job: ComparisonJob) -> str:
    found = job.comparison
    if found.is_different:
        return "different"
    return "nothing" if not found.coverage.pairs else "same" if found.coverage.is_whole else "incomplete"


def _run_datasets(job: ComparisonJob) -> list[RunDataset]:
    books = [stock.book for stock in (job.a, job.b) if stock is not None]
    return [book for book in books if isinstance(book, RunDataset)]


def _origin_facts(one: Origin, job: ComparisonJob, books: Sequence[RunDataset]) -> dict[str, Any]:
    """Where its records have no call site, the forward of its module is the place."""
    told = {**origin_to_json(one), "pair": pair_of_origin(one, job.pairs)}
    code = books[0].code.of(one.name) if len(books) == 2 and one.kind in _FORWARD_KINDS else None
    if told["site"] or code is None:
        return told
    return {**told, "site": f"{code.forward.file}:{code.forward.first}"}


def _suspects_of_first(found: Comparison, books: Sequence[RunDataset]) -> list[dict[str, Any]]:
    first = found.first
    return [] if first is None else find_suspects(first, sentences.finding_at_origin(found, first), books)


def _code_changes(books: Sequence[RunDataset]) -> list[dict[str, Any]]:
    """The lines in which the code of the two runs differs, as far as no commit has them."""
    if len(books) < 2:
        return []
    told = provenance(books[0].run, books[1].run)
    found = [change for topic in told.topics for change in topic.changes][:_MAX_FILES]
    return [{**asdict(one), "file": one.file[:_MAX_LINE_LENGTH], "hunks": _truncate_lines(one.hunks)} for one in found]


def _truncate_lines(lines: Sequence[str]) -> list[str]:
    more = [f"... {len(lines) - _MAX_LINES:,} more lines"] if len(lines) > _MAX_LINES else []
    return [line[:_MAX_LINE_LENGTH] for line in lines[:_MAX_LINES]] + more


def _entry_facts(library: RunLibrary, stock: CachedRun | None, row: int, entry: Entry) -> dict[str, Any]:
    if stock is not None and row != NO_ROW:
        return tensors.record_facts(stock, row, f"/api/run/{library.short(stock.identity)}/row/{row}")
    names = ("name", "kind", "step", "rank", "call", "order", "dtype", "nbytes")
    site = entry.site
    where = {"file": site.file, "line": site.line, "function": site.function} if site is not None else None
    shape, held = list(entry.shape), _readable_operand(entry)
    return {
        **{name: getattr(entry, name) for name in names},
        "shape": shape,
        "row": None,
        "site": where,
        "view": tensors.default_view(shape),
        "statistics": None if held is None else tensors.operand_statistics(held),
        "value": tensors.scalar_value(held),
        "python": "",
    }


def _readable_operand(entry: Entry) -> Operand | None:
    try:
        return entry.operand()
    except (TensortapError, OSError, ValueError, KeyError):
        return None


def _metrics_facts(one: Finding, ulp: float) -> dict[str, Any] | None:
    metrics = one.metrics
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
