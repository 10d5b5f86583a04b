"""What a tap is made of: a source emits records, a stage passes or holds them, a sink keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tensortap.core.record import Record


class Source(Protocol):
    def start(self, tap: Any) -> None:
        """Emit into that `Tap` from now on. (Any: core/tap.py imports this file.)"""

    def stop(self) -> None:
        """Restore everything `start` touched; safe to call twice."""


class Stage:
    """Passes everything through; override what should differ. Each method returns records."""

    def push(self, record: Record) -> Iterable[Record]:
        return (record,)

    def tick(self, step: int) -> Iterable[Record]:
        return ()

    def close(self) -> Iterable[Record]:
        return ()


class Sink(Protocol):
    def write(self, record: Record) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...
