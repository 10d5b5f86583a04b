"""Server-sent events: any thread publishes, each page has a bounded queue; and a background worker thread."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from queue import Empty, SimpleQueue
from typing import Any

from starlette.responses import StreamingResponse

from tensortap.viewer.web.responses import to_jsonable

_MAX_QUEUED = 256  # per page; a newer event of the same subject replaces an older one
_HEARTBEAT_INTERVAL = 15.0  # seconds
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventBroadcaster:
    def __init__(self) -> None:
        self._subscribers: set[Subscriber] = set()
        self._lock = threading.Lock()
        self._number = 0

    def publish(self, event: str, subject: str = "", **facts: Any) -> None:
        """Send an event to every page; a slow page gets only the newest of each subject."""
        with self._lock:
            self._number += 1
            for subscriber in self._subscribers:
                subscriber.put(f"{event} {subject}", _format_numbered_event(event, facts, self._number))

    @property
    def has_subscribers(self) -> bool:
        return bool(self._subscribers)

    def subscribe(self) -> Subscriber:
        subscriber = Subscriber(self)
        with self._lock:
            self._subscribers.add(subscriber)
        return subscriber

    def unsubscribe(self, subscriber: Subscriber) -> None:
        with self._lock:
            self._subscribers.discard(subscriber)

    def close(self) -> None:
        """End every stream, so that the server can shut down."""
        with self._lock:
            for subscriber in self._subscribers:
                subscriber.end()


class Subscriber:
    """The queue of one page; must be created in the event loop that reads it."""

    def __init__(self, events: EventBroadcaster) -> None:
        self._events, self._loop = events, asyncio.get_running_loop()
        self._queued: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._has_messages = asyncio.Event()
        self._is_closed = False

    def put(self, subject: str, message: bytes) -> None:
        with self._lock:
            self._queued.pop(subject, None)
            self._queued[subject] = message
            while len(self._queued) > _MAX_QUEUED:
                self._queued.popitem(last=False)
        self._wake()

    def end(self) -> None:
        self._is_closed = True
        self._wake()

    async def messages(self) -> AsyncIterator[bytes]:
        yield _format_numbered_event("hello", {"time": time.time()}, 0)
        try:
            while not self._is_closed:
                for message in self._drain():
                    yield message
                try:
                    await asyncio.wait_for(self._has_messages.wait(), _HEARTBEAT_INTERVAL)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            self._events.unsubscribe(self)

    def _drain(self) -> list[bytes]:
        self._has_messages.clear()
        with self._lock:
            messages = list(self._queued.values())
            self._queued.clear()
        return messages

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._has_messages.set)
        except RuntimeError:  # the event loop is closed
            self._is_closed = True


def event_stream_response(messages: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(messages, media_type="text/event-stream", headers=HEADERS)


def format_event(event: str, facts: dict[str, Any]) -> bytes:
    return _format_numbered_event(event, facts, 0)


def _format_numbered_event(event: str, facts: dict[str, Any], number: int) -> bytes:
    id_line = f"id: {number}\n" if number else ""
    return f"{id_line}event: {event}\ndata: {json.dumps(to_jsonable(facts), allow_nan=False)}\n\n".encode()


class BackgroundWorker:
    """Runs jobs one at a time on a daemon thread: a job may take minutes, and Ctrl-C must not wait for it."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self._name = name
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], Any]) -> None:
        self._queue.put(work)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_queue, name=self._name, daemon=True)
                self._thread.start()

    def close(self, seconds: float = 2.0) -> None:
        """Drop queued work, and wait briefly for the current one."""
        try:
            while True:
                self._queue.get_nowait()
        except Empty:
            self._queue.put(None)
        if self._thread is not None:
            self._thread.join(seconds)

    def _run_queue(self) -> None:
        while (work := self._queue.get()) is not None:
            work()
