"""thing: catch values in one program, look at them in another that is alive."""

from __future__ import annotations

import atexit
import itertools
import sys
from collections import defaultdict
from pathlib import Path
from sys import _getframe
from typing import Any

from tensortap.core.errors import NotServingError
from tensortap.core.settings import is_on, setting
from tensortap.core.steps import declared_step
from tensortap.core.tap import Tap
from tensortap.frameworks.base import disable_compile
from tensortap.readers.spinner import print_new_lines, show_spinner
from tensortap.recording.receiver import Receiver
from tensortap.render.received import ReceivedTable
from tensortap.sinks.open import open_stream
from tensortap.sinks.outbox import NOT_DELIVERED, Delivery
from tensortap.sources.listener import Listener
from tensortap.sources.manual import ManualSource, argument_name
from tensortap.transport.handshake import read_token
from tensortap.transport.tls import TlsConfig, create_self_signed, server_tls

__all__ = [
    "catch",
    "describe",
    "get",
    "get_all",
    "help",
    "ingest_all",
    "pin",
    "serve",
    "status",
    "stop_serving",
    "summary",
    "unpin",
]

_NOT_SERVING = "this session does not listen: call serve() first, and catch(value, 'name') in the job"
_HELP = """\
in the job
  catch(value, name=None, server=None, every=1, first=None)
                       send a value here as it is now; .wait() on what it returns waits for its arrival
in this session
  serve(port=None)     listen for values; stop_serving() ends that
  status()             watch them arrive; Ctrl-C comes back, and the server stays
  summary()            what has arrived, one line per name
  describe(name)       all about the latest value of a name
  get(name, index=0)   the latest value, or the index-th before it; get(id) the one with that id
  get_all(name)        all values of a name, the oldest first
  ingest_all()         the latest value of each name as a variable
  pin(name), unpin     keep a value when memory runs short
  help()               this page"""


_is_on = is_on()
_source = ManualSource()
_calls: defaultdict[str, itertools.count[int]] = defaultdict(lambda: itertools.count(1))
_remote_sessions: dict[tuple[str, str], _RemoteSession] = {}
_session: Receiver | None = None


def catch(
    obj: Any,
    name: str | None = None,
    server: str | None = None,
    every: int = 1,
    first: int | None = None,
    *,
    tap: Tap | None = None,
) -> Delivery:
    """Send a value, as it is now, to the session that serves; never waits for it.

    `every=k` sends calls k, 2k, ... of that name, `first=n` the first n of those. Without a name the
    caller's variable gives it. The session is at `server="host:port"`, else at `THING_SERVER` and
    `THING_PORT`. `.wait()` on the result waits for the arrival.

    >>> tt.catch(loss, "loss", every=10)
    """
    if not _is_on:
        return NOT_DELIVERED
    frame = _getframe(1)
    if name is None:
        name = argument_name(frame) or "value"
    if not _is_due(name, every, first):
        return NOT_DELIVERED
    session = _session_at(server)
    if session.stream.has_no_listener and tap is None:
        return NOT_DELIVERED
    record = _source.record(obj, name, frame)
    step = declared_step()
    if step is not None:
        record = record._replace(step=step)
    if tap is not None:
        tap.emit(record)
    session.emit(record)
    return session.stream.last_delivery


def serve(
    port: int | None = None,
    *,
    host: str = "127.0.0.1",
    memory: str | int | None = "50%",
    token: str | None = None,
    tls: bool | tuple[str, str] = False,
    insecure: bool = False,
    to: str | None = None,
    tap: Tap | None = None,
) -> None:
    """Listen for caught values, in threads of its own; `stop_serving()` ends it.

    Beyond `memory` the oldest values go, the last of each name at the end. `to="runs/"` also writes what
    arrives. Another interface than the loopback needs a token and TLS (`tls=True`, or the files of a
    certificate and its key), or the word `insecure=True`.
    """
    global _session
    chosen_port = int(setting("THING_PORT")) if port is None else port
    if _session is not None:
        _session.refuse_second(port)
        return
    tls_config = _tls_config(tls)
    listener = Listener(host, chosen_port, token=token or read_token(), tls=tls_config, insecure=insecure)
    _session = Receiver(listener, memory, to=to, tap=tap)
    atexit.register(stop_serving)
    print(f"listening at {listener.address}; help() tells what can be asked")
    if tls_config is not None:
        print(f"the certificate's fingerprint, for THING_FINGERPRINT in the job: {tls_config.fingerprint}")


def stop_serving() -> None:
    """Close the port; what has arrived is forgotten."""
    global _session
    session, _session = _session, None
    atexit.unregister(stop_serving)
    if session is not None:
        session.close()


def get(name_or_id: str | int, index: int = 0) -> Any:
    """The latest value of that name, or the `index`-th before it; a number is the id of one value. The value
    is yours: changing it does not change history.

    >>> tt.get("loss")
    >>> tt.get("loss", 1)      # the one before
    """
    return _require_session().get(name_or_id, index)


def get_all(name: str) -> list[Any]:
    """All values of that name, the oldest first."""
    return _require_session().get_all(name)


def summary() -> ReceivedTable | None:
    """What has arrived, one line per name, as text or in a notebook as a table."""
    if _session is None:
        print(_NOT_SERVING)
        return None
    return _session.summary()


def describe(name_or_id: str | int | None = None) -> ReceivedTable | None:
    """All that is known of the latest value of a name, or of the one with that id."""
    return summary() if name_or_id is None else _require_session().describe(name_or_id)


def status(seconds: float | None = None) -> None:
    """Show arrivals as they come, until Ctrl-C or for some seconds; the server stays."""
    if _session is None:
        print(_NOT_SERVING)
    else:
        show_spinner(_session.state, _session.news(), seconds=seconds)


def active_receiver() -> Receiver:
    """The active receiver, for a program with its own output."""
    return _require_session()


def watch_arrivals(seconds: float | None = None) -> None:
    """As `status`, for a program: into a pipe it prints a line per value instead of turning."""
    session = _require_session()
    if sys.stdout.isatty():
        show_spinner(session.state, session.news(), seconds=seconds)
    else:
        print_new_lines(session.news(), seconds=seconds)


def ingest_all(namespace: dict[str, Any] | None = None, *, overwrite: bool = False) -> list[str]:
    """Put the latest value of each name into the caller's variables, or into `namespace`; the names of the
    variables. A variable that was not put there by an earlier call is left alone, unless `overwrite`."""
    target = _getframe(1).f_globals if namespace is None else namespace
    assigned, kept = _require_session().put_into(target, overwrite=overwrite)
    if kept:
        print(f"left alone, because they are variables of yours: {', '.join(kept)}")
    return assigned


def pin(name_or_id: str | int, index: int = 0) -> None:
    """Keep this value, however short memory gets."""
    _require_session().pin(name_or_id, index)


def unpin(name_or_id: str | int, index: int = 0) -> None:
    """Let this value go again, when memory runs short."""
    _require_session().unpin(name_or_id, index)


def help() -> None:
    """Print what can be called, in the job and in the session."""
    print(_HELP if _session is None else f"{_HELP}\n\n{_session.state()}")


def _is_due(name: str, every: int, first: int | None) -> bool:
    # Before the tap: building a record only to drop it takes ten times as long.
    if type(every) is not int or every < 1:
        raise ValueError(f"every is {every!r}; give a whole number from 1 on")
    number, remainder = divmod(next(_calls[name]), every)
    return not remainder and (first is None or number <= first)


class _RemoteSession:
    """The tap of one session that serves; its sink needs no lock, so threads send side by side."""

    def __init__(self, server: str, port: int) -> None:
        self.stream = open_stream(server, port)
        self.tap = Tap(sinks=[self.stream])
        self.emit = self.tap.fast_emit()


def _session_at(server: str | None) -> _RemoteSession:
    # Reading the environment takes a microsecond, and a complete address does not need it.
    if server is not None and server.count(":") == 1 and "://" not in server:
        key = (server, "0")
    else:
        key = (server or setting("THING_SERVER"), setting("THING_PORT"))
    session = _remote_sessions.get(key)
    if session is None or session.stream.is_closed:
        disable_compile(catch, "catch sends a value")
        session = _remote_sessions[key] = _RemoteSession(key[0], int(key[1]))
    return session


def _tls_config(tls: bool | tuple[str, str]) -> TlsConfig | None:
    if isinstance(tls, tuple):
        return server_tls(*tls)
    return server_tls(*create_self_signed(Path.home() / ".config" / "tensortap" / "tls")) if tls else None


def _require_session() -> Receiver:
    if _session is None:
        raise NotServingError(_NOT_SERVING)
    return _session
