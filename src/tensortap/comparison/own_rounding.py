"""Where only its own rounding is noise of a value: all that it was made of is here, and identical."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tensortap.comparison.backward import ModuleParents
from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding
from tensortap.comparison.modules import split_name
from tensortap.comparison.unseen import producing_module
from tensortap.comparison.verdict import GAPS, judge


class IntrinsicRounding:
    """Own rounding was measured while every module went on with what the run itself had there. It says
    nothing of code that made more than this comparison holds: `measured` are the names that the floor has,
    `alone` is what has no partner, and is weighed elsewhere."""

    def __init__(
        self,
        measured_names: Iterable[str],
        findings: Iterable[Finding],
        unmatched: Iterable[Entry],
        parents: ModuleParents,
    ) -> None:
        self._parents = parents
        judged = {finding.name: finding.verdict not in GAPS for finding in findings}
        judged |= {entry.name: True for entry in unmatched}
        self._incomplete_modules = {
            self._enclosing_module(name) for name in measured_names if not judged.get(name)
        }

    def rejudge(self, finding: Finding, parent: Finding | None, *, has_inputs: bool) -> Finding:
        """By its own rounding where that is all that can differ; else as it is."""
        if parent is None or parent.verdict != "identical" or not has_inputs:
            return finding
        noise, metrics = finding.noise.intrinsic_only(), finding.metrics
        if (
            noise is None
            or metrics is None
            or producing_module(finding, self._parents) in self._incomplete_modules
        ):
            return finding
        if finding.verdict not in ("within noise", "origin") or finding.pair.a.dtype != finding.pair.b.dtype:
            return finding
        judgement = judge(metrics, noise)
        return replace(
            finding, noise=noise, verdict=judgement.verdict, ratio=judgement.ratio, axis=judgement.axis
        )

    def _enclosing_module(self, name: str) -> str:
        """The module in whose code it is seen: what comes into a module, or what a part of it gave."""
        module, rest = split_name(name)
        is_inside = rest == ".in" or rest.startswith((".in.", ".in["))
        return module if is_inside and module in self._parents.names else self._parents[module]
