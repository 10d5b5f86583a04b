"""How often a tap is taken, so that it costs the job no more than a share of its time."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

SHARE = 0.03  # of step time, for all taps together
_WINDOW = 1.0  # seconds, and
_TAKEN = 3  # steps that were taken, before there is a judgement
_MOST = 1 << 20


class Pace:
    """Of the steps that were asked for, every how many-th is taken: 1 as long as that is cheap enough."""

    def __init__(self) -> None:
        self.every = 1
        self._spent = 0.0
        self._taken = 0
        self._step: Any = None
        self._since = perf_counter()

    def allows(self, step: Any, asked_every: int) -> bool:
        return self.every == 1 or not isinstance(step, int) or not step // asked_every % self.every

    def spend(self, step: Any, seconds: float) -> None:
        """For a value of that step."""
        self.spend_between(seconds)
        if step != self._step:
            self._step = step
            self._taken += 1

    def spend_between(self, seconds: float) -> None:
        """For the end of a step."""
        self._spent += seconds

    def judge(self, most: float) -> str:
        """Slow down or speed up, once enough was seen; in words, if it did."""
        now = perf_counter()
        seconds = now - self._since
        if seconds < _WINDOW or self._taken < _TAKEN:
            return ""
        share, before = self._spent / seconds, self.every
        self._spent, self._taken, self._since = 0.0, 0, now
        wanted = min(max(math.ceil(share * before / most), 1), _MOST)
        if before < wanted or 2 * wanted <= before:  # not to and fro
            self.every = wanted
        return _words(share, most, self.every) if self.every != before else ""


def _words(share: float, most: float, every: int) -> str:
    if every == 1:
        return "the tap is cheap enough again: every step that was asked for is taken"
    return (
        f"the tap took {100 * share:.1f} % of step time, and {100 * most:.2g} % are allowed; "
        f"of the steps that were asked for, one in {every} is taken now"
    )
