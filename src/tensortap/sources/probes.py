"""Variables inside a module's methods and their helper functions, by taps that are compiled into them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

from tensortap.sources.ports import Port
from tensortap.sources.real_functions import real_function
from tensortap.sources.recomputed import is_recomputing
from tensortap.sources.rewriting import RETURN, Seen, Spot
from tensortap.sources.swapping import Probe, bindings, place

if TYPE_CHECKING:
    from tensortap.sources.modules import Modules

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


class Probes:
    """Taps in every function that a wanted variable belongs to."""

    def __init__(self, source: Modules, ports: Sequence[Port]) -> None:
        self._source, self._ports = source, ports
        self.probes: list[Probe] = []

    def place(self) -> list[Probe]:
        """Put them in; each is taken out by its `remove`."""
        by_function: defaultdict[FunctionType, list[Port]] = defaultdict(list)
        for port in self._ports:
            function = function_of(port.module, parsed(port.parameter).function)
            if function is not None:
                by_function[function].append(port)
        self.probes = [self._probe(function, ports) for function, ports in by_function.items()]
        return self.probes

    def _probe(self, function: FunctionType, ports: Sequence[Port]) -> Probe:
        variables = [parsed(port.parameter) for port in ports]
        names = {variable.name for variable in variables if not variable.is_at_return}
        watch = _Watch(self._source)
        probe = place(function, names, watch.enter, returns=any(one.is_at_return for one in variables))
        watch.expect(probe.spots, ports)
        return probe


class _Watch:
    """Knows, by the first argument of a call, whose variables these are."""

    def __init__(self, source: Modules) -> None:
        self._source = source
        self._seen: dict[int, Seen] = {}

    def expect(self, spots: Sequence[Spot], ports: Sequence[Port]) -> None:
        by_module: defaultdict[int, list[Port]] = defaultdict(list)
        for port in ports:
            by_module[id(port.module)].append(port)
        for module, its_ports in by_module.items():
            self._seen[module] = self._seeing([_ways_at(spots, spot, its_ports) for spot in spots])

    def enter(self, first: Any) -> Seen | None:
        seen = self._seen.get(id(first))
        if seen is None or self._source.is_resting or is_recomputing():
            return None
        return seen

    def _seeing(self, table: list[list[Callable[[Any], None]]]) -> Seen:
        source = self._source

        def seen(spot: int, value: Any) -> None:
            try:
                for see in table[spot]:
                    see(value)
            except Exception:  # noqa: BLE001 - a guest in someone's function
                source.fail()

        return seen


def _ways_at(spots: Sequence[Spot], spot: Spot, ports: Sequence[Port]) -> list[Callable[[Any], None]]:
    """How each port that wants it sees what is there."""
    asked = [(port, parsed(port.parameter)) for port in ports]
    return [_way(port, variable.attribute) for port, variable in asked if _is_at(variable, spot, spots)]


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
    function = function_of(port.module, variable.function)
    has_run = any(
        one.count and one.module is port.module and parsed(one.parameter).function == variable.function
        for one in ports
    )
    if function is None or not has_run:
        return f"{variable.function}() was not seen to run on it"
    lines = sorted({spot.line for spot in bindings(function) if spot.name == variable.name})
    file = Path(function.__code__.co_filename).name
    return f"not bound: {file}:{', '.join(map(str, lines))} did not run" if lines else "not bound"
