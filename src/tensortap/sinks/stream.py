"""A sink that sends records to a session in another process, from a background thread that is closed at exit
and restarted after a fork."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import sys
import threading
from functools import lru_cache
from time import monotonic, perf_counter
from typing import Any, Protocol
from weakref import WeakSet

from tensortap.core.errors import RefusedError, UnsupportedValueError
from tensortap.core.interpreter import call_at_child_exit, call_in_forked_children
from tensortap.core.ranks import rank_info
from tensortap.core.record import Record
from tensortap.frameworks.retention import BufferPool
from tensortap.render.words import pluralize
from tensortap.sinks.outbox import NOT_DELIVERED, Delivery, Outbox, QueuedValue, queue_cost
from tensortap.transport.connection import Connection, connect
from tensortap.transport.frames import FrameKind
from tensortap.transport.tls import TlsConfig, check_listener_user, parse_host
from tensortap.transport.values import WireValue, copy_buffers, encode_record

# What a user-defined value may raise when it is described or copied.
UNSENDABLE_ERRORS = (UnsupportedValueError, TypeError, ValueError, RuntimeError, AttributeError, MemoryError)
_MAX_NAME_LENGTH = 200


def describe_process() -> dict[str, Any]:
    program = os.path.basename(sys.argv[0]) if sys.argv else ""
    host = socket.gethostname()[:_MAX_NAME_LENGTH]
    names = {"host": host, "program": (program or "python")[:_MAX_NAME_LENGTH]}
    return {"pid": os.getpid(), "rank": rank_info().rank, **names}


def send_goodbye(connection: Connection, *, is_free: bool) -> None:
    """Close the connection; send BYE only if no other thread is in the middle of a frame."""
    if is_free:
        try:
            connection.send(FrameKind.BYE, timeout=0.2)
        except OSError as error:
            log.debug("no goodbye: %s", error)
    connection.close()


def warn_no_listener(address: str, error: Exception) -> None:
    if isinstance(error, RefusedError):
        log.warning("values are not sent to %s: %s", address, error)
        return
    reason = getattr(error, "strerror", None) or str(error)
    log.warning(
        "nobody takes values at %s (%s), so none are sent; that begins when a session calls serve() there",
        address,
        reason,
    )


def log_listener_back(address: str) -> None:
    log.info("%s takes values now", address)


def warn_drops(address: str, budget: int) -> None:
    log.warning(
        "the session at %s takes values slower than they come: beyond %d MB the oldest that wait are dropped "
        "and counted",
        address,
        budget >> 20,
    )


def warn_unconfirmed(address: str, count: int) -> None:
    if count:
        log.warning(
            "the session at %s went away before it had confirmed %s", address, pluralize(count, "value")
        )


def warn_undelivered(address: str, count: int) -> None:
    if count:
        log.warning("%s could not be delivered to %s in time", pluralize(count, "value"), address)


class UnsendableNames:
    """Names of values that cannot be sent, each warned about once."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def warn_once(self, name: str, error: BaseException) -> None:
        if name not in self._names:
            self._names.add(name)
            log.warning("%r is not sent: %s", name, error)


EXIT_TIMEOUT = 2.0  # seconds that all senders together may delay the end of the program


class Sender(Protocol):
    def close(self, timeout: float = ...) -> None: ...

    def restart_in_child(self) -> None: ...


_senders: WeakSet[Sender] = WeakSet()


def close_at_exit(sender: Sender) -> None:
    _register_exit_handler()
    call_in_forked_children(_restart_all_in_child)
    _senders.add(sender)


def register_child_exit() -> None:
    call_at_child_exit(_close_all)


@lru_cache(maxsize=1)
def _register_exit_handler() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    deadline = monotonic() + EXIT_TIMEOUT
    for sender in list(_senders):
        sender.close(max(deadline - monotonic(), 0.0))


def _restart_all_in_child() -> None:
    for sender in list(_senders):
        sender.restart_in_child()


BUDGET = 256 << 20
_FLUSH_TIMEOUT = 30.0  # seconds
_MIN_BACKOFF, _MAX_BACKOFF, _MAX_SLOW_BACKOFF = 0.1, 1.0, 30.0  # seconds between connection attempts
_STATUS_INTERVAL = 0.1  # seconds between two job status updates
_DIRECT_SEND_BYTES = 16 << 10  # smaller values are sent from the caller's thread
_BACKOFF_FACTOR = 10  # the pause is this many times the duration of the attempt
log = logging.getLogger("tensortap.stream")


class _LastWrite(threading.local):
    delivery = NOT_DELIVERED


class Stream:
    """Sends records to the listener at `"host:port"` or at the path of a unix socket.

    A write takes one snapshot and returns; the order is kept. At most `budget` bytes are queued, then the
    oldest are dropped and counted. Without a listener, one warning is logged, writes cost next to nothing,
    and it keeps trying to connect.
    """

    # Our own lock is held only briefly; the tap's would serialise the copies of all threads.
    needs_no_lock = True

    def __init__(
        self, address: str, *, token: str | None = None, tls: TlsConfig | None = None, budget: int = BUDGET
    ) -> None:
        parse_host(address)  # raises for an invalid address
        self.address = address
        self._token, self._tls, self._budget = token, tls, budget
        self.is_closed = False
        self.lost = 0
        self._seconds_in_send, self._started = (
            0.0,
            monotonic(),
        )  # overhead of `send`, against the time since creation
        self._unsendable_names = UnsendableNames()
        self._last_write = _LastWrite()
        self._reset()
        close_at_exit(self)

    @property
    def dropped(self) -> int:
        """How many values were dropped because the queue was full or there was no listener."""
        return self._outbox.dropped

    @property
    def last_delivery(self) -> Delivery:
        """The delivery receipt of this thread's last `write`."""
        return self._last_write.delivery

    def write(self, record: Record) -> None:
        self._last_write.delivery = self.send(record)

    def send(self, record: Record) -> Delivery:
        """Queue a snapshot of the value; returns its delivery receipt."""
        if self.has_no_listener or self.is_closed:
            return NOT_DELIVERED
        started = perf_counter()
        try:
            return self._queue(record)
        except UNSENDABLE_ERRORS as error:
            self._unsendable_names.warn_once(record.name, error)
            return NOT_DELIVERED
        finally:
            self._seconds_in_send += perf_counter() - started

    def flush(self, timeout: float = _FLUSH_TIMEOUT) -> None:
        """Return when everything written so far has arrived or is known to be lost."""
        deadline = monotonic() + timeout
        while not self._is_idle() and monotonic() < deadline:
            with self._lock:
                last = self._outbox.newest
            if last is not None:  # an earlier one may still be in flight: hence the loop
                last.wait(deadline - monotonic())

    def close(self, timeout: float = EXIT_TIMEOUT) -> None:
        """Deliver what is queued within the timeout, and close the connection."""
        deadline = monotonic() + timeout
        if not self.is_closed:
            self.flush(timeout)
        with self._work:
            is_idle, self.is_closed = self._is_idle(), True
            connection, thread = self._connection, self._thread
            self._work.notify_all()
        if connection is not None:
            send_goodbye(connection, is_free=is_idle)
        for worker in (thread, self._ack_thread):
            if worker is not None and worker is not threading.current_thread():
                worker.join(max(deadline - monotonic(), 0.05))
        self._drop_remaining()

    def _reset(self) -> None:
        """Per-process state; locks too, since another thread may hold them at a fork."""
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._send_lock = threading.Lock()
        self._outbox, self._pool = Outbox(self._budget), BufferPool(keep=self._budget)
        self._thread: threading.Thread | None = None
        self._ack_thread: threading.Thread | None = None
        self._connection: Connection | None = None
        self._backoff = self._next_status = 0.0
        self._is_reconnecting = self.has_no_listener = False
        self._has_warned_of_drops = self._has_warned_of_absence = False

    def restart_in_child(self) -> None:
        """In a forked child: the connection and the queued values remain the parent's."""
        connection, outbox = self._connection, self._outbox
        if connection is not None:
            connection.abandon()
        for value in (*outbox.waiting, *outbox.unconfirmed):
            value.delivery.settle(False)
        self._reset()

    def _queue(self, record: Record) -> Delivery:
        packed = encode_record(record)
        if packed.nbytes <= _DIRECT_SEND_BYTES:
            value = QueuedValue(packed, copy_buffers(packed, self._pool))
            if self._send_directly(value):
                return value.delivery
            self._reserve(value.cost)
        else:
            value = self._snapshot(packed)
        with self._lock:
            self._outbox.waiting.append(value)
            if self.has_no_listener or self.is_closed:  # since the check in `send`
                self._outbox.drop_all()
            self._work.notify()
        return value.delivery

    def _snapshot(self, packed: WireValue) -> QueuedValue:
        """Reserve the budget before copying."""
        cost = queue_cost(packed)
        self._reserve(cost)
        try:
            return QueuedValue(packed, copy_buffers(packed, self._pool))
        except BaseException:  # the value's own copy may raise anything, or be interrupted
            with self._lock:
                self._outbox.unreserve(cost)
            raise

    def _reserve(self, cost: int) -> None:
        with self._lock:
            self._start_thread()
            dropped = self._outbox.reserve(cost)
        if dropped and not self._has_warned_of_drops:
            self._has_warned_of_drops = True
            warn_drops(self.address, self._budget)

    def _send_directly(self, value: QueuedValue) -> bool:
        """Send a small value from this thread: with nothing in flight the socket buffer has room."""
        if self._connection is None or not self._send_lock.acquire(blocking=False):
            return False
        try:
            with self._lock:
                connection = self._connection
                if connection is None or connection.is_closed or not self._outbox.is_empty:
                    return False
                self._outbox.reserve(value.cost)
                self._outbox.mark_in_flight(value)
            self._transmit(connection, value, timeout=0.0)
            return True
        finally:
            self._send_lock.release()

    def _start_thread(self) -> None:
        if self._thread is None and not self.is_closed:
            self._thread = threading.Thread(target=self._run, name="tensortap-stream", daemon=True)
            self._thread.start()
            register_child_exit()

    def _run(self) -> None:
        while self._wait_for_work():
            connection = self._connection
            if connection is not None and connection.is_closed:
                self._drop_connection()
            elif connection is None:
                self._connect()
            else:
                self._send_next(connection)

    def _wait_for_work(self) -> bool:
        with self._work:
            self._work.wait_for(self._has_work)
            return not self.is_closed

    def _has_work(self) -> bool:
        is_lost = self._connection is not None and self._connection.is_closed
        return self.is_closed or self._is_reconnecting or is_lost or bool(self._outbox.waiting)

    def _is_idle(self) -> bool:
        outbox = self._outbox
        return self.is_closed or self.has_no_listener or not (outbox.waiting or outbox.unconfirmed)

    def _connect(self) -> None:
        started = monotonic()
        try:
            if self._token is None:
                check_listener_user(self.address)
            connection = connect(self.address, self._token, self._tls, about=describe_process())
        except (OSError, ValueError) as error:
            self._back_off(error, monotonic() - started)
            return
        with self._work:
            self._connection, self._backoff = connection, 0.0
            self._is_reconnecting = self.has_no_listener = False
            if self.is_closed:
                connection.close()
        self._ack_thread = threading.Thread(
            target=self._read_acks, args=(connection,), name="tensortap-acks", daemon=True
        )
        self._ack_thread.start()
        if self._has_warned_of_absence:
            self._has_warned_of_absence = False
            log_listener_back(self.address)

    def _back_off(self, error: Exception, duration: float) -> None:
        """Pause before the next attempt; meanwhile writes return at once."""
        longest = _MAX_SLOW_BACKOFF if duration > 1 else _MAX_BACKOFF
        self._backoff = min(max(_MIN_BACKOFF, 2 * self._backoff, _BACKOFF_FACTOR * duration), longest)
        if not self._has_warned_of_absence:
            self._has_warned_of_absence = True
            warn_no_listener(self.address, error)
        with self._work:
            self._is_reconnecting = self.has_no_listener = True
            self._outbox.drop_all()
            self._work.wait_for(lambda: self.is_closed, self._backoff)

    def _send_next(self, connection: Connection) -> None:
        with self._send_lock:  # numbers are assigned in sending order
            with self._work:
                value = self._outbox.take_next() if self._outbox.waiting else None
            if value is not None:
                self._transmit(connection, value)

    def _transmit(self, connection: Connection, value: QueuedValue, timeout: float | None = None) -> None:
        meta = value.meta
        meta["number"] = value.number
        # Whether to ack this one; while more are queued, the ack of a later one covers it.
        meta["ask"] = not self._outbox.waiting
        if monotonic() > self._next_status:
            meta["job"] = self._job_status()
        try:
            connection.send(FrameKind.DATA, meta, (value.data,) if value.data else (), timeout)
        except UnsupportedValueError as error:
            self._unsendable_names.warn_once(value.meta["name"], error)
            self._settle(self._outbox.refuse, value)
        except OSError:
            self._settle(self._outbox.put_back, value)
        else:
            if value.pooled is not None:  # otherwise the ack frees the budget
                with self._lock:
                    self._outbox.mark_sent(value)

    def _settle(self, settle: Any, value: QueuedValue) -> None:
        with self._work:
            settle(value)
            self._work.notify_all()

    def _drop_connection(self) -> None:
        with self._work:
            self._connection = None
            lost = self._outbox.drop_unconfirmed()
            self.lost += lost
            self._is_reconnecting = True  # to know whether there is a listener before the next value comes
        warn_unconfirmed(self.address, lost)

    def _read_acks(self, connection: Connection) -> None:
        """Read acks, and detect a closed connection, which a write would notice one value too late."""
        try:
            while (frame := connection.receive()).kind is not FrameKind.BYE:
                number = frame.meta.get("got")
                if frame.kind is FrameKind.OK and type(number) is int:
                    with self._lock:
                        self._outbox.confirm(number)
        except (OSError, ValueError) as error:
            log.debug("the link to %s ended: %s", self.address, error)
        connection.close()
        with self._work:
            self._work.notify_all()

    def _job_status(self) -> dict[str, Any]:
        """Drops and overhead of this job, displayed by the session."""
        now = monotonic()
        age, self._next_status = now - self._started, now + _STATUS_INTERVAL
        return {
            "dropped": self.dropped + self.lost,
            "spent": round(self._seconds_in_send, 6),
            "age": round(age, 6),
        }

    def _drop_remaining(self) -> None:
        with self._work:
            undelivered = self._outbox.drop_all() + self._outbox.drop_unconfirmed()
        warn_undelivered(self.address, undelivered)
