"""Failures to collect metadata never fail the job: note the reason, log it once."""

import logging
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger("tensortap.metadata")

T = TypeVar("T")


class Problems:
    """What could not be collected in one pass; `logged` is shared by all passes of a run."""

    def __init__(self, logged: set[tuple[str, str]]) -> None:
        self.entries: list[dict[str, str]] = []
        self._logged = logged

    def attempt(self, fact: str, collect: Callable[[], T]) -> T | None:
        """The result of `collect`, or None with the exception noted."""
        try:
            return collect()
        except Exception as error:  # noqa: BLE001 - a fact about the job is never worth the job
            self.note(fact, f"{type(error).__name__}: {error}")
            return None

    def note(self, fact: str, reason: str) -> None:
        self.entries.append({"fact": fact, "reason": reason})
        if (fact, reason) not in self._logged:
            self._logged.add((fact, reason))
            logger.warning("could not collect %s: %s", fact, reason)
