"""What was found of one pair, and of the places where a run went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tensortap.comparison.floor import Noise
from tensortap.comparison.match import Pair
from tensortap.comparison.metrics import Metrics
from tensortap.comparison.modules import OUTPUTS, module_of, stem_of
from tensortap.comparison.verdict import BEYOND, Axis, Judgement, Verdict
from tensortap.core.record import Kind


# Not frozen: one is made for every pair, and freezing takes five times as long. Nobody changes it.
@dataclass(slots=True, eq=False)
class Finding:
    """One pair of values: what they differ by, how many times their noise that is, and what it means."""

    pair: Pair
    metrics: Metrics | None  # None where a value could not be read
    noise: Noise
    verdict: Verdict
    ratio: float
    axis: Axis = ""
    note: str = ""
    source: str = ""  # of what is inherited: the value it comes from
    place: str = ""  # the module, where the name alone tells another

    @property
    def name(self) -> str:
        return self.pair.a.name

    @property
    def kind(self) -> Kind:
        return self.pair.a.kind

    @property
    def module(self) -> str:
        return self.place or module_of(self.pair.a.name, self.pair.a.kind)

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
        return self.verdict in BEYOND

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


def finding(pair: Pair, found: Metrics | str, noise: Noise, judged: Judgement) -> Finding:
    metrics = None if isinstance(found, str) else found
    return Finding(pair, metrics, noise, judged.verdict, judged.ratio, judged.axis, judged.note)


def placed(findings: Sequence[Finding]) -> Sequence[Finding]:
    """The same findings; what is named like the output of a module may be that of a part called `out`."""
    outs = {f"{one.module}." for one in findings if one.kind == "input" and one.module.endswith("out")}
    for one in findings:
        if one.kind in OUTPUTS and one.name.startswith("<"):  # the model, which would be called so itself
            outs.add("out.")
        elif one.kind in OUTPUTS and one.module.endswith(".out"):
            outs.add(f"{one.module}.")
    outs = {one for one in outs if f".{one}".endswith(".out.")}
    return [_placed(one, tuple(outs)) for one in findings] if outs else findings


def _placed(found: Finding, outs: tuple[str, ...]) -> Finding:
    stem = stem_of(found.name, found.kind)
    is_below = found.kind in OUTPUTS and f"{stem}.".startswith(outs)
    return replace(found, place=stem) if is_below and not f"{found.module}.".startswith(outs) else found


def worse(a: Finding | None, b: Finding | None) -> Finding | None:
    if a is None or b is None or a is b:
        return a or b
    is_beyond = b.verdict in BEYOND
    if is_beyond != (a.verdict in BEYOND):
        return b if is_beyond else a
    return b if b.ratio > a.ratio else a
