"""Values of functions that belong to no model, seen by taps in them; torch is not needed for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from tensortap.core.errors import MissingExtraError
from tensortap.core.steps import declared_step
from tensortap.core.tap import Tap
from tensortap.sources.loaded import recomputing
from tensortap.sources.port_source import PortSource
from tensortap.sources.ports import native_naming
from tensortap.sources.probes import Probes
from tensortap.sources.sites import Wanted


class PlainFunctions(PortSource):
    """Taps in the functions that are wanted, from `start` to `stop`; the step is what `tt.step()` says."""

    def __init__(self, wanted: Sequence[Wanted], *, rests: Callable[[int], bool] | None = None) -> None:
        _require_torch(wanted)
        super().__init__(None, wanted, native_naming(None), rests=rests)

    def start(self, tap: Tap) -> None:
        super().start(tap)
        self._begin(declared_step() or 0)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            probes = Probes(self, self.ports)
            self._handles = probes.probes
            probes.place()
            undo.pop_all()

    def catch_up(self) -> None:
        step = declared_step() or 0
        is_next = step != self.step
        if is_next:
            self._begin(step)
        # Without steps, a call after a backward pass tells that what waits on parameters is of the past.
        if is_next or (self.has_gradients and not recomputing()()):
            self.has_gradients = False
            self._clear_gradients()

    def _begin(self, step: int) -> None:
        self.step, self.has_run = step, True
        self.is_resting = self._rests is not None and self._rests(step)
        self.was_awake = self.was_awake or not self.is_resting


def _require_torch(wanted: Sequence[Wanted]) -> None:
    late = next((one.site.name for one in wanted if one.site.is_gradient), None)
    if late is not None and find_spec("torch") is None:
        raise MissingExtraError(f"{late!r} is a gradient, which needs torch: pip install 'tensortap[torch]'")
