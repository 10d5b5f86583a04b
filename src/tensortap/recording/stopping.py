"""When nothing that was selected can come any more, as far as that can be known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from tensortap.sources.ports import Port

Place = tuple[str, str, int]  # path, kind, how many times it was passed

# What the last forward of a model showed, for as long as the model lives.
_last_seen: WeakKeyDictionary[Any, dict[tuple[str, ...], Place]] = WeakKeyDictionary()


class Last:
    """Knows the last selected place by the previous forward of this model; without one, the last is when
    every place was passed once."""

    def __init__(self, model: Any, patterns: Sequence[Any]) -> None:
        self._model, self._key = model, tuple(map(str, patterns))
        self._expected = _last_seen.get(model, {}).get(self._key)
        self._open: set[tuple[str, str]] = set()
        self._seen: Place | None = None

    def expect(self, ports: Sequence[Port]) -> None:
        self._open = {(port.path, port.kind) for port in ports}

    def is_last(self, port: Port) -> bool:
        if port.calls > max((one.call or 0 for one in port.values), default=0):
            self._open.discard((port.path, port.kind))
        self._seen = (port.path, port.kind, port.calls)
        return self._seen == self._expected or not self._open

    def remember(self) -> None:
        """After a forward that ran to its end: the next one may be left where this one passed last."""
        if self._seen is not None:
            _last_seen.setdefault(self._model, {})[self._key] = self._seen
