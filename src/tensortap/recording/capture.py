"""`tt.capture`: record any tensor of a model, or of a function, by name, without editing the code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, get_args
from weakref import WeakKeyDictionary

from tensortap.core.patterns import parse_pattern
from tensortap.core.record import Record
from tensortap.core.settings import is_on
from tensortap.core.steps import listen_if_requested
from tensortap.core.tap import Tap
from tensortap.frameworks.retention import specialise_for_torch
from tensortap.frameworks.torch_if_loaded import torch_if_loaded
from tensortap.recording import manual_taps
from tensortap.recording.captured import Captured
from tensortap.recording.destination import Destination
from tensortap.recording.manual_taps import ManualTapSource
from tensortap.recording.model_facts import write_model_facts
from tensortap.sources.function_names import function_path, is_inspectable
from tensortap.sources.hooks.eager_mode import CompiledMode, refuse_compiled, run_eagerly
from tensortap.sources.observation.point import HookSource, ObservationPoint, StopForward
from tensortap.sources.probes.probes import FunctionSource
from tensortap.sources.selection.function_sites import is_function_pattern, resolve_without_model
from tensortap.sources.selection.missing import Missing, find_missing
from tensortap.sources.selection.select import resolve_patterns
from tensortap.sources.sites import ModuleSite, SelectedSite, class_name, require_module, unwrap, walk_modules
from tensortap.stages.select import StepPredicate, When, predicates_of

if TYPE_CHECKING:
    from tensortap.sources.hooks.modules import ModuleSource


Keep = Literal["cow", "clone", "ref", "cpu", "stats"]
Selector = str | Callable[[ModuleSite], bool]


def capture(
    model: Any = None,
    *patterns: Selector,
    keep: Keep | Callable[[Any], Any] | None = None,
    when: Any = None,
    limit: str | int | None = None,
    stop: bool = False,
    compiled: CompiledMode = "eager",
    to: Any = None,
) -> Capture:
    """Record what the patterns select, each time the model runs inside the `with` block.

    >>> with tt.capture(model, "encoder.layers.*", "head.in", "head.grad") as cap:
    ...     model(x).sum().backward()
    >>> cap["encoder.layers.0"]        # one value: the value itself
    >>> cap["encoder.layers.*"]        # several: .values .names .steps .calls .stack()
    >>> cap.missing                    # what was selected and did not come, and why
    >>> print(cap)

    Without patterns all module outputs; without a model only what `tt.tap` shows. A function needs no model:
    `tt.capture(None, "pkg.mod:func.var")`, or `tt.capture(func, "var")`.
    `keep`: "cow" (default), "clone", "ref", "cpu", "stats", or a function of the value.
    `when`: `tt.every(10)`, `tt.first(3)`, `tt.nonfinite`, `tt.changed`, or a function of the record.
    `limit`: "2GiB" or a number of records; the oldest go first. Half of the machine's memory by default.
    `stop`: leave the `with` block after the last selected site.
    `compiled`: "eager" runs compiled models as plain Python meanwhile, "graph" takes values out of the
    compiled graph itself, "error" refuses them.
    `to`: a folder for runs, an address, "tree", print, a function of the record, a sink, a Tap.
    """
    return Capture(model, patterns, keep, when, limit, stop, compiled, to)


class Capture(Captured):
    """What `tt.capture` returns: a context manager while the model runs, a reader then and afterwards."""

    def __init__(
        self,
        model: Any,
        patterns: Sequence[Selector],
        keep: Any,
        when: Any,
        limit: Any,
        stop: bool,
        compiled: CompiledMode,
        to: Any,
    ) -> None:
        if compiled not in get_args(CompiledMode):
            raise ValueError(f"compiled is {compiled!r}; give 'eager', 'graph' or 'error'")
        self._is_on = is_on()
        self._stops_early = stop
        self._state: Literal["new", "on", "off"] = "new"
        self._patterns, self._compiled = patterns, compiled
        self._predicates = predicates_of(when)
        self._function = model if is_inspectable(model) else None
        self._model = None if model is None or self._function is not None else require_module(model)
        self._last_site = LastSite(self._model, patterns) if stop and self._model is not None else None
        modules = self._make_module_source() if self._model is not None and self._is_on else None
        self._source: HookSource | None = modules or (self._make_function_source() if self._is_on else None)
        self._tap_source = ManualTapSource(patterns, self._predicates, modules)
        self._undo = contextlib.ExitStack()
        # Opened last: an invalid argument must not leave an empty run behind.
        # A compiled graph reuses its buffers at once, so values must be copied.
        keep = "clone" if compiled == "graph" and keep in (None, "cow") else keep
        self._destination = Destination(to if self._is_on else None, keep, limit)
        self._tap: Tap | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if kind is None and self._last_site is not None:
            self._last_site.remember()
        # A StopForward of an enclosing capture must propagate.
        is_ours = isinstance(error, StopForward) and error.source is self._source
        self._end(drain=kind is None or kind is StopForward)
        return is_ours

    def __del__(self) -> None:
        source = getattr(self, "_source", None)  # missing if __init__ raised
        if source is not None and self._state != "on":
            source.forget()

    def start(self) -> None:
        """Start without a `with` block; `stop` ends it."""
        listen_if_requested()
        self._begin()
        manual_taps.mark_active(self)

    def start_within(self, step: int, has_begun: bool) -> None:
        """Start between two steps of a running program, counting from `step`. If the forward of the model
        `has_begun`, torch has already fetched its hooks: `begin_step` is then called here."""
        self._begin()
        source: Any = self._source
        if source is not None:
            source.step, source.has_run = step, False
            if has_begun and hasattr(source, "begin_step"):
                source.begin_step()

    def _begin(self) -> None:
        if self._state != "new":
            state = "already on" if self._state == "on" else "over"
            raise RuntimeError(f"this capture is {state}; make another with tt.capture(...)")
        self._state = "on"
        if not self._is_on:
            return
        value_predicates = [
            predicate for predicate in self._predicates if not isinstance(predicate, StepPredicate)
        ]
        stages = [When(*value_predicates)] if value_predicates else []
        take = None if value_predicates else self._destination.move_policy_to_source()
        if take is not None:
            self._tap_source.retain = take
        if take is not None and self._source is not None:
            self._source.retain, self._source.retain_tensor = take, specialise_for_torch(take)
        if self._model is not None and self._destination.run is not None:
            write_model_facts(self._model, self._destination.run)
        self._tap = Tap(stages=stages, sinks=self._destination.sinks, on_error="log")
        with contextlib.ExitStack() as stack:
            if self._source is not None:
                stack.enter_context(self._compiled_context())
                self._tap.attach(self._source)
            self._attach_tap_source(stack, self._tap)
            self._undo = stack.pop_all()

    @property
    def model(self) -> Any:
        """The captured model, or None."""
        return self._model

    def stop(self) -> None:
        """End the capture; its records stay. Safe to call twice."""
        self._end(drain=True)

    def find(self, name: str) -> list[Record]:
        """As `Captured.find`; in a capture of one function also by the variable's name alone."""
        records = super().find(name)
        return records or (super().find(f"{function_path(self._function)}.{name}") if self._function else [])

    @property
    def missing(self) -> list[Missing]:
        """Every selected site without a record, with the reason."""
        unobserved = find_missing(self._source) if self._source is not None else []
        by_source = self._source.refused if self._source is not None else {}
        memory = self._destination.memory
        refused = {**by_source, **self._tap_source.refused, **(memory.refused if memory else {})}
        return [
            *unobserved,
            *self._names_without_model(),
            *(Missing(name, reason) for name, reason in refused.items()),
        ]

    def _names_without_model(self) -> list[Missing]:
        """Selected names that need a model, unless `tt.tap` has recorded them."""
        if self._model is not None or self._function is not None:
            return []
        names = [
            pattern for pattern in self._patterns if isinstance(pattern, str) and not pattern.startswith("!")
        ]
        reason = "there is no model to find it in; a variable of a function is called 'pkg.mod:func.var'"
        return [
            Missing(name, reason)
            for name in names
            if not is_function_pattern(parse_pattern(name)) and not self._tap_source.has_received(name)
        ]

    def _title(self) -> str:
        dropped = f"({self.dropped} older ones dropped)" if self.dropped else ""
        return " ".join(filter(None, [class_name(unwrap(self._model)) if self._model else "", dropped]))

    def _classes(self) -> dict[str, str]:
        if self._model is None:
            return {}
        return {".".join(names): class_name(module) for names, module in walk_modules(self._model)}

    def _make_function_source(self) -> FunctionSource | None:
        wanted = resolve_without_model(self._function, self._patterns)
        self._check_function_options(wanted)
        return FunctionSource(wanted, skips_step=self._skip_rule()) if wanted else None

    def _check_function_options(self, wanted: Sequence[SelectedSite]) -> None:
        name = next((selected.site.name for selected in wanted if selected.site.function is not None), None)
        if name is not None and self._stops_early:
            raise ValueError(
                f"stop=True leaves the forward of a model, which {name!r} is no site of; drop one"
            )
        if name is not None and self._compiled == "graph":
            raise ValueError(f"{name!r} cannot be seen in a compiled graph; use compiled='eager'")

    def _skip_rule(self) -> Callable[[int], bool] | None:
        steps = [predicate for predicate in self._predicates if isinstance(predicate, StepPredicate)]
        return (lambda step: not all(predicate.wants(step) for predicate in steps)) if steps else None

    def _make_module_source(self) -> ModuleSource:
        wanted = resolve_patterns(self._model, self._patterns)
        self._check_function_options(wanted)
        if self._last_site is not None and self._compiled == "graph":
            raise ValueError("stop=True cannot leave a compiled graph; use compiled='eager'")
        late_names = (
            selected.site.name
            for selected in wanted
            if selected.site.is_gradient or selected.site.is_after_step
        )
        late_name = next(late_names, None)
        if self._last_site is not None and late_name is not None:
            raise ValueError(
                f"stop=True leaves the forward, so {late_name!r} could never come; drop one of both"
            )
        source = self._source_class()(
            self._model,
            wanted,
            skips_step=self._skip_rule(),
            is_last=self._last_site.is_last if self._last_site is not None else None,
        )
        if self._last_site is not None:
            self._last_site.expect(source.points)
        return source

    def _source_class(self) -> type[ModuleSource]:
        # Imported lazily: these import torch, which captures of plain functions do not need.
        if self._compiled != "graph":
            from tensortap.sources.hooks.modules import ModuleSource

            return ModuleSource
        from tensortap.sources.hooks.compiled import CompiledModuleSource

        return CompiledModuleSource

    def _compiled_context(self) -> contextlib.AbstractContextManager[None]:
        if self._model is None:
            return contextlib.nullcontext() if torch_if_loaded() is None else run_eagerly()
        if self._compiled == "error":
            refuse_compiled(self._model)
            has_functions = self._source is not None and any(port.function for port in self._source.points)
            return run_eagerly() if has_functions else contextlib.nullcontext()
        if self._compiled == "eager" or self._source is None:
            return run_eagerly()
        from tensortap.sources.hooks.compiled import fresh_graphs

        return fresh_graphs(len(self._source.points))

    def _attach_tap_source(self, stack: contextlib.ExitStack, tap: Tap) -> None:
        if self._compiled != "graph":
            self._tap_source.owner = self
            tap.attach(self._tap_source)
            return
        from tensortap.sources.hooks.compiled import register_callback, tensor_observer, unregister_callback

        self._tap_source.bind(tap)
        key = register_callback(lambda tensor, name: self._tap_source.receive_tap(tensor, name, None))
        stack.callback(unregister_callback, key)
        manual_taps.set_graph_tap(tensor_observer(key))
        stack.callback(manual_taps.set_graph_tap, None)

    def _end(self, *, drain: bool) -> None:
        if self._state != "on":
            return
        self._state = "off"
        manual_taps.mark_inactive(self)
        with contextlib.ExitStack() as stack:
            if self._tap is not None:
                stack.callback(self._tap.__exit__, *([None] * 3 if drain else [Exception, None, None]))
            stack.enter_context(self._undo)


SiteVisit = tuple[str, str, int]  # path, kind, number of calls

# The last selected site that the previous forward of each model visited.
_last_visits: WeakKeyDictionary[Any, dict[tuple[str, ...], SiteVisit]] = WeakKeyDictionary()


class LastSite:
    """The last selected site, as in the previous forward of this model; without one, it is reached when every
    site has been visited once."""

    def __init__(self, model: Any, patterns: Sequence[Any]) -> None:
        self._model, self._key = model, tuple(map(str, patterns))
        self._expected = _last_visits.get(model, {}).get(self._key)
        self._pending: set[tuple[str, str]] = set()
        self._visit: SiteVisit | None = None

    def expect(self, ports: Sequence[ObservationPoint]) -> None:
        self._pending = {(port.path, port.kind) for port in ports}

    def is_last(self, port: ObservationPoint) -> bool:
        if port.calls > max((value.call or 0 for value in port.values), default=0):
            self._pending.discard((port.path, port.kind))
        self._visit = (port.path, port.kind, port.calls)
        return self._visit == self._expected or not self._pending

    def remember(self) -> None:
        """After a complete forward: the next one may stop at the site that this one visited last."""
        if self._visit is not None:
            _last_visits.setdefault(self._model, {})[self._key] = self._visit
