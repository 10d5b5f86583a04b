"""`tensortap serve`: receive what jobs catch, show it as it arrives, record it if asked to."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from tensortap.core.errors import TensortapError
from tensortap.faces import thing


def main(arguments: list[str]) -> int:
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        thing.serve(
            asked.port,
            host=asked.host,
            memory=asked.memory,
            tls=asked.tls,
            insecure=asked.insecure,
            to=asked.to,
        )
    except (TensortapError, ValueError) as error:
        print(f"tensortap serve: {error}", file=sys.stderr)
        return 1
    try:
        thing.watch_arrivals(asked.seconds)
    except KeyboardInterrupt:
        pass
    finally:
        report = thing.summary()
        thing.stop_serving()
    print(report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "tensortap serve", description="Receive what catch() sends. Ctrl-C ends it, with a summary."
    )
    add = parser.add_argument
    add("--port", type=int, help="the port (THING_PORT, else 2875)")
    add("--host", default="127.0.0.1", help="another interface needs THING_TOKEN, and --tls or --insecure")
    add("--memory", default="50%", help="how much is kept, as 4GB or 50%% of the machine's memory")
    add("--to", metavar="ADDRESS", help="also write what arrives: runs/ or trace.h5")
    add("--tls", action="store_true", help="encrypt, with a certificate that is made on first use")
    add("--insecure", action="store_true", help="listen at another interface without TLS")
    add("--seconds", type=float, help="end after so many seconds")
    return parser


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
