"""A comparison of two runs as one screen of text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tensortap.comparison.diagnosis.symptoms import describe_symptoms
from tensortap.comparison.diagnosis.verdict import GAPS, VERDICTS, Finding, Origin
from tensortap.comparison.runs.result import ComparisonResult, Coverage
from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.values.metrics import Metrics
from tensortap.comparison.values.noise import DEFAULT_LIMIT, INTRINSIC_ROUNDING, UNIT_ROUNDOFF
from tensortap.render.words import join_some

_MAX_SHOWN = 8
_NUMBER = re.compile(r"(?<=\s)[\d,]*\d")
_IDENTICAL = "  all that came into it, and what its parts gave, is identical: only its own rounding is noise"
_MEANINGS = {
    "own code": "its inputs and what its parts gave so far are right: the fault lies between them",
    "output": "its inputs, and whatever it has called, are right",
    "backward": "the forward pass, and all gradients before it, are right",
    "data": "what was given to the model differs",
}


def as_text(comparison: ComparisonResult) -> str:
    """One screen: differences in setup, the first divergence, counts of verdicts, the noise floor, gaps."""
    lines = [f"A  {comparison.a}", f"B  {comparison.b}", ""]
    lines += [
        f"{_mark(explanation.state)} {explanation.text}"
        for explanation in comparison.gate
        if explanation.state == "differs"
    ]
    lines += [_describe_equal_setup(comparison), "", headline(comparison)]
    lines += _describe_first_origin(comparison)
    lines += [
        "",
        verdict_counts_line(comparison),
        *layout_lines(comparison),
        noise_line(comparison),
        *gap_lines(comparison.coverage),
    ]
    lines += [f"note: {note}" for note in comparison.notes]
    return "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line or before)


def headline(comparison: ComparisonResult) -> str:
    """The overall result in one sentence."""
    first = comparison.first
    if first is not None:
        return f"DIFFERENT from {first.where} on: {_describe_origin(first)}"
    if not comparison.coverage.pairs:
        return "NOTHING TO COMPARE: no value has a partner on the other side"
    judged = {verdict: count for verdict, count in comparison.counts.items() if verdict not in GAPS}
    if not judged:
        return "INCOMPLETE: nothing of it could be compared"
    agreement = "IDENTICAL" if judged.keys() == {"identical"} else "WITHIN NOISE"
    if any(alignment.is_layout_change for alignment in comparison.plans):
        agreement += ", up to layouts"
    caveat = (
        " (uncalibrated)"
        if not agreement.startswith("IDENTICAL") and comparison.coverage.uncalibrated
        else ""
    )
    if not comparison.coverage.is_whole:
        return f"INCOMPLETE: {agreement.lower()}{caveat} in what could be compared"
    return f"{agreement}{caveat}"


def verdict_counts_line(comparison: ComparisonResult) -> str:
    counts = comparison.counts
    summary = ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in VERDICTS if verdict in counts)
    count = comparison.coverage.pairs
    return f"{count:,} pair{'s' if count != 1 else ''}: {summary or 'none'}"


def layout_lines(comparison: ComparisonResult) -> list[str]:
    """The values that are equal only up to a layout."""
    names_by_layout: dict[str, list[str]] = {}
    for alignment in comparison.plans:
        if alignment.is_layout_change:
            names_by_layout.setdefault(alignment.summary, []).append(alignment.name)
    layouts = "; ".join(
        f"{layout}: {join_some(names, _MAX_SHOWN)}" for layout, names in names_by_layout.items()
    )
    return [f"equal up to {layouts}"] if layouts else []


def noise_line(comparison: ComparisonResult) -> str:
    """Where the noise floor comes from, and the threshold."""
    coverage, floor = comparison.coverage, comparison.floor
    if not floor.is_measured:
        advice = "tt.floor(model, batch) or a repeated run measures it"
        limit = f"; beyond from {floor.limit:.3g}x on" if floor.limit != DEFAULT_LIMIT else ""
        return f"noise: uncalibrated, what is usual for the number type{limit}; {advice}"
    uncalibrated = f"; {coverage.uncalibrated:,} pairs uncalibrated" if coverage.uncalibrated else ""
    skipped = f"; not made: {'; '.join(floor.skipped)}" if floor.skipped else ""
    summary = f"noise: from {', '.join(floor.twins)}; beyond from {floor.limit:.3g}x on"
    return f"{summary}{_describe_lower_precision(comparison)}{uncalibrated}{skipped}"


def _describe_lower_precision(comparison: ComparisonResult) -> str:
    """A warning if B has a lower precision than any rerun of the floor; nothing for repeated runs."""
    if not comparison.is_different or "ulp" not in comparison.floor.twins:
        return ""
    dtypes = {
        pair.b.dtype
        for pair in (finding.pair for finding in comparison.table)
        if _rounds_more(pair.b, pair.a)
    }
    unmeasured = sorted(dtypes - set(comparison.floor.twins))
    return f"; none of it is of {' or '.join(unmeasured)}, as B is" if unmeasured else ""


def _rounds_more(a: Entry, b: Entry) -> bool:
    return UNIT_ROUNDOFF.get(a.dtype, 0.0) > UNIT_ROUNDOFF.get(b.dtype, 0.0) > 0


def gap_lines(coverage: Coverage) -> list[str]:
    """What was not compared: unmatched, unreadable, unaligned and opaque values."""
    unmatched = (("only in A", coverage.only_a), ("only in B", coverage.only_b))
    lines = [
        f"gap: {len(entries):,} {label}: {join_some(list(map(str, entries)), _MAX_SHOWN)}"
        for label, entries in unmatched
        if entries
    ]
    for label, reasons in (("unreadable", coverage.unreadable), ("not aligned", coverage.unaligned)):
        for names, reason in _group_by_reason(reasons):
            lines.append(f"gap: {len(names):,} {label}: {join_some(names, _MAX_SHOWN)}: {reason}")
    lines += [f"gap: {problem}" for problem in coverage.problems]
    if coverage.behind_ties:
        lines.append(f"gap: {coverage.behind_ties:,} differ more, behind near ties that fell otherwise")
    if coverage.opaque == 1:
        lines.append("1 pair is of objects without numbers, and was not judged")
    elif coverage.opaque:
        lines.append(f"{coverage.opaque:,} pairs are of objects without numbers, and were not judged")
    return lines


def _group_by_reason(reasons: Sequence[str]) -> list[tuple[list[str], str]]:
    """Names grouped by reason; reasons that differ only in numbers are one, worded as the first."""
    groups: dict[str, tuple[list[str], str]] = {}
    for line in reasons:
        name, _, reason = line.partition(": ")
        groups.setdefault(_NUMBER.sub("#", reason), ([], reason))[0].append(name)
    return list(groups.values())


def format_ratio(ratio: float) -> str:
    """A multiple of the noise as text."""
    if math.isinf(ratio):
        return "beyond any noise"
    return f"{ratio:,.0f}x its noise" if ratio >= 100 else f"{ratio:.3g}x its noise"


def describe_pair(finding: Finding, origins: Sequence[Origin]) -> str:
    """All about one pair: verdict, match, metrics, noise, symptoms."""
    pair, noise = finding.pair, finding.noise
    b_name = f" (B calls it {pair.b.name})" if pair.b.name != pair.a.name else ""
    blamed = [
        origin
        for origin in origins
        if (origin.seen_at, origin.step, origin.call) == (finding.name, finding.step, finding.call)
    ]
    score = f", score {pair.score:.2g}" if pair.score < 1 else ""
    lines = [
        f"{pair.a}{b_name}: {finding.verdict}{', ' + format_ratio(finding.ratio) if finding.ratio else ''}",
        f"  paired by {pair.how}{score}; {_describe_dtypes(pair.a, pair.b)}",
        *(f"  {line}" for line in (pair.alignment.details if pair.alignment is not None else ())),
        *(f"  {line}" for line in _describe_metrics(finding.metrics)),
        f"  noise ({noise.source}): whole {noise.relative_l2:.3g}, worst row {noise.row:.3g}, "
        f"worst column {noise.column:.3g}; beyond from {noise.limit:.3g}x on",
    ]
    lines += [f"  {finding.note}"] if finding.note and finding.verdict != "unaligned" else []
    lines += [f"  the difference: {description}" for description in describe_symptoms(finding)]
    lines += [f"  inherited from {finding.source}"] if finding.source and finding.is_beyond else []
    lines += [f"  heals what came in with {finding.source}"] if finding.verdict == "healed" else []
    lines += [f"  it shows an origin: {origin.where}, {origin.kind}" for origin in blamed]
    return "\n".join(lines)


def _mark(state: str) -> str:
    return {"differs": "!", "equal": "=", "unknown": "?"}[state]


def _describe_equal_setup(comparison: ComparisonResult) -> str:
    """One line that lists what is equal and what was not recorded."""
    equal = [explanation.what for explanation in comparison.gate if explanation.state == "equal"]
    unknown = [explanation.what for explanation in comparison.gate if explanation.state == "unknown"]
    parts = [
        f"equal: {', '.join(equal)}" if equal else "",
        f"not recorded: {', '.join(unknown)}" if unknown else "",
    ]
    return "; ".join(filter(None, parts))


def _describe_first_origin(comparison: ComparisonResult) -> list[str]:
    first = comparison.first
    if first is None:
        return []
    observed = next(
        finding
        for finding in comparison.table
        if (finding.name, finding.step, finding.rank, finding.call) == _finding_key(first)
    )
    lines = [f"  seen at {observed.pair.a}" + (f", {first.site}" if first.site else "")]
    lines += [f"  {_MEANINGS[first.kind]}"] if first.kind in _MEANINGS and not first.note else []
    lines += [_IDENTICAL] if observed.noise.source == INTRINSIC_ROUNDING else []
    metrics = _describe_metrics(observed.metrics)
    lines += [f"  {line}" for line in metrics]
    lines += [f"  {first.note}"] if first.note and first.note not in metrics else []
    more = comparison.origins[1:]
    lines += [f"  also {origin.where}: {_describe_origin(origin)}" for origin in more[: _MAX_SHOWN - 2]]
    return [
        *lines,
        *([f"  and {len(more) - _MAX_SHOWN + 2} more origins"] if len(more) > _MAX_SHOWN - 2 else []),
    ]


def _finding_key(origin: Origin) -> tuple[str, int, int, int]:
    return origin.seen_at, origin.step, origin.rank, origin.call


def _describe_origin(origin: Origin) -> str:
    axis = f" in its worst {origin.axis}" if origin.axis in ("row", "column") else ""
    size = origin.verdict if math.isinf(origin.ratio) else format_ratio(origin.ratio) + axis
    where = [f"step {origin.step}" if origin.step else "", f"rank {origin.rank}" if origin.rank else ""]
    return ", ".join(filter(None, [origin.kind, size, *where]))


def _describe_metrics(metrics: Metrics | None) -> list[str]:
    if metrics is None:
        return []
    if metrics.is_identical:
        return ["every number is the same"]
    if metrics.is_discrete or metrics.reason:
        return [metrics.reason or f"{metrics.mismatches:,} of {metrics.count:,} differ"]
    if metrics.absolute is None:
        return []
    axes = (("row", metrics.row, metrics.worst_row), ("column", metrics.column, metrics.worst_column))
    parts = [f"{size:.3g} of {axis} {index}" for axis, size, index in axes if index >= 0]
    lines = [", ".join([f"|a - b| is {metrics.relative_l2:.3g} of the whole", *parts])]
    largest = metrics.absolute
    lines.append(
        f"largest {largest.size:.3g} at {list(largest.index)}: {largest.a:.6g} against {largest.b:.6g}"
    )
    hints = [
        f"gain {metrics.gain:+.3g}" if metrics.gain else "",
        f"1 - cos {metrics.cosine_distance:.3g}" if metrics.cosine_distance else "",
        f"bias {metrics.bias:+.3g}" if metrics.bias else "",
        f"part {metrics.part}" if metrics.part else "",
    ]
    return [line for line in [*lines, ", ".join(filter(None, hints))] if line]


def _describe_dtypes(a: Entry, b: Entry) -> str:
    a_type, b_type = (f"{entry.dtype} {list(entry.shape)}" for entry in (a, b))
    return a_type if a_type == b_type else f"{a_type} against {b_type}"
