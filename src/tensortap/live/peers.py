"""One rank of a job as the session sees it: a link, what it said last, and whether it still lives."""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any

from tensortap.core.errors import NotServingError, RefusedError, UnknownNameError
from tensortap.formats.link import Frame, Link
from tensortap.formats.wire import Kind

_SEND_SECONDS = 5.0
_ids = itertools.count(1)


class Peer:
    """Any thread asks; the reader thread hands over the answers."""

    def __init__(self, link: Link, rank: int) -> None:
        self.link = link
        self.about = link.peer.about
        told = self.about.get("rank")
        self.rank = told if type(told) is int else rank
        self.stats: dict[str, Any] = {}
        self.received = self.nbytes = 0
        self.is_alive = True
        self.why = ""
        self._answers: dict[int, _Answer] = {}

    @property
    def name(self) -> str:
        return str(self.about.get("name", "job"))

    def send(self, kind: Kind, meta: dict[str, Any]) -> None:
        try:
            self.link.send(kind, meta, timeout=_SEND_SECONDS)
        except OSError as error:
            raise NotServingError(self.why or f"the job {self.name!r} does not answer: {error}") from error

    def greet(self) -> None:
        """Ask how the job is doing, so that it is known at once; a job that has gone is found out later."""
        with contextlib.suppress(NotServingError, TimeoutError):
            self.ask(Kind.STATS, {}, timeout=1.0)

    def ask(self, kind: Kind, meta: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
        """Send, and wait for what is answered; an answer may have several frames."""
        number = next(_ids)
        answer = self._answers[number] = _Answer()
        try:
            self.send(kind, {**meta, "id": number})
            if not answer.is_done.wait(timeout):
                raise TimeoutError(f"rank {self.rank} of the job {self.name!r} did not answer in {timeout} s")
        finally:
            del self._answers[number]
        return answer.checked()

    def hand_over(self, frame: Frame) -> None:
        answer = self._answers.get(frame.meta.get("id", -1))
        if answer is not None:
            answer.add(frame)

    def end(self, why: str) -> None:
        """No more comes from there."""
        if self.is_alive:
            self.is_alive, self.why = False, why
            self.link.close()
            for answer in list(self._answers.values()):
                answer.fail(why)


class _Answer:
    def __init__(self) -> None:
        self.is_done = threading.Event()
        self._frames: list[Frame] = []
        self._why = ""

    def add(self, frame: Frame) -> None:
        self._frames.append(frame)
        if not frame.meta.get("more"):
            self.is_done.set()

    def fail(self, why: str) -> None:
        self._why = why
        self.is_done.set()

    def checked(self) -> list[dict[str, Any]]:
        if self._why:
            raise NotServingError(self._why)
        refused = next((frame.meta for frame in self._frames if frame.kind is Kind.ERR), None)
        if refused is not None:
            kind = {"refused": RefusedError, "unknown": UnknownNameError}.get(
                str(refused.get("kind")), ValueError
            )
            raise kind(str(refused.get("error", "refused")))
        return [frame.meta for frame in self._frames]
