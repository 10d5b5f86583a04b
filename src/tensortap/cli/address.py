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
    from tensortap.readers.trace_file import TraceFile  # with h5py, which most commands do without


_STEP = re.compile(r"(.+)@(\d{1,18})", re.DOTALL)


class Target(NamedTuple):
    """A path that exists, and the name behind it."""

    path: Path
    name: str | None
    step: int | None


def target(text: str) -> Target:
    """Part the text where the path ends: both a path and a name may hold a colon."""
    if os.path.exists(text):
        return Target(Path(text), None, None)
    cuts = [at for at, letter in enumerate(text) if letter == ":"]
    for at in reversed(cuts):
        if at and os.path.exists(text[:at]):
            return Target(Path(text[:at]), text[at + 1 :], None)
    place = text[: cuts[0]] if cuts else text
    raise NoRunError(f"{place} does not exist; give a run, RUN:NAME, RUN:NAME@STEP or a file of values")


def opened_run(path: str) -> Run:
    """A run; of a file it is said what reads it."""
    if os.path.isfile(path):
        raise NoRunError(
            f"{printable(path)} is a file, not a run; tensortap show lists its values, "
            "and tensortap compare and tensortap view read traces, too"
        )
    return Run(path)


def named(names: Run | TraceFile, found: Target) -> Target:
    """A name that is there means itself; else what follows the last @ is a step."""
    if found.name is None or found.name in names:
        return found
    parted = _STEP.fullmatch(found.name)
    return found if parted is None else Target(found.path, parted[1], int(parted[2]))


def file_values(path: Path, *, trust: bool) -> dict[str, Any]:
    """Every leaf of the value in a file by its name; the name of the value itself is empty."""
    return {_plain(name): leaf for name, leaf in leaves(serializers.load(path, trust=trust))}


def part_of(values: dict[str, Any], path: Path, name: str) -> Any:
    if name in values:
        return values[name]
    near = closest_names(name, values)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    raise UnknownNameError(f"no {name!r} in {path}; {hint}tensortap show {path} lists all {len(values)}")


def _plain(name: str) -> str:
    """`a` for `['a']`: a file of several values is asked by their names."""
    simple = re.fullmatch(r"\['([^'\\]*)'\]", name)
    return simple[1] if simple else name


Command = TypeVar("Command", bound=Callable[..., Any])
_NUMBERS = re.compile(r"\d{1,18}(\.\.\d{1,18})?(,\d{1,18})*|first|last")


def _checked(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None and not _NUMBERS.fullmatch(text):
        raise click.BadParameter(f"{text!r} is no number; write 3, 0..9, 1,4,7, first or last")
    return text


def step_and_rank(function: Command) -> Command:
    """The two options."""
    rank = click.option("--rank", callback=_checked, metavar="N", help="These ranks alone: 0, 0..3, first.")
    step = click.option("--step", callback=_checked, metavar="N", help="These steps alone: 3, 0..9, last.")
    return step(rank(function))


def chosen(run: Run, pattern: str | None, step: str | None, rank: str | None) -> Run:
    """The records that are meant; an error that helps where there is none."""
    found = run if pattern is None else run.filter(pattern)
    if pattern is not None and not len(found):
        raise UnknownNameError(_nothing(run, pattern))
    for field, asked in (("step", step), ("rank", rank)):
        if asked is not None and len(found):
            found = _narrowed(found, field, asked)
    return found


def _narrowed(run: Run, field: str, asked: str) -> Run:
    there = _numbers(run, field)
    number = {"first": there[0], "last": there[-1]}.get(asked)
    found = run.query(f"{field}:{asked if number is None else number}")
    if not len(found):
        raise UnknownNameError(
            f"no record of {field} {asked} in {run.path}; there are {there[0]} to {there[-1]}"
        )
    return found


def one_place(ctx: click.Context, parameter: click.Parameter, text: str | None) -> int | str | None:
    """One step or rank: its number, or `first` and `last` of those that there are."""
    if text is None or text in ("first", "last"):
        return text
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number; write 3, first or last") from None


def number_of(asked: int | str | None, places: Iterable[Any]) -> int | None:
    """What was asked for among the steps or ranks that there are."""
    if not isinstance(asked, str):
        return asked
    there = [one for place in places for one in _several(place)]
    return max(there, default=None) if asked == "last" else min(there, default=None)


def is_at(place: Any, asked: int | None) -> bool:
    """Whether a value is of that step or rank; one that was merged from several is of each."""
    return asked is None or (asked in place if isinstance(place, tuple | list) else bool(place == asked))


def nothing_at(
    name: str, places: Sequence[Mapping[str, Any]], asked: Mapping[str, int | None]
) -> UnknownNameError:
    """Which of the options --step, --rank and --call leads nowhere, and what it could be instead."""
    earlier: list[str] = []
    for option, number in asked.items():
        fitting = [place for place in places if is_at(place[option], number)]
        if places and not fitting:
            at = f" at {', '.join(earlier)}" if earlier else ""
            there = format_ranges(one for place in places for one in _several(place[option]))
            return UnknownNameError(
                f"{name!r} has no value of {option} {number}{at}; --{option} can be {there}"
            )
        earlier += [] if number is None else [f"{option} {number}"]
        places = fitting
    return UnknownNameError(f"{name!r} has no values")


def _several(place: Any) -> Sequence[int]:
    return place if isinstance(place, tuple | list) else [place]


def _numbers(run: Run, field: str) -> list[int]:
    """Each step or rank that there is, in order; a merged record goes by its first."""
    if not run.is_narrowed:  # of a long run, its columns at once
        return list(distinct_numbers(run.columns, field))
    return sorted({one if isinstance(one, int) else one[0] for one in run.cells()[field]})


def _nothing(run: Run, pattern: str) -> str:
    names = run.names
    near = closest_names(pattern, names)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"nothing in {run.path} is called {pattern!r}; {hint}tensortap tree lists all {len(names)} names"
