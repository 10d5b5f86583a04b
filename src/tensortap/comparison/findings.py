"""What was found of one pair, and of the places where a run went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensortap.comparison.floor import Noise
from tensortap.comparison.match import EntryPair
from tensortap.comparison.metrics import Metrics
from tensortap.comparison.modules import OUTPUTS, module_of, stem_of
from tensortap.comparison.verdict import BEYOND_NOISE, Axis, Judgement, Verdict
from tensortap.core.record import Kind


# Not frozen: one is made for every pair, and freezing takes five times as long. Nobody changes it.
@dataclass(slots=True, eq=False)
class Finding:
    """One pair of values: what they differ by, how many times their noise that is, and what it means."""

    pair: EntryPair
    metrics: Metrics | None  # None where a value could not be read
    noise: Noise
    verdict: Verdict
    ratio: float
    axis: Axis = ""
    note: str = ""
    source: str = ""  # of what is inherited: the value it comes from
    module_override: str = ""  # the module, where the name alone tells another

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
    """Where a run went wrong: a module whose inputs are the same and whose results are not.

    `name` is the path of the module (empty for the model itself), or of the value where there is none.
    `kind` says what of it: "output", "own code" (what it computes between its parts), "local", "backward",
    "param", "data" (what was given to the model), "value". `seen_at` is the value that shows it."""

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
        """The module for eyes: its path and its class."""
        what = self.name or "the model itself"
        return f"{what} ({self.class_name})" if self.class_name else what


def make_finding(pair: EntryPair, measurement: Metrics | str, noise: Noise, judgement: Judgement) -> Finding:
    metrics = None if isinstance(measurement, str) else measurement
    return Finding(pair, metrics, noise, judgement.verdict, judgement.ratio, judgement.axis, judgement.note)


def resolve_out_modules(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The same findings; what is named like the output of a module may be that of a part called `out`."""
    outs = {
        f"{finding.module}."
        for finding in findings
        if finding.kind == "input" and finding.module.endswith("out")
    }
    for finding in findings:
        if finding.kind in OUTPUTS and finding.name.startswith(
            "<"
        ):  # the model, which would be called so itself
            outs.add("out.")
        elif finding.kind in OUTPUTS and finding.module.endswith(".out"):
            outs.add(f"{finding.module}.")
    outs = {prefix for prefix in outs if f".{prefix}".endswith(".out.")}
    return [_resolve_out_module(finding, tuple(outs)) for finding in findings] if outs else findings


def _resolve_out_module(finding: Finding, outs: tuple[str, ...]) -> Finding:
    stem = stem_of(finding.name, finding.kind)
    is_below = finding.kind in OUTPUTS and f"{stem}.".startswith(outs)
    return (
        replace(finding, module_override=stem)
        if is_below and not f"{finding.module}.".startswith(outs)
        else finding
    )


def worse_of(a: Finding | None, b: Finding | None) -> Finding | None:
    if a is None or b is None or a is b:
        return a or b
    is_beyond = b.verdict in BEYOND_NOISE
    if is_beyond != (a.verdict in BEYOND_NOISE):
        return b if is_beyond else a
    return b if b.ratio > a.ratio else a
