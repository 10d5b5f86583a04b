"""Which variables of followed calls stand out: names, patterns, and parts that are looked up in them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from tensortap.core.paths import closest_names

_STEP = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|([^\]]*))\]|([^.\[\]]+)")
_MOST_PARTS = 64
_MOST_NAMES = 500
_MOST_KNOWN = 10_000  # a loop may store to a million items, each of another name
_MOST_TOLD = 12
log = logging.getLogger("tensortap.tree.targets")
Steps = tuple[str, ...]


class Targets:
    """Names such as `video`, `mask_*`, `self.cache`, `mask.shape`, `batch.*.mask`.

    A target may go further than a variable's name: then what it holds there is looked up.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._steps = [steps_of(pattern) for pattern in patterns]
        self._known: dict[str, bool] = {}
        self._found: set[str] = set()
        self._names: dict[str, None] = {}  # that were seen, in their order
        self.calls = 0

    def __contains__(self, name: str) -> bool:
        """Whether a name is a target, or a part of one."""
        found = self._known.get(name)
        if found is None:
            steps = steps_of(name)
            hits = [
                one for one, wanted in zip(self.patterns, self._steps, strict=True) if _covers(wanted, steps)
            ]
            self._found.update(hits)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[name] = bool(hits)
            if len(self._names) < _MOST_NAMES:
                self._names[name] = None
        return found

    def inside(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """The targets that lie within this variable, with their names."""
        steps = steps_of(name)
        for pattern, wanted in zip(self.patterns, self._steps, strict=True):
            if len(wanted) > len(steps) and _covers(wanted[: len(steps)], steps):
                for path, part in islice(_parts(name, value, wanted[len(steps) :]), _MOST_PARTS):
                    self._found.add(pattern)
                    yield path, part

    def tell_missing(self) -> None:
        """Said at the end, for a name that was never seen while the function did run."""
        missing = [pattern for pattern in self.patterns if pattern not in self._found]
        if not self.calls or not missing:
            return
        names = list(self._names)
        near = closest_names(missing[0], names, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        more = f" and {len(names) - _MOST_TOLD} more" if len(names) > _MOST_TOLD else ""
        log.warning(
            "%s never appeared in the watched calls; %sseen were %s%s",
            " and ".join(map(repr, missing)),
            hint,
            ", ".join(names[:_MOST_TOLD]) or "no variables",
            more,
        )


def steps_of(name: str) -> Steps:
    """`batch['mask'].shape` as `batch`, `mask`, `shape`."""
    return tuple(next((part for part in found if part), "") for found in _STEP.findall(name))


def _covers(wanted: Steps, steps: Steps) -> bool:
    return len(wanted) <= len(steps) and all(map(fnmatchcase, steps, wanted))


def _parts(path: str, value: Any, steps: Steps) -> Iterator[tuple[str, Any]]:
    if not steps:
        yield path, value
        return
    for name, part in _step(value, steps[0]):
        yield from _parts(path + name, part, steps[1:])


def _step(value: Any, wanted: str) -> Iterator[tuple[str, Any]]:
    """Items first, as the grammar of names has it; an attribute only by its plain name."""
    if isinstance(value, Mapping):
        for key, item in islice(value.items(), _MOST_PARTS):
            if fnmatchcase(str(key), wanted):
                yield f"[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value[:_MOST_PARTS]):
            if fnmatchcase(str(position), wanted):
                yield f"[{position}]", item
    if wanted.isidentifier():
        try:
            yield f".{wanted}", getattr(value, wanted)
        except Exception:
            # The program's own property may raise anything.
            log.debug("%s has no %s", type(value).__name__, wanted, exc_info=True)
