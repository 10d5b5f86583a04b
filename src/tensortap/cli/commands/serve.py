"""`tensortap serve`: receive what jobs catch, show it as it arrives, record it if asked to."""

import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout, suppress
from math import inf
from threading import Event
from time import monotonic
from types import FrameType
from typing import Any

import click

from tensortap.cli.output import write, write_json
from tensortap.compat import thing
from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import Description, framework_of
from tensortap.recording.receiver import Receiver
from tensortap.render.received import ReceivedRecord, describe_value

_HOST_HELP = "another interface needs THING_TOKEN, and --tls or --insecure"
_TICK_SECONDS = 0.1  # seconds


@click.command(help="Receive what catch() sends. Ctrl-C ends it, with a summary.")
@click.option("--port", type=click.IntRange(0, 65535), help="the port (THING_PORT, else 2875)")
@click.option("--host", default="127.0.0.1", help=_HOST_HELP)
@click.option("--memory", default="50%", help="how much is kept, as 4GB or 50% of the machine's memory")
@click.option("--to", metavar="ADDRESS", help="also write what arrives: runs/ or trace.h5")
@click.option("--tls", is_flag=True, help="encrypt, with a certificate that is made on first use")
@click.option("--insecure", is_flag=True, help="listen at another interface without TLS")
@click.option("--seconds", type=click.FloatRange(0), help="end after so many seconds")
@click.option("--json", "as_json", is_flag=True, help="one JSON object per line: listening, value, end")
def command(port: int | None, seconds: float | None, as_json: bool, **options: Any) -> int:
    run_session = _json_session(seconds) if as_json else _display_session(seconds)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        thing.serve(port, **options)
    try:
        run_session(thing.active_receiver())
    finally:
        thing.stop_serving()
    return 0


def _display_session(seconds: float | None) -> Callable[[Receiver], None]:
    """A session for people: a line per value, then a table."""
    signal.signal(signal.SIGTERM, _interrupt)

    def watch(session: Receiver) -> None:
        with suppress(KeyboardInterrupt):
            thing.watch_arrivals(seconds)
        write(str(session.summary()))

    return watch


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _json_session(seconds: float | None) -> Callable[[Receiver], None]:
    """A session for programs: a JSON object per event. Signals set a flag, so that no line is cut."""
    is_over = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())

    def watch(session: Receiver) -> None:
        listener, last = session.listener, 0
        _write_event("listening", {"address": listener.address, "fingerprint": listener.fingerprint or None})
        end = inf if seconds is None else monotonic() + seconds
        while not is_over.wait(_TICK_SECONDS) and monotonic() < end:
            last = _write_arrivals(session, last)
        _write_arrivals(session, last)
        _write_event("end", _summary_facts(session))

    return watch


def _write_event(event: str, facts: dict[str, Any]) -> None:
    write_json("serve", {"event": event, **facts})


def _write_arrivals(session: Receiver, last: int) -> int:
    for received in session.history.since(last):
        _write_event("value", _received_facts(received))
        last = received.number
    return last


def _received_facts(received: ReceivedRecord) -> dict[str, Any]:
    record = received.record
    return {
        "id": received.number,
        "name": record.name,
        **{key: getattr(record, key) for key in ("kind", "step", "rank", "call")},
        "caught": record.time,
        "arrived": received.time,
        **_describe_value(record.value),
    }


def _describe_value(value: Any) -> dict[str, Any]:
    """`value` is a scalar or str itself, else None; `text` describes any value."""
    framework = framework_of(value)
    array = None if framework.name == "python" else framework.describe(value)
    return {
        "framework": framework.name,
        "type": type(value).__name__,
        "dtype": None if array is None else array.dtype,
        "shape": None if array is None else array.shape,
        "value": _scalar_or_none(value, array),
        "text": describe_value(value),
    }


def _scalar_or_none(value: Any, array: Description | None) -> bool | int | float | str | None:
    try:
        scalar = (
            framework_of(value).to_numpy(value).item() if array is not None and not array.shape else value
        )
    except (UnsupportedValueError, TypeError):
        return None
    return scalar if isinstance(scalar, bool | int | float | str) else None


def _summary_facts(session: Receiver) -> dict[str, Any]:
    history = session.history
    kept_counts = Counter(arrival.record.name for arrival in history.all())
    return {
        "names": [
            {"name": name, "values": kept_counts[name], "gone": history.dropped[name]}
            for name in history.names
        ],
        "bytes": history.nbytes,
        "dropped": sum(job.dropped for job in session.listener.producers),
    }
