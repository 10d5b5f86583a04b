"""What `tt.tap` shows while a capture is on, as a source of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import time
from typing import TYPE_CHECKING, Any

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.patterns import matches_pattern
from tensortap.core.ranks import rank_info
from tensortap.core.record import Record, Site
from tensortap.core.steps import declared_step, next_order
from tensortap.core.tap import Tap
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import leaves
from tensortap.frameworks.retention import keep_unchanged
from tensortap.recording import tapping
from tensortap.stages.select import StepPredicate

if TYPE_CHECKING:
    from tensortap.sources.hooks.modules import Modules


class ManualTapSource:
    """Listens from `start` to `stop`; a pattern that excludes a name is heeded, no other is."""

    def __init__(self, patterns: Sequence[Any], predicates: Sequence[Any], modules: Modules | None) -> None:
        self._exclusions = [
            pattern for pattern in patterns if isinstance(pattern, str) and pattern.startswith("!")
        ]
        self._steps = [predicate for predicate in predicates if isinstance(predicate, StepPredicate)]
        self._modules = modules
        self._calls: dict[str, tuple[int, int]] = {}  # of the step it was seen in last
        self._tap: Tap | None = None
        self._rank = 0
        self.owner: Any = None  # a capture that is on goes on, also when nobody has kept it
        self.take: Callable[[Any], Any] = keep_unchanged
        self.refused: dict[str, str] = {}

    def start(self, tap: Tap) -> None:
        self.bind(tap)
        tapping.add_tap_listener(self.receive_tap)

    def bind(self, tap: Tap) -> None:
        """Without listening: a compiled graph shows what it taps itself."""
        self._tap, self._rank = tap, rank_info().rank

    def stop(self) -> None:
        tapping.remove_tap_listener(self.receive_tap)
        self._tap = self.owner = None

    def has_received(self, pattern: str) -> bool:
        return any(matches_pattern(pattern, name) for name in self._calls)

    def receive_tap(self, value: Any, name: str, site: Site | None) -> None:
        step, tap = self._step(), self._tap
        is_wanted = all(matches_pattern(pattern, name) for pattern in self._exclusions)
        if tap is None or not is_wanted or not all(steps.wants(step) for steps in self._steps):
            return
        try:
            self._emit(tap, value, name, step, site)
        except Exception:  # noqa: BLE001 - a guest in someone's program
            tap.fail(self)

    def _emit(self, tap: Tap, value: Any, name: str, step: int, site: Site | None) -> None:
        call = self._next_call(name, step)
        for item, leaf in leaves(value):
            placement = framework_of(leaf).placement(leaf)
            try:
                retained = self.take(leaf)
            except UnsupportedValueError as error:
                self.refused.setdefault(name + item, str(error))
                continue
            order, at = next_order(), time()
            tap.emit(
                Record(name + item, retained, "value", step, self._rank, call, order, at, site, placement)
            )

    def _next_call(self, name: str, step: int) -> int:
        seen_in, calls = self._calls.get(name, (step, 0))
        call = calls if seen_in == step else 0
        self._calls[name] = step, call + 1
        return call

    def _step(self) -> int:
        return self._modules.step if self._modules is not None else declared_step() or 0
