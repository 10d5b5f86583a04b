"""Which variables of followed calls stand out: names, patterns, and parts that are looked up in them."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from tensortap.core.patterns import closest_names

_NAME_PART = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|([^\]]*))\]|([^.\[\]]+)")
_MAX_PARTS = 64
_MAX_NAMES = 500
_MAX_CACHED = 10_000  # a loop may store to a million items, each of another name
_MAX_REPORTED = 12
log = logging.getLogger("tensortap.tree.targets")
NameParts = tuple[str, ...]


class WatchTargets:
    """Names such as `video`, `mask_*`, `self.cache`, `mask.shape`, `batch.*.mask`.

    A target may go further than a variable's name: then what it holds there is looked up.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._pattern_parts = [split_name(pattern) for pattern in patterns]
        self._is_target: dict[str, bool] = {}
        self._matched: set[str] = set()
        self._names: dict[str, None] = {}  # that were seen, in their order
        self.calls = 0

    def __contains__(self, name: str) -> bool:
        """Whether a name is a target, or a part of one."""
        is_target = self._is_target.get(name)
        if is_target is None:
            parts = split_name(name)
            matching = [
                pattern
                for pattern, wanted in zip(self.patterns, self._pattern_parts, strict=True)
                if _is_prefix_match(wanted, parts)
            ]
            self._matched.update(matching)
            if len(self._is_target) >= _MAX_CACHED:
                self._is_target.clear()
            is_target = self._is_target[name] = bool(matching)
            if len(self._names) < _MAX_NAMES:
                self._names[name] = None
        return is_target

    def parts_within(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """The targets that lie within this variable, with their names."""
        parts = split_name(name)
        for pattern, wanted in zip(self.patterns, self._pattern_parts, strict=True):
            if len(wanted) > len(parts) and _is_prefix_match(wanted[: len(parts)], parts):
                for path, part in islice(_find_parts(name, value, wanted[len(parts) :]), _MAX_PARTS):
                    self._matched.add(pattern)
                    yield path, part

    def warn_missing(self) -> None:
        """Said at the end, for a name that was never seen while the function did run."""
        missing = [pattern for pattern in self.patterns if pattern not in self._matched]
        if not self.calls or not missing:
            return
        names = list(self._names)
        near = closest_names(missing[0], names, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        more = f" and {len(names) - _MAX_REPORTED} more" if len(names) > _MAX_REPORTED else ""
        log.warning(
            "%s never appeared in the watched calls; %sseen were %s%s",
            " and ".join(map(repr, missing)),
            hint,
            ", ".join(names[:_MAX_REPORTED]) or "no variables",
            more,
        )


def split_name(name: str) -> NameParts:
    """`batch['mask'].shape` as `batch`, `mask`, `shape`."""
    return tuple(next((part for part in groups if part), "") for groups in _NAME_PART.findall(name))


def _is_prefix_match(wanted: NameParts, parts: NameParts) -> bool:
    return len(wanted) <= len(parts) and all(map(fnmatchcase, parts, wanted))


def _find_parts(path: str, value: Any, parts: NameParts) -> Iterator[tuple[str, Any]]:
    if not parts:
        yield path, value
        return
    for name, part in _match_children(value, parts[0]):
        yield from _find_parts(path + name, part, parts[1:])


def _match_children(value: Any, wanted: str) -> Iterator[tuple[str, Any]]:
    """Items first, as the grammar of names has it; an attribute only by its plain name."""
    if isinstance(value, Mapping):
        for key, item in islice(value.items(), _MAX_PARTS):
            if fnmatchcase(str(key), wanted):
                yield f"[{key!r}]", item
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value[:_MAX_PARTS]):
            if fnmatchcase(str(position), wanted):
                yield f"[{position}]", item
    if wanted.isidentifier():
        try:
            yield f".{wanted}", getattr(value, wanted)
        except Exception:
            # The program's own property may raise anything.
            log.debug("%s has no %s", type(value).__name__, wanted, exc_info=True)
