"""How often a tap is taken, so that it costs the job no more than a share of its time."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

DEFAULT_SHARE = 0.03  # of step time, for all taps together
_WINDOW = 1.0  # seconds, and
_MIN_STEPS = 3  # steps that were taken, before there is a judgement
_MAX_INTERVAL = 1 << 20


class Throttle:
    """Of the steps that were asked for, every how many-th is taken: 1 as long as that is cheap enough."""

    def __init__(self) -> None:
        self.every = 1
        self._spent_seconds = 0.0
        self._steps_taken = 0
        self._step: Any = None
        self._since = perf_counter()

    def allows(self, step: Any, requested_every: int) -> bool:
        return self.every == 1 or not isinstance(step, int) or not step // requested_every % self.every

    def add_cost(self, step: Any, seconds: float) -> None:
        """For a value of that step."""
        self.add_step_cost(seconds)
        if step != self._step:
            self._step = step
            self._steps_taken += 1

    def add_step_cost(self, seconds: float) -> None:
        """For the end of a step."""
        self._spent_seconds += seconds

    def adjust(self, max_share: float) -> str:
        """Slow down or speed up, once enough was seen; in words, if it did."""
        now = perf_counter()
        seconds = now - self._since
        if seconds < _WINDOW or self._steps_taken < _MIN_STEPS:
            return ""
        share, previous = self._spent_seconds / seconds, self.every
        self._spent_seconds, self._steps_taken, self._since = 0.0, 0, now
        needed = min(max(math.ceil(share * previous / max_share), 1), _MAX_INTERVAL)
        if previous < needed or 2 * needed <= previous:  # not to and fro
            self.every = needed
        return _describe_change(share, max_share, self.every) if self.every != previous else ""


def _describe_change(share: float, max_share: float, every: int) -> str:
    if every == 1:
        return "the tap is cheap enough again: every step that was asked for is taken"
    return (
        f"the tap took {100 * share:.1f} % of step time, and {100 * max_share:.2g} % are allowed; "
        f"of the steps that were asked for, one in {every} is taken now"
    )
