"""A sink that appends values to the datasets of an HDF5 file, which is whole when the program is killed."""

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
from tensortap.core.ranks import ranks as this_process
from tensortap.core.record import Record
from tensortap.formats.hdf5_layout import Moment, Storing, filters_of, open_file
from tensortap.formats.hdf5_names import ITERATIONS, RANKS
from tensortap.formats.hdf5_values import Casts, encode
from tensortap.formats.hdf5_writer import TraceWriter, make_room
from tensortap.frameworks.nested import is_container, leaves

log = logging.getLogger("tensortap.hdf5")


class HDF5:
    """Write each name to a dataset of its own, with `<name>_iterations` and `<name>_ranks` beside it.

    Values keep their type unless `float_dtype` or `int_dtype` say otherwise. Small values wait for company,
    at most a second and then until the next one comes; `flush` and `close` write them. What cannot be
    stored is counted in `skipped`, with the reason in `reasons`. Only rank 0 has a file.

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
        self._casts = Casts(_dtype("float_dtype", float_dtype, "f"), _dtype("int_dtype", int_dtype, "iu"))
        iterations = _dtype("iteration_dtype", iteration_dtype, "iuf") or np.dtype(np.int64)
        how = Storing(iterations, filters_of(compression, compression_opts, shuffle))
        self.datasets: dict[str, Stored] = {}
        self.skipped: dict[str, int] = {}
        self.reasons: dict[str, str] = {}
        self._file: TraceWriter | None = None
        if this_process().rank == 0:
            make_room(self.path, existing_ok)
            self._file = TraceWriter(self.path, how)
            weakref.finalize(self, _end, self._file)  # also when the program ends without closing it

    def write(self, record: Record) -> None:
        self.append(record.name, [record.value], [record.step], [record.rank])

    def append(self, name: str, values: list[Any], iterations: list[Any], ranks: list[Any]) -> None:
        """Add values of one name; iterations and ranks are numbers, or lists where several were stacked."""
        file = self._file
        if file is None:
            return
        for value, iteration, rank in zip(values, iterations, ranks, strict=True):
            self._add(file, name, value, iteration, rank)
        file.commit_if_due()

    def flush(self) -> None:
        """Return when a reader can see every value, and a kill can take none of them."""
        if self._file is not None:
            self._file.commit()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _add(self, file: TraceWriter, name: str, value: Any, iteration: Any, rank: Any) -> None:
        try:
            cell = encode(value, self._casts)
        except UnsupportedValueError as error:
            inside = list(leaves(value)) if is_container(value) else []
            if not inside:
                self._skip(name, error)
            for path, leaf in inside:
                self._add(file, name + path, leaf, iteration, rank)
            return
        try:
            at = Moment(_numbers("iteration", iteration, file.how.iterations), _numbers("rank", rank))
            key = file.add(name, cell, at)
        except (UnsupportedValueError, ValueError, TypeError) as error:
            self._skip(name, error)
        else:
            if name not in self.datasets:
                self.datasets[name] = Stored(file, key)

    def _skip(self, name: str, error: Exception) -> None:
        if name not in self.skipped:
            log.warning("%r is not in %s: %s", name, self.path, error)
        self.skipped[name] = self.skipped.get(name, 0) + 1
        self.reasons[name] = str(error)


class Stored:
    """A dataset of the trace, as h5py shows it; readable also after the file was closed.

    `.iterations` and `.ranks` are the datasets beside it.
    """

    def __init__(self, file: TraceWriter, key: str) -> None:
        self._file, self._key = file, key

    @property
    def iterations(self) -> Stored:
        return Stored(self._file, self._key + ITERATIONS)

    @property
    def ranks(self) -> Stored:
        return Stored(self._file, self._key + RANKS)

    @property
    def name(self) -> str:
        return f"/{self._key}"

    @property
    def attrs(self) -> dict[str, Any]:
        with self._opened() as dataset:
            return dict(dataset.attrs)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        with self._opened() as dataset:
            return getattr(dataset, attribute)

    def __getitem__(self, selection: Any) -> Any:
        with self._opened() as dataset:
            return dataset[selection]

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return (self[position] for position in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self[()], dtype)

    def __repr__(self) -> str:
        with self._opened() as dataset:
            return repr(dataset)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Any]:
        if self._file.is_open:
            self._file.write_out()
            yield self._file.library[self._key]
            return
        with open_file(self._file.path) as library:
            yield library[self._key]


def _end(file: TraceWriter) -> None:
    try:
        file.close()
    except WriteFailedError:
        log.exception("the end of a trace is lost")


def _numbers(what: str, value: Any, dtype: np.dtype[Any] | None = None) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise UnsupportedValueError(f"{value!r} is no {what}; give a number, or a list of numbers")
    if dtype is not None and array.dtype != dtype and (array.astype(dtype) != array).any():
        raise UnsupportedValueError(f"{what} {value!r} does not fit {dtype}; give another iteration_dtype")
    return array


def _dtype(argument: str, wanted: Any, kinds: str) -> np.dtype[Any] | None:
    if wanted is None:
        return None
    text = str(wanted).removeprefix("torch.") if type(wanted).__module__ == "torch" else wanted
    try:
        found = np.dtype(text)
    except TypeError:
        found = None
    if found is None or found.kind not in kinds:
        raise ValueError(f"{argument} is a number type of numpy, as 'float32' or 'int64', not {wanted!r}")
    return found
