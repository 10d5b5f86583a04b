"""`tensortap compare A B`: where two runs part, and whether that is more than noise."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from tensortap.comparison.runs import Comparison, compare_runs
from tensortap.core.errors import CorruptRunError, RefusedError, TensortapError, UntrustedFileError
from tensortap.core.settings import setting

SAME, DIFFERENT, USAGE, MISSING, REFUSED = range(5)
_REASONS = {
    "difference": "something is beyond noise",
    "bits": "any number is not the same",
    "gate": "weights, inputs or circumstances differ",
    "gaps": "something could not be compared",
    "uncalibrated": "the noise of something was not measured",
    "nothing": "only what cannot be opened",
}
_DEFAULT = "difference,gaps"
_EPILOG = """exit codes:
  0  the same, within noise
  1  different
  2  the command or its arguments are wrong
  3  not everything could be compared: gaps, damage, nothing in common
  4  refused: a file of unknown origin that would run code"""
_COLOURS = {"DIFFERENT": 31, "INCOMPLETE": 33, "NOTHING": 33, "IDENTICAL": 32, "WITHIN": 32, "!": 33}


def main(arguments: list[str]) -> int:
    given = _parsed(arguments)
    try:
        found = _compared(given)
        _write(found, given)
    except (UntrustedFileError, RefusedError) as error:
        return _failed(error, REFUSED)
    except CorruptRunError as error:
        return _failed(error, MISSING)
    except (TensortapError, ValueError, TypeError, OSError) as error:
        return _failed(error, USAGE)
    return exit_code(found, given.fail_on)


def exit_code(found: Comparison, reasons: frozenset[str]) -> int:
    """What differs weighs more than what is missing."""
    counts = found.counts
    differs = {
        "difference": found.is_different,
        "bits": any(count for verdict, count in counts.items() if verdict != "identical"),
        "gate": any(one.differs for one in found.gate),
    }
    lacks = {"gaps": not found.coverage.is_whole, "uncalibrated": bool(found.coverage.uncalibrated)}
    if any(differs[reason] for reason in reasons & differs.keys()):
        return DIFFERENT
    return MISSING if any(lacks[reason] for reason in reasons & lacks.keys()) else SAME


def _parsed(arguments: list[str]) -> Any:
    parser = argparse.ArgumentParser(
        prog="tensortap compare",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("a", metavar="A", help="the run to trust: a run, a folder of runs, a .h5 trace or a file of values")
    add("b", metavar="B", help="the run in question")
    add("--floor", action="append", default=[], metavar="PATH", help="a saved floor, or a run that repeats A")
    add("--map", metavar="FILE", help="TOML rules for names that differ")
    add("--only", action="append", default=[], metavar="PATTERN", help="these names alone; may be repeated")
    add("--step", type=int, help="this step alone")
    add("--rank", type=int, help="this rank alone")
    add("--limit", type=float, help="from how many times the noise on a difference counts")
    add("--explain", metavar="NAME", help="the whole story of one value")
    add("--json", action="store_true", help="everything, as one JSON object")
    add("--save", metavar="FILE", help="write the report too: .json, .html, else text")
    reasons = ", ".join(f"{name} ({what})" for name, what in _REASONS.items()) + f"; default {_DEFAULT}"
    add("--fail-on", type=_reasons, default=_reasons(_DEFAULT), metavar="WHAT", help=reasons)
    return parser.parse_args(arguments)


def _reasons(text: str) -> frozenset[str]:
    chosen = frozenset(filter(None, text.split(",")))
    unknown = sorted(chosen - _REASONS.keys())
    if unknown or not chosen:
        raise argparse.ArgumentTypeError(f"{text!r} is not one or more of {', '.join(_REASONS)}, with commas")
    return chosen


def _compared(given: Any) -> Comparison:
    floors = given.floor[0] if len(given.floor) == 1 else given.floor or None
    chosen = {"only": given.only, "step": given.step, "rank": given.rank, "limit": given.limit}
    return compare_runs(given.a, given.b, floor=floors, map=given.map, **chosen)


def _write(found: Comparison, given: Any) -> None:
    """Results to stdout, and what is said about them to stderr."""
    if given.save:
        found.save(given.save)
        print(f"tensortap compare: written to {Path(given.save)}", file=sys.stderr)
    if given.json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        print(_coloured(found.explain(given.explain) if given.explain else str(found)))


def _coloured(text: str) -> str:
    """The answer and what explains it, on a terminal that wants colours."""
    if not sys.stdout.isatty() or setting("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return "\n".join(map(_coloured_line, text.split("\n")))


def _coloured_line(line: str) -> str:
    colour = _COLOURS.get(line.partition(" ")[0].strip(":,"))
    return line if colour is None else f"\x1b[{colour}m{line}\x1b[0m"


def _failed(error: Exception, code: int) -> int:
    print(f"tensortap compare: {error}", file=sys.stderr)
    return code
