"""Parse `RUN:NAME@STEP` and `FILE:PART`, and select records by pattern, step and rank."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from tensortap.cli.output import printable
from tensortap.core.errors import NoRunError, UnknownNameError
from tensortap.core.patterns import closest_names
from tensortap.formats import serializers
from tensortap.frameworks.pytree import leaves
from tensortap.readers.index_counts import distinct_numbers
from tensortap.readers.run import Run
from tensortap.render.words import format_ranges

if TYPE_CHECKING:
    from tensortap.readers.trace_file import TraceFile  # imports h5py


_NAME_AND_STEP = re.compile(r"(.+)@(\d{1,18})", re.DOTALL)


class ValueAddress(NamedTuple):
    """An existing path, and the name and step after it."""

    path: Path
    name: str | None
    step: int | None


def parse_address(text: str) -> ValueAddress:
    """Split at the colon where the path ends: both a path and a name may contain colons."""
    if os.path.exists(text):
        return ValueAddress(Path(text), None, None)
    colons = [colon for colon, letter in enumerate(text) if letter == ":"]
    for end in reversed(colons):
        if end and os.path.exists(text[:end]):
            return ValueAddress(Path(text[:end]), text[end + 1 :], None)
    path = text[: colons[0]] if colons else text
    raise NoRunError(f"{path} does not exist; give a run, RUN:NAME, RUN:NAME@STEP or a file of values")


def open_run(path: str) -> Run:
    """The run at a path; for a file, the error says which commands read it."""
    if os.path.isfile(path):
        raise NoRunError(
            f"{printable(path)} is a file, not a run; tensortap show lists its values, "
            "and tensortap compare and tensortap view read traces, too"
        )
    return Run(path)


def split_step(names: Run | TraceFile, address: ValueAddress) -> ValueAddress:
    """Split `NAME@STEP`, unless a value of that name exists."""
    if address.name is None or address.name in names:
        return address
    match = _NAME_AND_STEP.fullmatch(address.name)
    return address if match is None else ValueAddress(address.path, match[1], int(match[2]))


def load_leaves(path: Path, *, trust: bool) -> dict[str, Any]:
    """The leaves of the value in a file by name; empty for the value itself."""
    return {_unquote_key(name): leaf for name, leaf in leaves(serializers.load(path, trust=trust))}


def find_leaf(values: dict[str, Any], path: Path, name: str) -> Any:
    if name in values:
        return values[name]
    near = closest_names(name, values)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise UnknownNameError(f"no {name!r} in {path}; {hint}tensortap show {path} lists all {len(values)}")


def _unquote_key(name: str) -> str:
    """`a` for `['a']`, so that values of a file are addressed by their names."""
    match = re.fullmatch(r"\['([^'\\]*)'\]", name)
    return match[1] if match else name


Command = TypeVar("Command", bound=Callable[..., Any])
_NUMBERS = re.compile(r"\d{1,18}(\.\.\d{1,18})?(,\d{1,18})*|first|last")


def _check_numbers(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None and not _NUMBERS.fullmatch(text):
        raise click.BadParameter(f"{text!r} is no number; write 3, 0..9, 1,4,7, first or last")
    return text


def step_and_rank_options(function: Command) -> Command:
    """Add the options --step and --rank to a command."""
    rank = click.option(
        "--rank", callback=_check_numbers, metavar="N", help="These ranks alone: 0, 0..3, first."
    )
    step = click.option(
        "--step", callback=_check_numbers, metavar="N", help="These steps alone: 3, 0..9, last."
    )
    return step(rank(function))


def select_records(run: Run, pattern: str | None, step: str | None, rank: str | None) -> Run:
    """The records that match pattern, step and rank; raises if there are none."""
    records = run if pattern is None else run.filter(pattern)
    if pattern is not None and not len(records):
        raise UnknownNameError(_describe_no_match(run, pattern))
    for field, numbers in (("step", step), ("rank", rank)):
        if numbers is not None and len(records):
            records = _select_numbers(records, field, numbers)
    return records


def _select_numbers(run: Run, field: str, numbers: str) -> Run:
    existing = _existing_numbers(run, field)
    number = {"first": existing[0], "last": existing[-1]}.get(numbers)
    records = run.query(f"{field}:{numbers if number is None else number}")
    if not len(records):
        raise UnknownNameError(
            f"no record of {field} {numbers} in {run.path}; there are {existing[0]} to {existing[-1]}"
        )
    return records


def parse_step_or_rank(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | str | None:
    """A click callback: a step or rank as an int, or `first` or `last`."""
    if text is None or text in ("first", "last"):
        return text
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number; write 3, first or last") from None


def resolve_number(number: int | str | None, existing: Iterable[Any]) -> int | None:
    """The number that `first` or `last` stands for; other numbers unchanged."""
    if not isinstance(number, str):
        return number
    candidates = [candidate for entry in existing for candidate in _as_sequence(entry)]
    return max(candidates, default=None) if number == "last" else min(candidates, default=None)


def matches_number(step_or_rank: Any, number: int | None) -> bool:
    """Whether a value's step or rank is that number (None: any); a merged value has several."""
    return number is None or (
        number in step_or_rank if isinstance(step_or_rank, tuple | list) else bool(step_or_rank == number)
    )


def no_value_error(
    name: str, occurrences: Sequence[Mapping[str, Any]], options: Mapping[str, int | None]
) -> UnknownNameError:
    """An error that names which of --step, --rank and --call has no match, and its possible values."""
    previous: list[str] = []
    for option, number in options.items():
        matching = [occurrence for occurrence in occurrences if matches_number(occurrence[option], number)]
        if occurrences and not matching:
            context = f" at {', '.join(previous)}" if previous else ""
            existing = format_ranges(
                candidate for occurrence in occurrences for candidate in _as_sequence(occurrence[option])
            )
            return UnknownNameError(
                f"{name!r} has no value of {option} {number}{context}; --{option} can be {existing}"
            )
        previous += [] if number is None else [f"{option} {number}"]
        occurrences = matching
    return UnknownNameError(f"{name!r} has no values")


def _as_sequence(step_or_rank: Any) -> Sequence[int]:
    return step_or_rank if isinstance(step_or_rank, tuple | list) else [step_or_rank]


def _existing_numbers(run: Run, field: str) -> list[int]:
    """The distinct steps or ranks, sorted; a merged record counts with its first."""
    if not run.is_narrowed:  # vectorised, for long runs
        return list(distinct_numbers(run.columns, field))
    return sorted({entry if isinstance(entry, int) else entry[0] for entry in run.cells()[field]})


def _describe_no_match(run: Run, pattern: str) -> str:
    names = run.names
    near = closest_names(pattern, names)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"nothing in {run.path} is called {pattern!r}; {hint}tensortap tree lists all {len(names)} names"
