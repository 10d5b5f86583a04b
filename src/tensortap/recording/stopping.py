"""When nothing that was selected can come any more, as far as that can be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tensortap.sources.observation.point import Port

SiteVisit = tuple[str, str, int]  # path, kind, how many times it was passed

# What the last forward of a model showed, for as long as the model lives.
_last_visits: WeakKeyDictionary[Any, dict[tuple[str, ...], SiteVisit]] = WeakKeyDictionary()


class LastSite:
    """Knows the last selected place by the previous forward of this model; without one, the last is when
    every place was passed once."""

    def __init__(self, model: Any, patterns: Sequence[Any]) -> None:
        self._model, self._key = model, tuple(map(str, patterns))
        self._expected = _last_visits.get(model, {}).get(self._key)
        self._pending: set[tuple[str, str]] = set()
        self._visit: SiteVisit | None = None

    def expect(self, ports: Sequence[Port]) -> None:
        self._pending = {(port.path, port.kind) for port in ports}

    def is_last(self, port: Port) -> bool:
        if port.calls > max((value.call or 0 for value in port.values), default=0):
            self._pending.discard((port.path, port.kind))
        self._visit = (port.path, port.kind, port.calls)
        return self._visit == self._expected or not self._pending

    def remember(self) -> None:
        """After a forward that ran to its end: the next one may be left where this one passed last."""
        if self._visit is not None:
            _last_visits.setdefault(self._model, {})[self._key] = self._visit
