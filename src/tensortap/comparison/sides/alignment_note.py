"""What was done to make two values comparable, in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

_MAX_NAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class AlignmentNote:
    """How the values of one pair were made comparable; `print` it.

    `words` say it in short (`shard(1)`, `its shape`). What is not usable was not compared, and `told` says
    why."""

    name: str
    summary: str
    details: tuple[str, ...]
    is_usable: bool = True
    gap: str = ""  # what of the value was not compared, though the rest was
    replica_mismatch: str = ""  # that copies which should be equal are not

    @property
    def is_layout_change(self) -> bool:
        """Whether the numbers are equal only in another arrangement."""
        return any(line.startswith("equal up to") for line in self.details)

    def extended(self, summary: str, detail: str) -> AlignmentNote:
        """The same, and something more after it."""
        return replace(
            self, summary="; ".join(filter(None, [self.summary, summary])), details=(*self.details, detail)
        )

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.summary}", *(f"  {line}" for line in self.details)])


def describe_gaps(notes: Iterable[AlignmentNote | None]) -> list[str]:
    """What of several values was not compared, each sort of it once."""
    names: dict[str, list[str]] = {}
    for note in notes:
        if note is not None and note.gap:
            names.setdefault(note.gap, []).append(note.name)
    return [f"{gap}, of {_list_names(affected)}; the rest was compared" for gap, affected in names.items()]


def _list_names(names: list[str]) -> str:
    more = f", ... {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + more
