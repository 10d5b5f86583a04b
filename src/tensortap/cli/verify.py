"""`tensortap verify RUN...`: whether every value is there, and still what was written."""

from dataclasses import asdict
from pathlib import Path

import click

from tensortap.cli.output import (
    MISSING,
    OK,
    counted,
    json_option,
    note,
    printable,
    progress,
    size,
    styled,
    write,
    write_json,
)
from tensortap.core.errors import NoRunError, TensortapError
from tensortap.readers.listing import RunFinder, runs_being_written
from tensortap.readers.verify import Damage, RunVerification, VerificationReport

_SHOWN = 20
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
    gallery = RunFinder(list(runs))
    being_written = runs_being_written()
    found = [_verified(path) for path in gallery]
    for problem in gallery.problems:
        note(problem, "verify")
    if not found:
        raise NoRunError(f"no run under {', '.join(map(printable, runs))}; tt.init(folder) writes one")
    if as_json:
        write_json("verify", {"runs": [_facts(one, being_written) for one in found]})
    else:
        for one in found:
            _write(one, one.path.resolve() in being_written)
    return MISSING if any(one.damage for one in found) else OK


def _verified(path: Path) -> VerificationReport:
    """One that cannot be opened at all is damaged as a whole."""
    try:
        check = RunVerification(path)
    except (TensortapError, OSError) as error:
        return VerificationReport(path, damage=[Damage("unreadable", "", str(error))])
    for _ in progress(check, printable(path.name), len(check)):
        pass
    return check.report


def _facts(one: VerificationReport, being_written: set[Path]) -> dict[str, object]:
    return {**asdict(one), "is_whole": not one.damage, "is_written": one.path.resolve() in being_written}


def _write(one: VerificationReport, is_written: bool) -> None:
    path = printable(str(one.path))
    what = f"{counted(one.records, 'value')}, {size(one.nbytes)}"
    if one.damage:
        write(styled(f"{path}: damaged: {counted(len(one.damage), 'problem')} in {what}", "red"))
    else:
        write(f"{path}: whole: {what}{_unsummed(one)}{', still written' if is_written else ''}")
    for damage in one.damage[:_SHOWN]:
        who = f" ({printable(damage.name)})" if damage.name else ""
        write(f"  {damage.kind}: {printable(damage.file)} {damage.text}{who}")
    if len(one.damage) > _SHOWN:
        write(f"  ... {len(one.damage) - _SHOWN:,} more; --json tells all")
    for text in (*one.notes, *_strays(one)):
        note(f"{path}: {text}", "verify")


def _unsummed(one: VerificationReport) -> str:
    if not one.unsummed:
        return ""
    return (
        f", {one.unsummed:,} of them by their length alone (pip install 'tensortap[fast]' writes checksums)"
    )


def _strays(one: VerificationReport) -> list[str]:
    if not one.strays:
        return []
    some = ", ".join(map(printable, one.strays[:3])) + (", ..." if len(one.strays) > 3 else "")
    return [f"{counted(len(one.strays), 'file')} that the index does not know: {some}"]
