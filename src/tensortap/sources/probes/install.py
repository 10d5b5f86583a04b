"""Install instrumented code in a function, shared by all its probes, and restore the original."""

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
# A function has one code object per process, so this state is per process too.
_lock = threading.RLock()
_serial = itertools.count()
_functions: dict[FunctionType, _InstrumentedFunction] = {}
_originals: weakref.WeakKeyDictionary[CodeType, CodeType] = weakref.WeakKeyDictionary()
_instrumented: dict[tuple[Any, ...], InstrumentedCode] = {}
_MAX_CACHED = 4096


class Probe:
    """Observes a function until it is removed; a call in progress may report values after that."""

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
    """Report the values of these local variables and arguments (None: all), and the return value.

    `enter` is called with the first argument when a call begins (for a generator: at the first `next`); the
    callback it returns is called with the index of the binding and the value. Their exceptions propagate
    through the function. Variables bound inside a comprehension are not observed.
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
    """Warn once: the values are the same, but it explains why the program is slow."""
    log.warning("the lines of %s (%s) are traced, which is slow: %s", function, file, reason)


def find_bindings(function: Any) -> tuple[Binding, ...]:
    """Every argument and binding of a function, from its source, or from its bytecode without one."""
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
    """One probe's share of an instrumented function."""

    def __init__(self, request: _ProbeRequest, enter: OnEnter, bindings: tuple[Binding, ...]) -> None:
        self.request, self.enter, self.bindings = request, enter, bindings
        self.index = {binding: index for index, binding in enumerate(bindings)}


class _InstalledCode(NamedTuple):
    """An instrumented code, and the global it calls on entry."""

    code: CodeType
    bindings: tuple[Binding, ...]
    global_name: str


class _InstrumentedFunction:
    """A function whose code is instrumented for all its probes together.

    Replaced codes keep their globals until the last probe is removed: a generator may still start.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function, self.original = function, _original_code(function.__code__)
        self.shares: list[_ProbeShare] = []
        self._installed: dict[_ProbeRequest, _InstalledCode] = {}
        self._has_warned = False

    def is_installed(self) -> bool:
        return any(self.function.__code__ is installed.code for installed in self._installed.values())

    def add(self, request: _ProbeRequest, enter: OnEnter) -> _ProbeShare:
        share = _ProbeShare(request, enter, self._instrument(request).bindings)
        combined = self._install_combined([*self.shares, share])
        self.shares.append(share)
        self._set_dispatchers()
        self.function.__code__ = combined.code
        return share

    def drop(self, share: _ProbeShare) -> None:
        self.shares.remove(share)
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
        except NoSourceError:  # the file is gone by now; the present code reports more than needed
            return self.function.__code__

    def _instrument(self, request: _ProbeRequest) -> InstrumentedCode:
        return _instrument_cached(self.function, self.original, request)

    def _install_combined(self, shares: Sequence[_ProbeShare]) -> _InstalledCode:
        request = shares[0].request
        for share in shares[1:]:
            request |= share.request
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
    instrumented = _functions.get(function)
    if instrumented is None or not instrumented.is_installed():
        instrumented = _InstrumentedFunction(function)
    share = instrumented.add(request, enter)
    _functions[function] = instrumented
    return Probe(share.bindings, "rewritten", "", partial(_uninstall, instrumented, share))


def _uninstall(instrumented: _InstrumentedFunction, share: _ProbeShare) -> None:
    with _lock:
        if share in instrumented.shares:  # another thread may have removed it
            instrumented.drop(share)
        if not instrumented.shares and _functions.get(instrumented.function) is instrumented:
            del _functions[instrumented.function]


def _make_dispatcher(bindings: Sequence[Binding], shares: Sequence[_ProbeShare]) -> OnEnter:
    """The function that a code with these bindings calls on entry, on behalf of all its probes."""
    if len(shares) == 1 and shares[0].bindings == bindings:
        return shares[0].enter
    entries = [(share.enter, [share.index.get(binding) for binding in bindings]) for share in shares]

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
    """The code before ours; another tool may have kept a code of ours and put it back."""
    return _originals.get(code, code)


def _instrument_cached(function: FunctionType, code: CodeType, request: _ProbeRequest) -> InstrumentedCode:
    # Keyed by file too: codes that differ only in it compare equal.
    key = (code, code.co_filename, code.co_qualname, request)
    instrumented = _instrumented.get(key)
    if instrumented is None:
        instrumented = instrument(find_definition(function, code), request.names, request.returns)
        while len(_instrumented) >= _MAX_CACHED:
            del _instrumented[next(iter(_instrumented))]
        _instrumented[key] = instrumented
    return instrumented
