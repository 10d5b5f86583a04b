"""User callbacks that edit the values of one name: how each is called, and what remains after a failure."""

from __future__ import annotations

import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tensortap.core.protocols import Stage
from tensortap.core.record import Record, Series
from tensortap.core.settings import is_strict
from tensortap.frameworks.base import framework_of
from tensortap.stages.payload import Problem
from tensortap.stages.reduce import ArrayTransform

log = logging.getLogger("tensortap.callbacks")
Callback = Callable[..., object]
SaveCallback = Callable[[str, Any, Any], Any]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class CallbackChain:
    """User callbacks in order, each called with as many arguments as it takes: `(name, results)`,
    `(name, values, iterations)` or `(name, values, iterations, ranks)`."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = [(callback, _count_arguments(callback)) for callback in callbacks]

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def edit(self, series: Series) -> Problem | None:
        """Call them on the series in place; if one fails, undo its edits and skip the remaining ones."""
        for callback, count in self._callbacks:
            before = series.values[:], series.steps[:], series.ranks[:]
            try:
                _call(callback, count, series)
                _match_column_lengths(series)
            except Exception as error:  # noqa: BLE001 - it has to travel: the others wait at the collective
                series.values, series.steps, series.ranks = before
                return _make_problem(callback, series.name, error)
        return None

    def apply(self, records: Sequence[Record]) -> tuple[list[Record], Problem | None]:
        """The edited records of one name, and the problem if a callback failed."""
        if not self:
            return list(records), None
        series = Series(records[0].name)
        for record in records:
            series.add(record)
        problem = self.edit(series)
        return _to_records(series, records), problem


class PreSaveCallbacks(Stage):
    """Replaces each value by what `(name, value, iteration) -> value` callbacks or reductions return. If one
    fails, the value is dropped and named in `refused`: it may be far larger than the callback's output."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.refused: dict[str, str] = {}
        self._callbacks = [(callback, _to_save_callback(callback)) for callback in callbacks]

    def push(self, record: Record) -> Iterable[Record]:
        for callback, save in self._callbacks:
            try:
                value = save(record.name, record.value, record.step)
            except Exception as error:  # the user's callback; a guest must not end the program
                if is_strict():
                    raise
                self._refuse(callback, record.name, error)
                return ()
            placement = record.placement if _has_same_shape(value, record) else None
            record = record._replace(value=value, placement=placement)
        return (record,)

    def _refuse(self, callback: Callback, name: str, error: Exception) -> None:
        if name not in self.refused:
            self.refused[name] = f"{_describe_failure(callback, name, error)}; such values are left out"
            log.error("%s", self.refused[name], exc_info=error)


def _to_save_callback(callback: Callback) -> SaveCallback:
    if isinstance(callback, ArrayTransform):
        return lambda name, value, iteration: callback(value)
    if not callable(callback):
        raise TypeError(f"{callback!r} is no callback; give a function of (name, value, iteration)")
    try:
        inspect.signature(callback).bind("", None, 0)
    except ValueError:  # written in C
        pass
    except TypeError:
        raise TypeError(
            f"the callback {_callback_name(callback)} cannot be called with (name, value, iteration), "
            "which a callback before saving gets; it returns the value to keep"
        ) from None
    return callback


def _count_arguments(callback: Callback) -> int:
    """Arguments to pass: the required ones, or if those are fewer than two, the optional ones as well."""
    try:
        parameters = inspect.signature(callback).parameters.values()
    except ValueError:  # written in C
        return 4
    except TypeError:
        raise TypeError(
            f"{callback!r} is no callback; give a function of (name, values, iterations, ranks)"
        ) from None
    positional = [parameter for parameter in parameters if parameter.kind in _POSITIONAL]
    required = sum(parameter.default is parameter.empty for parameter in positional)
    maximum = (
        4 if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters) else len(positional)
    )
    count = required if required >= 2 else min(maximum, 4)
    if not 2 <= count <= 4:
        raise TypeError(
            f"the callback {_callback_name(callback)} takes {count} arguments; give a function of "
            "(name, values, iterations, ranks) or of (name, results)"
        )
    return count


def _call(callback: Callback, count: int, series: Series) -> None:
    if count == 2:
        callback(series.name, series)
    else:
        callback(series.name, *(series.values, series.steps, series.ranks)[: count - 1])


def _match_column_lengths(series: Series) -> None:
    """Bring iterations and ranks to the length of the values, where the callback edited only the values."""
    series.steps, series.ranks = (
        column if isinstance(column, list) else list(column) for column in (series.steps, series.ranks)
    )
    count = len(series.values)
    for label, column in (("iterations", series.steps), ("ranks", series.ranks)):
        if len(column) == count:
            continue
        if count == 1:
            column[:] = [tuple(column)]
        elif len(set(column)) == 1 or not count:
            column[:] = column[:1] * count
        else:
            raise ValueError(
                f"{count} values and {len(column)} {label} are left, and nothing tells which belong "
                "together; edit the lists alike"
            )


def _to_records(series: Series, before: Sequence[Record]) -> list[Record]:
    """Records of the edited lists, keeping the metadata of the record each value came from."""
    is_aligned = len(series) == len(before)
    origins = {id(record.value): record for record in before}
    records = []
    for index, columns in enumerate(zip(series.values, series.steps, series.ranks, strict=True)):
        value, step, rank = columns
        origin = before[index] if is_aligned else origins.get(id(value), before[0])
        placement = origin.placement if _has_same_shape(value, origin) else None
        records.append(origin._replace(value=value, step=step, rank=rank, placement=placement))
    return records


def _has_same_shape(value: Any, origin: Record) -> bool:
    """Whether the shape is unchanged, so that the shard's placement still applies."""
    if value is origin.value or origin.placement is None:
        return True
    shape = framework_of(value).describe(value).shape
    return shape == framework_of(origin.value).describe(origin.value).shape


def _make_problem(callback: Callback, name: str, error: Exception) -> Problem:
    sentence = f"{_describe_failure(callback, name, error)}; the values are kept as they were before it"
    return Problem(sentence, "".join(traceback.format_exception(error)))


def _describe_failure(callback: Callback, name: str, error: Exception) -> str:
    return f"the callback {_callback_name(callback)} failed for {name!r} ({type(error).__name__}: {error})"


def _callback_name(callback: Callback) -> str:
    return getattr(callback, "__name__", type(callback).__name__)
