"""Observe variables inside functions, of a model or without one, through probes compiled into their code.

Functions without a model do not need torch.
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
from tensortap.sources.function_names import unwrap_function
from tensortap.sources.observation.point import (
    HookSource,
    ObservationPoint,
    may_be_recomputing,
    native_naming,
    recomputation_test,
)
from tensortap.sources.probes.install import Probe, find_bindings, install_probe
from tensortap.sources.probes.rewrite import RETURN, Binding, OnValue
from tensortap.sources.sites import SelectedSite

if TYPE_CHECKING:
    from tensortap.sources.observation.point import HookSource


ALL_BINDINGS = "*"


class VariableRef(NamedTuple):
    """`forward.scores#1`: a function, one of its variables, and which binding; or an attribute of the
    module, `forward.self.cache`, as it is when the function returns."""

    function: str
    name: str = ""  # empty: the return value
    nth: str = ""
    attribute: str = ""

    @property
    def is_at_return(self) -> bool:
        return not self.name or bool(self.attribute)


def parse_variable(parameter: str) -> VariableRef:
    function, _, rest = parameter.partition(".")
    name, _, nth = rest.partition("#")
    name, _, attribute = name.partition(".")
    return VariableRef(function, name, nth, attribute)


def find_function(module: Any, name: str) -> FunctionType | None:
    """The method of that name; otherwise the function of that name in the file of the module's class."""
    module_class = type(module)
    function = module.__dict__.get(name) or getattr(module_class, name, None)
    if function is None:
        function = getattr(sys.modules.get(module_class.__module__), name, None)
    return unwrap_function(function) if callable(function) and not isinstance(function, type) else None


def _function_of_point(point: ObservationPoint) -> FunctionType | None:
    return point.function or find_function(point.module, parse_variable(point.parameter).function)


class ProbeInstaller:
    """Probes in every function with a selected variable."""

    def __init__(self, source: HookSource, points: Sequence[ObservationPoint]) -> None:
        self._source, self._points = source, points
        self.probes: list[Probe] = []

    def install(self) -> list[Probe]:
        """Install the probes; each is removed by its `remove`."""
        by_function: defaultdict[tuple[FunctionType, Any], list[ObservationPoint]] = defaultdict(list)
        for point in self._points:
            function = _function_of_point(point)
            if function is not None:
                by_function[function, point.function and (point.is_own_call,)].append(point)
        for (function, _), points in by_function.items():
            self.probes.append(self._install_probe(function, points))
        return self.probes

    def _install_probe(self, function: FunctionType, points: Sequence[ObservationPoint]) -> Probe:
        variables = [parse_variable(point.parameter) for point in points]
        names = {variable.name for variable in variables if not variable.is_at_return}
        observer = (
            _ModuleCallObserver(self._source)
            if points[0].function is None
            else _AnyCallObserver(self._source)
        )
        probe = install_probe(
            function, names, observer.enter, returns=any(variable.is_at_return for variable in variables)
        )
        observer.expect(probe.bindings, points)
        return probe


class _ModuleCallObserver:
    """Assigns the variables of a call to a module by the first argument, `self`."""

    def __init__(self, source: HookSource) -> None:
        self._source, self._is_recomputing = source, recomputation_test()
        self._on_value_by_module: dict[int, OnValue] = {}
        # Of the one module that has the function as an instance attribute.
        self._only_on_value: OnValue | None = None

    def expect(self, bindings: Sequence[Binding], points: Sequence[ObservationPoint]) -> None:
        by_module: defaultdict[int, list[ObservationPoint]] = defaultdict(list)
        for point in points:
            by_module[id(point.module)].append(point)
        for module, module_points in by_module.items():
            self._on_value_by_module[module] = self._make_on_value(
                [_observer_at(bindings, binding, module_points) for binding in bindings]
            )
        if len(by_module) == 1 and _is_instance_function(points[0]):
            self._only_on_value = next(iter(self._on_value_by_module.values()))

    def enter(self, first: Any) -> OnValue | None:
        on_value = self._on_value_by_module.get(id(first)) or self._only_on_value
        if on_value is None or self._source.is_idle or self._is_recomputing():
            return None
        return on_value

    def _make_on_value(self, observers: list[Callable[[Any], None]]) -> OnValue:
        source = self._source

        def on_value(index: int, value: Any) -> None:
            try:
                observers[index](value)
            except Exception:  # noqa: BLE001 - a guest in someone's function
                source.fail()

        return on_value


def _is_instance_function(point: ObservationPoint) -> bool:
    """Whether the function is an instance attribute, which Python does not pass `self`."""
    function = point.module.__dict__.get(parse_variable(point.parameter).function)
    return function is not None and function is _function_of_point(point)


class _AnyCallObserver(_ModuleCallObserver):
    """Observes every call of a function without a model."""

    _busy_threads: ClassVar[set[int]] = set()  # threads inside a callback: calls made there are not observed

    def expect(self, bindings: Sequence[Binding], points: Sequence[ObservationPoint]) -> None:
        self._points, self._is_own_call = points, points[0].is_own_call
        self._on_value_by_module[0] = self._make_on_value(
            [_observer_at(bindings, binding, points) for binding in bindings]
        )

    def enter(self, first: Any) -> OnValue | None:
        on_value = self._on_value_by_module.get(0)
        if on_value is None or get_ident() in self._busy_threads:
            return None
        if self._is_own_call is not None and not self._is_own_call(first):
            return None
        if self._points[0].was_entered and may_be_recomputing():
            return None
        for point in self._points if not self._points[0].was_entered else ():
            point.was_entered = True
        return on_value

    def _make_on_value(self, observers: list[Callable[[Any], None]]) -> OnValue:
        """Syncs the step at every value: a call may last many steps, a training loop all of them."""
        source, busy, observe = self._source, self._busy_threads, super()._make_on_value(observers)

        def on_value(index: int, value: Any) -> None:
            thread = get_ident()
            if thread in busy:
                return
            busy.add(thread)
            try:
                source.sync_step()
                if not source.is_idle:
                    observe(index, value)
            finally:
                busy.discard(thread)

        return on_value


def _observer_at(
    bindings: Sequence[Binding], binding: Binding, points: Sequence[ObservationPoint]
) -> Callable[[Any], None]:
    """A function that passes the value at this binding to the points that select it."""
    requests = [(point, parse_variable(point.parameter)) for point in points]
    observers = [
        _make_observer(point, variable.attribute)
        for point, variable in requests
        if _matches_binding(variable, binding, bindings)
    ]
    if len(observers) == 1:  # the usual case, without a loop
        return observers[0]

    def observe_all(value: Any) -> None:
        for observe in observers:
            observe(value)

    return observe_all


def _make_observer(point: ObservationPoint, attribute: str) -> Callable[[Any], None]:
    if not attribute:
        return point.fast_observer()
    return lambda value: point.observe_output(getattr(point.module, attribute, None))


def _matches_binding(variable: VariableRef, binding: Binding, bindings: Sequence[Binding]) -> bool:
    if binding.kind == RETURN or variable.is_at_return:
        return variable.is_at_return and binding.kind == RETURN
    if variable.name != binding.name:
        return False
    if variable.nth == ALL_BINDINGS:
        return True
    if not variable.nth:  # an argument: its value on entry; any other variable: each of its bindings
        has_entry = any(
            candidate.name == binding.name and candidate.kind == "argument" for candidate in bindings
        )
        return not has_entry or binding.kind == "argument"
    nth, last = (
        int(variable.nth),
        max(candidate.nth for candidate in bindings if candidate.name == binding.name),
    )
    return binding.nth == (nth if nth >= 0 else last + 1 + nth)


def first_argument_name(module: Any, function: str) -> str:
    """The name of the module inside the function, usually `self`."""
    target = find_function(module, function)
    code = None if target is None else target.__code__
    return code.co_varnames[0] if code is not None and code.co_argcount else ""


def attribute_names(module: Any) -> list[str]:
    """A module's parameters, buffers and public attributes."""
    own = [name for name in module.__dict__ if not name.startswith("_")]
    return [*module._parameters, *module._buffers, *own]


def variable_names(module: Any, function: str) -> list[str]:
    """The variables of a method or helper function, arguments first."""
    target = find_function(module, function)
    return [] if target is None else list(dict.fromkeys(binding.name for binding in find_bindings(target)))


def explain_unbound(points: Sequence[ObservationPoint], point: ObservationPoint) -> str:
    """Why a variable was not observed: the function did not run, or not the lines that bind it."""
    variable = parse_variable(point.parameter)
    function = _function_of_point(point)
    has_run = point.was_entered or any(
        observed.count
        and observed.module is point.module
        and parse_variable(observed.parameter).function == variable.function
        for observed in points
    )
    if not has_run and point.function is not None:
        return f"{variable.function}() was not called while it was captured"
    if function is None or not has_run:
        return f"{variable.function}() was not seen to run on it"
    if variable.is_at_return:
        return f"{variable.function}() was called and has not returned: it raised, or goes on"
    lines = sorted({binding.line for binding in find_bindings(function) if binding.name == variable.name})
    file = Path(function.__code__.co_filename).name
    return f"not bound: {file}:{', '.join(map(str, lines))} did not run" if lines else "not bound"


class FunctionSource(HookSource):
    """Probes in the selected functions, from `start` to `stop`; the step is that of `tt.step()`."""

    def __init__(
        self, selected: Sequence[SelectedSite], *, skips_step: Callable[[int], bool] | None = None
    ) -> None:
        _require_torch(selected)
        super().__init__(None, selected, native_naming(None), skips_step=skips_step)

    def start(self, tap: Tap) -> None:
        super().start(tap)
        self._begin_step(declared_step() or 0)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            probes = ProbeInstaller(self, self.points)
            self._handles = probes.probes
            probes.install()
            undo.pop_all()

    def sync_step(self) -> None:
        step = declared_step() or 0
        is_new_step = step != self.step
        if is_new_step:
            self._begin_step(step)
        # Without declared steps, a call after a backward pass shows that pending gradient hooks are stale.
        if is_new_step or (self.has_gradients and not recomputation_test()()):
            self.has_gradients = False
            self._clear_gradients()

    def _begin_step(self, step: int) -> None:
        self.step, self.has_run = step, True
        self.is_idle = self._skips_step is not None and self._skips_step(step)
        self.was_active = self.was_active or not self.is_idle


def _require_torch(selected_sites: Sequence[SelectedSite]) -> None:
    gradient = next((selected.site.name for selected in selected_sites if selected.site.is_gradient), None)
    if gradient is not None and find_spec("torch") is None:
        raise MissingExtraError(
            f"{gradient!r} is a gradient, which needs torch: pip install 'tensortap[torch]'"
        )
