"""A sink that sends records to a session in another process, from a thread of its own."""

from __future__ import annotations

import logging
import threading
from time import monotonic, perf_counter
from typing import Any

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Record
from tensortap.formats.certificates import Tls
from tensortap.formats.dialing import host_of
from tensortap.formats.link import Link, connect
from tensortap.formats.neighbours import check_listener
from tensortap.formats.wire import Kind
from tensortap.formats.wire_snapshots import copied, described
from tensortap.formats.wire_values import Packed
from tensortap.frameworks.pool import Pool
from tensortap.sinks import stream_words as words
from tensortap.sinks.deliveries import NEVER, Delivery, Outbox, Parcel, cost_of
from tensortap.sinks.process_end import GRACE, end_with_child, watch_process

BUDGET = 256 << 20
_PATIENCE = 30.0  # seconds
_SHORTEST, _LONGEST, _LONGEST_SLOW = 0.1, 1.0, 30.0  # seconds between two tries
_NEWS = 0.1  # seconds between two words on how the job is doing
_AT_ONCE = 16 << 10  # bytes
_SLOWNESS = 10  # rests so many times as long as a try took
log = logging.getLogger("tensortap.stream")


class Stream:
    """Sends what is written to whoever listens at `"host:port"` or at the path of a unix socket.

    A write takes one snapshot and returns; the order is kept. At most `budget` bytes wait, then the oldest
    of them are dropped and counted. Where nobody listens, one message says so, writes cost next to nothing,
    and a listener that comes later is found.
    """

    # The lock of its own is held for moments only; the tap's would make threads copy one after the other.
    needs_no_lock = True

    def __init__(
        self, address: str, *, token: str | None = None, tls: Tls | None = None, budget: int = BUDGET
    ) -> None:
        host_of(address)  # refuses what is no address
        self.address = address
        self._token, self._tls, self._budget = token, tls, budget
        self.is_closed = False
        self.lost = 0
        self._spent, self._began = 0.0, monotonic()  # in calls of `send`; since the first of them
        self._unsendable = words.Unsendable()
        self._begin()
        watch_process(self)

    @property
    def dropped(self) -> int:
        """How many values a full queue or an absent listener has cost."""
        return self._outbox.dropped

    def write(self, record: Record) -> None:
        self.send(record)

    def send(self, record: Record) -> Delivery:
        """Queue the value as it is now; what tells whether it arrived."""
        if self.is_away or self.is_closed:
            return NEVER
        began = perf_counter()
        try:
            return self._queue(record)
        except words.UNSENDABLE as error:
            self._unsendable.tell(record.name, error)
            return NEVER
        finally:
            self._spent += perf_counter() - began

    def flush(self, timeout: float = _PATIENCE) -> None:
        """Return when everything written so far has arrived, or cannot."""
        deadline = monotonic() + timeout
        while not self._is_idle() and monotonic() < deadline:
            with self._lock:
                last = self._outbox.newest
            if last is not None:  # the one before it may still be on its way: hence the loop
                last.wait(deadline - monotonic())

    def close(self, timeout: float = GRACE) -> None:
        """Deliver what waits, as far as that is possible in time, and end the connection."""
        deadline = monotonic() + timeout
        if not self.is_closed:
            self.flush(timeout)
        with self._work:
            has_all, self.is_closed = self._is_idle(), True
            link, thread = self._link, self._thread
            self._work.notify_all()
        if link is not None:
            words.say_goodbye(link, is_free=has_all)
        for one in (thread, self._reader):
            if one is not None and one is not threading.current_thread():
                one.join(max(deadline - monotonic(), 0.05))
        self._let_go()

    def _begin(self) -> None:
        """What a process has for itself; the locks too, since another thread may hold them in a fork."""
        self._lock = threading.RLock()
        self._work = threading.Condition(self._lock)
        self._shipping = threading.Lock()
        self._outbox, self._pool = Outbox(self._budget), Pool(keep=self._budget)
        self._thread: threading.Thread | None = None
        self._reader: threading.Thread | None = None
        self._link: Link | None = None
        self._rest = self._tell_again = 0.0
        self._is_looking = self.is_away = False
        self._has_told_drops = self._has_told_absence = False

    def begin_in_child(self) -> None:
        """The connection stays the parent's, and so do the values that wait."""
        link, outbox = self._link, self._outbox
        if link is not None:
            link.abandon()
        for parcel in (*outbox.waiting, *outbox.unconfirmed):
            parcel.delivery.settle(False)
        self._begin()

    def _queue(self, record: Record) -> Delivery:
        sent = described(record)
        if sent.nbytes <= _AT_ONCE:
            parcel = Parcel(sent, copied(sent, self._pool))
            if self._send_at_once(parcel):
                return parcel.delivery
            self._reserve(parcel.cost)
        else:
            parcel = self._copied(sent)
        with self._lock:
            self._outbox.waiting.append(parcel)
            if self.is_away or self.is_closed:  # since a moment
                self._outbox.drop_all()
            self._work.notify()
        return parcel.delivery

    def _copied(self, sent: Packed) -> Parcel:
        """Room is made before the copy is."""
        cost = cost_of(sent)
        self._reserve(cost)
        try:
            return Parcel(sent, copied(sent, self._pool))
        except BaseException:
            with self._lock:
                self._outbox.unreserve(cost)
            raise

    def _reserve(self, cost: int) -> None:
        with self._lock:
            self._start()
            dropped = self._outbox.reserve(cost)
        if dropped and not self._has_told_drops:
            self._has_told_drops = True
            words.tell_drops(self.address, self._budget)

    def _send_at_once(self, parcel: Parcel) -> bool:
        """Where nothing is on its way the socket has room, and a small value need not wake a thread."""
        if self._link is None or not self._shipping.acquire(blocking=False):
            return False
        try:
            with self._lock:
                link = self._link
                if link is None or link.is_closed or not self._outbox.is_empty:
                    return False
                self._outbox.reserve(parcel.cost)
                self._outbox.begin(parcel)
            self._ship(link, parcel, timeout=0.0)
            return True
        finally:
            self._shipping.release()

    def _start(self) -> None:
        if self._thread is None and not self.is_closed:
            self._thread = threading.Thread(target=self._run, name="tensortap-stream", daemon=True)
            self._thread.start()
            end_with_child()

    def _run(self) -> None:
        while self._wait_for_work():
            link = self._link
            if link is not None and link.is_closed:
                self._forget_link()
            elif link is None:
                self._connect()
            else:
                self._send_next(link)

    def _wait_for_work(self) -> bool:
        with self._work:
            self._work.wait_for(self._has_work)
            return not self.is_closed

    def _has_work(self) -> bool:
        is_lost = self._link is not None and self._link.is_closed
        return self.is_closed or self._is_looking or is_lost or bool(self._outbox.waiting)

    def _is_idle(self) -> bool:
        box = self._outbox
        return self.is_closed or self.is_away or not (box.waiting or box.unconfirmed)

    def _connect(self) -> None:
        began = monotonic()
        try:
            if self._token is None:
                check_listener(self.address)
            link = connect(self.address, self._token, self._tls, about=words.about_process())
        except (OSError, ValueError) as error:
            self._stay_away(error, monotonic() - began)
            return
        with self._work:
            self._link, self._rest = link, 0.0
            self._is_looking = self.is_away = False
            if self.is_closed:
                link.close()
        self._reader = threading.Thread(target=self._read, args=(link,), name="tensortap-acks", daemon=True)
        self._reader.start()
        if self._has_told_absence:
            self._has_told_absence = False
            words.tell_return(self.address)

    def _stay_away(self, error: Exception, took: float) -> None:
        """Rest, then try again; meanwhile a write returns at once."""
        longest = _LONGEST_SLOW if took > 1 else _LONGEST
        self._rest = min(max(_SHORTEST, 2 * self._rest, _SLOWNESS * took), longest)
        if not self._has_told_absence:
            self._has_told_absence = True
            words.tell_absence(self.address, error)
        with self._work:
            self._is_looking = self.is_away = True
            self._outbox.drop_all()
            self._work.wait_for(lambda: self.is_closed, self._rest)

    def _send_next(self, link: Link) -> None:
        with self._shipping:  # numbers are given in the order in which values go
            with self._work:
                parcel = self._outbox.take() if self._outbox.waiting else None
            if parcel is not None:
                self._ship(link, parcel)

    def _ship(self, link: Link, parcel: Parcel, timeout: float | None = None) -> None:
        meta = parcel.meta
        meta["number"] = parcel.number
        meta["ask"] = not self._outbox.waiting  # for a confirmation; while more come, those of the later do
        if monotonic() > self._tell_again:
            meta["job"] = self._told()
        try:
            link.send(Kind.DATA, meta, (parcel.data,) if parcel.data else (), timeout)
        except UnsupportedValueError as error:
            self._unsendable.tell(parcel.meta["name"], error)
            self._settle(self._outbox.refuse, parcel)
        except OSError:
            self._settle(self._outbox.put_back, parcel)
        else:
            if parcel.lent is not None:  # else the confirmation does all that is to be done
                with self._lock:
                    self._outbox.sent(parcel)

    def _settle(self, how: Any, parcel: Parcel) -> None:
        with self._work:
            how(parcel)
            self._work.notify_all()

    def _forget_link(self) -> None:
        with self._work:
            self._link = None
            lost = self._outbox.lose()
            self.lost += lost
            self._is_looking = True  # to know whether somebody listens before the next value comes
        words.tell_loss(self.address, lost)

    def _read(self, link: Link) -> None:
        """Confirmations; and the end of the connection, which a write would notice one value too late."""
        try:
            while (frame := link.receive()).kind is not Kind.BYE:
                number = frame.meta.get("got")
                if frame.kind is Kind.OK and type(number) is int:
                    with self._lock:
                        self._outbox.confirm(number)
        except (OSError, ValueError) as error:
            log.debug("the link to %s ended: %s", self.address, error)
        link.close()
        with self._work:
            self._work.notify_all()

    def _told(self) -> dict[str, Any]:
        """How the job is doing, for the eyes of the session."""
        now = monotonic()
        age, self._tell_again = now - self._began, now + _NEWS
        return {"dropped": self.dropped + self.lost, "spent": round(self._spent, 6), "age": round(age, 6)}

    def _let_go(self) -> None:
        with self._work:
            late = self._outbox.drop_all() + self._outbox.lose()
        words.tell_late(self.address, late)
