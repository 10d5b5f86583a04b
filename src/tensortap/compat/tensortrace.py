"""TensorTracer: trace any variable inside a model, gather it over ranks, keep it in HDF5."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from tensortap.core.errors import WriteFailedError
from tensortap.core.record import Record, Series
from tensortap.core.settings import is_on, is_strict
from tensortap.core.tap import Tap
from tensortap.recording.tracer import ModelTrace, TraceSchedule
from tensortap.sources.selection.missing import Missing
from tensortap.stages import reduce
from tensortap.stages.gather import Gather
from tensortap.stages.reduce import stack_padded_tensors, stack_tensors

__all__ = ["H5PYSaverCallback", "ModelTracer", "stack_padded_tensors", "stack_tensors", "trace_model"]

log = logging.getLogger("tensortap.trace")
Callback = Callable[..., object]


class ModelTracer:
    """Trace the variables at these paths while the `with` block runs.

    >>> with ModelTracer(model, ["forward", "forward.x"], gathering_interval=4) as tracer:
    ...     train()
    >>> tracer.results["forward.x"].values      # on rank 0, with .iterations and .ranks
    >>> tracer.missing                          # what gave no value, and why

    `trace_model`: what the model's own forward returns is traced too, as if `"forward"` were in the paths.
    `stack_tensors`: the values of each interval are stacked to one before the other callbacks get them, as
    by a `stack_tensors` at the head of `post_gather_callbacks`.
    """

    def __init__(
        self,
        model: Any,
        paths: Sequence[str],
        pre_gather_callbacks: Sequence[Callback] = (),
        post_gather_callbacks: Sequence[Callback] = (),
        post_trace_callbacks: Sequence[Callback] = (),
        gathering_interval: int = 1,
        *,
        trace_interval: int = 1,
        pre_save_callbacks: Sequence[Callback] = (),
        train_only: bool = False,
        eval_only: bool = False,
        trace_model: bool = False,
        stack_tensors: bool = False,
        drop_last: bool = False,
        tap: Tap | None = None,
    ) -> None:
        self._trace: ModelTrace | None = None
        self._savers: list[H5PYSaverCallback] = []
        if not is_on():
            return
        schedule = TraceSchedule(model, trace_interval, train_only=train_only, eval_only=eval_only)
        pre = _check_callbacks("pre_gather_callbacks", pre_gather_callbacks)
        post = _check_callbacks("post_gather_callbacks", post_gather_callbacks)
        post_trace = _check_callbacks("post_trace_callbacks", post_trace_callbacks)
        self._savers = [
            callback for callback in (*post, *post_trace) if isinstance(callback, H5PYSaverCallback)
        ]
        if any(isinstance(callback, H5PYSaverCallback) for callback in pre):
            raise ValueError("only rank 0 has a file; give the H5PYSaverCallback to post_gather_callbacks")
        gather = Gather(
            gathering_interval,
            pre=pre,
            post=[reduce.stack_tensors, *post] if stack_tensors else post,
            drop_last=drop_last,
            counts=schedule.counts_for_gathering,
        )
        self._trace = ModelTrace(
            model,
            _add_model_output(paths) if trace_model else paths,
            gather=gather,
            schedule=schedule,
            post_trace=post_trace,
            pre_save=_check_callbacks("pre_save_callbacks", pre_save_callbacks),
            user_tap=tap,
        )

    @property
    def results(self) -> dict[str, Series]:
        """By path: `.values`, `.iterations` and `.ranks`; empty on other ranks than 0."""
        return {} if self._trace is None else self._trace.results

    @property
    def missing(self) -> list[Missing]:
        """Every path that gave no value, and every value that was left out, with the reason."""
        unobserved = [] if self._trace is None else self._trace.missing
        unstored = [
            Missing(*name_and_reason) for saver in self._savers for name_and_reason in saver.reasons.items()
        ]
        return [*unobserved, *unstored]

    def __enter__(self) -> Self:
        if self._trace is not None:
            self._trace.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            for saver in self._savers:
                stack.callback(_flush_or_log, saver)
            if self._trace is not None:
                self._trace.stop(is_failure=kind is not None)


def trace_model(
    model: Any, paths: Sequence[str], *arguments: Any, **keywords: Any
) -> tuple[Any, ModelTracer]:
    """Call the model once with these arguments: what it returned, and the tracer with the results.

    >>> output, tracer = trace_model(model, ["forward.scores"], x)
    """
    with ModelTracer(model, paths) as tracer:
        output = model(*arguments, **keywords)
    return output, tracer


class H5PYSaverCallback:
    """Move values into an HDF5 file as they are gathered; `datasets[path]` is what it holds of a path.

    What cannot be stored is counted in `skipped` by its name, with the reason in `reasons`.
    """

    def __init__(
        self,
        dataset_file: str | os.PathLike[str],
        iteration_dtype: Any = None,
        float_dtype: Any = None,
        int_dtype: Any = None,
        compression: Any = None,
        compression_opts: Any = None,
        shuffle: bool = False,
        existing_ok: bool = True,
    ) -> None:
        self._sink: Any = None
        if not is_on():
            return
        from tensortap.sinks.hdf5 import HDF5  # a tracer that writes no file needs no h5py

        self._sink = HDF5(
            dataset_file,
            iteration_dtype=iteration_dtype,
            float_dtype=float_dtype,
            int_dtype=int_dtype,
            compression=compression,
            compression_opts=compression_opts,
            shuffle=shuffle,
            existing_ok=existing_ok,
        )
        self._tap = Tap(sinks=[self._sink])

    @property
    def datasets(self) -> Any:
        return {} if self._sink is None else self._sink.datasets

    @property
    def skipped(self) -> dict[str, int]:
        return {} if self._sink is None else self._sink.skipped

    @property
    def reasons(self) -> dict[str, str]:
        return {} if self._sink is None else self._sink.reasons

    def __call__(self, name: str, values: list[Any], iterations: list[Any], ranks: list[Any]) -> None:
        if self._sink is not None:
            for value, iteration, rank in zip(values, iterations, ranks, strict=True):
                self._tap.emit(Record(name, value, step=iteration, rank=rank))
        for column in (values, iterations, ranks):
            column.clear()

    def flush(self) -> None:
        """Also happens when the tracer's `with` block ends."""
        if self._sink is not None:
            self._tap.flush()

    def close(self) -> None:
        """Also happens when the program ends."""
        if self._sink is not None:
            self._sink.close()  # the tap stays open: the sink counts what comes afterwards as skipped


def _check_callbacks(argument: str, callbacks: Any) -> list[Callback]:
    if callable(callbacks) or not isinstance(callbacks, Iterable):
        shown = getattr(callbacks, "__name__", None) or repr(callbacks)
        raise TypeError(f"{argument} is {shown}; give a list of functions")
    return list(callbacks)


def _add_model_output(paths: Any) -> Any:
    is_list = isinstance(paths, Iterable) and not isinstance(paths, str)
    return list(dict.fromkeys([*paths, "forward"])) if is_list else paths


def _flush_or_log(saver: H5PYSaverCallback) -> None:
    """Flush; a failed write is logged, so that it does not end a program that may have trained for days."""
    try:
        saver.flush()
    except WriteFailedError:
        if is_strict():
            raise
        log.exception("the end of a trace is not written")
