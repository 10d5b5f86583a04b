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
_DEFAULT_REASONS = "difference,gaps"
_FAIL_ON = ", ".join(f"{name} ({what})" for name, what in _REASONS.items()) + f"; default {_DEFAULT_REASONS}"
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


def _parse_dims(ctx: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    invalid = next((pair for pair in pairs if "=" not in pair), None)
    if invalid is not None:
        raise click.BadParameter(f"{invalid!r} is not PATTERN=WORDS, such as '**.up_proj=shard(2)'")
    return dict(pair.split("=", 1) for pair in pairs)


def _parse_reasons(ctx: click.Context, parameter: click.Parameter, text: str) -> frozenset[str]:
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
@click.option("--dims", multiple=True, metavar="PATTERN=WORDS", callback=_parse_dims, help=_DIMS)
@click.option("--explain", metavar="NAME", help="the whole story of one value")
@click.option("--json", "as_json", is_flag=True, help="everything, as one JSON object")
@click.option("--save", metavar="FILE", help="write the report too: .json, .html, else text")
@click.option("--fail-on", default=_DEFAULT_REASONS, metavar="WHAT", callback=_parse_reasons, help=_FAIL_ON)
def command(**options: Any) -> int:
    try:
        comparison = _compare(options)
        _write(comparison, options)
    except (UntrustedFileError, RefusedError) as error:
        return _report_error(error, REFUSED)
    except CorruptRunError as error:
        return _report_error(error, MISSING)
    except BrokenPipeError:
        raise
    except (TensortapError, ValueError, TypeError, OSError) as error:
        return _report_error(error, USAGE)
    return exit_code(comparison, options["fail_on"])


def exit_code(comparison: Comparison, reasons: frozenset[str]) -> int:
    """The exit code; a difference takes precedence over missing values."""
    counts = comparison.counts
    differs = {
        "difference": comparison.is_different,
        "bits": any(count for verdict, count in counts.items() if verdict != "identical"),
        "gate": any(check.differs for check in comparison.gate),
    }
    incomplete = {
        "gaps": not comparison.coverage.is_whole,
        "uncalibrated": bool(comparison.coverage.uncalibrated),
    }
    if any(differs[reason] for reason in reasons & differs.keys()):
        return DIFFERENT
    return MISSING if any(incomplete[reason] for reason in reasons & incomplete.keys()) else SAME


def _compare(options: dict[str, Any]) -> Comparison:
    floor = options["floor"][0] if len(options["floor"]) == 1 else list(options["floor"]) or None
    arguments = {name: options[name] for name in ("map", "step", "rank", "limit", "dims")}
    return compare_runs(options["a"], options["b"], floor=floor, only=list(options["only"]), **arguments)


def _write(comparison: Comparison, options: dict[str, Any]) -> None:
    """Write results to stdout, notes to stderr."""
    if options["save"]:
        comparison.save(options["save"])
        note(f"written to {Path(options['save'])}", "compare")
    if options["as_json"]:
        explanation = {"explained": comparison.explain(options["explain"])} if options["explain"] else {}
        print(json.dumps({**comparison.to_json(), **explanation}, allow_nan=False))
    else:
        text = comparison.explain(options["explain"]) if options["explain"] else str(comparison)
        write("\n".join(map(_colour_line, text.split("\n"))) if wants_colours() else text)


def _colour_line(line: str) -> str:
    """Colour the lines of the verdict and its reasons."""
    colour = _COLOURS.get(line.partition(" ")[0].strip(":,"))
    return line if colour is None else click.style(line, fg=colour)


def _report_error(error: Exception, code: int) -> int:
    note(str(error), "compare")
    return code
