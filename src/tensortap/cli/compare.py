"""`tensortap compare A B`: where two runs part, and whether that is more than noise."""

import json
from pathlib import Path
from typing import Any

import click

from tensortap.cli.output import DIFFERENT, MISSING, REFUSED, SAME, USAGE, note, wants_colours, write
from tensortap.comparison.runs.compare import Comparison, compare_runs
from tensortap.core.errors import CorruptRunError, RefusedError, TensortapError, UntrustedFileError

_REASONS = {
    "difference": "something is beyond noise",
    "bits": "any number is not the same",
    "gate": "weights, inputs or circumstances differ",
    "gaps": "something could not be compared",
    "uncalibrated": "the noise of something was not measured",
    "nothing": "only what cannot be opened",
}
_DEFAULT = "difference,gaps"
_FAIL_ON = ", ".join(f"{name} ({what})" for name, what in _REASONS.items()) + f"; default {_DEFAULT}"
_DIMS = "how pieces of several ranks sit in the whole, '**.up_proj=shard(2)'; may be repeated"
_HELP = """Where two runs part, and whether that is more than noise.

\b
A  the run to trust: a run, a folder of runs, a .h5 trace or a file of values
B  the run in question"""
_EPILOG = """\b
exit codes:
  0  the same, within noise
  1  different
  2  the command or its arguments are wrong
  3  not everything could be compared: gaps, damage, nothing in common
  4  refused: a file of unknown origin that would run code"""
_COLOURS = {
    "DIFFERENT": "red",
    "INCOMPLETE": "yellow",
    "NOTHING": "yellow",
    "IDENTICAL": "green",
    "WITHIN": "green",
    "!": "yellow",
}


def _declared(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    wrong = next((one for one in given if "=" not in one), None)
    if wrong is not None:
        raise click.BadParameter(f"{wrong!r} is not PATTERN=WORDS, such as '**.up_proj=shard(2)'")
    return dict(one.split("=", 1) for one in given)


def _reasons(ctx: click.Context, parameter: click.Parameter, text: str) -> frozenset[str]:
    chosen = frozenset(filter(None, text.split(",")))
    unknown = sorted(chosen - _REASONS.keys())
    if unknown or not chosen:
        raise click.BadParameter(f"{text!r} is not one or more of {', '.join(_REASONS)}, with commas")
    return chosen


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@click.option("--floor", multiple=True, metavar="PATH", help="a saved floor, or a run that repeats A")
@click.option("--map", metavar="FILE", help="TOML rules for names that differ")
@click.option("--only", multiple=True, metavar="PATTERN", help="these names alone; may be repeated")
@click.option("--step", type=int, help="this step alone")
@click.option("--rank", type=int, help="this rank alone")
@click.option("--limit", type=float, help="from how many times the noise on a difference counts")
@click.option("--dims", multiple=True, metavar="PATTERN=WORDS", callback=_declared, help=_DIMS)
@click.option("--explain", metavar="NAME", help="the whole story of one value")
@click.option("--json", "as_json", is_flag=True, help="everything, as one JSON object")
@click.option("--save", metavar="FILE", help="write the report too: .json, .html, else text")
@click.option("--fail-on", default=_DEFAULT, metavar="WHAT", callback=_reasons, help=_FAIL_ON)
def command(**given: Any) -> int:
    try:
        found = _compared(given)
        _write(found, given)
    except (UntrustedFileError, RefusedError) as error:
        return _failed(error, REFUSED)
    except CorruptRunError as error:
        return _failed(error, MISSING)
    except BrokenPipeError:
        raise
    except (TensortapError, ValueError, TypeError, OSError) as error:
        return _failed(error, USAGE)
    return exit_code(found, given["fail_on"])


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


def _compared(given: dict[str, Any]) -> Comparison:
    floors = given["floor"][0] if len(given["floor"]) == 1 else list(given["floor"]) or None
    chosen = {name: given[name] for name in ("map", "step", "rank", "limit", "dims")}
    return compare_runs(given["a"], given["b"], floor=floors, only=list(given["only"]), **chosen)


def _write(found: Comparison, given: dict[str, Any]) -> None:
    """Results to stdout, and what is said about them to stderr."""
    if given["save"]:
        found.save(given["save"])
        note(f"written to {Path(given['save'])}", "compare")
    if given["as_json"]:
        story = {"explained": found.explain(given["explain"])} if given["explain"] else {}
        print(json.dumps({**found.to_json(), **story}, allow_nan=False))
    else:
        text = found.explain(given["explain"]) if given["explain"] else str(found)
        write("\n".join(map(_coloured, text.split("\n"))) if wants_colours() else text)


def _coloured(line: str) -> str:
    """The answer and what explains it."""
    colour = _COLOURS.get(line.partition(" ")[0].strip(":,"))
    return line if colour is None else click.style(line, fg=colour)


def _failed(error: Exception, code: int) -> int:
    note(str(error), "compare")
    return code
