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

_HOST = "another interface needs THING_TOKEN, and --tls or --insecure"
_TICK = 0.1  # seconds


@click.command(help="Receive what catch() sends. Ctrl-C ends it, with a summary.")
@click.option("--port", type=click.IntRange(0, 65535), help="the port (THING_PORT, else 2875)")
@click.option("--host", default="127.0.0.1", help=_HOST)
@click.option("--memory", default="50%", help="how much is kept, as 4GB or 50% of the machine's memory")
@click.option("--to", metavar="ADDRESS", help="also write what arrives: runs/ or trace.h5")
@click.option("--tls", is_flag=True, help="encrypt, with a certificate that is made on first use")
@click.option("--insecure", is_flag=True, help="listen at another interface without TLS")
@click.option("--seconds", type=click.FloatRange(0), help="end after so many seconds")
@click.option("--json", "as_json", is_flag=True, help="one JSON object per line: listening, value, end")
def command(port: int | None, seconds: float | None, as_json: bool, **where: Any) -> int:
    watch = _told(seconds) if as_json else _shown(seconds)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        thing.serve(port, **where)
    try:
        watch(thing.active_receiver())
    finally:
        thing.stop_serving()
    return 0


def _shown(seconds: float | None) -> Callable[[Receiver], None]:
    """For eyes: a line for each value, then a table."""
    signal.signal(signal.SIGTERM, _interrupt)

    def watch(session: Receiver) -> None:
        with suppress(KeyboardInterrupt):
            thing.watch_arrivals(seconds)
        write(str(session.summary()))

    return watch


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _told(seconds: float | None) -> Callable[[Receiver], None]:
    """For programs: an object for each event. A signal is noted instead of raised: it parts no line."""
    is_over = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())

    def watch(session: Receiver) -> None:
        listener, last = session.listener, 0
        _tell("listening", {"address": listener.address, "fingerprint": listener.fingerprint or None})
        end = inf if seconds is None else monotonic() + seconds
        while not is_over.wait(_TICK) and monotonic() < end:
            last = _tell_arrivals(session, last)
        _tell_arrivals(session, last)
        _tell("end", _summary(session))

    return watch


def _tell(event: str, facts: dict[str, Any]) -> None:
    write_json("serve", {"event": event, **facts})


def _tell_arrivals(session: Receiver, last: int) -> int:
    for arrival in session.history.since(last):
        _tell("value", _facts(arrival))
        last = arrival.number
    return last


def _facts(arrival: ReceivedRecord) -> dict[str, Any]:
    record = arrival.record
    return {
        "id": arrival.number,
        "name": record.name,
        **{key: getattr(record, key) for key in ("kind", "step", "rank", "call")},
        "caught": record.time,
        "arrived": arrival.time,
        **_described(record.value),
    }


def _described(value: Any) -> dict[str, Any]:
    """`value` is a single number or a text itself; of anything else there are words."""
    framework = framework_of(value)
    array = None if framework.name == "python" else framework.describe(value)
    return {
        "framework": framework.name,
        "type": type(value).__name__,
        "dtype": None if array is None else array.dtype,
        "shape": None if array is None else array.shape,
        "value": _single(value, array),
        "text": describe_value(value),
    }


def _single(value: Any, array: Description | None) -> bool | int | float | str | None:
    try:
        found = framework_of(value).to_numpy(value).item() if array is not None and not array.shape else value
    except (UnsupportedValueError, TypeError):
        return None
    return found if isinstance(found, bool | int | float | str) else None


def _summary(session: Receiver) -> dict[str, Any]:
    history = session.history
    kept = Counter(arrival.record.name for arrival in history.all())
    return {
        "names": [
            {"name": name, "values": kept[name], "gone": history.dropped[name]} for name in history.names
        ],
        "bytes": history.nbytes,
        "dropped": sum(job.dropped for job in session.listener.producers),
    }
