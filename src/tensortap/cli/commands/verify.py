"""`tensortap verify RUN...`: whether every value is there, and still what was written."""

from dataclasses import asdict
from pathlib import Path

import click

from tensortap.cli.output import (
    MISSING,
    OK,
    format_count,
    json_option,
    note,
    printable,
    progress,
    size,
    style_text,
    write,
    write_json,
)
from tensortap.core.errors import NoRunError, TensortapError
from tensortap.readers.listing import RunFinder, runs_being_written
from tensortap.readers.verify import Damage, RunVerification, VerificationReport

_MAX_SHOWN = 20
_HELP = """Read every value of runs (or of the runs below folders) again, and hold it against the index:
files, lengths, checksums, packs, facts.

\b
exit codes:
  0  every value is there, and is what was written
  3  something is damaged or missing; all the rest can be read"""


@click.command(help=_HELP)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path())
@json_option
def command(runs: tuple[str, ...], as_json: bool) -> int:
    finder = RunFinder(list(runs))
    being_written = runs_being_written()
    reports = [_verify(path) for path in finder]
    for problem in finder.problems:
        note(problem, "verify")
    if not reports:
        raise NoRunError(f"no run under {', '.join(map(printable, runs))}; tt.init(folder) writes one")
    if as_json:
        write_json("verify", {"runs": [_facts(report, being_written) for report in reports]})
    else:
        for verified in reports:
            _write(verified, verified.path.resolve() in being_written)
    return MISSING if any(report.damage for report in reports) else OK


def _verify(path: Path) -> VerificationReport:
    """The report of a run; one that cannot be opened is damaged."""
    try:
        verification = RunVerification(path)
    except (TensortapError, OSError) as error:
        return VerificationReport(path, damage=[Damage("unreadable", "", str(error))])
    for _ in progress(verification, printable(path.name), len(verification)):
        pass
    return verification.report


def _facts(report: VerificationReport, being_written: set[Path]) -> dict[str, object]:
    return {
        **asdict(report),
        "is_whole": not report.damage,
        "is_written": report.path.resolve() in being_written,
    }


def _write(report: VerificationReport, is_written: bool) -> None:
    path = printable(str(report.path))
    description = f"{format_count(report.records, 'value')}, {size(report.nbytes)}"
    if report.damage:
        write(
            style_text(
                f"{path}: damaged: {format_count(len(report.damage), 'problem')} in {description}", "red"
            )
        )
    else:
        write(
            f"{path}: whole: {description}{_describe_unsummed(report)}"
            f"{', still written' if is_written else ''}"
        )
    for damage in report.damage[:_MAX_SHOWN]:
        value_name = f" ({printable(damage.name)})" if damage.name else ""
        write(f"  {damage.kind}: {printable(damage.file)} {damage.text}{value_name}")
    if len(report.damage) > _MAX_SHOWN:
        write(f"  ... {len(report.damage) - _MAX_SHOWN:,} more; --json tells all")
    for message in (*report.notes, *_describe_strays(report)):
        note(f"{path}: {message}", "verify")


def _describe_unsummed(report: VerificationReport) -> str:
    if not report.unsummed:
        return ""
    advice = "pip install 'tensortap[fast]' writes checksums"
    return f", {report.unsummed:,} of them by their length alone ({advice})"


def _describe_strays(report: VerificationReport) -> list[str]:
    if not report.strays:
        return []
    shown_names = ", ".join(map(printable, report.strays[:3])) + (", ..." if len(report.strays) > 3 else "")
    return [f"{format_count(len(report.strays), 'file')} that the index does not know: {shown_names}"]
