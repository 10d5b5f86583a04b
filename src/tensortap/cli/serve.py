"""`tensortap serve`: receive what jobs catch, show it as it arrives, record it if asked to."""

import signal
from types import FrameType
from typing import Any

import click

from tensortap.cli.output import note, write
from tensortap.core.errors import TensortapError
from tensortap.faces import thing

_HOST = "another interface needs THING_TOKEN, and --tls or --insecure"


@click.command(help="Receive what catch() sends. Ctrl-C ends it, with a summary.")
@click.option("--port", type=int, help="the port (THING_PORT, else 2875)")
@click.option("--host", default="127.0.0.1", help=_HOST)
@click.option("--memory", default="50%", help="how much is kept, as 4GB or 50% of the machine's memory")
@click.option("--to", metavar="ADDRESS", help="also write what arrives: runs/ or trace.h5")
@click.option("--tls", is_flag=True, help="encrypt, with a certificate that is made on first use")
@click.option("--insecure", is_flag=True, help="listen at another interface without TLS")
@click.option("--seconds", type=float, help="end after so many seconds")
def command(port: int | None, seconds: float | None, **where: Any) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        thing.serve(port, **where)
    except (TensortapError, ValueError) as error:
        note(str(error), "serve")
        return 1
    try:
        thing.watch_arrivals(seconds)
    except KeyboardInterrupt:
        pass
    finally:
        report = thing.summary()
        thing.stop_serving()
    write(str(report))
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
