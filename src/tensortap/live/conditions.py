"""Conditions that a session set, evaluated in the job: what holds is told, sent or dumped."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.retention import copy_on_write
from tensortap.kernels.statistics import Statistics
from tensortap.live.asked import ActiveCaptures, RequestedTap, StepClock, compute_statistics
from tensortap.live.offers import ExposedModel
from tensortap.live.parcels import OutgoingBudget
from tensortap.live.requests import Request
from tensortap.live.subscriptions import Subscription

_MAX_BUFFERED_BYTES = 64 << 20  # bytes of one step, until it is known whether the condition holds
Dump = Callable[[Record], str]


class _ConditionOperand(ActiveCaptures):
    """What one pattern of the condition sees."""

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
    """A condition. Where what holds once cannot cease to, it is told at that value, else after the step."""

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
        """Until the condition is decided; the oldest of a step that is too large are let go."""
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
        message = f"{self.request.condition} holds in step {step}{more}{f'; dumped to {dump_path}' if dump_path else ''}"
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
