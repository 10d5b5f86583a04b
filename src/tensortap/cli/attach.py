"""`tensortap attach`: watch a running program, and taps in it, until Ctrl-C."""

import argparse
import sys
import time
from typing import Any

from tensortap.core.errors import TensortapError
from tensortap.live.session import Session, attach

_CLEAR_LINE = "\r\x1b[2K"


def main(arguments: list[str]) -> int:
    given = _parsed(arguments)
    try:
        with attach(given.job, ranks=given.ranks) as session:
            for pattern in given.tap:
                session.tap(pattern, every=given.every, keep="stats")
            _watch(session, given.interval, given.times)
            return 0 if session.is_open else 1
    except (TensortapError, ValueError, TimeoutError) as error:
        print(f"tensortap attach: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 0


def status_line(session: Session) -> str:
    """One line: what the job does, what arrives, what that costs."""
    now = session.status
    cost = "-" if now["overhead"] is None else f"{100 * now['overhead']:.2f} %"
    words = [
        f"{session.name}",
        f"step {now['step']}",
        f"{now['rate']:.3g} steps/s",
        f"{now['received']} records ({_size(now['nbytes'])})",
        f"{now['lost']} lost",
        f"lag {1000 * now['lag']:.0f} ms",
        f"overhead {cost} of step time",
    ]
    return "  ".join(words)


def _parsed(arguments: list[str]) -> Any:
    parser = argparse.ArgumentParser(prog="tensortap attach", description=__doc__)
    parser.add_argument(
        "job", nargs="?", help="a name, a process number, or ssh://host/name; else the newest"
    )
    parser.add_argument(
        "--tap", action="append", default=[], metavar="PATTERN", help="ask for its statistics"
    )
    parser.add_argument("--every", type=int, default=1, help="of that many steps one")
    parser.add_argument(
        "--rank", dest="ranks", type=int, action="append", help="only this rank; may be repeated"
    )
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between two looks")
    parser.add_argument("--times", type=int, default=None, help="end after that many looks")
    return parser.parse_args(arguments)


def _watch(session: Session, interval: float, times: int | None) -> None:
    is_terminal = sys.stdout.isatty()
    while session.is_open and (times is None or times > 0):
        time.sleep(interval)
        print(_CLEAR_LINE + status_line(session) if is_terminal else status_line(session), end="", flush=True)
        print("" if not is_terminal else "\r", end="" if is_terminal else "\n", flush=True)
        times = None if times is None else times - 1
    for tapped in session.taps.values():
        latest = tapped.latest
        print(f"{tapped}" if latest is None else f"{tapped}  {latest.name}: {latest.value}")
    if not session.is_open:
        print(session)


def _size(nbytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} B"
