"""`tt.tap`: values that the program taps by hand, the source that records them, and the active captures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import _getframe
from time import time
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.patterns import matches_pattern
from tensortap.core.ranks import rank_info
from tensortap.core.record import Record, Site
from tensortap.core.steps import declared_step, next_order
from tensortap.core.tap import Tap
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import leaves
from tensortap.frameworks.retention import keep_unchanged
from tensortap.sources.manual import argument_name, site_of
from tensortap.stages.select import StepPredicate

if TYPE_CHECKING:
    from tensortap.sources.hooks.modules import ModuleSource


T = TypeVar("T")
TapListener = Callable[[Any, str, Site | None], None]

# Empty while no capture is active: torch.compile guards a program that taps on these two alone.
_tap_listeners: tuple[TapListener, ...] = ()
_graph_tap: Callable[[Any, str], None] | None = None


def tap(value: T, name: str | None = None) -> T:
    """Show a value to every capture that is on, and return it; free while there is none.

    >>> x = tt.tap(x, "after_layer_1")
    """
    if _graph_tap is not None:
        _graph_tap(value, name or "value")
    elif _tap_listeners:
        _notify_listeners(value, name)
    return value


def add_tap_listener(listener: TapListener) -> None:
    global _tap_listeners
    _tap_listeners = (*_tap_listeners, listener)


def remove_tap_listener(listener: TapListener) -> None:
    global _tap_listeners
    _tap_listeners = tuple(current for current in _tap_listeners if current != listener)


def replace_tap_listener(listener: TapListener, successor: TapListener) -> None:
    """Replace a listener in one assignment, so that no value is missed or received twice."""
    global _tap_listeners
    _tap_listeners = tuple(successor if current == listener else current for current in _tap_listeners)


def set_graph_tap(graph_tap: Callable[[Any, str], None] | None) -> None:
    """Set the function that `tt.tap` calls inside compiled graphs; None resets it."""
    global _graph_tap
    _graph_tap = graph_tap


def _notify_listeners(value: Any, name: str | None) -> None:
    frame = _getframe(2)
    if name is None:
        name = argument_name(frame) or "value"
    elif not isinstance(name, str):
        raise TypeError(f"a name is a text, not {name!r}; tap(value, name) takes the value first")
    site = site_of(frame)
    for listener in _tap_listeners:
        listener(value, name, site)


class ManualTapSource:
    """Records `tt.tap` values from `start` to `stop`; of the patterns only exclusions apply."""

    def __init__(
        self, patterns: Sequence[Any], predicates: Sequence[Any], modules: ModuleSource | None
    ) -> None:
        self._exclusions = [
            pattern for pattern in patterns if isinstance(pattern, str) and pattern.startswith("!")
        ]
        self._steps = [predicate for predicate in predicates if isinstance(predicate, StepPredicate)]
        self._modules = modules
        self._calls: dict[str, tuple[int, int]] = {}  # by name: last step, calls in it
        self._tap: Tap | None = None
        self._rank = 0
        self.owner: Any = None  # keeps an active capture alive without another reference
        self.retain: Callable[[Any], Any] = keep_unchanged
        self.refused: dict[str, str] = {}

    def start(self, tap: Tap) -> None:
        self.bind(tap)
        add_tap_listener(self.receive_tap)

    def bind(self, tap: Tap) -> None:
        """Set the tap without listening: compiled graphs call `receive_tap` directly."""
        self._tap, self._rank = tap, rank_info().rank

    def stop(self) -> None:
        remove_tap_listener(self.receive_tap)
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
                retained = self.retain(leaf)
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


CaptureObserver = Callable[[Any, bool], None]

_active_captures: WeakSet[Any] = WeakSet()
_capture_observers: tuple[CaptureObserver, ...] = ()


def mark_active(capture: Any) -> None:
    _active_captures.add(capture)
    for observer in _capture_observers:
        observer(capture, True)


def mark_inactive(capture: Any) -> None:
    if capture in _active_captures:
        _active_captures.discard(capture)
        for observer in _capture_observers:
            observer(capture, False)


def observe_captures(observer: CaptureObserver) -> None:
    """Call `observer(capture, is_on)` for each active capture, and whenever one starts or ends."""
    global _capture_observers
    _capture_observers = (*_capture_observers, observer)
    for capture in list(_active_captures):
        observer(capture, True)


def unobserve_captures(observer: CaptureObserver) -> None:
    global _capture_observers
    _capture_observers = tuple(current for current in _capture_observers if current != observer)
