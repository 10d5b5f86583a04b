"""`tt.watch`: log calls of functions, their arguments and every change of a variable as a tree."""

from __future__ import annotations

import atexit
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, NamedTuple

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.patterns import closest_names
from tensortap.core.protocols import Sink
from tensortap.core.record import Record
from tensortap.core.settings import is_on
from tensortap.core.tap import Tap
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import map_leaves
from tensortap.render.text import ShortRepr
from tensortap.sinks.tree_log import TreeLog
from tensortap.sources.calls.functions import MAX_DEPTH, TracedFunctions
from tensortap.stages.changed import Changed

_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))
_VARIABLE_KINDS = ("local", "input")


class WatchOptions(NamedTuple):
    """How a function is watched; functions with equal options share one tree when one calls the other."""

    targets: tuple[str, ...] = ()
    max_depth: int = MAX_DEPTH
    max_items: int = 8
    stats: bool = False
    follow: tuple[str, ...] | bool | None = None
    has_context: bool = True
    tap: Tap | None = None


class DecoratedFunctions:
    """The functions that one decorator wraps, and whether it is enabled."""

    def __init__(self) -> None:
        self._sources: dict[WatchOptions, TracedFunctions] = {}
        self._is_enabled = True

    def decorate(self, function: Any, options: WatchOptions) -> Any:
        """The wrapped function; the function itself where TENSORTAP=0."""
        if not is_on():
            return function
        source = self._sources.get(options)
        if source is None:
            source = TracedFunctions(None, options.follow, options.max_depth)
            source.is_enabled = self._is_enabled
            wrapped = source.wrap(function)  # first: what cannot be followed must leave nothing behind
            Tap(sinks=[_make_sink(options)], on_error="log").attach(source)
            self._sources[options] = source
            return wrapped
        return source.wrap(function)

    def disable(self) -> None:
        """Run decorated functions unwatched, until `enable`."""
        self._switch(False)

    def enable(self) -> None:
        self._switch(True)

    def _switch(self, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        for source in self._sources.values():
            source.is_enabled = is_enabled


class WatchDecorator(DecoratedFunctions):
    """Decorate a function, a method or a class: its calls are written as a tree, with what they call,
    each argument and each change of a variable with the line that made it.

    >>> @tt.watch
    ... def process(batch): ...
    >>> @tt.watch("video", "mask.shape", stats=True)     # of the variables only these
    ... def process(batch): ...

    `max_depth`: levels of calls below the function. `max_items`: arrays shown of a container. `stats`:
    lowest, highest, mean and norm of every array. `follow`: modules besides the program's own whose functions
    are followed too (patterns, or True for all). `tap`: records also flow into that tap.
    Lines go to the logger `tensortap.tree`, to stderr while it has no handler.
    """

    def __call__(
        self,
        *functions_or_targets: Any,
        max_depth: int = MAX_DEPTH,
        max_items: int = 8,
        stats: bool = False,
        follow: str | Sequence[str] | bool | None = None,
        tap: Tap | None = None,
    ) -> Any:
        targets = tuple(name for name in functions_or_targets if isinstance(name, str))
        functions = [function for function in functions_or_targets if not isinstance(function, str)]
        if len(functions) > 1 or (functions and targets):
            raise TypeError(
                f"watch was given {functions[0]!r} among other things; write @tt.watch above the function, "
                "with names of variables and options in parentheses"
            )
        options = check_options(
            WatchOptions(targets, max_depth, max_items, stats, check_module_patterns(follow), tap=tap),
            decorator="watch",
        )
        return (
            self.decorate(functions[0], options)
            if functions
            else lambda function: self.decorate(function, options)
        )


watch = WatchDecorator()


def check_options(options: WatchOptions, decorator: str) -> WatchOptions:
    """Validate when decorating: an error inside the running function could only be logged."""
    for name in ("max_depth", "max_items"):
        limit = getattr(options, name)
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
            raise ValueError(f"{name} is a number from 0 upwards, not {limit!r}")
    for target in options.targets:
        if not isinstance(target, str) or not target:
            raise TypeError(
                f"{decorator} takes names of variables such as 'video' or 'batch.*.mask', not {target!r}"
            )
    if options.tap is not None and not isinstance(options.tap, Tap):
        raise TypeError(f"tap is a tt.Tap, not {options.tap!r}")
    return options._replace(stats=bool(options.stats))


def check_module_patterns(follow: Any) -> tuple[str, ...] | bool | None:
    if follow is None or isinstance(follow, bool):
        return follow
    names = (follow,) if isinstance(follow, str) else tuple(follow)
    if all(isinstance(name, str) for name in names):
        return names
    raise TypeError(f"follow is a module name, several of them, or True, not {follow!r}")


def _make_sink(options: WatchOptions) -> Sink:
    targets = WatchTargets(options.targets) if options.targets else None
    is_target: Callable[[str], bool] | None = None if targets is None else targets.__contains__
    tree = TreeLog(max_items=options.max_items, stats=options.stats, is_target=is_target)
    sinks: list[Sink] = [tree] if options.tap is None else [tree, UserTapSink(options.tap)]
    if targets is None and len(sinks) == 1:
        return tree
    return TargetFilter(targets, sinks, has_context=options.has_context)


class TargetFilter:
    """Passes on changes of the targets only; with `has_context` also the calls, arguments and results around
    them."""

    needs_no_lock = True

    def __init__(
        self, targets: WatchTargets | None, sinks: Sequence[Sink], *, has_context: bool = True
    ) -> None:
        self._targets, self._sinks, self._has_context = targets, sinks, has_context
        self._changed = Changed(by="content")
        self._pending_calls: dict[int, list[Record]] = {}  # by tree: calls without a change so far
        if targets is not None:
            atexit.register(targets.warn_missing)

    def write(self, record: Record) -> None:
        if self._targets is None:
            self._pass(record)
        elif record.kind in _VARIABLE_KINDS:
            self._write_variable(record, self._targets)
        else:
            self._targets.calls += 1
            self._write_context(record)

    def flush(self) -> None:
        for sink in self._sinks:
            sink.flush()

    def close(self) -> None:
        if self._targets is not None:
            atexit.unregister(self._targets.warn_missing)
        for sink in self._sinks:
            sink.close()

    def _write_variable(self, record: Record, targets: WatchTargets) -> None:
        function = record.site.function if record.site is not None else ""
        name = record.name.removeprefix(f"{function}.")
        if name in targets or (self._has_context and record.kind == "input"):
            self._pass_with_calls(record)
        for path, part in targets.parts_within(name, record.value):
            inner = record._replace(name=f"{function}.{path}", value=part)
            if self._changed(inner):
                self._pass_with_calls(inner)

    def _write_context(self, record: Record) -> None:
        """Without context, pass on a call only when a target changes in it."""
        if self._has_context or record.site is None or not record.site.depth:
            self._pass(record)
        elif record.kind == "call":
            self._pending_calls.setdefault(record.site.tree, []).append(record)
        else:
            waiting = self._pending_calls.get(record.site.tree, [])
            depths = [call.site.depth for call in waiting if call.site is not None]
            if record.site.depth in depths and record.kind in ("return", "raise"):
                del waiting[depths.index(record.site.depth) :]

    def _pass_with_calls(self, record: Record) -> None:
        for call in self._pending_calls.pop(record.site.tree, []) if record.site is not None else ():
            self._pass(call)
        self._pass(record)

    def _pass(self, record: Record) -> None:
        for sink in self._sinks:
            sink.write(record)


class UserTapSink:
    """Emits into a tap of the user. What is not data (a model, a lock, an open file) is replaced by its short
    repr, since a tap that keeps values would fail on it."""

    def __init__(self, tap: Tap) -> None:
        self._tap, self._short_repr = tap, ShortRepr()
        self.flush = tap.flush

    def write(self, record: Record) -> None:
        value = map_leaves(record.value, self._describe_non_data)
        try:
            self._tap.emit(record.with_value(value))
        except UnsupportedValueError:
            self._tap.emit(record.with_value(self._short_repr.format(record.value)))

    def close(self) -> None:
        self._tap.flush()

    def _describe_non_data(self, leaf: Any) -> Any:
        is_data = isinstance(leaf, _PLAIN_TYPES) or framework_of(leaf).name != "python"
        return leaf if is_data else self._short_repr.format(leaf)


_NAME_PART = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|([^\]]*))\]|([^.\[\]]+)")
_MAX_PARTS = 64
_MAX_NAMES = 500
_MAX_CACHED = 10_000  # a loop may assign a million items, each under its own name
_MAX_REPORTED = 12
log = logging.getLogger("tensortap.tree.targets")
NameParts = tuple[str, ...]


class WatchTargets:
    """Names such as `video`, `mask_*`, `self.cache`, `mask.shape`, `batch.*.mask`.

    A target may extend a variable's name: then the item or attribute is looked up in its value.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._pattern_parts = [split_name(pattern) for pattern in patterns]
        self._is_target: dict[str, bool] = {}
        self._matched: set[str] = set()
        self._names: dict[str, None] = {}  # of variables, in order of appearance
        self.calls = 0

    def __contains__(self, name: str) -> bool:
        """Is this variable a target, or a part of one?"""
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
        """Names and values of the targets inside this variable."""
        parts = split_name(name)
        for pattern, wanted in zip(self.patterns, self._pattern_parts, strict=True):
            if len(wanted) > len(parts) and _is_prefix_match(wanted[: len(parts)], parts):
                for path, part in islice(_find_parts(name, value, wanted[len(parts) :]), _MAX_PARTS):
                    self._matched.add(pattern)
                    yield path, part

    def warn_missing(self) -> None:
        """Warn at exit about targets that never appeared although the function ran."""
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
    """Matching items of a container first, then the attribute of that name."""
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
        except Exception:  # an object's own property may raise anything
            log.debug("%s has no %s", type(value).__name__, wanted, exc_info=True)
