"""One process of a program that `tensortap run` started: its models, what is captured of them, its report."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tensortap.core.errors import TensortapError, UnsupportedValueError
from tensortap.core.launch_spec import LaunchSpec
from tensortap.core.patterns import closest_names, parse_pattern
from tensortap.core.ranks import rank_info
from tensortap.core.record import Record, Site
from tensortap.core.tap import Tap
from tensortap.launcher.models import (
    CaptureIgnoringTaps,
    ObservedModel,
    ObservedModels,
    StepCounter,
    is_inside_forward,
)
from tensortap.launcher.outcome import write_program_facts
from tensortap.recording import manual_taps
from tensortap.recording.capture import Capture
from tensortap.recording.manual_taps import ManualTapSource, TapListener
from tensortap.recording.model_facts import write_model_facts
from tensortap.sinks.run_directory import RunDirectory
from tensortap.sources.function_names import split_function_path
from tensortap.sources.selection.function_sites import is_function_pattern
from tensortap.sources.selection.select import resolve_pattern
from tensortap.sources.sites import site_names
from tensortap.stages.select import When, changed, every, first, nonfinite, predicates_of

_MAX_REPORTED = 50
_INTERNAL_PACKAGES = ("tensortap", "torch")


class Program:
    """Registers models at their first call, and captures what the patterns select."""

    def __init__(self, spec: LaunchSpec, optimizers: Collection[Any]) -> None:
        self._spec = spec
        self._models = ObservedModels()
        self._lock = threading.RLock()
        self._is_over = False
        self._step_counter: StepCounter | None = None
        self._optimizers = optimizers
        self._sink: CountingRunSink | None = None
        self._function_captures: list[Capture] = []
        self._tap_pipeline: Tap | None = None
        self._tap_source: HandedOverTapSource | None = None
        self._matched: set[str] = set()
        self._problems: dict[str, str] = {}
        self._nearest_names: dict[str, list[str]] = {}
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._reset_in_child)
        _run_at_child_exit(self, self.end)

    @property
    def has_model(self) -> bool:
        return self._step_counter is not None

    @property
    def watches_later_models(self) -> bool:
        """Must models that are called later be registered, too?"""
        return self._spec.observes_models

    def register(self, model: Any) -> Iterable[Any]:
        """Register a model before its first call; return the modules that are known from now on."""
        if is_inside_forward():  # a submodule of a model that is registered by its own call
            return (model,)
        with self._lock:
            self._begin()
            observed = self._models.register(model, _calling_frame())
            if observed is not None:
                self._capture_model(observed, model)
            return list(model.modules())

    def release(self, model: Any) -> None:
        """Remove its hooks, because scripting a module with hooks fails."""
        with self._lock:
            self._models.release(model)

    def capture_functions_of(self, module: str) -> None:
        """Capture the selected functions of a Python module that has just been imported."""
        for pattern in self._spec.patterns:
            if (
                is_function_pattern(parse_pattern(pattern))
                and (split_function_path(parse_pattern(pattern).alternatives[0]) or ("",))[0] == module
            ):
                self._record_match(pattern, lambda pattern=pattern: self._capture_function(pattern))  # type: ignore[misc]

    def receive_tap(self, value: Any, name: str, site: Site | None, first_listener: TapListener) -> bool:
        """Receive the program's first `tt.tap`, and replace the listener; threads may call this at once."""
        with self._lock:
            if self._tap_source is None:
                self._tap_source = self._create_tap_source(first_listener)
        self._tap_source.receive_tap(value, name, site)
        return True

    def end(self) -> None:
        """At process exit: flush all records to disk, and write the report of this process."""
        if self._is_over:
            return
        self._is_over = True
        missing = [(entry.name, entry.reason) for capture in self._captures() for entry in capture.missing]
        refused = list(self._sink.refused.items()) if self._sink is not None else []
        for capture in self._captures():
            capture.stop()
        if self._tap_pipeline is not None:
            self._tap_pipeline.close()
        if self._sink is not None:
            self._sink.close()
        unmatched = [pattern for pattern in self._spec.patterns if pattern not in self._matched]
        report = {
            "pid": os.getpid(),
            "rank": rank_info().rank,
            "models": self._models.facts(),
            "steps": self._step_counter.count if self._step_counter is not None else 0,
            "records": self._sink.count if self._sink is not None else 0,
            "dropped": self._sink.inner.dropped if self._sink is not None else 0,
            "matched": sorted(self._matched),
            "unmatched": {pattern: self._explain_unmatched(pattern) for pattern in unmatched},
            "missing": missing[:_MAX_REPORTED],
            "missing_count": len(missing),
            "refused": refused[:_MAX_REPORTED],
            "let_go": self._models.released,
        }
        self._spec.write_marker(f"process-{os.getpid()}.json", json.dumps(report))

    def _reset_in_child(self) -> None:
        """In a forked child, count from zero: earlier records are reported by its parent."""
        if self._sink is not None:
            self._sink.count = 0
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # it clears its finalizers in the child, then calls this
            util.register_after_fork(self, lambda _: _run_at_child_exit(self, self._end_child))

    def _end_child(self) -> None:
        """Report only if the child wrote records; most, such as data loader workers, write none."""
        if self._sink is not None and self._sink.count:
            self.end()

    def _begin(self) -> None:
        """At the first model: count steps, write the program's facts, listen if requested."""
        if self._step_counter is not None:
            return
        torch = sys.modules["torch"]
        self._step_counter = StepCounter(self._optimizers, torch.is_grad_enabled)
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(
            self._step_counter.end_optimizer_step
        )
        write_program_facts(self._spec)
        if self._spec.live:
            # Through the public name: `live` is a higher layer than this one.
            sys.modules["tensortap"].listen(self._spec.live, dump_to=self._spec.run)

    def _capture_model(self, observed: ObservedModel, model: Any) -> None:
        patterns, capture = self._patterns_of(observed, model), None
        if patterns:
            capture = observed.start_capture(model, patterns, self._options(), self._run_sink)
            if observed.label == "":
                write_model_facts(model, Path(self._spec.run))
        if self._spec.live:
            sys.modules["tensortap"].expose(model)
        if self.watches_later_models and self._step_counter is not None:
            observed.count_forwards(model, self._step_counter, capture)

    def _patterns_of(self, observed: ObservedModel, model: Any) -> list[str]:
        """The patterns that select something in this model; none if only exclusions match."""
        wanted = [
            pattern for pattern in self._spec.patterns if not is_function_pattern(parse_pattern(pattern))
        ]
        selecting = [
            unlabelled
            for pattern in wanted
            if (unlabelled := observed.strip_label(pattern)) and self._selects(model, unlabelled, pattern)
        ]
        is_wanted = any(not pattern.startswith("!") for pattern in selecting)
        return selecting if is_wanted or all(pattern.startswith("!") for pattern in wanted) else []

    def _selects(self, model: Any, unlabelled: str, pattern: str) -> bool:
        selected = self._record_match(pattern, lambda: resolve_pattern(model, parse_pattern(unlabelled)))
        if not selected:
            names = site_names(model)
            self._nearest_names[pattern] = closest_names(unlabelled.lstrip("!"), names) or names[:3]
        return bool(selected)

    def _capture_function(self, pattern: str) -> bool:
        capture = CaptureIgnoringTaps(None, [pattern], **self._options(), to=self._run_sink)
        capture.start_within(self._step_counter.step if self._step_counter is not None else 0, False)
        self._function_captures.append(capture)
        return True

    def _record_match(self, pattern: str, action: Callable[[], Any]) -> Any:
        """Run a selection, and remember whether the pattern matched; errors are reported at the end."""
        try:
            selected = action()
        except (TensortapError, ValueError, TypeError) as error:
            self._problems[pattern] = str(error)
            return None
        if selected:
            self._matched.add(pattern)
        return selected

    def _explain_unmatched(self, pattern: str) -> dict[str, Any]:
        return {"reason": self._problems.get(pattern, ""), "near": self._nearest_names.get(pattern, [])}

    def _captures(self) -> list[Capture]:
        return [*self._function_captures, *self._models.captures()]

    def _options(self) -> dict[str, Any]:
        keep = None if self._spec.keep == "values" else self._spec.keep
        return {"keep": keep, "when": self._when(), "limit": None, "stop": False, "compiled": "eager"}

    def _when(self) -> list[Any]:
        conditions = {"nonfinite": nonfinite, "changed": changed}
        steps = [every(self._spec.every)] if self._spec.every > 1 else []
        steps += [first(self._spec.first)] if self._spec.first is not None else []
        return [*steps, *(conditions[name] for name in self._spec.when)]

    def _predicates(self) -> list[Any]:
        return predicates_of(self._when())

    def _create_tap_source(self, first_listener: TapListener) -> HandedOverTapSource:
        exclusions = [pattern for pattern in self._spec.patterns if pattern.startswith("!")]
        source = HandedOverTapSource(exclusions, self._predicates(), first_listener)
        value_predicates = [predicate for predicate in self._predicates() if not hasattr(predicate, "wants")]
        stages = [When(*value_predicates)] if value_predicates else []
        self._tap_pipeline = Tap(stages=stages, sinks=[self._run_sink], on_error="log").attach(source)
        return source

    @property
    def _run_sink(self) -> CountingRunSink:
        if self._sink is None:
            self._sink = CountingRunSink(Path(self._spec.run))
        return self._sink


class HandedOverTapSource(ManualTapSource):
    """A manual tap source that takes the place of the listener for the first value."""

    def __init__(self, exclusions: Sequence[str], predicates: Sequence[Any], replaced: TapListener) -> None:
        super().__init__(exclusions, predicates, None)
        self._replaced = replaced

    def start(self, tap: Tap) -> None:
        self.bind(tap)
        manual_taps.replace_tap_listener(self._replaced, self.receive_tap)


class CountingRunSink:
    """The run directory that all captures of a process share; counts its records."""

    def __init__(self, run: Path) -> None:
        # Written through: the program may be killed at any time.
        self.inner = RunDirectory(run, background=True, write_through=True)
        self.count = 0
        self.refused: dict[str, str] = {}

    def write(self, record: Record) -> None:
        """Refused values, such as those seen during torch.export, are kept once per name."""
        try:
            self.inner.write(record)
            self.count += 1
        except UnsupportedValueError as error:
            self.refused.setdefault(record.name, str(error))

    def flush(self) -> None:
        self.inner.flush()

    def close(self) -> None:
        self.inner.close()


def _calling_frame() -> FrameType | None:
    """The frame that calls the model: the first outside of tensortap and torch."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INTERNAL_PACKAGES:
        frame = frame.f_back
    return frame


def _run_at_child_exit(owner: Program, end: Callable[[], None]) -> None:
    """Register `end` with multiprocessing, whose forked children skip atexit but run their finalizers; those
    registered before a child starts are cleared, and registered again."""
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        return
    processes = sys.modules["multiprocessing.process"]
    is_starting = getattr(processes.current_process(), "_inheriting", False)
    if is_starting or processes.parent_process() is not None:
        util.Finalize(None, end, exitpriority=0)
    if is_starting:
        util.register_after_fork(owner, lambda _: util.Finalize(None, end, exitpriority=0))
