"""What `RUN:NAME@STEP` and `FILE:PART` point at."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensortap.cli.output import printable
from tensortap.core.errors import NoRunError, UnknownNameError
from tensortap.core.patterns import closest_names
from tensortap.formats import serializers
from tensortap.frameworks.pytree import leaves
from tensortap.readers.run import Run

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


def named(names: "Run | TraceFile", found: Target) -> Target:
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
