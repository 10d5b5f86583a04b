"""What is new, told to every page that listens: any thread tells, each page has its own short queue."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import StreamingResponse

from tensortap.viewer.answers import to_jsonable

_MAX_QUEUED = 256  # events that wait for one page; a newer one of the same subject takes an older one's place
_HEARTBEAT_INTERVAL = 15.0  # seconds between two signs of life
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventBroadcaster:
    """Where events are told and listened to."""

    def __init__(self) -> None:
        self._listeners: set[Subscriber] = set()
        self._lock = threading.Lock()
        self._number = 0

    def tell(self, event: str, subject: str = "", **facts: Any) -> None:
        """To every page; of events with the same subject, a slow page gets the newest."""
        with self._lock:
            self._number += 1
            for listener in self._listeners:
                listener.put(f"{event} {subject}", _format_numbered_event(event, facts, self._number))

    @property
    def has_listeners(self) -> bool:
        return bool(self._listeners)

    def listen(self) -> Subscriber:
        listener = Subscriber(self)
        with self._lock:
            self._listeners.add(listener)
        return listener

    def leave(self, listener: Subscriber) -> None:
        with self._lock:
            self._listeners.discard(listener)

    def close(self) -> None:
        """End every stream, so that the server can end."""
        with self._lock:
            for listener in self._listeners:
                listener.end()


class Subscriber:
    """One page. Made in the loop that reads it."""

    def __init__(self, events: EventBroadcaster) -> None:
        self._events, self._loop = events, asyncio.get_running_loop()
        self._waiting: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._has_news = asyncio.Event()
        self._is_over = False

    def put(self, subject: str, text: bytes) -> None:
        with self._lock:
            self._waiting.pop(subject, None)
            self._waiting[subject] = text
            while len(self._waiting) > _MAX_QUEUED:
                self._waiting.popitem(last=False)
        self._wake()

    def end(self) -> None:
        self._is_over = True
        self._wake()

    async def texts(self) -> AsyncIterator[bytes]:
        yield _format_numbered_event("hello", {"time": time.time()}, 0)
        try:
            while not self._is_over:
                for text in self._taken():
                    yield text
                try:
                    await asyncio.wait_for(self._has_news.wait(), _HEARTBEAT_INTERVAL)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._events.leave(self)

    def _taken(self) -> list[bytes]:
        self._has_news.clear()
        with self._lock:
            taken = list(self._waiting.values())
            self._waiting.clear()
        return taken

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._has_news.set)
        except RuntimeError:  # the loop has ended, and so has the page
            self._is_over = True


def event_stream_response(texts: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(texts, media_type="text/event-stream", headers=HEADERS)


def format_event(event: str, facts: dict[str, Any]) -> bytes:
    return _format_numbered_event(event, facts, 0)


def _format_numbered_event(event: str, facts: dict[str, Any], number: int) -> bytes:
    identity = f"id: {number}\n" if number else ""
    return f"{identity}event: {event}\ndata: {json.dumps(to_jsonable(facts), allow_nan=False)}\n\n".encode()
