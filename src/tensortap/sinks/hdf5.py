"""A sink that appends values to datasets of an HDF5 file, which stays readable if the program is killed."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tensortap.core.errors import UnsupportedValueError, WriteFailedError
from tensortap.core.ranks import rank_info as this_process
from tensortap.core.record import Record
from tensortap.formats.hdf5.schema import (
    ITERATIONS,
    RANKS,
    StepAndRank,
    StorageOptions,
    open_file,
    resolve_filters,
)
from tensortap.formats.hdf5.values import DtypeCasts, encode_cell
from tensortap.formats.hdf5.writer import TraceWriter, move_existing_aside
from tensortap.frameworks.pytree import is_container, leaves

log = logging.getLogger("tensortap.hdf5")


class HDF5:
    """Write each name to its own dataset, with `<name>_iterations` and `<name>_ranks` beside it.

    Values keep their dtype unless `float_dtype` or `int_dtype` are given. Small values are batched, and
    written with the first value after a second has passed; `flush` and `close` write them. Values that
    cannot be stored are counted in `skipped`, with the reason in `reasons`. Only rank 0 has a file.

    >>> sink = HDF5("trace.h5", compression="gzip")
    >>> sink.append("loss", [0.5, 0.4], [1, 2], [0, 0])
    >>> sink.datasets["loss"][:], sink.datasets["loss"].iterations[:]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        iteration_dtype: Any = None,
        float_dtype: Any = None,
        int_dtype: Any = None,
        compression: Any = None,
        compression_opts: Any = None,
        shuffle: bool = False,
        existing_ok: bool = True,
    ) -> None:
        self.path = Path(os.path.abspath(path))  # the program may change its working directory
        self._casts = DtypeCasts(
            _check_dtype("float_dtype", float_dtype, "f"), _check_dtype("int_dtype", int_dtype, "iu")
        )
        iterations = _check_dtype("iteration_dtype", iteration_dtype, "iuf") or np.dtype(np.int64)
        layout = StorageOptions(iterations, resolve_filters(compression, compression_opts, shuffle))
        self.datasets: dict[str, DatasetView] = {}
        self.skipped: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self._file: TraceWriter | None = None
        if this_process().rank == 0:
            move_existing_aside(self.path, existing_ok)
            self._file = TraceWriter(self.path, layout)
            weakref.finalize(self, _close_file, self._file)  # also when the program ends without closing it

    def write(self, record: Record) -> None:
        self.append(record.name, [record.value], [record.step], [record.rank])

    def append(self, name: str, values: list[Any], iterations: list[Any], ranks: list[Any]) -> None:
        """Append values of one name; iterations and ranks are numbers, or lists for stacked values."""
        file = self._file
        if file is None:
            return
        for value, iteration, rank in zip(values, iterations, ranks, strict=True):
            self._add(file, name, value, iteration, rank)
        file.commit_if_due()

    def flush(self) -> None:
        """Return when readers see every value and none can be lost by a kill."""
        if self._file is not None:
            self._file.commit()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _add(self, file: TraceWriter, name: str, value: Any, iteration: Any, rank: Any) -> None:
        try:
            cell = encode_cell(value, self._casts)
        except UnsupportedValueError as error:
            inner_leaves = list(leaves(value)) if is_container(value) else []
            if not inner_leaves:
                self._skip(name, error)
            for path, leaf in inner_leaves:
                self._add(file, name + path, leaf, iteration, rank)
            return
        try:
            moment = StepAndRank(
                _as_numeric_array("iteration", iteration, file.options.iterations),
                _as_numeric_array("rank", rank),
            )
            key = file.add(name, cell, moment)
        except (UnsupportedValueError, ValueError, TypeError) as error:
            self._skip(name, error)
        else:
            if name not in self.datasets:
                self.datasets[name] = DatasetView(file, key)

    def _skip(self, name: str, error: Exception) -> None:
        if name not in self.skipped:
            log.warning("%r is not in %s: %s", name, self.path, error)
        self.skipped[name] = self.skipped.get(name, 0) + 1
        self.reasons[name] = str(error)


class DatasetView:
    """A dataset of the trace with h5py's interface, readable also after the file was closed.

    `.iterations` and `.ranks` are the datasets beside it.
    """

    def __init__(self, file: TraceWriter, key: str) -> None:
        self._file, self._key = file, key

    @property
    def iterations(self) -> DatasetView:
        return DatasetView(self._file, self._key + ITERATIONS)

    @property
    def ranks(self) -> DatasetView:
        return DatasetView(self._file, self._key + RANKS)

    @property
    def name(self) -> str:
        return f"/{self._key}"

    @property
    def attrs(self) -> dict[str, Any]:
        with self._open_dataset() as dataset:
            return dict(dataset.attrs)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        with self._open_dataset() as dataset:
            return getattr(dataset, attribute)

    def __getitem__(self, selection: Any) -> Any:
        with self._open_dataset() as dataset:
            return dataset[selection]

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self[()], dtype)

    def __repr__(self) -> str:
        with self._open_dataset() as dataset:
            return repr(dataset)

    @contextlib.contextmanager
    def _open_dataset(self) -> Iterator[Any]:
        if self._file.is_open:
            self._file.write_out()
            yield self._file.library[self._key]
            return
        with open_file(self._file.path) as library:
            yield library[self._key]


def _close_file(file: TraceWriter) -> None:
    try:
        file.close()
    except WriteFailedError:
        log.exception("the end of a trace is lost")


def _as_numeric_array(label: str, value: Any, dtype: np.dtype[Any] | None = None) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise UnsupportedValueError(f"{value!r} is no {label}; give a number, or a list of numbers")
    if dtype is not None and array.dtype != dtype and (array.astype(dtype) != array).any():
        raise UnsupportedValueError(f"{label} {value!r} does not fit {dtype}; give another iteration_dtype")
    return array


def _check_dtype(argument: str, requested: Any, kinds: str) -> np.dtype[Any] | None:
    if requested is None:
        return None
    dtype_name = str(requested).removeprefix("torch.") if type(requested).__module__ == "torch" else requested
    try:
        dtype = np.dtype(dtype_name)
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in kinds:
        raise ValueError(f"{argument} is a number type of numpy, as 'float32' or 'int64', not {requested!r}")
    return dtype
