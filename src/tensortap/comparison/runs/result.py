"""What a comparison of two runs found: its pairs, where they diverge first, and what it left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tensortap.comparison.diagnosis.preconditions import Explanation
from tensortap.comparison.diagnosis.verdict import Finding, Origin, Verdict
from tensortap.comparison.noise.floor import Floor
from tensortap.comparison.sides.alignment_note import AlignmentNote
from tensortap.comparison.sides.entry import Entry


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """What the comparison speaks of, and what it cannot speak of."""

    pairs: int
    only_a: tuple[Entry, ...] = ()
    only_b: tuple[Entry, ...] = ()
    unreadable: tuple[str, ...] = ()
    unaligned: tuple[str, ...] = ()
    opaque: int = 0  # objects that are neither numbers nor text
    ignored: int = 0  # left out by a rule
    uncalibrated: int = 0  # pairs whose noise nobody has measured
    problems: tuple[str, ...] = ()
    behind_ties: int = 0  # beyond noise, but only since decisions before fell otherwise by noise alone

    @property
    def is_whole(self) -> bool:
        gaps = (self.only_a, self.only_b, self.unreadable, self.unaligned, self.problems, self.behind_ties)
        return self.judged > 0 and not any(gaps)

    @property
    def judged(self) -> int:
        """Pairs of which something is known."""
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
        """Where the runs part; None when nothing is beyond noise."""
        return self.origins[0] if self.origins else None

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many pairs have which verdict."""
        return dict(Counter(finding.verdict for finding in self.table if not finding.is_opaque))

    @property
    def is_different(self) -> bool:
        """Something is beyond noise, and not only behind near ties, where noise alone makes a difference."""
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
        """How pieces, tokens and layouts were made comparable, where they had to be."""
        return tuple(finding.pair.alignment for finding in self.table if finding.pair.alignment is not None)
