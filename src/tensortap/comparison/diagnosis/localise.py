"""Find the first divergent modules: which differences are origins, and which are inherited from inputs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tensortap.comparison.diagnosis.backward import (
    GRADIENT_KINDS,
    Gradients,
    IntrinsicRounding,
    ModuleParents,
    UncapturedInputs,
    producing_module,
)
from tensortap.comparison.diagnosis.verdict import (
    AFTER_STEP,
    BEYOND_NOISE,
    Finding,
    Origin,
    Verdict,
    differs_in_few_rows,
    is_tie,
    resolve_out_modules,
    worse_of,
)
from tensortap.comparison.sides.entry import Entry, RunValueRef
from tensortap.comparison.values.noise import INTRINSIC_ROUNDING
from tensortap.core.errors import TensortapError
from tensortap.kernels.hashing import checksum

# A difference (as a multiple of the noise) that grows by more than this from input to output is an origin.
_MAX_GROWTH = 16.0
_FUNCTION_KINDS = ("local", "call", "return", "yield", "raise")
_KEPT_WHEN_INHERITED: frozenset[Verdict] = frozenset(("flip", "nonfinite", "structure"))
_SORTABLE: frozenset[Verdict] = frozenset(("origin", "structure"))
_WEIGHT_KINDS = ("param", "grad_param")  # have no rows that a router could sort


@dataclass(slots=True)
class _ModuleScope:
    """Findings inside a module's forward: its inputs and the outputs of its submodules."""

    worst: Finding | None = None
    has_inputs: bool = False
    call: int = 0
    sorting_decisions: Finding | None = None  # discrete inputs that differ within noise

    def add(self, finding: Finding) -> None:
        self.worst = worse_of(self.worst, finding)
        if finding.pair.a.kind == "input" and is_tie(finding):
            self.sorting_decisions = finding


@dataclass(slots=True)
class _StepWalk:
    """State while walking the values of one step and rank in execution order."""

    parents: ModuleParents
    classes: dict[str, str]
    gradients: Gradients
    uncaptured: UncapturedInputs
    intrinsic: IntrinsicRounding
    has_initial_weights: bool  # all earlier steps are identical, so the weights are too
    scopes: defaultdict[str, _ModuleScope] = field(default_factory=lambda: defaultdict(_ModuleScope))
    weights: dict[str, Finding] = field(default_factory=dict)
    model_output: Finding | None = None  # it may be fed back as an input
    worst: Finding | None = None  # so far, gradients included
    tie: Finding | None = None  # discrete values that differ within noise: values after it jump

    def worst_parent_of(self, finding: Finding) -> Finding | None:
        """The worst finding among the captured values that this value was computed from."""
        kind = finding.kind
        if kind in GRADIENT_KINDS or finding.name.endswith(AFTER_STEP):
            return self.worst
        if kind == "value":
            return worse_of(self.scopes[""].worst, self.model_output)
        module = finding.module
        if kind == "input":
            return self._worst_outside(module)
        return worse_of(self._worst_inside(module), self.weights.get(module))

    def _worst_inside(self, module: str) -> Finding | None:
        """The worst of a module's inputs and submodule outputs; without inputs, also of its surroundings."""
        scope = self.scopes[module]
        if scope.has_inputs or not module:
            return scope.worst
        return worse_of(scope.worst, self._worst_outside(module))

    def _worst_outside(self, module: str) -> Finding | None:
        """The worst finding in the module that calls this one."""
        if module:
            return self._worst_inside(self.parents[module])
        # Inputs of the model have no cause here, unless they come from its earlier output.
        return self.model_output if self.model_output is not None and self.model_output.is_beyond else None

    def find_sorting_decisions(self, finding: Finding) -> Finding | None:
        """The discrete inputs of an enclosing module that sort the value's rows and differ within noise."""
        if finding.kind in _WEIGHT_KINDS:
            return None
        module = finding.module
        while module:
            module = self.parents[module]
            if self.scopes[module].sorting_decisions is not None:
                return self.scopes[module].sorting_decisions
        return None

    def register(self, finding: Finding) -> None:
        """Make the finding visible to the values after it."""
        self.worst = worse_of(self.worst, finding)
        self.tie = self.tie or (finding if is_tie(finding) else None)
        module, kind = finding.module, finding.kind
        if kind in GRADIENT_KINDS:
            self.gradients.register(finding)
        elif kind == "input":
            scope = self.scopes[module]
            if finding.call != scope.call or not scope.has_inputs:
                scope = self.scopes[module] = _ModuleScope(has_inputs=True, call=finding.call)
            scope.add(finding)
        elif kind in _FUNCTION_KINDS:
            self.scopes[module].add(finding)
        elif kind == "param":
            self.weights[module] = worse_of(self.weights.get(module), finding) or finding
        elif kind == "output" and not module:
            self.model_output = worse_of(self.model_output, finding)
        else:
            parent = self.parents[module] if kind == "output" else ""
            self.scopes[parent].add(finding)

    def blame(self, finding: Finding) -> tuple[str, str]:
        """The module at fault, and the kind of the origin."""
        module = finding.module
        if finding.kind in GRADIENT_KINDS:
            return self.gradients.blame(finding), "backward"
        if finding.kind == "input":
            # A wrong input computed from right values is the fault of the calling module.
            return (self.parents[module], "own code") if module else (finding.name, "data")
        if finding.kind == "value":
            return finding.name, "value"
        kinds = {"param": "param", "output": "output"}
        return module, kinds.get(finding.kind, "local")


def localise(
    findings: Sequence[Finding], unmatched: Sequence[Entry] = (), measured_names: Collection[str] = ()
) -> tuple[list[Finding], list[Origin]]:
    """The findings in the same order with their final verdicts, and the origins in execution order.

    `unmatched` entries may be the cause too; `measured_names` are the names that the floor has."""
    resolved = resolve_out_modules(findings) if any(map(_may_change, findings)) else ()
    table = list(resolved or findings)
    origins: list[tuple[tuple[int, int, int], Origin]] = []
    by_rank: dict[int, list[_IndexedFinding]] = {}
    for index, finding in enumerate(resolved):
        by_rank.setdefault(finding.rank, []).append((index, finding))
    for rank, indexed in by_rank.items():
        for position, index, finding, origin in _localise_rank(indexed, unmatched, measured_names):
            table[index] = finding
            if origin is not None:
                origins.append(((finding.step, position, rank), origin))
    # One origin per module, step and rank: the first.
    ordered: dict[tuple[str, int, int], Origin] = {}
    for _, origin in sorted(origins, key=lambda keyed: keyed[0]):
        ordered.setdefault((origin.name, origin.step, origin.rank), origin)
    return table, list(ordered.values())


_IndexedFinding = tuple[int, Finding]


def _may_change(finding: Finding) -> bool:
    """Whether the values around it may change its verdict, or it theirs; few can if runs are alike."""
    return finding.verdict in BEYOND_NOISE or finding.noise.intrinsic is not None


def _localise_rank(
    findings: list[_IndexedFinding], unmatched: Sequence[Entry], measured_names: Collection[str]
) -> Iterable[tuple[int, int, Finding, Origin | None]]:
    earlier: Finding | None = None  # the first origin of earlier steps
    are_identical = True  # all steps so far, bit for bit
    by_step: dict[int, list[_IndexedFinding]] = {}
    for indexed in findings:
        by_step.setdefault(indexed[1].step, []).append(indexed)
    # With intrinsic noise, whether earlier steps are identical matters, so all steps are walked.
    if all(finding.noise.intrinsic is None for _, finding in findings):
        changing = {finding.step for _, finding in findings if _may_change(finding)}
        by_step = {step: by_step[step] for step in changing}
    parents = ModuleParents(finding.module for _, finding in findings)
    classes = {
        finding.module: finding.pair.a.class_name for _, finding in findings if finding.pair.a.class_name
    }
    uncaptured = UncapturedInputs(unmatched, parents)
    intrinsic = IntrinsicRounding(measured_names, (finding for _, finding in findings), unmatched, parents)
    for step in sorted(by_step):
        gradients = Gradients([finding for _, finding in by_step[step]], parents, classes)
        walk = _StepWalk(parents, classes, gradients, uncaptured, intrinsic, are_identical)
        first_origin: Finding | None = None
        for position, (index, finding) in enumerate(_in_execution_order(by_step[step])):
            judged, origin = _judge_in_context(walk, finding, earlier)
            first_origin = first_origin or (judged if origin is not None else None)
            walk.register(judged)
            yield position, index, judged, origin
        earlier = earlier or first_origin
        are_identical = are_identical and (walk.worst is None or walk.worst.verdict == "identical")


def _in_execution_order(findings: list[_IndexedFinding]) -> list[_IndexedFinding]:
    """Sorted by execution: weights before their module's values, gradients after, updated weights last."""
    if not any(_is_observed_out_of_order(finding) for _, finding in findings):
        return findings
    firsts: dict[str, int] = {}
    for position, (_, finding) in enumerate(findings):
        firsts.setdefault(finding.module, position)

    def key(numbered: tuple[int, _IndexedFinding]) -> tuple[int, int, int]:
        position, (_, finding) = numbered
        if finding.name.endswith(AFTER_STEP):
            return 2, position, 0
        if finding.kind == "param":
            return 0, firsts[finding.module], -1
        return int(finding.kind in GRADIENT_KINDS), position, 0

    return [indexed for _, indexed in sorted(enumerate(findings), key=key)]


def _is_observed_out_of_order(finding: Finding) -> bool:
    """Whether the value was recorded at another time than it was computed."""
    entry = finding.pair.a
    return entry.kind == "param" or entry.kind in GRADIENT_KINDS or entry.name.endswith(AFTER_STEP)


def _judge_in_context(
    walk: _StepWalk, finding: Finding, earlier: Finding | None
) -> tuple[Finding, Origin | None]:
    if finding.verdict in ("unreadable", "uncovered", "unaligned"):
        return finding, None
    parent = walk.worst_parent_of(finding)
    if walk.has_initial_weights and walk.uncaptured.first_before(finding) is None:
        has_inputs = walk.scopes[producing_module(finding, walk.parents)].has_inputs
        finding = walk.intrinsic.rejudge(finding, parent, has_inputs=has_inputs)
    if not finding.is_beyond:
        return _mark_healed(finding, parent), None
    sorting = walk.find_sorting_decisions(finding) if finding.verdict in _SORTABLE else None
    if sorting is not None:
        return _mark_resorted(finding, sorting), None
    if finding.source:  # set by discount_ties
        return finding, None
    if earlier is not None:
        return _mark_inherited(finding, earlier), None
    if parent is not None and parent.is_beyond and not _exceeds_parent(finding, parent):
        return _mark_inherited(finding, parent), None
    if walk.tie is not None and finding.ratio <= _MAX_GROWTH and differs_in_few_rows(finding):
        return _mark_inherited(finding, walk.tie), None
    return finding, _make_origin(walk, finding)


def _exceeds_parent(finding: Finding, parent: Finding) -> bool:
    """Whether the difference is larger than the inputs explain."""
    if math.isinf(finding.ratio):
        return finding.verdict != "flip" and not math.isinf(parent.ratio)
    return finding.ratio > _MAX_GROWTH * parent.ratio


def _mark_resorted(finding: Finding, sorting: Finding) -> Finding:
    """The rows of both sides do not correspond; only the output of the sorting module is judged."""
    note = f"its rows are sorted by {sorting.name}, which falls otherwise within its noise"
    return replace(finding, verdict="within noise", ratio=0.0, note=note, source=sorting.name)


def _mark_healed(finding: Finding, parent: Finding | None) -> Finding:
    if finding.kind != "output" or parent is None or not parent.is_beyond:
        return finding
    # The difference may still be there, below the noise.
    if finding.verdict != "identical" and parent.noise.source == INTRINSIC_ROUNDING:
        return finding
    return replace(finding, verdict="healed", source=parent.name)


def _mark_inherited(finding: Finding, parent: Finding) -> Finding:
    verdict: Verdict = finding.verdict if finding.verdict in _KEPT_WHEN_INHERITED else "drift"
    return replace(finding, verdict=verdict, source=parent.name)


def _make_origin(walk: _StepWalk, finding: Finding) -> Origin:
    name, kind = walk.blame(finding)
    site = finding.pair.a.site
    return Origin(
        name,
        finding.verdict,
        finding.ratio,
        finding.step,
        finding.rank,
        kind,
        finding.name,
        finding.call,
        finding.axis,
        walk.classes.get(name, ""),
        f"{site.file}:{site.line}" if site is not None else "",
        finding.note or _describe_uncertainty(walk, finding),
    )


def _describe_uncertainty(walk: _StepWalk, finding: Finding) -> str:
    missing = walk.uncaptured.first_before(finding)
    if missing is not None:
        return f"{missing.name} has no partner, and the fault may be there"
    if finding.kind == "output" and not walk.scopes[finding.module].has_inputs:
        return "its inputs were not captured; '**.in' would tell it from what comes before"
    return walk.gradients.describe_uncertainty(finding) if finding.kind in GRADIENT_KINDS else ""


def mark_corrupt_values(findings: Iterable[Finding]) -> list[Finding]:
    """Mark pairs unreadable whose recorded checksums are equal and whose values differ: one is corrupt.

    Other pairs are not verified, which would take as long as to compare them."""
    return [_verify_checksums(finding) if _had_equal_checksums(finding) else finding for finding in findings]


def localise_verified(
    findings: Sequence[Finding], unmatched: Sequence[Entry], measured_names: Collection[str]
) -> tuple[list[Finding], list[Origin]]:
    """`localise`, repeated without corrupt values: values that show an origin are verified by checksum."""
    checked: dict[int, Finding] = {}
    while True:
        table, origins = localise(findings, unmatched, measured_names)
        rechecked = {
            index: _verify_checksums(findings[index])
            for index in _find_suspects(table, origins) - checked.keys()
        }
        if all(finding is findings[index] for index, finding in rechecked.items()):
            return table, origins
        checked |= rechecked
        findings = [checked.get(index, finding) for index, finding in enumerate(findings)]


def _find_suspects(table: Sequence[Finding], origins: Sequence[Origin]) -> set[int]:
    """Indices of the values that show an origin; of all beyond noise, if a run has corrupt values."""
    if any(finding.verdict == "unreadable" for finding in table):
        return {index for index, finding in enumerate(table) if finding.is_beyond}
    keys = {(origin.seen_at, origin.step, origin.rank, origin.call) for origin in origins}
    return {
        index
        for index, finding in enumerate(table)
        if keys and finding.is_beyond and (finding.name, finding.step, finding.rank, finding.call) in keys
    }


def _had_equal_checksums(finding: Finding) -> bool:
    a, b = finding.pair.a, finding.pair.b
    if finding.verdict == "identical" or not a.checksum or a.checksum != b.checksum:
        return False
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def _verify_checksums(finding: Finding) -> Finding:
    """The finding, marked unreadable if one of its values is corrupt."""
    reason = describe_corruption(finding.pair.a) or describe_corruption(finding.pair.b)
    if not reason:
        return finding
    return replace(finding, metrics=None, verdict="unreadable", ratio=0.0, axis="", note=reason, source="")


def describe_corruption(entry: Entry) -> str:
    """Which bytes of a run's value do not match its checksum; "" if they match or that is unknown."""
    reference = entry.reference
    if not isinstance(reference, RunValueRef) or not entry.checksum:
        return ""
    try:
        actual = checksum(reference.checksummed_bytes())
    except (OSError, ValueError, TensortapError):  # a worker on another machine may have read it
        return ""
    if actual is None or actual == entry.checksum:
        return ""
    end = reference.start + reference.length
    return (
        f"{reference.path}/{reference.file} is damaged: bytes {end - reference.nbytes:,} to {end:,} "
        "are not those that were written; the other values of the run can still be read"
    )
