"""A requested tap in the running job: its captures, its condition, and the throttle that bounds its cost."""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

from tensortap.core.errors import TensortapError, UnsupportedValueError
from tensortap.core.patterns import matches_pattern
from tensortap.core.record import Record
from tensortap.core.steps import declared_step
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.retention import copy_on_write, detached_reference, summarise_value
from tensortap.kernels.statistics import Statistics
from tensortap.live.job.exposed import ExposedModel
from tensortap.live.job.outgoing import OutgoingBudget
from tensortap.live.job.subscription import Subscription
from tensortap.live.protocol import Request
from tensortap.recording.capture import Capture
from tensortap.recording.destination import CallbackSink
from tensortap.sources.selection.select import resolve_patterns
from tensortap.stages.select import every

_HOOK_OVERHEAD_SECONDS = 5e-6  # of a hook, beyond the measured time in the sink
log = logging.getLogger("tensortap.live")


class StepClock:
    """The current step, and the time spent on live sessions."""

    def __init__(self) -> None:
        self.step = 0
        self.spent_seconds = 0.0


class ActiveCaptures:
    """The captures of one request on all exposed models; each record goes to `handle_record`."""

    def __init__(self, patterns: Sequence[str], step_interval: int, clock: StepClock) -> None:
        self._patterns, self._every, self._clock = tuple(patterns), step_interval, clock
        self._captures: list[Capture] = []
        self._has_sites = self._has_records = False
        self._problem = ""
        self._empty_steps = 0

    def start(self, exposed: Iterable[ExposedModel], running: ExposedModel | None) -> None:
        """Start a capture on each model that the patterns match; if none matches, wait for a `tt.tap`."""
        for model in exposed:
            patterns = self._matching_patterns(model.model)
            if not patterns:
                continue
            capture = self._capture(model.model, patterns)
            capture.start_within(model.forwards, has_begun=model is running)
            self._captures.append(capture)
        self._has_sites = bool(self._captures)
        if not self._captures:
            capture = self._capture(None, self._patterns)  # raises for an unknown function
            capture.start_within(0, has_begun=False)
            self._captures.append(capture)
            self._has_sites = any(":" in pattern for pattern in self._patterns)

    def stop(self) -> None:
        for capture in self._captures:
            try:
                capture.stop()
            except Exception:  # a guest: the sinks and models are the program's
                log.exception("a capture that a session asked for did not end properly; the program goes on")
        self._captures = []

    @property
    def is_searching(self) -> bool:
        """Has no exposed model this name, and no `tt.tap` so far?"""
        return not (self._has_sites or self._has_records)

    def end_step(self) -> str:
        """Called between two steps; returns the reason when nothing matched, else an empty string."""
        if not self.is_searching:
            return ""
        self._empty_steps += 1
        return self._explain_no_match() if self._empty_steps > 1 else ""

    def handle_record(self, record: Record) -> None:
        raise NotImplementedError

    def report_problem(self, key: str, problem: str) -> None:
        raise NotImplementedError

    def on_first_record(self) -> None:
        """Called once, before the first record is handled."""

    def _matching_patterns(self, model: Any) -> list[str]:
        """The patterns that match in this model; the first error of the others is kept."""
        matching, exclusions = [], [pattern for pattern in self._patterns if pattern.startswith("!")]
        for pattern in self._patterns:
            try:
                if pattern not in exclusions and resolve_patterns(model, [pattern]):
                    matching.append(pattern)
            except (TensortapError, ValueError, TypeError) as error:
                self._problem = self._problem or str(error)
        return [*matching, *exclusions] if matching else []

    def _capture(self, model: Any, patterns: Sequence[str]) -> Capture:
        # Every capture receives `tt.tap` values; only the first one handles them.
        write = self._handle_site if self._captures else self._handle_site_or_tap
        when = every(self._every) if self._every > 1 else None
        return Capture(model, tuple(patterns), None, when, None, False, "eager", CallbackSink(write))

    def _handle_site_or_tap(self, record: Record) -> None:
        if record.kind != "value":
            self._handle_site(record)
        elif any(matches_pattern(pattern, record.name) for pattern in self._patterns):
            step = self._clock.step if declared_step() is None else record.step
            if isinstance(step, int) and step % self._every == 0:
                self._handle_timed(record._replace(step=step))

    def _handle_site(self, record: Record) -> None:
        if record.kind != "value":
            self._handle_timed(record)

    def _handle_timed(self, record: Record) -> None:
        start = perf_counter()
        if not self._has_records:
            self._has_records = True
            self.on_first_record()
        try:
            self.handle_record(record)
        except UnsupportedValueError as error:
            self.report_problem(record.name, f"{record.name}: {error}")
        except (IndexError, TypeError, RuntimeError, ValueError) as error:
            self.report_problem(record.name, f"{record.name}: {type(error).__name__}: {error}")
        finally:
            self._clock.spent_seconds += perf_counter() - start + _HOOK_OVERHEAD_SECONDS

    def _explain_no_match(self) -> str:
        patterns = " ".join(map(repr, self._patterns))
        hint = (
            "nothing is exposed; tt.expose(model) in the job does that"
            if not self._problem
            else self._problem
        )
        explanation = hint if self._problem else f"no site {patterns}: {hint}"
        explanation = explanation.replace("tt.sites(model)", "s.catalog()")
        return f"{explanation}; no tt.tap showed it in a whole step either"


class RequestedTap(ActiveCaptures):
    """A tap and its subscriptions: one for each session with an equal request."""

    def __init__(self, request: Request, budget: OutgoingBudget, clock: StepClock) -> None:
        super().__init__(request.patterns, request.every, clock)
        self.request = request
        self.subscriptions: list[Subscription] = []
        self._budget = budget
        self._index = request.index
        self._reported: set[str] = set()
        self._throttle = Throttle()

    def end_step(self) -> str:
        start = perf_counter()
        for subscription in self.subscriptions:
            subscription.end_step()
        self._throttle.add_step_cost(perf_counter() - start)
        return super().end_step()

    def handle_record(self, record: Record) -> None:
        """Send the record to subscriptions with credit, from one shared snapshot."""
        if not self._throttle.allows(record.step, self.request.every):
            for subscription in self.subscriptions:
                subscription.skipped += 1
            return
        interested = [subscription for subscription in self.subscriptions if subscription.wants(record)]
        if interested:
            start = perf_counter()
            self.send(record, self._reduce(record.value), interested)
            self._throttle.add_cost(record.step, perf_counter() - start)

    def adjust_throttle(self, max_share: float) -> None:
        """Skip steps if the tap costs more than that share of the job's time; tell the sessions."""
        message = self._throttle.adjust(max_share)
        for subscription in self.subscriptions if message else ():
            subscription.send_event("problem", message)

    def send(self, record: Record, value: Any, interested: Sequence[Subscription]) -> None:
        outgoing = self._budget.snapshot(record, value)
        receivers = [
            candidate
            for candidate in interested
            if outgoing is not None and candidate.has_room(outgoing.nbytes)
        ]
        for subscription in interested:
            if subscription not in receivers:
                subscription.skip(record.name)
        if outgoing is None:
            return
        if not receivers:
            outgoing.cancel()
        outgoing.pending_readers = len(receivers)  # first: a receiver may release it at once
        for subscription in receivers:
            subscription.send(outgoing)

    def report_problem(self, key: str, problem: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            for subscription in self.subscriptions:
                subscription.send_event("problem", problem[:1000])

    def on_first_record(self) -> None:
        if not self._has_sites:
            for subscription in self.subscriptions:
                subscription.send_event("armed")

    def _reduce(self, value: Any) -> Any:
        if self._index is not None:
            return detached_reference(value)[self._index]
        return statistics_dict(value) if self.request.keep == "stats" else value


def statistics_dict(value: Any) -> dict[str, Any]:
    """The statistics of a value, as a dict for the wire."""
    return compute_statistics(value).to_dict()


def compute_statistics(value: Any) -> Statistics:
    summarised = summarise_value(value)
    return summarised if isinstance(summarised, Statistics) else summarised.statistics


_MAX_BUFFERED_BYTES = 64 << 20  # of one step, until the condition is decided
Dump = Callable[[Record], str]


class _ConditionOperand(ActiveCaptures):
    """The captures of one pattern in the condition."""

    def __init__(self, pattern: str, tap: ConditionalTap, clock: StepClock) -> None:
        super().__init__((pattern,), tap.request.every, clock)
        self._pattern, self._tap = pattern, tap

    def handle_record(self, record: Record) -> None:
        self._tap.observe(self._pattern, record)

    def report_problem(self, key: str, problem: str) -> None:
        self._tap.report_problem(key, problem)

    def on_first_record(self) -> None:
        if not self._has_sites and not self._tap.is_searching:
            self._tap.on_first_record()


class ConditionalTap(RequestedTap):
    """A tap that fires on a condition: at the value if it is monotonic, else at the end of the step."""

    def __init__(self, request: Request, budget: OutgoingBudget, clock: StepClock, dump: Dump) -> None:
        super().__init__(request, budget, clock)
        self._condition = request.parsed_condition
        self._operands = [_ConditionOperand(pattern, self, clock) for pattern in self._condition.patterns]
        self._dump = dump
        self._statistics: defaultdict[str, dict[str, Statistics]] = defaultdict(dict)
        self._buffered: deque[tuple[Record, int]] = deque()
        self._buffered_bytes = 0
        self._firing: list[Subscription] | None = None

    def start(self, exposed: Iterable[ExposedModel], running: ExposedModel | None) -> None:
        models = list(exposed)
        for operand in self._operands:
            operand.start(models, running)

    @property
    def is_searching(self) -> bool:
        return any(operand.is_searching for operand in self._operands)

    def stop(self) -> None:
        for operand in self._operands:
            operand.stop()

    def end_step(self) -> str:
        if self._firing is None and self._statistics and self._condition.holds(self._statistics):
            self._fire(next(iter(self._buffered), (None, 0))[0])
        self._statistics.clear()
        self._buffered.clear()
        self._buffered_bytes, self._firing = 0, None
        for subscription in self.subscriptions:
            subscription.end_step()
        return next(filter(None, [operand.end_step() for operand in self._operands]), "")

    def observe(self, pattern: str, record: Record) -> None:
        self._statistics[pattern][f"{record.name}@{record.call}"] = compute_statistics(record.value)
        if self._firing is not None:
            self._deliver(record)
            return
        self._buffer(record)
        if self._condition.is_monotonic and self._condition.holds(self._statistics):
            self._fire(record)

    def _buffer(self, record: Record) -> None:
        """Keep the record until the condition is decided; beyond the limit the oldest are dropped."""
        if self.request.then == "tell":
            self._buffered.clear()
            self._buffered.append((record.with_value(None), 0))
            return
        nbytes = framework_of(record.value).describe(record.value).nbytes
        self._buffered.append((record.with_value(copy_on_write(record.value)), nbytes))
        self._buffered_bytes += nbytes
        while self._buffered_bytes > _MAX_BUFFERED_BYTES and len(self._buffered) > 1:
            self._buffered_bytes -= self._buffered.popleft()[1]

    def _fire(self, record: Record | None) -> None:
        self._firing = [candidate for candidate in self.subscriptions if candidate.may_fire()]
        buffered, self._buffered = self._buffered, deque()
        dump_paths = (
            []
            if self.request.then == "tell" or not self._firing
            else [self._deliver(earlier) for earlier, _ in buffered]
        )
        dump_path = next(filter(None, dump_paths), "")
        step, name = (record.step, record.name) if record is not None else (self._clock.step, "")
        more = f" at {name!r}" if self._condition.is_monotonic and name else ""
        dumped = f"; dumped to {dump_path}" if dump_path else ""
        message = f"{self.request.condition} holds in step {step}{more}{dumped}"
        for subscription in self._firing:
            subscription.send_event("fired", message, step=step if isinstance(step, int) else 0)

    def _deliver(self, record: Record) -> str:
        if not self._firing or self.request.then == "tell":
            return ""
        if self.request.then == "dump":
            return self._dump(record)
        interested = [subscription for subscription in self._firing if subscription.wants(record)]
        if interested:
            self.send(record, record.value, interested)
        return ""


DEFAULT_SHARE = 0.03  # of step time, for all taps together
_WINDOW = 1.0  # seconds, and
_MIN_STEPS = 3  # measured steps, before an adjustment
_MAX_INTERVAL = 1 << 20


class Throttle:
    """Takes every n-th of the requested steps; `every` is 1 while the cost is within the share."""

    def __init__(self) -> None:
        self.every = 1
        self._spent_seconds = 0.0
        self._steps_taken = 0
        self._step: Any = None
        self._since = perf_counter()

    def allows(self, step: Any, requested_every: int) -> bool:
        return self.every == 1 or not isinstance(step, int) or not step // requested_every % self.every

    def add_cost(self, step: Any, seconds: float) -> None:
        """Add the cost of a value of that step."""
        self.add_step_cost(seconds)
        if step != self._step:
            self._step = step
            self._steps_taken += 1

    def add_step_cost(self, seconds: float) -> None:
        """Add the cost of ending a step."""
        self._spent_seconds += seconds

    def adjust(self, max_share: float) -> str:
        """Adapt `every` to the measured cost; return a message if it changed."""
        now = perf_counter()
        seconds = now - self._since
        if seconds < _WINDOW or self._steps_taken < _MIN_STEPS:
            return ""
        share, previous = self._spent_seconds / seconds, self.every
        self._spent_seconds, self._steps_taken, self._since = 0.0, 0, now
        needed = min(max(math.ceil(share * previous / max_share), 1), _MAX_INTERVAL)
        if previous < needed or 2 * needed <= previous:  # hysteresis
            self.every = needed
        return _describe_change(share, max_share, self.every) if self.every != previous else ""


def _describe_change(share: float, max_share: float, every: int) -> str:
    if every == 1:
        return "the tap is cheap enough again: every step that was asked for is taken"
    return (
        f"the tap took {100 * share:.1f} % of step time, and {100 * max_share:.2g} % are allowed; "
        f"of the steps that were asked for, one in {every} is taken now"
    )
