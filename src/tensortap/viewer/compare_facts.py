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
from tensortap.comparison.runs_json import as_json, origin_json
from tensortap.core.errors import TensortapError
from tensortap.core.paths import nearest
from tensortap.viewer import sentences, tensors
from tensortap.viewer.answers import NONE
from tensortap.viewer.books import RunBook
from tensortap.viewer.comparisons import Job
from tensortap.viewer.divergence_map import pair_of
from tensortap.viewer.library import Library
from tensortap.viewer.stock import Stock
from tensortap.viewer.summaries import reproduce_line
from tensortap.viewer.suspects import suspects

_MOST_ORIGINS, _MOST_NAMES, _MOST_UNMATCHED, _MOST_NEAR = 200, 50, 2000, 50
_OF_A_FORWARD = ("output", "own code", "local")
_MOST_FILES, _MOST_LINES, _LONGEST = 20, 400, 500  # letters of a line


def whole(library: Library, job: Job) -> dict[str, Any]:
    """Made once: it looks at every pair."""
    if job.facts is None:
        job.facts = _whole(library, job)
    return job.facts


def _whole(library: Library, job: Job) -> dict[str, Any]:
    found = job.comparison
    told = as_json(replace(found, table=()))  # pairs are asked for in columns
    books = _books(job)
    origins = [_origin(one, job, books) for one in found.origins[:_MOST_ORIGINS]]
    coverage = {
        **told["coverage"],
        "only_a": len(found.coverage.only_a),
        "only_b": len(found.coverage.only_b),
    }
    return {
        "a": _side(library, job.a, found.a),
        "b": _side(library, job.b, found.b),
        "headline": runs_report.headline(found),
        "sentence": sentences.sentence(found, origins[0]["site"] if origins else ""),
        "state": _state(job),
        "exit_code": found.exit_code,
        "first": origins[0] if origins else None,
        "origins": origins,
        "counts": found.counts,
        "lines": runs_report.as_text(found).splitlines(),
        "gate": [{**one, "names": one["names"][:_MOST_NAMES]} for one in told["gate"]],
        "changes": _changes(books),
        "suspects": _suspects(found, books),
        "coverage": coverage,
        "floor": told["floor"],
        "notes": told["notes"],
        "pairs": len(found.table),
        "growth": sentences.growth(found),
    }


def pair(library: Library, job: Job, number: int, address: str) -> dict[str, Any]:
    one = job.pairs.table[number]
    known = ("verdict", "ratio", "step", "rank", "call", "kind", "note", "source", "axis", "name")
    rows = [int(side[number]) for side in job.pairs.rows]
    a, b = (
        _facts(library, stock, row, entry)
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
        "metrics": _metrics(one, float(job.pairs.errors["ulp"][number])),
        "symptoms": sentences.symptoms(one),
        "story": runs_report.story(one, job.comparison.origins),
        "python": _python(job, rows),
    }


def _python(job: Job, rows: Sequence[int]) -> str:
    """The lines that load both; nothing where a side is no file that could be loaded again."""
    if job.a is None or job.b is None or NONE in rows:
        return ""
    a, b = (tensors.loading(stock, row) for stock, row in zip((job.a, job.b), rows, strict=True))
    return f"import tensortap as tt\n\na = {a}\nb = {b}"


def names(job: Job, saved: str | None, can_save: bool) -> dict[str, Any]:
    """How names were paired, which have no partner, and the rules that would pair them."""
    found = job.comparison
    guessed = [one.pair for one in found.table if one.pair.how in ("class", "content")]
    groups = Counter((one.a.name, one.b.name, one.how) for one in guessed)
    scores = {(one.a.name, one.b.name, one.how): one.score for one in guessed}
    only_a, only_b = _grouped(found.coverage.only_a), _grouped(found.coverage.only_b)
    others = [row["name"] for row in only_b]
    near = [
        {"a": row["name"], "b": close[0]}
        for row in only_a[:_MOST_NEAR]
        if (close := nearest(row["name"], others, 1))
    ]
    proposed = [(a, b) for a, b, _ in groups] + [(one["a"], one["b"]) for one in near]
    return {
        "how": dict(Counter(one.pair.how for one in found.table)),
        "only_a": only_a[:_MOST_UNMATCHED],
        "only_b": only_b[:_MOST_UNMATCHED],
        "guesses": [
            {"a": key[0], "b": key[1], "how": key[2], "score": scores[key], "count": count}
            for key, count in groups.items()
        ],
        "near": near,
        "rules": suggested_rules(proposed) if proposed else "",
        "saved": saved,
        "can_save": can_save,
    }


def _side(library: Library, stock: Stock | None, label: str) -> dict[str, Any]:
    name = label.rstrip("/").rpartition("/")[2]
    return {
        "id": None if stock is None else library.short(stock.identity),
        "label": label,
        "name": name,
        "reproduce": None if stock is None else reproduce_line(stock),
    }


def _state(job: Job) -> str:
    found = job.comparison
    if found.is_different:
        return "different"
    return "nothing" if not found.coverage.pairs else "same" if found.coverage.is_whole else "incomplete"


def _books(job: Job) -> list[RunBook]:
    books = [stock.book for stock in (job.a, job.b) if stock is not None]
    return [book for book in books if isinstance(book, RunBook)]


def _origin(one: Origin, job: Job, books: Sequence[RunBook]) -> dict[str, Any]:
    """Where its records have no call site, the forward of its module is the place."""
    told = {**origin_json(one), "pair": pair_of(one, job.pairs)}
    code = books[0].code.of(one.name) if len(books) == 2 and one.kind in _OF_A_FORWARD else None
    if told["site"] or code is None:
        return told
    return {**told, "site": f"{code.forward.file}:{code.forward.first}"}


def _suspects(found: Comparison, books: Sequence[RunBook]) -> list[dict[str, Any]]:
    first = found.first
    return [] if first is None else suspects(first, sentences.seen_by(found, first), books)


def _changes(books: Sequence[RunBook]) -> list[dict[str, Any]]:
    """The lines in which the code of the two runs differs, as far as no commit has them."""
    if len(books) < 2:
        return []
    told = provenance(books[0].run, books[1].run)
    found = [change for topic in told.topics for change in topic.changes][:_MOST_FILES]
    return [{**asdict(one), "file": one.file[:_LONGEST], "hunks": _cut(one.hunks)} for one in found]


def _cut(lines: Sequence[str]) -> list[str]:
    more = [f"... {len(lines) - _MOST_LINES:,} more lines"] if len(lines) > _MOST_LINES else []
    return [line[:_LONGEST] for line in lines[:_MOST_LINES]] + more


def _facts(library: Library, stock: Stock | None, row: int, entry: Entry) -> dict[str, Any]:
    if stock is not None and row != NONE:
        return tensors.facts(stock, row, f"/api/run/{library.short(stock.identity)}/row/{row}")
    names = ("name", "kind", "step", "rank", "call", "order", "dtype", "nbytes")
    site = entry.site
    where = {"file": site.file, "line": site.line, "function": site.function} if site is not None else None
    shape, held = list(entry.shape), _operand(entry)
    return {
        **{name: getattr(entry, name) for name in names},
        "shape": shape,
        "row": None,
        "site": where,
        "view": tensors.default_view(shape),
        "statistics": None if held is None else tensors.statistics_json(held),
        "value": tensors.single(held),
        "python": "",
    }


def _operand(entry: Entry) -> Operand | None:
    try:
        return entry.operand()
    except (TensortapError, OSError, ValueError, KeyError):
        return None


def _metrics(one: Finding, ulp: float) -> dict[str, Any] | None:
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


def _grouped(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for entry in entries:
        shape = ",".join(map(str, entry.shape))
        facts = {"name": entry.name, "count": 0, "kind": entry.kind, "shape": shape, "dtype": entry.dtype}
        rows.setdefault(entry.name, facts)["count"] += 1
    return list(rows.values())
