"""Filter records: a stage around predicates, and the most common predicates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.protocols import Stage
from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import leaves
from tensortap.kernels.statistics import Statistics, statistics
from tensortap.stages.changed import Changed

Predicate = Callable[[Record], bool]


class When(Stage):
    """Passes the records for which every predicate holds; evaluated before anything is copied."""

    def __init__(self, *predicates: Predicate) -> None:
        self._predicates = predicates

    def push(self, record: Record) -> Iterable[Record]:
        return (record,) if all(predicate(record) for predicate in self._predicates) else ()


class StepPredicate:
    """A predicate on the step alone, so that a source can stay idle during the other steps."""

    def __init__(self, wants: Callable[[int], bool]) -> None:
        self.wants = wants

    def __call__(self, record: Record) -> bool:
        step: Any = record.step
        while isinstance(step, tuple):  # merged, perhaps more than once
            step = step[0]
        return self.wants(step)


def every(count: int) -> StepPredicate:
    """Steps 0, n, 2n, ..."""
    _check_count("every", count)
    return StepPredicate(lambda step: step % count == 0)


def first(count: int) -> StepPredicate:
    """The first n steps."""
    _check_count("first", count)
    return StepPredicate(lambda step: step < count)


def nonfinite(record: Record) -> bool:
    """Whether the value contains NaN or Inf; False for values without numbers."""
    value = record.value
    if isinstance(value, Statistics):
        return value.finite != value.count
    return not all(_is_finite(leaf) for _, leaf in leaves(value))


changed = Changed  # by content; `tt.changed(by="object")` compares identity


def predicates_of(when: Any) -> list[Predicate]:
    """The predicates of a `when=` argument: none, one, or several that must all hold."""
    conditions: Sequence[Any] = when if isinstance(when, (list, tuple)) else [] if when is None else [when]
    predicates = [condition() if isinstance(condition, type) else condition for condition in conditions]
    for predicate in predicates:
        if predicate is every or predicate is first:
            raise TypeError(
                f"when is tt.{predicate.__name__}, which needs a number; give tt.{predicate.__name__}(10)"
            )
        if not callable(predicate):
            raise TypeError(f"when is {predicate!r}; give a function of the record, such as tt.every(10)")
    return predicates


def _check_count(name: str, count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name}({count!r}) selects nothing; give a whole number from 1 on")


def _is_finite(value: Any) -> bool:
    is_finite = getattr(value, "is_finite", None)
    if isinstance(is_finite, bool):  # of a summary
        return is_finite
    try:
        return _has_finite_numbers(value)
    except UnsupportedValueError:
        return True


def _has_finite_numbers(value: Any) -> bool:
    framework = framework_of(value)
    if framework.name == "torch":
        from tensortap.frameworks.torch_summary import is_finite

        return is_finite(value)
    numbers = statistics(framework.bits(value), framework.describe(value).dtype)
    return numbers.finite == numbers.count
