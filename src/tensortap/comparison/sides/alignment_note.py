"""What was done to make the values of a pair comparable, for the report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

_MAX_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class AlignmentNote:
    """How the values of one pair were aligned; `print` it.

    `summary` is short (`shard(1)`, `its shape`). A pair whose note is not usable was not compared, and
    `details` give the reason.
    """

    name: str
    summary: str
    details: tuple[str, ...]
    is_usable: bool = True
    gap: str = ""  # the part of the value that was not compared
    replica_mismatch: str = ""  # that replicas differ, though they should be equal

    @property
    def is_layout_change(self) -> bool:
        """Whether the values are equal only up to a layout."""
        return any(line.startswith("equal up to") for line in self.details)

    def extended(self, summary: str, detail: str) -> AlignmentNote:
        """Return a copy with one more step appended."""
        return replace(
            self, summary="; ".join(filter(None, [self.summary, summary])), details=(*self.details, detail)
        )

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.summary}", *(f"  {line}" for line in self.details)])


def describe_gaps(notes: Iterable[AlignmentNote | None]) -> list[str]:
    """Report what was not compared of several values, grouped by gap."""
    names: dict[str, list[str]] = {}
    for note in notes:
        if note is not None and note.gap:
            names.setdefault(note.gap, []).append(note.name)
    return [f"{gap}, of {_list_names(affected)}; the rest was compared" for gap, affected in names.items()]


def _list_names(names: list[str]) -> str:
    more = f", ... {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + more
