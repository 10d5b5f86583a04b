"""`tensortap diff A B`: how two runs were made: code, packages, environment, configuration, machine."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from tensortap.cli.output import (
    DIFFERENT,
    MISSING,
    SAME,
    format_count,
    json_option,
    note,
    printable,
    style_text,
    write,
    write_json,
)
from tensortap.comparison.sides.provenance import Topic, compare_provenance
from tensortap.readers.run import Run

_MAX_SHOWN_LINES = 200  # lines
_HELP = """How two runs were made, and what of it differs; no value is looked at (compare does that).

\b
exit codes:
  0  the same, as far as both recorded it
  1  different
  3  a side recorded nothing of how it was made, or it cannot be read; what can is shown"""


@click.command(help=_HELP)
@click.argument("a", metavar="A", type=click.Path())
@click.argument("b", metavar="B", type=click.Path())
@click.option("--hunks/--no-hunks", default=None, help="Changed lines of files too; else if they are few.")
@json_option
def command(a: str, b: str, hunks: bool | None, as_json: bool) -> int:
    provenance = compare_provenance(Run(a), Run(b))
    code = MISSING if provenance.problems else _exit_code(provenance.topics)
    for problem in provenance.problems:
        note(problem, "diff")
    if as_json:
        write_json("diff", {"a": a, "b": b, "exit_code": code, **asdict(provenance)})
    else:
        _write_all(provenance.topics, hunks)
    if code == MISSING and not provenance.problems:
        note("a side does not tell how it was made; tt.init() and tt.capture(to=) write that", "diff")
    return code


def _exit_code(topics: Sequence[Topic]) -> int:
    states = {topic.state for topic in topics}
    return DIFFERENT if "different" in states else SAME if "same" in states else MISSING


def _write_all(topics: Sequence[Topic], hunks: bool | None) -> None:
    lines = sum(len(change.hunks) for topic in topics for change in topic.changes)
    for topic in topics:
        _write(topic, lines <= _MAX_SHOWN_LINES if hunks is None else hunks)
    if hunks is None and lines > _MAX_SHOWN_LINES:
        note(f"{lines:,} changed lines are not shown; --hunks shows them", "diff")


def _write(topic: Topic, with_hunks: bool) -> None:
    summary = f"{topic.name:<14} {_describe_topic(topic)}"
    write(style_text(summary, "yellow") if topic.state == "different" else summary)
    for fact in topic.facts:
        write(f"  {printable(str(fact))}")
    for change in topic.changes:
        counts = f" +{change.added} -{change.removed}" if change.added or change.removed else ""
        write(f"  {printable(change.file)}{counts}, {change.where}")
        for line in change.hunks if with_hunks else ():
            write(f"    {_format_line(line)}")


def _describe_topic(topic: Topic) -> str:
    if topic.state in ("not recorded", "cannot be read"):
        return topic.state if topic.is_partial else "not recorded on both sides"
    facts = f"({format_count(topic.count, 'fact')}{'; others cannot be read' if topic.is_partial else ''})"
    difference_count = len(topic.facts) + len(topic.changes)
    return (
        f"the same {facts}"
        if topic.state == "same"
        else f"{format_count(difference_count, 'difference')} {facts}"
    )


def _format_line(text: str) -> str:
    colours: dict[str, Any] = {"+": "green", "-": "red", "@": "cyan"}
    printable_text = "".join(
        letter if letter.isprintable() or letter == "\t" else repr(letter)[1:-1] for letter in text
    )
    return style_text(printable_text, colours[text[0]]) if text[:1] in colours else printable_text
