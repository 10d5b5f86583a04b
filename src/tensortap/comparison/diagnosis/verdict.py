"""Verdicts on pairs, relative to their noise: Judgement, Finding, Origin; depth and precision of a value."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from tensortap.comparison.matching.match import EntryPair
from tensortap.comparison.sides.entry import OUTPUTS, Entry, module_of, stem_of
from tensortap.comparison.values.metrics import Metrics
from tensortap.comparison.values.noise import SCALE_DTYPES, UNIT_ROUNDOFF, Noise
from tensortap.core.record import Kind

Verdict = Literal[
    "identical",
    "within noise",
    "healed",
    "drift",
    "origin",
    "flip",
    "nonfinite",
    "structure",
    "unaligned",
    "unreadable",
    "uncovered",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
GREEN: frozenset[Verdict] = frozenset(("identical", "within noise", "healed"))
GAPS: frozenset[Verdict] = frozenset(("unreadable", "uncovered", "unaligned"))
BEYOND_NOISE: frozenset[Verdict] = frozenset(VERDICTS) - GREEN - GAPS
Axis = Literal["", "whole", "row", "column"]
_WHOLE: Axis = "whole"
AFTER_STEP = ".after_step"


# Not frozen: there is one per pair, and creating a frozen one takes four times as long.
@dataclass(slots=True)
class Judgement:
    """The verdict on one pair by itself: its difference as a multiple of the noise, and along which axis."""

    verdict: Verdict
    ratio: float
    axis: Axis = ""
    note: str = ""

    @property
    def is_beyond(self) -> bool:
        return self.verdict in BEYOND_NOISE


def judge(measurement: Metrics | str, noise: Noise, pair: EntryPair | None = None) -> Judgement:
    """The verdict on one pair by itself; `localise` tells origins from inherited differences."""
    if isinstance(measurement, str):
        is_ambiguous = pair is not None and pair.alignment is not None and not pair.alignment.is_usable
        return Judgement("unaligned" if is_ambiguous else "unreadable", 0.0, note=measurement)
    if measurement.is_opaque or measurement.reason:
        return _judge_unmeasured(measurement, pair)
    if measurement.is_identical:
        return Judgement("identical", 0.0)
    if measurement.disagreeing > measurement.masked:
        return Judgement("nonfinite", math.inf, note=_describe_nonfinite(measurement))
    if measurement.is_discrete:
        return _judge_discrete(measurement, noise)
    if pair is not None and pair.a.name.endswith(AFTER_STEP):
        return _judge_updated_weights(measurement, noise)
    return _judge_numeric(measurement, noise)


def _judge_unmeasured(metrics: Metrics, pair: EntryPair | None) -> Judgement:
    """The verdict on a pair without numeric metrics: opaque objects, or structures that differ."""
    if metrics.is_opaque:
        return Judgement(
            "identical" if metrics.is_identical else "uncovered", 0.0, note="not numbers or text"
        )
    if pair is not None and _is_sharded_differently(pair):
        return Judgement("unaligned", 0.0, note=metrics.reason)
    return Judgement("structure", math.inf, note=metrics.reason)


def _is_sharded_differently(pair: EntryPair) -> bool:
    """Whether the two sides hold shards of different placements."""
    a, b = pair.a.placement, pair.b.placement
    return (a is not None or b is not None) and a != b


def _judge_discrete(metrics: Metrics, noise: Noise) -> Judgement:
    """Mismatches of discrete values are noise if reruns have about as many."""
    note = f"{metrics.mismatches:,} of {metrics.count:,} differ"
    if noise.flips and metrics.mismatches <= noise.limit * noise.flips:
        return Judgement("within noise", metrics.mismatches / noise.flips, "whole", note)
    return Judgement("flip", math.inf, "whole", note)


def _judge_updated_weights(metrics: Metrics, noise: Noise) -> Judgement:
    """The verdict on weights after an optimizer step, without rows and columns.

    An optimizer like Adam divides by the size of the gradient: where that is tiny, single numbers jump."""
    without_rows = replace(noise, row=math.inf, column=math.inf)
    return _judge_numeric(metrics, without_rows)


def _judge_numeric(metrics: Metrics, noise: Noise) -> Judgement:
    if metrics.disagreeing:
        return Judgement("origin", math.inf, note=f"{metrics.disagreeing:,} masked on one side only")
    ratio, axis = _noise_ratio(metrics.relative_l2, noise.relative_l2), _WHOLE
    if (row := _noise_ratio(metrics.row, noise.row)) > ratio:
        ratio, axis = row, "row"
    if (column := _noise_ratio(metrics.column, noise.column)) > ratio:
        ratio, axis = column, "column"
    return Judgement("origin" if ratio > noise.limit else "within noise", ratio, axis)


def _noise_ratio(size: float, noise: float) -> float:
    if noise:
        return size / noise
    return math.inf if size else 0.0


def _describe_nonfinite(metrics: Metrics) -> str:
    counts = [
        f"{count:,} {kind} in {side}"
        for kind, per_side in (("NaN", metrics.nan), ("Inf", metrics.inf))
        for side, count in zip("AB", per_side, strict=True)
        if count
    ]
    return ", ".join(counts)


# Not frozen: there is one per pair, and creating a frozen one takes five times as long.
@dataclass(slots=True, eq=False)
class Finding:
    """One pair of values: their metrics, the ratio to their noise, and the verdict."""

    pair: EntryPair
    metrics: Metrics | None  # None where a value could not be read
    noise: Noise
    verdict: Verdict
    ratio: float
    axis: Axis = ""
    note: str = ""
    source: str = ""  # the value that an inherited difference comes from
    module_override: str = ""  # the module, where the name alone suggests another

    @property
    def name(self) -> str:
        return self.pair.a.name

    @property
    def kind(self) -> Kind:
        return self.pair.a.kind

    @property
    def module(self) -> str:
        return self.module_override or module_of(self.pair.a.name, self.pair.a.kind)

    @property
    def step(self) -> int:
        return self.pair.a.first_step

    @property
    def rank(self) -> int:
        return self.pair.a.first_rank

    @property
    def call(self) -> int:
        return self.pair.a.call

    @property
    def is_beyond(self) -> bool:
        return self.verdict in BEYOND_NOISE

    @property
    def is_opaque(self) -> bool:
        return self.metrics is not None and self.metrics.is_opaque


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run diverges: a module whose inputs match and whose outputs do not.

    `name` is the path of the module (empty for the model itself), or of the value if there is none.
    `kind`: "output", "own code" (the module's forward between its submodules), "local", "backward", "param",
    "data" (the inputs of the model) or "value". `seen_at` is the value that shows it."""

    name: str
    verdict: Verdict
    ratio: float
    step: int
    rank: int
    kind: str
    seen_at: str
    call: int = 0
    axis: Axis = ""
    class_name: str = ""
    site: str = ""
    note: str = ""

    @property
    def where(self) -> str:
        """The module's path and class, for display."""
        path = self.name or "the model itself"
        return f"{path} ({self.class_name})" if self.class_name else path


def make_finding(pair: EntryPair, measurement: Metrics | str, noise: Noise, judgement: Judgement) -> Finding:
    metrics = None if isinstance(measurement, str) else measurement
    return Finding(pair, metrics, noise, judgement.verdict, judgement.ratio, judgement.axis, judgement.note)


def resolve_out_modules(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The findings with the right module for submodules called `out`, whose names look like outputs."""
    outs = {
        f"{finding.module}."
        for finding in findings
        if finding.kind == "input" and finding.module.endswith("out")
    }
    for finding in findings:
        # The output of the model itself is named "<...>" if the model has a submodule `out`.
        if finding.kind in OUTPUTS and finding.name.startswith("<"):
            outs.add("out.")
        elif finding.kind in OUTPUTS and finding.module.endswith(".out"):
            outs.add(f"{finding.module}.")
    outs = {prefix for prefix in outs if f".{prefix}".endswith(".out.")}
    return [_resolve_out_module(finding, tuple(outs)) for finding in findings] if outs else findings


def _resolve_out_module(finding: Finding, outs: tuple[str, ...]) -> Finding:
    stem = stem_of(finding.name, finding.kind)
    is_below = finding.kind in OUTPUTS and f"{stem}.".startswith(outs)
    is_misnamed = is_below and not f"{finding.module}.".startswith(outs)
    return replace(finding, module_override=stem) if is_misnamed else finding


def worse_of(a: Finding | None, b: Finding | None) -> Finding | None:
    if a is None or b is None or a is b:
        return a or b
    is_beyond = b.verdict in BEYOND_NOISE
    if is_beyond != (a.verdict in BEYOND_NOISE):
        return b if is_beyond else a
    return b if b.ratio > a.ratio else a


class DepthTracker:
    """Tracks, per step and rank, the lowest precision and the number of layers so far."""

    def __init__(self) -> None:
        self._progress: dict[tuple[object, object], _StepProgress] = {}

    def dtype_and_depth(self, pair: EntryPair) -> tuple[str, int]:
        entry, other_dtype = pair.a, pair.b.dtype
        if entry.dtype in SCALE_DTYPES:
            return entry.dtype, 1
        progress = self._progress.get((entry.step, entry.rank)) or self._start_step(entry)
        if entry.dtype != progress.lowest_dtype or other_dtype != progress.lowest_dtype:
            progress.lowest_dtype = max(progress.lowest_dtype, entry.dtype, other_dtype, key=_unit_roundoff)
        if entry.name not in progress.names:
            progress.add(entry)
        # A gradient has passed every layer forward and backward.
        depth = 2 * progress.layers if entry.kind.startswith("grad") else progress.layers
        return progress.lowest_dtype, depth

    def _start_step(self, entry: Entry) -> _StepProgress:
        """The progress of the entry's step; an entry of several steps belongs to the first."""
        progress = self._progress.setdefault((entry.first_step, entry.first_rank), _StepProgress())
        return self._progress.setdefault((entry.step, entry.rank), progress)


@dataclass(slots=True)
class _StepProgress:
    """Layers and precisions of one step and rank so far."""

    lowest_dtype: str = ""
    layers: int = 1  # the largest number of submodules of one module that have run
    names: set[str] = field(default_factory=set)
    children: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, entry: Entry) -> None:
        self.names.add(entry.name)
        # The name of a user value is no module path, but its prefix may be one.
        path = module_of(entry.name, entry.kind) if entry.kind != "value" else entry.name.rpartition(".")[0]
        while path:
            parent = path.rpartition(".")[0]
            siblings = self.children[parent]
            if path in siblings:
                return
            siblings.add(path)
            if len(siblings) > self.layers:
                self.layers = len(siblings)
            path = parent


def _unit_roundoff(dtype: str) -> float:
    return UNIT_ROUNDOFF.get(dtype, 0.0)


def is_tie(finding: Finding) -> bool:
    """Whether it is a discrete value that differs within noise."""
    metrics = finding.metrics
    return metrics is not None and metrics.is_discrete and finding.verdict == "within noise"


def differs_in_few_rows(finding: Finding) -> bool:
    """Whether only single rows are beyond noise, as where few decisions differ."""
    metrics, noise = finding.metrics, finding.noise
    if metrics is None or finding.verdict != "origin" or finding.axis != "row":
        return False
    sizes = (metrics.relative_l2, noise.relative_l2), (metrics.column, noise.column)
    return all(size <= noise.limit * typical for size, typical in sizes)
