"""Tell what a traced call binds, from the events of its lines.

A value is read at the event after its binding, so these are the limits. Of a name that a line binds several
times only the last value is told; one that a line may bind or not (`a and (x := b)`) only if it is another
object than before. Kinds are `argument`, `assign` and `return`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from tensortap.sources.instructions import Instructions, Run
from tensortap.sources.rewriting import Seen


class Reader:
    """Tells what one call binds."""

    def __init__(self, code: Instructions, listening: Sequence[tuple[Seen, dict[int, int]]]) -> None:
        self._code, self._listening = code, listening
        self._run: Run | None = None
        self._is_straight = True  # no exception was raised since the run began
        self._before: dict[str, int | None] = {}  # which objects the variables of the run were

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "opcode":  # asked for by another tool
            return
        if event == "call":
            self._start(frame, is_straight=True)
            return
        if self._run is not None:
            self._read(self._run, frame, event)
        self._run = None
        if event != "return":
            self._start(frame, is_straight=event == "line")
        elif frame.f_lasti in self._code.returns:
            self.tell(self._code.returns[frame.f_lasti], argument)

    def _start(self, frame: FrameType, *, is_straight: bool) -> None:
        self._run, self._is_straight = self._code.run(frame.f_lasti), is_straight
        variables = frame.f_locals if self._run.stores else {}
        self._before = {one.variable: _identity(variables, one.variable) for one in self._run.stores}

    def _read(self, run: Run, frame: FrameType, event: str) -> None:
        at = frame.f_lasti
        is_within = at in run.block
        is_straight = self._is_straight and (is_within or event == "line")
        variables = frame.f_locals if run.stores else {}
        for store in run.stores:
            if store.variable not in variables or (is_within and not self._code.is_possible(store, run, at)):
                continue
            is_other = _identity(variables, store.variable) != self._before[store.variable]
            if is_other or (is_straight and self._code.is_passed(store, run, at)):
                self.tell(store.spot, variables[store.variable])

    def tell(self, spot: int, value: Any) -> None:
        for seen, numbers in self._listening:
            if spot in numbers:
                seen(numbers[spot], value)


def _identity(variables: Mapping[str, Any], name: str) -> int | None:
    """What stays bound up to the next event keeps its address for itself."""
    return id(variables[name]) if name in variables else None
