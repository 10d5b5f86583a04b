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
        self, spots: tuple[Spot, ...], how: Literal["rewritten", "traced"], why: str, undo: Callable[[], None]
    ) -> None:
        self.spots, self.how, self.why = spots, how, why  # why it is not rewritten
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
    wish = _Wish(None if names is None else frozenset(names), returns)
    with _lock:
        try:
            return _place(function, wish, enter)
        except NoSourceError as reason:
            spots, undo = settrace.trace(function.__code__, wish.names, enter, returns=returns)
            _tell_slow(function.__qualname__, function.__code__.co_filename, str(reason))
            return Probe(spots, "traced", str(reason), undo)


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

    def __init__(self, wish: _Wish, enter: Enter, spots: tuple[Spot, ...]) -> None:
        self.wish, self.enter, self.spots = wish, enter, spots
        self.index = {spot: index for index, spot in enumerate(spots)}


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
        return any(self.function.__code__ is one.code for one in self._installed.values())

    def add(self, wish: _Wish, enter: Enter) -> _Owner:
        owner = _Owner(wish, enter, self._make(wish).spots)
        together = self._install([*self.owners, owner])
        self.owners.append(owner)
        self._open_gates()
        self.function.__code__ = together.code
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

    def _make(self, wish: _Wish) -> Rewritten:
        return _made(self.function, self.original, wish)

    def _install(self, owners: Sequence[_Owner]) -> _Installed:
        wish = owners[0].wish
        for owner in owners[1:]:
            wish |= owner.wish
        found = self._installed.get(wish)
        if found is None:
            made, asks = self._make(wish), f"{ENTER}_{next(_serial)}"
            code = made.code.replace(
                co_names=tuple(asks if one == ENTER else one for one in made.code.co_names)
            )
            found = self._installed[wish] = _Installed(code, made.spots, asks)
            _originals[code] = self.original
        return found

    def _open_gates(self) -> None:
        scope = self.function.__globals__
        for one in self._installed.values():
            if self.owners:
                scope[one.asks] = _gate(one.spots, self.owners)
            else:
                scope.pop(one.asks, None)


def _place(function: FunctionType, wish: _Wish, enter: Enter) -> Probe:
    shared = _shared.get(function)
    if shared is None or not shared.is_in_charge():
        shared = _Shared(function)
    owner = shared.add(wish, enter)
    _shared[function] = shared
    return Probe(owner.spots, "rewritten", "", partial(_drop, shared, owner))


def _drop(shared: _Shared, owner: _Owner) -> None:
    with _lock:
        if owner in shared.owners:  # another thread may have been quicker
            shared.drop(owner)
        if not shared.owners and _shared.get(shared.function) is shared:
            del _shared[shared.function]


def _gate(spots: Sequence[Spot], owners: Sequence[_Owner]) -> Enter:
    """What a code with these spots asks at its entry, for all who own it."""
    if len(owners) == 1 and owners[0].spots == spots:
        return owners[0].enter
    asked = [(owner.enter, [owner.index.get(spot) for spot in spots]) for owner in owners]

    def enter(first: Any) -> Seen | None:
        listening = [(seen, own) for ask, own in asked if (seen := ask(first)) is not None]
        return partial(_tell, listening) if listening else None

    return enter


def _tell(listening: Sequence[tuple[Seen, Sequence[int | None]]], index: int, value: Any) -> None:
    for seen, own in listening:
        at = own[index]
        if at is not None:
            seen(at, value)


def _original(code: CodeType) -> CodeType:
    """What stood in the function before us; another tool may have kept code of ours and put it back."""
    return _originals.get(code, code)


def _made(function: FunctionType, code: CodeType, wish: _Wish) -> Rewritten:
    # By its file too: codes that differ in nothing else are equal.
    key = (code, code.co_filename, code.co_qualname, wish)
    made = _rewritten.get(key)
    if made is None:
        made = rewrite(definition_of(function, code), wish.names, wish.returns)
        while len(_rewritten) >= _MOST_MADE:
            del _rewritten[next(iter(_rewritten))]
        _rewritten[key] = made
    return made
