"""`tensortap attach`: watch a running program, and taps in it, until Ctrl-C."""

import sys
import time
from typing import Any

import click

from tensortap.cli.output import size, write_json
from tensortap.live.client.session import Session, attach

_HELP = """Watch a running program, and taps in it, until Ctrl-C.

JOB is a name, a process number, or ssh://host/name; else the newest."""
_CLEAR_LINE = "\r\x1b[2K"


@click.command(help=_HELP)
@click.argument("job", required=False)
@click.option("--tap", "patterns", multiple=True, metavar="PATTERN", help="ask for its statistics")
@click.option("--every", type=click.IntRange(1), default=1, help="of that many steps one")
@click.option("--rank", "ranks", type=int, multiple=True, help="only this rank; may be repeated")
@click.option("--interval", type=click.FloatRange(0), default=0.5, help="seconds between two looks")
@click.option("--times", type=click.IntRange(1), help="end after that many looks")
@click.option("--json", "as_json", is_flag=True, help="one JSON object per look")
def command(
    job: str | None,
    patterns: tuple[str, ...],
    every: int,
    ranks: tuple[int, ...],
    interval: float,
    times: int | None,
    as_json: bool,
) -> int:
    try:
        with attach(job, ranks=list(ranks) or None) as session:
            for pattern in patterns:
                session.tap(pattern, every=every, keep="stats")
            _poll(session, interval, times, as_json)
            return 0 if session.is_open else 1
    except KeyboardInterrupt:
        print()
        return 0


def status_line(session: Session) -> str:
    """One line: step rate of the job, records received, overhead."""
    status = session.status
    cost = "-" if status["overhead"] is None else f"{100 * status['overhead']:.2f} %"
    parts = [
        f"{session.name}",
        f"step {status['step']}",
        f"{status['rate']:.3g} steps/s",
        f"{status['received']} records ({size(status['nbytes'])})",
        f"{status['lost']} lost",
        f"lag {1000 * status['lag']:.0f} ms",
        f"overhead {cost} of step time",
    ]
    return "  ".join(parts)


def _poll(session: Session, interval: float, times: int | None, as_json: bool) -> None:
    while session.is_open and (times is None or times > 0):
        time.sleep(interval)
        _print_status(session, as_json)
        times = None if times is None else times - 1
    if not as_json:
        _print_end(session)


def _print_status(session: Session, as_json: bool) -> None:
    if as_json:
        latest = {pattern: _latest_value(tap) for pattern, tap in session.taps.items()}
        write_json("attach", {"job": session.name, **session.status, "taps": latest})
    elif sys.stdout.isatty():
        print(f"{_CLEAR_LINE}{status_line(session)}\r", end="", flush=True)
    else:
        print(status_line(session), flush=True)


def _latest_value(tap: Any) -> str | None:
    return None if tap.latest is None else f"{tap.latest.name}: {tap.latest.value}"


def _print_end(session: Session) -> None:
    for tap in session.taps.values():
        latest = _latest_value(tap)
        print(f"{tap}" if latest is None else f"{tap}  {latest}")
    if not session.is_open:
        print(session)
