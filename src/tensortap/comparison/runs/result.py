"""What a comparison of two runs found: its pairs, where they diverge first, and what it left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tensortap.comparison.diagnosis.preconditions import Explanation
from tensortap.comparison.diagnosis.verdict import Finding, Origin, Verdict
from tensortap.comparison.noise.floor import Floor
from tensortap.comparison.sides.entry import AlignmentNote, Entry


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """How many pairs were compared, and what could not be."""

    pairs: int
    only_a: tuple[Entry, ...] = ()
    only_b: tuple[Entry, ...] = ()
    unreadable: tuple[str, ...] = ()
    unaligned: tuple[str, ...] = ()
    opaque: int = 0  # objects that are neither numbers nor text
    ignored: int = 0  # excluded by a rule
    uncalibrated: int = 0  # pairs without a measured noise floor
    problems: tuple[str, ...] = ()
    behind_ties: int = 0  # beyond noise only because near ties before were decided differently

    @property
    def is_whole(self) -> bool:
        gaps = (self.only_a, self.only_b, self.unreadable, self.unaligned, self.problems, self.behind_ties)
        return self.judged > 0 and not any(gaps)

    @property
    def judged(self) -> int:
        """Pairs that have a verdict."""
        return self.pairs - self.opaque - len(self.unreadable) - len(self.unaligned)


@dataclass(frozen=True, slots=True, eq=False)
class ComparisonResult:
    """The facts of a comparison; `Comparison` adds how they are shown and saved."""

    a: str
    b: str
    table: tuple[Finding, ...]
    origins: tuple[Origin, ...]
    gate: tuple[Explanation, ...]
    coverage: Coverage
    floor: Floor
    notes: tuple[str, ...] = field(default=())

    @property
    def first(self) -> Origin | None:
        """The first divergence; None when nothing is beyond noise."""
        return self.origins[0] if self.origins else None

    @property
    def counts(self) -> dict[Verdict, int]:
        """Number of pairs per verdict."""
        return dict(Counter(finding.verdict for finding in self.table if not finding.is_opaque))

    @property
    def is_different(self) -> bool:
        """Something is beyond noise, and not only downstream of near ties that noise alone decides."""
        return bool(self.origins)

    @property
    def is_green(self) -> bool:
        """Nothing is beyond noise, and nothing was left out."""
        return not self.is_different and self.coverage.is_whole

    @property
    def exit_code(self) -> int:
        """0 the same within noise, 1 different, 3 not all of it could be compared."""
        return 1 if self.is_different else 0 if self.coverage.is_whole else 3

    @property
    def plans(self) -> tuple[AlignmentNote, ...]:
        """How shards, tokens and layouts were aligned, for the pairs that needed it."""
        return tuple(finding.pair.alignment for finding in self.table if finding.pair.alignment is not None)
