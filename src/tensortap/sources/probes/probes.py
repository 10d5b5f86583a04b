"""Variables inside functions.

Variables inside functions, a module's methods or others, by taps that are compiled into them.

Values of functions that belong to no model, seen by taps in them; torch is not needed for it.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import get_ident
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from tensortap.core.errors import MissingExtraError
from tensortap.core.steps import declared_step
from tensortap.core.tap import Tap
from tensortap.sources.function_names import real_function
from tensortap.sources.observation.point import Port, PortSource, is_repeating, native_naming, recomputing
from tensortap.sources.probes.install import Probe, bindings, place
from tensortap.sources.probes.rewrite import RETURN, Seen, Spot
from tensortap.sources.sites import Wanted

if TYPE_CHECKING:
    from tensortap.sources.observation.point import PortSource


ALL = "*"


class Variable(NamedTuple):
    """What `forward.scores#1` means: a function, a variable of it, and which of its bindings; or an
    attribute of the module, `forward.self.cache`, as it is when the function returns."""

    function: str
    name: str = ""  # empty: what the function returns
    nth: str = ""
    attribute: str = ""

    @property
    def is_at_return(self) -> bool:
        return not self.name or bool(self.attribute)


def parsed(parameter: str) -> Variable:
    function, _, rest = parameter.partition(".")
    name, _, nth = rest.partition("#")
    name, _, attribute = name.partition(".")
    return Variable(function, name, nth, attribute)


def function_of(module: Any, name: str) -> FunctionType | None:
    """The method of that name; else the function that the file of the module's class knows by that name."""
    kind = type(module)
    found = module.__dict__.get(name) or getattr(kind, name, None)
    if found is None:
        found = getattr(sys.modules.get(kind.__module__), name, None)
    return real_function(found) if callable(found) and not isinstance(found, type) else None


def _function(port: Port) -> FunctionType | None:
    return port.function or function_of(port.module, parsed(port.parameter).function)


class Probes:
    """Taps in every function that a wanted variable belongs to."""

    def __init__(self, source: PortSource, ports: Sequence[Port]) -> None:
        self._source, self._ports = source, ports
        self.probes: list[Probe] = []

    def place(self) -> list[Probe]:
        """Put them in; each is taken out by its `remove`."""
        by_function: defaultdict[tuple[FunctionType, Any], list[Port]] = defaultdict(list)
        for port in self._ports:
            function = _function(port)
            if function is not None:
                by_function[function, port.function and (port.is_own_call,)].append(port)
        for (function, _), ports in by_function.items():
            self.probes.append(self._probe(function, ports))
        return self.probes

    def _probe(self, function: FunctionType, ports: Sequence[Port]) -> Probe:
        variables = [parsed(port.parameter) for port in ports]
        names = {variable.name for variable in variables if not variable.is_at_return}
        watch = _Watch(self._source) if ports[0].function is None else _AnyCall(self._source)
        probe = place(function, names, watch.enter, returns=any(one.is_at_return for one in variables))
        watch.expect(probe.spots, ports)
        return probe


class _Watch:
    """Knows, by the first argument of a call, whose variables these are."""

    def __init__(self, source: PortSource) -> None:
        self._source, self._is_recomputing = source, recomputing()
        self._seen: dict[int, Seen] = {}
        self._alone: Seen | None = None  # of the one module that the function was put on

    def expect(self, spots: Sequence[Spot], ports: Sequence[Port]) -> None:
        by_module: defaultdict[int, list[Port]] = defaultdict(list)
        for port in ports:
            by_module[id(port.module)].append(port)
        for module, its_ports in by_module.items():
            self._seen[module] = self._seeing([_way_at(spots, spot, its_ports) for spot in spots])
        if len(by_module) == 1 and _is_put_on(ports[0]):
            self._alone = next(iter(self._seen.values()))

    def enter(self, first: Any) -> Seen | None:
        seen = self._seen.get(id(first)) or self._alone
        if seen is None or self._source.is_resting or self._is_recomputing():
            return None
        return seen

    def _seeing(self, ways: list[Callable[[Any], None]]) -> Seen:
        source = self._source

        def seen(spot: int, value: Any) -> None:
            try:
                ways[spot](value)
            except Exception:  # noqa: BLE001 - a guest in someone's function
                source.fail()

        return seen


def _is_put_on(port: Port) -> bool:
    """Whether the function stands in the module itself, where Python hands it no module."""
    found = port.module.__dict__.get(parsed(port.parameter).function)
    return found is not None and found is _function(port)


class _AnyCall(_Watch):
    """Watches a function that belongs to no model, whatever it is given."""

    _busy: ClassVar[set[int]] = set()  # threads that are taking a value: what this calls is not watched

    def expect(self, spots: Sequence[Spot], ports: Sequence[Port]) -> None:
        self._ports, self._is_own_call = ports, ports[0].is_own_call
        self._seen[0] = self._seeing([_way_at(spots, spot, ports) for spot in spots])

    def enter(self, first: Any) -> Seen | None:
        seen = self._seen.get(0)
        if seen is None or get_ident() in self._busy:
            return None
        if self._is_own_call is not None and not self._is_own_call(first):
            return None
        if self._ports[0].was_entered and is_repeating():
            return None
        for port in self._ports if not self._ports[0].was_entered else ():
            port.was_entered = True
        return seen

    def _seeing(self, ways: list[Callable[[Any], None]]) -> Seen:
        """A call may last for many steps, a training loop for all of them."""
        source, busy, see = self._source, self._busy, super()._seeing(ways)

        def seen(spot: int, value: Any) -> None:
            me = get_ident()
            if me in busy:
                return
            busy.add(me)
            try:
                source.catch_up()
                if not source.is_resting:
                    see(spot, value)
            finally:
                busy.discard(me)

        return seen


def _way_at(spots: Sequence[Spot], spot: Spot, ports: Sequence[Port]) -> Callable[[Any], None]:
    """How the ports that want it see what is there."""
    asked = [(port, parsed(port.parameter)) for port in ports]
    ways = [_way(port, variable.attribute) for port, variable in asked if _is_at(variable, spot, spots)]
    if len(ways) == 1:  # the usual case: this is what is called for every value
        return ways[0]

    def see(value: Any) -> None:
        for way in ways:
            way(value)

    return see


def _way(port: Port, attribute: str) -> Callable[[Any], None]:
    if not attribute:
        return port.short_way()
    return lambda value: port.see_output(getattr(port.module, attribute, None))


def _is_at(variable: Variable, spot: Spot, spots: Sequence[Spot]) -> bool:
    if spot.kind == RETURN or variable.is_at_return:
        return variable.is_at_return and spot.kind == RETURN
    if variable.name != spot.name:
        return False
    if variable.nth == ALL:
        return True
    if not variable.nth:  # an argument is its value on entry, any other variable each of its bindings
        has_entry = any(one.name == spot.name and one.kind == "argument" for one in spots)
        return not has_entry or spot.kind == "argument"
    wanted, last = int(variable.nth), max(one.nth for one in spots if one.name == spot.name)
    return spot.nth == (wanted if wanted >= 0 else last + 1 + wanted)


def first_argument(module: Any, function: str) -> str:
    """What the module itself is called there, `self` as a rule."""
    found = function_of(module, function)
    code = None if found is None else found.__code__
    return code.co_varnames[0] if code is not None and code.co_argcount else ""


def attributes(module: Any) -> list[str]:
    """What a module holds besides its modules."""
    own = [name for name in module.__dict__ if not name.startswith("_")]
    return [*module._parameters, *module._buffers, *own]


def variables(module: Any, function: str) -> list[str]:
    """The names that a method or helper binds, arguments first."""
    found = function_of(module, function)
    return [] if found is None else list(dict.fromkeys(spot.name for spot in bindings(found)))


def unbound(ports: Sequence[Port], port: Port) -> str:
    """Why a variable was never seen: the function did not run, or not the lines that bind it."""
    variable = parsed(port.parameter)
    function = _function(port)
    has_run = port.was_entered or any(
        one.count and one.module is port.module and parsed(one.parameter).function == variable.function
        for one in ports
    )
    if not has_run and port.function is not None:
        return f"{variable.function}() was not called while it was captured"
    if function is None or not has_run:
        return f"{variable.function}() was not seen to run on it"
    if variable.is_at_return:
        return f"{variable.function}() was called and has not returned: it raised, or goes on"
    lines = sorted({spot.line for spot in bindings(function) if spot.name == variable.name})
    file = Path(function.__code__.co_filename).name
    return f"not bound: {file}:{', '.join(map(str, lines))} did not run" if lines else "not bound"


class PlainFunctions(PortSource):
    """Taps in the functions that are wanted, from `start` to `stop`; the step is what `tt.step()` says."""

    def __init__(self, wanted: Sequence[Wanted], *, rests: Callable[[int], bool] | None = None) -> None:
        _require_torch(wanted)
        super().__init__(None, wanted, native_naming(None), rests=rests)

    def start(self, tap: Tap) -> None:
        super().start(tap)
        self._begin(declared_step() or 0)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            probes = Probes(self, self.ports)
            self._handles = probes.probes
            probes.place()
            undo.pop_all()

    def catch_up(self) -> None:
        step = declared_step() or 0
        is_next = step != self.step
        if is_next:
            self._begin(step)
        # Without steps, a call after a backward pass tells that what waits on parameters is of the past.
        if is_next or (self.has_gradients and not recomputing()()):
            self.has_gradients = False
            self._clear_gradients()

    def _begin(self, step: int) -> None:
        self.step, self.has_run = step, True
        self.is_resting = self._rests is not None and self._rests(step)
        self.was_awake = self.was_awake or not self.is_resting


def _require_torch(wanted: Sequence[Wanted]) -> None:
    late = next((one.site.name for one in wanted if one.site.is_gradient), None)
    if late is not None and find_spec("torch") is None:
        raise MissingExtraError(f"{late!r} is a gradient, which needs torch: pip install 'tensortap[torch]'")
