"""Values that the program hands over itself, one call each."""

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator
from sys import _getframe
from types import FrameType
from typing import Any, ClassVar

from tensortap.core.ranks import current_rank_info, rank_info
from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.frameworks.base import framework_of
from tensortap.sources.frames import argument_name, site_of


class Manual:
    """Turns calls into records: numbered, timed, and named after the caller's variable if need be."""

    # One for the process: a folder that two taps write, one after the other, is read in that order.
    _order: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self) -> None:
        self._taps: list[Tap] = []
        self._calls: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._launched = rank_info()
        self._has_started = False

    def start(self, tap: Tap) -> None:
        self._has_started = True
        self._taps.append(tap)

    def stop(self) -> None:
        self._taps.clear()

    def emit(self, value: Any, name: str | None = None, *, depth: int = 0, tap: Tap | None = None) -> bool:
        """Pour a value into every tap this source is attached to, and, when one of them took it or there is
        none, into `tap`; `depth` counts the calls between here and the user's line. False when nobody took
        it."""
        record = self.record(value, name, _getframe(depth + 1))
        is_taken = not self._has_started
        for target in self._taps:
            is_taken |= target.emit(record)
        if tap is not None and is_taken:
            tap.emit(record)
        return is_taken

    def record(self, value: Any, name: str | None, frame: FrameType) -> Record:
        """The record of a value that this frame hands over."""
        if name is None:
            name = argument_name(frame) or "value"
        elif not isinstance(name, str):
            raise TypeError(f"a name is a text, not {name!r}; dump(value, name) takes the value first")
        return Record(
            name,
            value,
            rank=current_rank_info(self._launched).rank,
            call=next(self._calls[name]),
            order=next(self._order),
            time=time.time(),
            site=site_of(frame),
            placement=framework_of(value).placement(value),
        )
