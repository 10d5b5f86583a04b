"""One tensor: its facts, and its values or a difference, read lazily as flat ranges or 2-D grids."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from tensortap.comparison.sides.leaf import Operand
from tensortap.core.errors import TensortapError
from tensortap.kernels.accumulator import has_ulp_distance, ulp_distances
from tensortap.kernels.decode import decode, dtype_info
from tensortap.kernels.statistics import STATISTIC_FIELDS, Statistics, statistics
from tensortap.render.text import truncate
from tensortap.viewer.data.cached_run import CachedRun
from tensortap.viewer.web.responses import NotFoundError, TooLargeError

_MAX_TEXT = 4000
_IMPORT_LINE = "import tensortap as tt\n\n"
_MAX_STATISTICS_BYTES = 256 << 20  # read for the statistics of a page
Array = np.ndarray[Any, Any]
AxisIndex = slice | Array
DifferenceMode = Literal["value", "abs", "rel", "ulp", "sign"]
_MAX_REDUCED_BYTES = 256 << 20
_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "std": np.std,
    "absmax": lambda part, axis: np.abs(part).max(axis=axis),
}


def record_facts(run: CachedRun, row: int, address: str) -> dict[str, Any]:
    run.check_row(row)
    operand, problem = _operand_or_problem(run, row)
    shape = list(operand.bits.shape) if operand is not None else _recorded_shape(run, row)
    moment = {field: int(run.column(field)[row]) for field in ("step", "rank", "call", "order", "nbytes")}
    return {
        "row": row,
        "name": run.text("name", row),
        "kind": run.text("kind", row),
        **moment,
        "time": float(run.column("time")[row]),
        "dtype": run.text("dtype", row),
        "shape": shape,
        **run.dataset.facts(row),
        "is_array": operand is not None,
        "problem": problem,
        "statistics": operand_statistics(operand) if operand is not None else None,
        "value": scalar_value(operand),
        "text": None if operand is not None or problem else _opaque_text(run, row),
        "python": loading_code(run, row),
        "download": f"{address}/value.npy",
        "view": default_view(shape),
        **_adjacent_steps(run, row),
    }


def default_view(shape: list[int]) -> dict[str, Any]:
    """The last two axes at index 0 of the others."""
    shown_axes = list(range(len(shape)))[-2:]
    return {
        "axes": shown_axes,
        "index": ",".join(":" if axis in shown_axes else "0" for axis in range(len(shape))),
    }


def scalar_value(operand: Operand | None) -> float | None:
    """The value of a one-element tensor, else None; statistics do not tell the sign of an infinity."""
    return None if operand is None or operand.bits.size != 1 else float(MappedTensor(operand).flat(0, 1)[0])


def operand_statistics(operand: Operand) -> dict[str, Any] | None:
    if operand.bits.nbytes > _MAX_STATISTICS_BYTES:
        return None
    return statistics_facts(statistics(operand.bits, operand.dtype))


def statistics_facts(statistics: Statistics) -> dict[str, Any]:
    return {field.name: field.read(statistics) for field in STATISTIC_FIELDS}


def loading_code(run: CachedRun, row: int) -> str:
    """Python code that loads the value."""
    opening, access = _loading_parts(run, row)
    name = "trace" if run.dataset.type == "trace" else "run"
    return f"{_IMPORT_LINE}{name} = {opening}\nx = {name}{access}"


def loading_expression(run: CachedRun, row: int) -> str:
    """A Python expression that loads the value."""
    return "".join(_loading_parts(run, row))


def _loading_parts(run: CachedRun, row: int) -> tuple[str, str]:
    """Expressions that open the run and select the value."""
    name = run.text("name", row)
    if run.dataset.type == "trace":
        position = int(run.same_name_before(row).sum())
        return f"tt.TraceFile({str(run.path)!r})", f"[{name!r}][{position}]"
    moment = ", ".join(f"{field}={int(run.column(field)[row])}" for field in ("step", "rank", "call"))
    return f"tt.Run({str(run.path)!r})", f".load({name!r}, {moment})"


def _operand_or_problem(run: CachedRun, row: int) -> tuple[Operand | None, str]:
    try:
        return run.operand(row), ""
    except (TensortapError, OSError, ValueError) as error:
        return None, str(error)


def _recorded_shape(run: CachedRun, row: int) -> list[int]:
    text = run.text("shape", row)
    return [int(size) for size in text.split(",")] if text else []


def _opaque_text(run: CachedRun, row: int) -> str:
    """The repr of a value that is not an array."""
    try:
        value = run.dataset.value(row)
    except (TensortapError, OSError, ValueError, KeyError, EOFError, TypeError) as error:
        return f"it cannot be read: {error}"
    text = value if isinstance(value, str) else repr(value)
    return truncate(text, _MAX_TEXT, "...")


def _adjacent_steps(run: CachedRun, row: int) -> dict[str, Any]:
    rows = run.series_rows(row, "steps")
    position = int(np.flatnonzero(rows == row)[0])
    steps = run.column("step")[rows]
    return {
        "previous": int(rows[position - 1]) if position else None,
        "next": int(rows[position + 1]) if position + 1 < len(rows) else None,
        "steps": [int(steps[0]), int(steps[-1]), len(rows)],
    }


class Grid(Protocol):
    """A 2-D view. `cost` is the bytes read from disk per element of a row."""

    shape: tuple[int, int]
    cost: int
    is_column_major: bool  # elements of a column are closer in memory than those of a row
    needs_float64: bool  # float32 would lose precision

    def read(self, rows: AxisIndex, columns: AxisIndex) -> Array: ...


class ReadableTensor(Protocol):
    shape: tuple[int, ...]
    needs_float64: bool

    def flat(self, start: int, stop: int) -> Array:
        """The values from one flat index to another."""

    def grid(self, axes: str, index: str) -> Grid: ...


class SliceSpec(NamedTuple):
    """An index (int, reduction or `:`) per axis, and the order of the shown axes."""

    indices: tuple[int | str, ...]
    shown_axes: tuple[int, ...]


class MappedTensor:
    """A memory-mapped array: bits of the storage type, and the dtype they encode."""

    def __init__(self, operand: Operand) -> None:
        self.bits, self.dtype = operand.bits, operand.dtype
        self.shape = operand.bits.shape
        self.needs_float64 = _needs_float64(operand.dtype)

    def flat(self, start: int, stop: int) -> Array:
        return to_real(decode(np.ascontiguousarray(self.bits.reshape(-1)[start:stop]), self.dtype))

    def grid(self, axes: str, index: str) -> TensorGrid:
        spec = parse_slice(self.shape, axes, index)
        if any(isinstance(entry, str) and entry != ":" for entry in spec.indices):
            return self._reduce_axes(spec)
        picked = self.bits[_numpy_index(spec)]
        return TensorGrid(_as_matrix(picked, spec.shown_axes), self.dtype)

    def _reduce_axes(self, spec: SliceSpec) -> TensorGrid:
        picked = self.bits[_numpy_index(spec)]
        nbytes = max(picked.nbytes, 4 * picked.size)  # smaller dtypes are widened to float32
        if nbytes > _MAX_REDUCED_BYTES:
            raise TooLargeError(
                f"to reduce these axes {nbytes >> 20} MB would be held, and {_MAX_REDUCED_BYTES >> 20} "
                "are allowed; fix more axes"
            )
        part = to_real(decode(np.ascontiguousarray(picked), self.dtype))
        entries = [entry for entry in spec.indices if isinstance(entry, str)]
        with np.errstate(all="ignore"):
            for axis in reversed(range(len(entries))):
                if entries[axis] != ":":
                    part = _REDUCTIONS[entries[axis]](part, axis=axis)
        part = np.asarray(part, np.float64 if part.dtype.itemsize > 4 else np.float32)
        return TensorGrid(_as_matrix(part, spec.shown_axes), str(part.dtype))


class TensorGrid:
    """A 2-D slice of one array."""

    def __init__(self, bits: Array, dtype: str) -> None:
        self._bits, self._dtype = bits, dtype
        self.shape = (bits.shape[0], bits.shape[1])
        # Beyond a memory page, a larger stride costs no more.
        steps = [min(abs(step), 4096) for step in bits.strides]
        self.is_column_major = self.shape[0] > 1 and self.shape[1] > 1 and steps[0] < steps[1]
        self.cost = max(steps[1], bits.itemsize)
        self.needs_float64 = _needs_float64(dtype)

    def read(self, rows: AxisIndex, columns: AxisIndex) -> Array:
        return to_real(decode(np.ascontiguousarray(self._bits[rows][:, columns]), self._dtype))

    def read_bits(self, rows: AxisIndex, columns: AxisIndex) -> tuple[Array, str]:
        return np.ascontiguousarray(self._bits[rows][:, columns]), self._dtype

    @property
    def transposed(self) -> TensorGrid:
        return TensorGrid(self._bits.T, self._dtype)


class TensorDifference:
    """B minus A, in the unit given by `mode`."""

    def __init__(self, a: MappedTensor, b: MappedTensor, mode: DifferenceMode) -> None:
        if a.shape != b.shape:
            raise NotFoundError(
                f"there is no difference to show: A has the shape {list(a.shape)}, B {list(b.shape)}"
            )
        self.a, self.b, self._mode = a, b, mode
        self.shape, self.needs_float64 = a.shape, a.needs_float64 or b.needs_float64

    def flat(self, start: int, stop: int) -> Array:
        pieces = [
            (np.ascontiguousarray(tensor.bits.reshape(-1)[start:stop]), tensor.dtype)
            for tensor in (self.a, self.b)
        ]
        return difference(pieces[0], pieces[1], self._mode)

    def grid(self, axes: str, index: str) -> DifferenceGrid:
        return DifferenceGrid(self.a.grid(axes, index), self.b.grid(axes, index), self._mode)


class DifferenceGrid:
    def __init__(self, a: TensorGrid, b: TensorGrid, mode: DifferenceMode) -> None:
        self._a, self._b, self._mode = a, b, mode
        self.shape, self.cost = a.shape, a.cost + b.cost
        self.is_column_major, self.needs_float64 = a.is_column_major, a.needs_float64 or b.needs_float64

    def read(self, rows: AxisIndex, columns: AxisIndex) -> Array:
        return difference(self._a.read_bits(rows, columns), self._b.read_bits(rows, columns), self._mode)

    @property
    def transposed(self) -> DifferenceGrid:
        return DifferenceGrid(self._a.transposed, self._b.transposed, self._mode)


def difference(a: tuple[Array, str], b: tuple[Array, str], mode: DifferenceMode) -> Array:
    """B - A elementwise; equal infinities and NaN in both count as equal, as everywhere."""
    x, y = (to_real(decode(*operand)).astype(np.float64) for operand in (a, b))
    with np.errstate(all="ignore"):
        differences = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, y - x)
        if mode == "abs":
            return np.abs(differences)
        if mode == "rel":
            largest = np.maximum(np.abs(x), np.abs(y))
            return np.abs(np.where(largest > 0, differences / largest, 0.0))
        if mode == "sign":
            return np.sign(differences)
        if mode == "ulp":
            return _ulp_difference(a, b, differences)
    return differences


def parse_slice(shape: tuple[int, ...], axes: str, index: str) -> SliceSpec:
    """Parse `axes=1,2` and `index=0,:,:,mean`; the default shows the last two axes."""
    shown_axes = _parse_axes(shape, axes, index)
    indices = _parse_index(shape, index, shown_axes)
    remaining = [axis for axis, entry in enumerate(indices) if entry == ":"]
    return SliceSpec(indices, tuple(remaining.index(axis) for axis in shown_axes))


def to_real(values: Array) -> Array:
    """Floats for drawing: half and integer types are widened, complex numbers become their magnitude."""
    if values.dtype.kind == "c":
        values = np.abs(values.astype(np.complex128))
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return values
    is_small = values.dtype.kind == "b" or values.dtype.itemsize <= 2
    return values.astype(np.float32 if is_small else np.float64)


def _parse_axes(shape: tuple[int, ...], axes: str, index: str) -> tuple[int, ...]:
    if axes:
        shown_axes = tuple(_parse_axis(shape, axis) for axis in axes.split(","))
        if not 1 <= len(shown_axes) <= 2 or len(set(shown_axes)) < len(shown_axes):
            raise ValueError(f"axes={axes!r} must name one or two different axes")
        return shown_axes
    if index:
        return tuple(axis for axis, entry in enumerate(index.split(",")) if entry.strip() == ":")[:2]
    return tuple(range(len(shape)))[-2:]


def _parse_axis(shape: tuple[int, ...], text: str) -> int:
    if not text.strip().isdecimal() or int(text) >= len(shape):
        raise ValueError(f"there is no axis {text!r}; the shape is {list(shape)}, and axes count from 0")
    return int(text)


def _parse_index(shape: tuple[int, ...], index: str, shown_axes: tuple[int, ...]) -> tuple[int | str, ...]:
    entries = [entry.strip() for entry in index.split(",")] if index else ["0"] * len(shape)
    if len(entries) != len(shape):
        raise ValueError(
            f"index={index!r} has {len(entries)} words; the shape {list(shape)} has {len(shape)} axes"
        )
    return tuple(
        ":" if axis in shown_axes else _parse_index_entry(entry, shape, axis)
        for axis, entry in enumerate(entries)
    )


def _parse_index_entry(entry: str, shape: tuple[int, ...], axis: int) -> int | str:
    if entry in _REDUCTIONS:
        return entry
    if entry == ":":  # not one of the shown axes
        return 0
    if not entry.lstrip("-").isdecimal() or not -shape[axis] <= int(entry) < shape[axis]:
        raise ValueError(f"axis {axis} has the size {shape[axis]}, so there is no {entry!r} in it")
    return int(entry)


def _numpy_index(spec: SliceSpec) -> tuple[int | slice, ...]:
    return tuple(entry if isinstance(entry, int) else slice(None) for entry in spec.indices)


def _as_matrix(picked: Array, shown_axes: tuple[int, ...]) -> Array:
    if picked.ndim == 2:
        return picked if shown_axes == (0, 1) else picked.T
    return picked.reshape(1, -1) if picked.ndim < 2 else picked.reshape(prod(picked.shape[:-1]), -1)


def _needs_float64(dtype: str) -> bool:
    info = dtype_info(dtype)
    return info.itemsize > (8 if info.family == "complex" else 4) or dtype in ("int32", "uint32")


def _ulp_difference(a: tuple[Array, str], b: tuple[Array, str], differences: Array) -> Array:
    if not has_ulp_distance(a[1], b[1]):
        return np.full(differences.shape, np.nan)
    ulps = ulp_distances(a[0], b[0], a[1]).astype(np.float64)
    return np.where(np.isfinite(differences) & (differences != 0), ulps, np.abs(differences))
