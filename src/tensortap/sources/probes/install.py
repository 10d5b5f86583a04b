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

from tensortap.sources.function_names import unwrap_function
from tensortap.sources.probes import settrace
from tensortap.sources.probes.rewrite import (
    ENTER,
    Binding,
    InstrumentedCode,
    OnEnter,
    OnValue,
    instrument,
)
from tensortap.sources.probes.source_match import NoSourceError, find_definition

log = logging.getLogger("tensortap.probes")
# A function has one code for the whole process, so what is known of it has one place too.
_lock = threading.RLock()
_serial = itertools.count()
_functions: dict[FunctionType, _InstrumentedFunction] = {}
_originals: weakref.WeakKeyDictionary[CodeType, CodeType] = weakref.WeakKeyDictionary()
_instrumented: dict[tuple[Any, ...], InstrumentedCode] = {}
_MAX_CACHED = 4096


class Probe:
    """Watches a function until it is removed; a call that is under way may tell its values after that."""

    def __init__(
        self,
        bindings: tuple[Binding, ...],
        how: Literal["rewritten", "traced"],
        why: str,
        undo: Callable[[], None],
    ) -> None:
        self.bindings, self.how, self.why = bindings, how, why  # why it is not rewritten
        self._undo: Callable[[], None] | None = undo

    def remove(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()


def install_probe(
    function: Any, names: Collection[str] | None, enter: OnEnter, *, returns: bool = False
) -> Probe:
    """Tell the values of these local variables and arguments (None: all), and what the function returns.

    `enter` is called with the first argument whenever a call begins (of a generator: when its first value is
    asked for); what it gives is then called with the index of the spot and the value. Their exceptions
    go through the function. Variables bound inside a comprehension are not seen.
    """
    function = unwrap_function(function)
    request = _ProbeRequest(None if names is None else frozenset(names), returns)
    with _lock:
        try:
            return _install_rewritten(function, request, enter)
        except NoSourceError as reason:
            bindings, undo = settrace.trace_code(function.__code__, request.names, enter, returns=returns)
            _warn_slow(function.__qualname__, function.__code__.co_filename, str(reason))
            return Probe(bindings, "traced", str(reason), undo)


@lru_cache(maxsize=1024)
def _warn_slow(function: str, file: str, reason: str) -> None:
    """Once: the values are the same, but who wonders why the program is slow should find it."""
    log.warning("the lines of %s (%s) are traced, which is slow: %s", function, file, reason)


def find_bindings(function: Any) -> tuple[Binding, ...]:
    """Every argument and binding of a function, as its source says; without source, as its code says."""
    function = unwrap_function(function)
    code = _original_code(function.__code__)
    try:
        return _instrument_cached(function, code, _ProbeRequest(None, False)).bindings
    except NoSourceError:
        return settrace.bindings_in_code(code)


class _ProbeRequest(NamedTuple):
    names: frozenset[str] | None
    returns: bool

    def __or__(self, other: _ProbeRequest) -> _ProbeRequest:
        names = None if self.names is None or other.names is None else self.names | other.names
        return _ProbeRequest(names, self.returns or other.returns)


class _ProbeShare:
    """One probe's share in a function."""

    def __init__(self, request: _ProbeRequest, enter: OnEnter, bindings: tuple[Binding, ...]) -> None:
        self.request, self.enter, self.bindings = request, enter, bindings
        self.index = {binding: index for index, binding in enumerate(bindings)}


class _InstalledCode(NamedTuple):
    """A code of ours, and the global that it asks."""

    code: CodeType
    bindings: tuple[Binding, ...]
    global_name: str


class _InstrumentedFunction:
    """A function with code of ours, which holds what all its owners want together.

    Codes that were replaced keep their globals until the last owner goes: a generator may still begin.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function, self.original = function, _original_code(function.__code__)
        self.shares: list[_ProbeShare] = []
        self._installed: dict[_ProbeRequest, _InstalledCode] = {}
        self._has_warned = False

    def is_installed(self) -> bool:
        return any(self.function.__code__ is installed.code for installed in self._installed.values())

    def add(self, request: _ProbeRequest, enter: OnEnter) -> _ProbeShare:
        owner = _ProbeShare(request, enter, self._instrument(request).bindings)
        combined = self._install_combined([*self.shares, owner])
        self.shares.append(owner)
        self._set_dispatchers()
        self.function.__code__ = combined.code
        return owner

    def drop(self, owner: _ProbeShare) -> None:
        self.shares.remove(owner)
        if self.is_installed():
            self.function.__code__ = self._code_for_remaining()
        elif not self._has_warned:
            self._has_warned = True
            log.warning(
                "the code of %s was replaced meanwhile; it is left as it is", self.function.__qualname__
            )
        self._set_dispatchers()

    def _code_for_remaining(self) -> CodeType:
        if not self.shares:
            return self.original
        try:
            return self._install_combined(self.shares).code
        except NoSourceError:  # the file is gone by now; the code that tells more will do
            return self.function.__code__

    def _instrument(self, request: _ProbeRequest) -> InstrumentedCode:
        return _instrument_cached(self.function, self.original, request)

    def _install_combined(self, owners: Sequence[_ProbeShare]) -> _InstalledCode:
        request = owners[0].request
        for owner in owners[1:]:
            request |= owner.request
        installed = self._installed.get(request)
        if installed is None:
            instrumented, global_name = self._instrument(request), f"{ENTER}_{next(_serial)}"
            code = instrumented.code.replace(
                co_names=tuple(global_name if name == ENTER else name for name in instrumented.code.co_names)
            )
            installed = self._installed[request] = _InstalledCode(code, instrumented.bindings, global_name)
            _originals[code] = self.original
        return installed

    def _set_dispatchers(self) -> None:
        namespace = self.function.__globals__
        for installed in self._installed.values():
            if self.shares:
                namespace[installed.global_name] = _make_dispatcher(installed.bindings, self.shares)
            else:
                namespace.pop(installed.global_name, None)


def _install_rewritten(function: FunctionType, request: _ProbeRequest, enter: OnEnter) -> Probe:
    shared = _functions.get(function)
    if shared is None or not shared.is_installed():
        shared = _InstrumentedFunction(function)
    owner = shared.add(request, enter)
    _functions[function] = shared
    return Probe(owner.bindings, "rewritten", "", partial(_uninstall, shared, owner))


def _uninstall(shared: _InstrumentedFunction, owner: _ProbeShare) -> None:
    with _lock:
        if owner in shared.shares:  # another thread may have been quicker
            shared.drop(owner)
        if not shared.shares and _functions.get(shared.function) is shared:
            del _functions[shared.function]


def _make_dispatcher(bindings: Sequence[Binding], owners: Sequence[_ProbeShare]) -> OnEnter:
    """What a code with these spots asks at its entry, for all who own it."""
    if len(owners) == 1 and owners[0].bindings == bindings:
        return owners[0].enter
    entries = [(owner.enter, [owner.index.get(binding) for binding in bindings]) for owner in owners]

    def enter(first: Any) -> OnValue | None:
        listeners = [
            (on_value, indexes) for on_enter, indexes in entries if (on_value := on_enter(first)) is not None
        ]
        return partial(_dispatch, listeners) if listeners else None

    return enter


def _dispatch(listeners: Sequence[tuple[OnValue, Sequence[int | None]]], index: int, value: Any) -> None:
    for on_value, indexes in listeners:
        own_index = indexes[index]
        if own_index is not None:
            on_value(own_index, value)


def _original_code(code: CodeType) -> CodeType:
    """What stood in the function before us; another tool may have kept code of ours and put it back."""
    return _originals.get(code, code)


def _instrument_cached(function: FunctionType, code: CodeType, request: _ProbeRequest) -> InstrumentedCode:
    # By its file too: codes that differ in nothing else are equal.
    key = (code, code.co_filename, code.co_qualname, request)
    instrumented = _instrumented.get(key)
    if instrumented is None:
        instrumented = instrument(find_definition(function, code), request.names, request.returns)
        while len(_instrumented) >= _MAX_CACHED:
            del _instrumented[next(iter(_instrumented))]
        _instrumented[key] = instrumented
    return instrumented
