"""One rank of a job as the session sees it: a link, what it said last, and whether it still lives."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

from tensortap.core.errors import NotServingError, RefusedError, UnknownNameError
from tensortap.transport.connection import Connection, Frame
from tensortap.transport.frames import FrameKind

_SEND_SECONDS = 5.0
_ids = itertools.count(1)


class RankConnection:
    """Any thread asks; the reader thread hands over the answers."""

    def __init__(self, link: Connection, rank: int) -> None:
        self.link = link
        self.about = link.peer.about
        rank_in_handshake = self.about.get("rank")
        self.rank = rank_in_handshake if type(rank_in_handshake) is int else rank
        self.stats: dict[str, Any] = {}
        self.received = self.nbytes = 0
        self.is_alive = True
        self.close_reason = ""
        self._pending: dict[int, _PendingResponse] = {}

    @property
    def name(self) -> str:
        return str(self.about.get("name", "job"))

    def send(self, kind: FrameKind, meta: dict[str, Any]) -> None:
        try:
            self.link.send(kind, meta, timeout=_SEND_SECONDS)
        except OSError as error:
            raise NotServingError(
                self.close_reason or f"the job {self.name!r} does not answer: {error}"
            ) from error

    def request_stats(self) -> None:
        """Ask how the job is doing, so that it is known at once; a job that has gone is found out later."""
        with contextlib.suppress(NotServingError, TimeoutError):
            self.request(FrameKind.STATS, {}, timeout=1.0)

    def request(self, kind: FrameKind, meta: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
        """Send, and wait for what is answered; an answer may have several frames."""
        number = next(_ids)
        response = self._pending[number] = _PendingResponse()
        try:
            self.send(kind, {**meta, "id": number})
            if not response.is_done.wait(timeout):
                raise TimeoutError(f"rank {self.rank} of the job {self.name!r} did not answer in {timeout} s")
        finally:
            del self._pending[number]
        return response.frames_or_raise()

    def deliver(self, frame: Frame) -> None:
        response = self._pending.get(frame.meta.get("id", -1))
        if response is not None:
            response.add(frame)

    def end(self, reason: str) -> None:
        """No more comes from there."""
        if self.is_alive:
            self.is_alive, self.close_reason = False, reason
            self.link.close()
            for response in list(self._pending.values()):
                response.fail(reason)


class _PendingResponse:
    def __init__(self) -> None:
        self.is_done = threading.Event()
        self._frames: list[Frame] = []
        self._failure = ""

    def add(self, frame: Frame) -> None:
        self._frames.append(frame)
        if not frame.meta.get("more"):
            self.is_done.set()

    def fail(self, reason: str) -> None:
        self._failure = reason
        self.is_done.set()

    def frames_or_raise(self) -> list[dict[str, Any]]:
        if self._failure:
            raise NotServingError(self._failure)
        error = next((frame.meta for frame in self._frames if frame.kind is FrameKind.ERR), None)
        if error is not None:
            error_class = {"refused": RefusedError, "unknown": UnknownNameError}.get(
                str(error.get("kind")), ValueError
            )
            raise error_class(str(error.get("error", "refused")))
        return [frame.meta for frame in self._frames]
