"""What was done to make two values comparable, in words."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Plan:
    """How the values of one pair were made comparable; `print` it.

    `words` say it in short (`shard(1)`, `its shape`). What is not usable was not compared, and `told` says
    why."""

    name: str
    words: str
    told: tuple[str, ...]
    is_usable: bool = True

    @property
    def is_layout(self) -> bool:
        """Whether the numbers are equal only in another arrangement."""
        return any(line.startswith("equal up to") for line in self.told)

    def then(self, words: str, told: str) -> Plan:
        """The same, and something more after it."""
        return replace(self, words="; ".join(filter(None, [self.words, words])), told=(*self.told, told))

    def __str__(self) -> str:
        return "\n".join([f"{self.name}: {self.words}", *(f"  {line}" for line in self.told)])
