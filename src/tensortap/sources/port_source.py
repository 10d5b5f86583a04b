"""What all sources share that see values through ports: where records go, what they hold, who failed."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from tensortap.core.ranks import rank_info
from tensortap.core.record import Kind, Placement, Record
from tensortap.core.tap import Tap
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.retention import keep_unchanged
from tensortap.sources.ports import Naming, Port
from tensortap.sources.sites import VARIABLES, Wanted


class Stopped(BaseException):
    """Leaves a forward after the last selected site; no Exception, so that no model swallows it."""

    def __init__(self, source: PortSource) -> None:
        super().__init__("the last selected site was passed (stop=True)")
        self.source = source


class PortSource:
    """Ports of what is wanted. `rests(step)` says in which steps nothing is; with `keeps_structures` an
    output or a variable is one record, whatever it holds."""

    unseen = "not called"  # what is known of a module that gave nothing, and of which nothing else is known

    def __init__(
        self,
        model: Any,
        wanted: Sequence[Wanted],
        naming: Naming,
        *,
        keeps_structures: bool = False,
        rests: Callable[[int], bool] | None = None,
    ) -> None:
        self.model, self.naming, self.keeps_structures = model, naming, keeps_structures
        self.step, self.rank = 0, 0
        self.has_run, self.is_resting, self.is_special = False, False, False
        self.was_awake = False  # in any step
        self.is_over = False  # a backward pass may come later
        self.has_gradients = False  # some have come
        self.stopped_after, self.failure = "", ""
        self._rests = rests
        self._tap: Tap | None = None
        self.pour: Callable[[Record], object] = keep_unchanged
        self.pour_directly: Callable[[Record], object] = keep_unchanged
        self.take: Callable[[Any], Any] = keep_unchanged  # what a record holds of a value
        self.take_tensor: Callable[[Any], Any] = keep_unchanged  # the same, for an ordinary tensor
        self.refused: dict[str, str] = {}
        self._handles: list[Any] = []
        # Bounded for modules that are called by themselves; one that is let go finds that all is over.
        self._gradient_handles: deque[Any] = deque(maxlen=10_000)
        self._lasting_handles: list[Any] = []
        self.ports = self._make_ports(wanted)

    def start(self, tap: Tap) -> None:
        self._tap, self.rank = tap, rank_info().rank
        self.pour, self.pour_directly = tap.emit, tap.shortcut()

    def stop(self) -> None:
        self.is_over = True
        for handle in [*self._handles, *self._gradient_handles, *self._lasting_handles]:
            handle.remove()
        self._handles, self._lasting_handles = [], []
        self._gradient_handles.clear()

    def catch_up(self) -> None:
        """Find out which step it is, before a value of a function is seen."""

    def forget(self) -> None:
        """Let go of the model at once: ports and their source hold each other."""
        self.ports = []

    def fail(self) -> None:
        """Called while an exception is being handled, within the program's forward or backward."""
        assert self._tap is not None
        self.failure = _sentence(sys.exception())
        self._tap.fail(self)

    def keep_handle(self, handle: Any, is_on_leaf: bool = False) -> None:
        (self._lasting_handles if is_on_leaf else self._gradient_handles).append(handle)

    def placement(self, point: Port, leaf: Any) -> Placement | None:
        """How a piece sits in the whole, as the value itself says."""
        return framework_of(leaf).placement(leaf)

    def _make_ports(self, wanted: Sequence[Wanted]) -> list[Port]:
        groups: defaultdict[tuple[str, Kind, str], list[Wanted]] = defaultdict(list)
        for selected in wanted:
            site = selected.site
            groups[site.path, site.of, site.parameter if site.of in VARIABLES else ""].append(selected)
        return [
            Port(self, group[0].site.module, path, kind, group) for (path, kind, _), group in groups.items()
        ]

    def _clear_gradients(self) -> None:
        """What has not come by now belongs to a graph that is gone."""
        self._gradient_handles.clear()
        # A parameter that was passed on as it is outlives the graph: its old hooks would count it twice.
        for handle in self._lasting_handles:
            handle.remove()
        self._lasting_handles.clear()


def _sentence(error: BaseException | None) -> str:
    """What a reader sees of it: its class, and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
