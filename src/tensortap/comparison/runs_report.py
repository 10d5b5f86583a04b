"""A comparison of two runs as one screen of text, and as data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding, Origin
from tensortap.comparison.floor import DEFAULT_LIMIT, INTRINSIC_ROUNDING, UNIT_ROUNDOFF
from tensortap.comparison.metrics import Metrics
from tensortap.comparison.shape_of_difference import describe_symptoms
from tensortap.comparison.verdict import GAPS, VERDICTS

if TYPE_CHECKING:
    from tensortap.comparison.runs import Comparison, Coverage

_MAX_SHOWN = 8
_NUMBER = re.compile(r"(?<=\s)[\d,]*\d")
_IDENTICAL = "  all that came into it, and what its parts gave, is identical: only its own rounding is noise"
_MEANINGS = {
    "own code": "its inputs and what its parts gave so far are right: the fault lies between them",
    "output": "its inputs, and whatever it has called, are right",
    "backward": "the forward pass, and all gradients before it, are right",
    "data": "what was given to the model differs",
}


def as_text(found: Comparison) -> str:
    """One screen: what explains it, where it begins, how far it goes, and what was not seen."""
    lines = [f"A  {found.a}", f"B  {found.b}", ""]
    lines += [f"{_mark(one.state)} {one.text}" for one in found.gate if one.state == "differs"]
    lines += [_describe_equal_setup(found), "", headline(found)]
    lines += _describe_first_origin(found)
    lines += ["", verdict_counts_line(found), *layout_lines(found), noise_line(found), *gap_lines(found.coverage)]
    lines += [f"note: {note}" for note in found.notes]
    return "\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line or before)


def headline(found: Comparison) -> str:
    """The answer in one sentence."""
    first = found.first
    if first is not None:
        return f"DIFFERENT from {first.where} on: {_describe_origin(first)}"
    if not found.coverage.pairs:
        return "NOTHING TO COMPARE: no value has a partner on the other side"
    counts = {verdict: count for verdict, count in found.counts.items() if verdict not in GAPS}
    if not counts:
        return "INCOMPLETE: nothing of it could be compared"
    same = "IDENTICAL" if counts.keys() == {"identical"} else "WITHIN NOISE"
    if any(plan.is_layout_change for plan in found.plans):
        same += ", up to layouts"
    unsure = " (uncalibrated)" if not same.startswith("IDENTICAL") and found.coverage.uncalibrated else ""
    if not found.coverage.is_whole:
        return f"INCOMPLETE: {same.lower()}{unsure} in what could be compared"
    return f"{same}{unsure}"


def verdict_counts_line(found: Comparison) -> str:
    counts = found.counts
    told = ", ".join(f"{counts[one]:,} {one}" for one in VERDICTS if one in counts)
    count = found.coverage.pairs
    return f"{count:,} pair{'s' if count != 1 else ''}: {told or 'none'}"


def layout_lines(found: Comparison) -> list[str]:
    """What is equal only in another arrangement."""
    names: dict[str, list[str]] = {}
    for plan in found.plans:
        if plan.is_layout_change:
            names.setdefault(plan.summary, []).append(plan.name)
    told = "; ".join(f"{words}: {_join_some(these)}" for words, these in names.items())
    return [f"equal up to {told}"] if told else []


def noise_line(found: Comparison) -> str:
    """By what the differences were measured."""
    coverage, floor = found.coverage, found.floor
    if not floor.is_measured:
        advice = "tt.floor(model, batch) or a repeated run measures it"
        limit = f"; beyond from {floor.limit:.3g}x on" if floor.limit != DEFAULT_LIMIT else ""
        return f"noise: uncalibrated, what is usual for the number type{limit}; {advice}"
    some = f"; {coverage.uncalibrated:,} pairs uncalibrated" if coverage.uncalibrated else ""
    skipped = f"; not made: {'; '.join(floor.skipped)}" if floor.skipped else ""
    told = f"noise: from {', '.join(floor.twins)}; beyond from {floor.limit:.3g}x on"
    return f"{told}{_describe_lower_precision(found)}{some}{skipped}"


def _describe_lower_precision(found: Comparison) -> str:
    """That B rounds more than anything by which it is measured; of runs that were repeated nobody knows."""
    if not found.is_different or "ulp" not in found.floor.twins:
        return ""
    types = {pair.b.dtype for pair in (one.pair for one in found.table) if _rounds_more(pair.b, pair.a)}
    unlike = sorted(types - set(found.floor.twins))
    return f"; none of it is of {' or '.join(unlike)}, as B is" if unlike else ""


def _rounds_more(one: Entry, other: Entry) -> bool:
    return UNIT_ROUNDOFF.get(one.dtype, 0.0) > UNIT_ROUNDOFF.get(other.dtype, 0.0) > 0


def gap_lines(coverage: Coverage) -> list[str]:
    """What the comparison cannot speak of."""
    alone = (("only in A", coverage.only_a), ("only in B", coverage.only_b))
    lines = [f"gap: {len(only):,} {what}: {_join_some(list(map(str, only)))}" for what, only in alone if only]
    for what, told in (("unreadable", coverage.unreadable), ("not aligned", coverage.unaligned)):
        for names, reason in _group_by_reason(told):
            lines.append(f"gap: {len(names):,} {what}: {_join_some(names)}: {reason}")
    lines += [f"gap: {problem}" for problem in coverage.problems]
    if coverage.behind_ties:
        lines.append(f"gap: {coverage.behind_ties:,} differ more, behind near ties that fell otherwise")
    if coverage.opaque == 1:
        lines.append("1 pair is of objects without numbers, and was not judged")
    elif coverage.opaque:
        lines.append(f"{coverage.opaque:,} pairs are of objects without numbers, and were not judged")
    return lines


def _group_by_reason(told: Sequence[str]) -> list[tuple[list[str], str]]:
    """The names that have one reason, in the words of the first: of others only its numbers may differ."""
    groups: dict[str, tuple[list[str], str]] = {}
    for one in told:
        name, _, reason = one.partition(": ")
        groups.setdefault(_NUMBER.sub("#", reason), ([], reason))[0].append(name)
    return list(groups.values())


def format_ratio(ratio: float) -> str:
    """A ratio to the noise, for eyes."""
    if math.isinf(ratio):
        return "beyond any noise"
    return f"{ratio:,.0f}x its noise" if ratio >= 100 else f"{ratio:.3g}x its noise"


def describe_pair(found: Finding, origins: Sequence[Origin]) -> str:
    """Everything about one pair."""
    pair, noise = found.pair, found.noise
    other = f" (B calls it {pair.b.name})" if pair.b.name != pair.a.name else ""
    blamed = [
        one for one in origins if (one.seen_at, one.step, one.call) == (found.name, found.step, found.call)
    ]
    sure = f", score {pair.score:.2g}" if pair.score < 1 else ""
    lines = [
        f"{pair.a}{other}: {found.verdict}{', ' + format_ratio(found.ratio) if found.ratio else ''}",
        f"  paired by {pair.how}{sure}; {_describe_dtypes(pair.a, pair.b)}",
        *(f"  {line}" for line in (pair.alignment.details if pair.alignment is not None else ())),
        *(f"  {line}" for line in _describe_metrics(found.metrics)),
        f"  noise ({noise.source}): whole {noise.relative_l2:.3g}, worst row {noise.row:.3g}, "
        f"worst column {noise.column:.3g}; beyond from {noise.limit:.3g}x on",
    ]
    lines += [f"  {found.note}"] if found.note and found.verdict != "unaligned" else []
    lines += [f"  the difference: {told}" for told in describe_symptoms(found)]
    lines += [f"  inherited from {found.source}"] if found.source and found.is_beyond else []
    lines += [f"  heals what came in with {found.source}"] if found.verdict == "healed" else []
    lines += [f"  it shows an origin: {one.where}, {one.kind}" for one in blamed]
    return "\n".join(lines)


def _mark(state: str) -> str:
    return {"differs": "!", "equal": "=", "unknown": "?"}[state]


def _describe_equal_setup(found: Comparison) -> str:
    """The parts of the gate that hold no news, in one line."""
    equal = [one.what for one in found.gate if one.state == "equal"]
    unknown = [one.what for one in found.gate if one.state == "unknown"]
    parts = [
        f"equal: {', '.join(equal)}" if equal else "",
        f"not recorded: {', '.join(unknown)}" if unknown else "",
    ]
    return "; ".join(filter(None, parts))


def _describe_first_origin(found: Comparison) -> list[str]:
    first = found.first
    if first is None:
        return []
    seen = next(one for one in found.table if (one.name, one.step, one.rank, one.call) == _finding_key(first))
    lines = [f"  seen at {seen.pair.a}" + (f", {first.site}" if first.site else "")]
    lines += [f"  {_MEANINGS[first.kind]}"] if first.kind in _MEANINGS and not first.note else []
    lines += [_IDENTICAL] if seen.noise.source == INTRINSIC_ROUNDING else []
    measured = _describe_metrics(seen.metrics)
    lines += [f"  {line}" for line in measured]
    lines += [f"  {first.note}"] if first.note and first.note not in measured else []
    more = found.origins[1:]
    lines += [f"  also {one.where}: {_describe_origin(one)}" for one in more[: _MAX_SHOWN - 2]]
    return [*lines, *([f"  and {len(more) - _MAX_SHOWN + 2} more origins"] if len(more) > _MAX_SHOWN - 2 else [])]


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
    along = (("row", metrics.row, metrics.worst_row), ("column", metrics.column, metrics.worst_column))
    parts = [f"{size:.3g} of {axis} {place}" for axis, size, place in along if place >= 0]
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
    mine, other = (f"{entry.dtype} {list(entry.shape)}" for entry in (a, b))
    return mine if mine == other else f"{mine} against {other}"


def _join_some(names: Sequence[str]) -> str:
    more = f", ... {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(names[:_MAX_SHOWN]) + more
