"""What a tap is made of: a source emits records, a stage passes or holds them, a sink keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from tensortap.core.record import Record

if TYPE_CHECKING:
    from tensortap.core.tap import Tap


class Source(Protocol):
    def start(self, tap: Tap) -> None: ...

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
