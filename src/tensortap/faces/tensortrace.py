"""TensorTracer: trace any variable inside a model, gather it over ranks, keep it in HDF5."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from tensortap.core.record import Series
from tensortap.core.settings import is_on
from tensortap.core.tap import Tap
from tensortap.recording.tracing import Trace
from tensortap.stages.gather import Gather
from tensortap.stages.reduce import stack_padded_tensors, stack_tensors

__all__ = ["H5PYSaverCallback", "ModelTracer", "stack_padded_tensors", "stack_tensors"]

Callback = Callable[..., object]


class ModelTracer:
    """Trace the variables at these paths while the `with` block runs.

    >>> with ModelTracer(model, ["forward", "forward.x"], gathering_interval=4) as tracer:
    ...     train()
    >>> tracer.results["forward.x"].values      # on rank 0, with .iterations and .ranks
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
        pre_save_callbacks: Sequence[Callable[[str, Any, Any], Any]] = (),
        train_only: bool = False,
        eval_only: bool = False,
        drop_last: bool = False,
        tap: Tap | None = None,
    ) -> None:
        if train_only and eval_only:
            raise ValueError("train_only and eval_only leave nothing to trace; give one of them")
        gather = Gather(
            gathering_interval, pre=pre_gather_callbacks, post=post_gather_callbacks, drop_last=drop_last
        )

        def rests(iteration: int) -> bool:
            is_wrong_mode = (train_only and not model.training) or (eval_only and model.training)
            return is_wrong_mode or iteration % trace_interval != 0

        self._trace = Trace(
            model,
            paths,
            gather=gather,
            post_trace=post_trace_callbacks,
            pre_save=pre_save_callbacks,
            rests=rests if train_only or eval_only or trace_interval != 1 else None,
            also=tap,
        )

    @property
    def results(self) -> dict[str, Series]:
        """By path: `.values`, `.iterations` and `.ranks`; empty on other ranks than 0."""
        return self._trace.results

    def __enter__(self) -> Self:
        if is_on():
            self._trace.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if is_on():
            self._trace.stop(is_failure=kind is not None)


class H5PYSaverCallback:
    """Move values into an HDF5 file as they are gathered; `datasets[path]` is what it holds of a path."""

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
        from tensortap.sinks.hdf5 import HDF5  # a tracer that writes no file needs no h5py

        self._file = HDF5(
            dataset_file,
            iteration_dtype=iteration_dtype,
            float_dtype=float_dtype,
            int_dtype=int_dtype,
            compression=compression,
            compression_opts=compression_opts,
            shuffle=shuffle,
            existing_ok=existing_ok,
        )

    @property
    def datasets(self) -> Any:
        return self._file.datasets

    def __call__(self, name: str, values: list[Any], iterations: list[Any], ranks: list[Any]) -> None:
        self._file.append(name, values, iterations, ranks)
        for column in (values, iterations, ranks):
            column.clear()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Also happens when the program ends."""
        self._file.close()
