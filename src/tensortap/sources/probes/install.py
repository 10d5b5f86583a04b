"""Put the code that tells its values into a function, shared by all who ask, and take it out again."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from types import CodeType, FunctionType
from typing import Any, Literal, NamedTuple

from tensortap.sources.function_names import real_function
from tensortap.sources.probes import settrace
from tensortap.sources.probes.rewrite import ENTER, RETURN, Enter, Rewritten, Seen, Spot, rewrite
from tensortap.sources.probes.source_match import NoSourceError, definition_of

__all__ = ["RETURN", "Enter", "Probe", "Seen", "Spot", "bindings", "place", "real_function"]
log = logging.getLogger("tensortap.probes")
# A function has one code for the whole process, so what is known of it has one place too.
_lock = threading.RLock()
_serial = itertools.count()
_shared: dict[FunctionType, _Shared] = {}
_originals: weakref.WeakKeyDictionary[CodeType, CodeType] = weakref.WeakKeyDictionary()
_rewritten: dict[tuple[Any, ...], Rewritten] = {}
_MOST_MADE = 4096


class Probe:
    """Watches a function until it is removed; a call that is under way may tell its values after that."""

    def __init__(
        self, bindings: tuple[Spot, ...], how: Literal["rewritten", "traced"], why: str, undo: Callable[[], None]
    ) -> None:
        self.spots, self.how, self.why = bindings, how, why  # why it is not rewritten
        self._undo: Callable[[], None] | None = undo

    def remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


def place(function: Any, names: Collection[str] | None, enter: Enter, *, returns: bool = False) -> Probe:
    """Tell the values of these local variables and arguments (None: all), and what the function returns.

    `enter` is called with the first argument whenever a call begins (of a generator: when its first value is
    asked for); what it gives is then called with the index of the spot and the value. Their exceptions
    go through the function. Variables bound inside a comprehension are not seen.
    """
    function = real_function(function)
    request = _Wish(None if names is None else frozenset(names), returns)
    with _lock:
        try:
            return _place(function, request, enter)
        except NoSourceError as reason:
            bindings, undo = settrace.trace(function.__code__, request.names, enter, returns=returns)
            _tell_slow(function.__qualname__, function.__code__.co_filename, str(reason))
            return Probe(bindings, "traced", str(reason), undo)


@lru_cache(maxsize=1024)
def _tell_slow(function: str, file: str, reason: str) -> None:
    """Once: the values are the same, but who wonders why the program is slow should find it."""
    log.warning("the lines of %s (%s) are traced, which is slow: %s", function, file, reason)


def bindings(function: Any) -> tuple[Spot, ...]:
    """Every argument and binding of a function, as its source says; without source, as its code says."""
    function = real_function(function)
    code = _original(function.__code__)
    try:
        return _made(function, code, _Wish(None, False)).spots
    except NoSourceError:
        return settrace.spots_of(code)


class _Wish(NamedTuple):
    names: frozenset[str] | None
    returns: bool

    def __or__(self, other: _Wish) -> _Wish:
        names = None if self.names is None or other.names is None else self.names | other.names
        return _Wish(names, self.returns or other.returns)


class _Owner:
    """One probe's share in a function."""

    def __init__(self, request: _Wish, enter: Enter, bindings: tuple[Spot, ...]) -> None:
        self.wish, self.enter, self.spots = request, enter, bindings
        self.index = {binding: index for index, binding in enumerate(bindings)}


class _Installed(NamedTuple):
    """A code of ours, and the global that it asks."""

    code: CodeType
    spots: tuple[Spot, ...]
    asks: str


class _Shared:
    """A function with code of ours, which holds what all its owners want together.

    Codes that were replaced keep their globals until the last owner goes: a generator may still begin.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function, self.original = function, _original(function.__code__)
        self.owners: list[_Owner] = []
        self._installed: dict[_Wish, _Installed] = {}
        self._has_complained = False

    def is_in_charge(self) -> bool:
        return any(self.function.__code__ is installed.code for installed in self._installed.values())

    def add(self, request: _Wish, enter: Enter) -> _Owner:
        owner = _Owner(request, enter, self._make(request).spots)
        combined = self._install([*self.owners, owner])
        self.owners.append(owner)
        self._open_gates()
        self.function.__code__ = combined.code
        return owner

    def drop(self, owner: _Owner) -> None:
        self.owners.remove(owner)
        if self.is_in_charge():
            self.function.__code__ = self._code_without()
        elif not self._has_complained:
            self._has_complained = True
            log.warning(
                "the code of %s was replaced meanwhile; it is left as it is", self.function.__qualname__
            )
        self._open_gates()

    def _code_without(self) -> CodeType:
        if not self.owners:
            return self.original
        try:
            return self._install(self.owners).code
        except NoSourceError:  # the file is gone by now; the code that tells more will do
            return self.function.__code__

    def _make(self, request: _Wish) -> Rewritten:
        return _made(self.function, self.original, request)

    def _install(self, owners: Sequence[_Owner]) -> _Installed:
        request = owners[0].wish
        for owner in owners[1:]:
            request |= owner.wish
        installed = self._installed.get(request)
        if installed is None:
            instrumented, global_name = self._make(request), f"{ENTER}_{next(_serial)}"
            code = instrumented.code.replace(
                co_names=tuple(global_name if name == ENTER else name for name in instrumented.code.co_names)
            )
            installed = self._installed[request] = _Installed(code, instrumented.spots, global_name)
            _originals[code] = self.original
        return installed

    def _open_gates(self) -> None:
        namespace = self.function.__globals__
        for installed in self._installed.values():
            if self.owners:
                namespace[installed.asks] = _gate(installed.spots, self.owners)
            else:
                namespace.pop(installed.asks, None)


def _place(function: FunctionType, request: _Wish, enter: Enter) -> Probe:
    shared = _shared.get(function)
    if shared is None or not shared.is_in_charge():
        shared = _Shared(function)
    owner = shared.add(request, enter)
    _shared[function] = shared
    return Probe(owner.spots, "rewritten", "", partial(_drop, shared, owner))


def _drop(shared: _Shared, owner: _Owner) -> None:
    with _lock:
        if owner in shared.owners:  # another thread may have been quicker
            shared.drop(owner)
        if not shared.owners and _shared.get(shared.function) is shared:
            del _shared[shared.function]


def _gate(bindings: Sequence[Spot], owners: Sequence[_Owner]) -> Enter:
    """What a code with these spots asks at its entry, for all who own it."""
    if len(owners) == 1 and owners[0].spots == bindings:
        return owners[0].enter
    entries = [(owner.enter, [owner.index.get(binding) for binding in bindings]) for owner in owners]

    def enter(first: Any) -> Seen | None:
        listeners = [(on_value, indexes) for on_enter, indexes in entries if (on_value := on_enter(first)) is not None]
        return partial(_tell, listeners) if listeners else None

    return enter


def _tell(listeners: Sequence[tuple[Seen, Sequence[int | None]]], index: int, value: Any) -> None:
    for on_value, indexes in listeners:
        own_index = indexes[index]
        if own_index is not None:
            on_value(own_index, value)


def _original(code: CodeType) -> CodeType:
    """What stood in the function before us; another tool may have kept code of ours and put it back."""
    return _originals.get(code, code)


def _made(function: FunctionType, code: CodeType, request: _Wish) -> Rewritten:
    # By its file too: codes that differ in nothing else are equal.
    key = (code, code.co_filename, code.co_qualname, request)
    instrumented = _rewritten.get(key)
    if instrumented is None:
        instrumented = rewrite(definition_of(function, code), request.names, request.returns)
        while len(_rewritten) >= _MOST_MADE:
            del _rewritten[next(iter(_rewritten))]
        _rewritten[key] = instrumented
    return instrumented
