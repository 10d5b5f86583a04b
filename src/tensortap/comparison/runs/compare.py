"""`tt.compare_runs` and `tt.assert_runs_match`: where two runs diverge first, and whether that is noise."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensortap.comparison.alignment.align import align_pairs
from tensortap.comparison.alignment.steps import merge_steps
from tensortap.comparison.diagnosis.layout_or_bug import REORDERED_L2, accept_reordered_heads, resolve_layout
from tensortap.comparison.diagnosis.localise import localise_verified, mark_corrupt_values
from tensortap.comparison.diagnosis.preconditions import Explanation, explain_setup_differences
from tensortap.comparison.diagnosis.ties import annotate_decision_margins
from tensortap.comparison.diagnosis.verdict import DepthTracker, Finding, Origin, judge, make_finding
from tensortap.comparison.matching.match import Matching, match
from tensortap.comparison.matching.rules import Rules, load_rules
from tensortap.comparison.noise.floor import Floor, check_limit, resolve_floor
from tensortap.comparison.runs import html, json, text
from tensortap.comparison.runs.result import ComparisonResult, Coverage
from tensortap.comparison.sharding.group_ranks import group_ranks
from tensortap.comparison.sharding.placement import parse_declared_placements
from tensortap.comparison.sides.entry import STORED_REFS, Side, describe_gaps
from tensortap.comparison.sides.load import check_executor, load_side, patterns_of
from tensortap.comparison.values.measure import measure_pairs
from tensortap.comparison.values.metrics import Metrics
from tensortap.core.errors import UnknownNameError
from tensortap.core.patterns import closest_names


@dataclass(frozen=True, slots=True, eq=False)
class Comparison(ComparisonResult):
    """What `tt.compare_runs` found; `print` it for one screen."""

    def explain(self, name: str) -> str:
        """All about one value: each of its pairs, the difference, and the reason for its verdict."""
        if not isinstance(name, str):
            raise TypeError(f"explain takes the name of a value, not {name!r}; .table lists all pairs")
        findings = [finding for finding in self.table if name in (finding.name, finding.pair.b.name)]
        if not findings:
            raise UnknownNameError(self._describe_unknown(name))
        return "\n\n".join(text.describe_pair(finding, self.origins) for finding in findings)

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON-compatible data; `schema` names its version, and keys are only ever added."""
        return json.comparison_to_json(self)

    def to_html(self) -> str:
        """A standalone HTML page without scripts."""
        return html.render_page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `.json`, `.html` or plain text, by the suffix."""
        json.save_comparison(self, Path(path))

    def __str__(self) -> str:
        return text.as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html.render_fragment(self)

    def _describe_unknown(self, name: str) -> str:
        names = list(dict.fromkeys(finding.name for finding in self.table))
        unmatched = [entry for entry in (*self.coverage.only_a, *self.coverage.only_b) if entry.name == name]
        if unmatched:
            return f"{name!r} is on one side only, so there is nothing to compare it with"
        suggestions = closest_names(name, names)
        hint = f"did you mean {' or '.join(map(repr, suggestions))}? " if suggestions else ""
        return f"no pair {name!r}; {hint}.table lists all {len(names)} names"


def compare_runs(
    a: Any,
    b: Any,
    *,
    floor: Any = None,
    map: Any = None,
    only: str | Sequence[str] = (),
    step: int | None = None,
    rank: int | None = None,
    limit: float | None = None,
    dims: Mapping[str, str] | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Where two runs part, and whether that is more than noise.

    >>> found = tt.compare_runs("runs/before", "runs/after", floor=tt.floor(model, batch))
    >>> print(found)
    >>> found.first.name, found.first.ratio

    `a`, `b`: runs, folders of runs, trace files, files of values, captures, records, dicts of values.
    `floor`: what `tt.floor` gives, a file of it, or one or more runs that should be the same as `a`.
    `map`: rules for names that differ: a TOML file, a dict, a function of A's name.
    `only`, `step`, `rank`: look at these alone. `limit`: from how many times the noise on it counts.
    `dims`: how values that are in pieces on several ranks sit in the whole: `{"**.up_proj": "shard(2)"}`.
    `executor`: any `concurrent.futures` executor; its workers read the files themselves.
    """
    check_executor(executor)
    sides = [load_side(source).select(*patterns_of(only), step=step, rank=rank) for source in (a, b)]
    noise_floor = resolve_floor(floor, sides[0], executor)
    noise_floor = noise_floor if limit is None else replace(noise_floor, limit=check_limit(limit))
    rules = load_rules(map)
    if dims:
        rules = replace(rules, placements=(*parse_declared_placements(dims), *rules.placements))
    sides = _unify_ranks_and_steps(sides, rules)
    matched = match(sides[0], sides[1], rules)
    if _may_need_alignment(matched):
        matched = align_pairs(matched, executor)
    findings = mark_corrupt_values(_judge_pairs(matched, noise_floor, limit, executor))
    table, origins = localise_verified(_accept_harmless(findings), matched.only_a, noise_floor.names)
    sides = [replace(side, metadata=rules.drop_ignored_weights(side.metadata)) for side in sides]
    explanations = explain_setup_differences(sides[0], sides[1], matched)
    return Comparison(
        sides[0].label,
        sides[1].label,
        tuple(table),
        tuple(add_weight_note(origin, explanations) for origin in origins),
        explanations,
        _summarise_coverage(matched, table, sides, is_explained=bool(origins)),
        noise_floor,
        (*matched.notes, *dict.fromkeys([*sides[0].notes, *sides[1].notes])),
    )


def _unify_ranks_and_steps(sides: list[Side], rules: Rules) -> list[Side]:
    """Both sides, with ranks and steps merged where one has others than the other."""
    a, b = sides
    if a.ranks != b.ranks or any(entry.placement is not None for side in sides for entry in side.entries):
        a, b = group_ranks(a, b, rules.placements)
    return list(merge_steps(a, b, rules)) if len(a.steps) != len(b.steps) else [a, b]


def _may_need_alignment(matched: Matching) -> bool:
    """Whether values are in shards or several steps, fused on one side only, or rows of tokens."""
    entries = [entry for pair in matched.pairs for entry in (pair.a, pair.b)]
    return (
        bool(matched.only_a and matched.only_b)
        or not all(isinstance(entry.reference, STORED_REFS) for entry in entries)
        or any(entry.is_token_ids for entry in entries)
    )


def _accept_harmless(findings: list[Finding]) -> list[Finding]:
    """The findings, with reordered heads and near ties taken for what they are."""
    if any(finding.verdict == "origin" and _is_far(finding.metrics) for finding in findings):
        findings = accept_reordered_heads(findings)
    if any(finding.metrics is not None and finding.metrics.is_discrete for finding in findings):
        findings = annotate_decision_margins(findings)
    return findings


def _is_far(measurement: Metrics | str | None) -> bool:
    """Whether two values differ as much as those of other shapes or another order of elements do."""
    if measurement is None or isinstance(measurement, str):
        return False
    return bool(measurement.reason) or measurement.relative_l2 > REORDERED_L2


def _judge_pairs(
    matched: Matching, floor: Floor, limit: float | None, executor: Executor | None
) -> Iterator[Finding]:
    pairs = matched.pairs
    entries = ((pair.a, pair.b) for pair in pairs)
    depth_tracker = DepthTracker()
    # Measure all first: judging meanwhile would hold the GIL that worker threads wait for.
    for pair, measurement in zip(pairs, list(measure_pairs(entries, executor)), strict=True):
        dtype, depth = depth_tracker.dtype_and_depth(pair)
        noise = floor.of(pair.a, dtype=dtype, depth=depth)
        noise = noise if limit in (None, noise.limit) else replace(noise, limit=limit)
        reordered = resolve_layout(pair, measurement) if _is_far(measurement) else None
        if reordered is not None:
            pair, measurement = reordered, next(measure_pairs([(reordered.a, reordered.b)]))
        yield make_finding(pair, measurement, noise, judge(measurement, noise, pair))


def add_weight_note(origin: Origin, explanations: Sequence[Explanation]) -> Origin:
    """The origin, with a note if the module's own weights differ."""
    weights = [
        name
        for explanation in explanations
        if explanation.what == "weights" and explanation.differs and not explanation.are_unmatched
        for name in explanation.names
        if name.rpartition(".")[0] == origin.name
    ]
    if not weights:
        return origin
    reason = f"its weights differ: {', '.join(weights[:3])}"
    return replace(origin, note="; ".join(filter(None, [reason, origin.note])))


def _describe_gap(finding: Finding) -> str:
    """Why a pair could not be aligned."""
    alignment = finding.pair.alignment
    if alignment is not None and not alignment.is_usable and alignment.details:
        return alignment.details[-1]
    return finding.note


def _summarise_coverage(
    matched: Matching, table: Sequence[Finding], sides: Sequence[Side], *, is_explained: bool
) -> Coverage:
    return Coverage(
        behind_ties=0 if is_explained else sum(finding.is_beyond for finding in table),
        pairs=len(table),
        only_a=tuple(matched.only_a),
        only_b=tuple(matched.only_b),
        unreadable=tuple(
            f"{finding.pair.a}: {finding.note}" for finding in table if finding.verdict == "unreadable"
        ),
        unaligned=tuple(
            f"{finding.pair.a}: {_describe_gap(finding)}"
            for finding in table
            if finding.verdict == "unaligned"
        ),
        opaque=sum(finding.verdict != "identical" and finding.is_opaque for finding in table),
        ignored=matched.ignored,
        uncalibrated=sum(not finding.noise.is_measured for finding in table),
        problems=(
            *(
                f"{name}: {problem}"
                for name, side in zip("AB", sides, strict=True)
                for problem in side.problems
            ),
            *matched.gaps,
            *describe_gaps(finding.pair.alignment for finding in table),
        ),
    )


def assert_runs_match(
    a: Any,
    b: Any,
    *,
    floor: Any = None,
    map: Any = None,
    only: str | Sequence[str] = (),
    step: int | None = None,
    rank: int | None = None,
    limit: float | None = None,
    dims: Mapping[str, str] | None = None,
    executor: Executor | None = None,
    gaps: bool = False,
) -> Comparison:
    """Raise an AssertionError that holds the whole report unless two runs are the same within noise.

    >>> tt.assert_runs_match("runs/reference", cap, floor="runs/floor.json")

    The arguments are those of `compare_runs`. What only one side has, or cannot be read, fails too, unless
    `gaps=True`; two sides without anything in common always fail.
    """
    __tracebackhide__ = True
    selection: dict[str, Any] = {"only": only, "step": step, "rank": rank}
    comparison = compare_runs(
        a, b, floor=floor, map=map, limit=limit, dims=dims, executor=executor, **selection
    )
    is_accepted = comparison.is_green or (
        gaps and not comparison.is_different and comparison.coverage.judged > 0
    )
    if not is_accepted:
        raise AssertionError(str(comparison))
    return comparison
