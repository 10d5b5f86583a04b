"""Callbacks that stack many values into one or reduce each, before or after gathering, or after the trace.

Each takes `(name, values, iterations, ranks)` and edits the lists in place, or `(name, results)` with an
object that has them. Torch in, torch out; numpy in, numpy out. Non-arrays are left unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import map_leaves

_Shapes = list[tuple[int, ...]]
_NO_VALUES: Any = object()  # no list of values given: the first argument is the value


def stack_padded_tensors(
    name: str, values: Any, iterations: Any = None, ranks: Any = None, *, padding: complex = 0
) -> None:
    """Stack all values into one, along a new first dimension; smaller ones are padded at their ends.

    Iterations and ranks become one tuple each, so that `values[0][i]` is of `iterations[0][i]` and
    `ranks[0][i]`, however often stacking is repeated. Values that are not all arrays stay as they are.
    """
    arrays = _values_list(values)
    if arrays and _are_stackable(arrays):
        shapes = [tuple(value.shape) for value in arrays]
        if len({len(shape) for shape in shapes}) > 1:
            raise ValueError(
                f"{name!r} has values of different numbers of dimensions ({_join_shapes(shapes)}), which "
                "padding cannot make equal; reduce them first, e.g. with mean()"
            )
        _replace_by_stacked(_stack(_pad_all(arrays, shapes, padding)), values, iterations, ranks)


def stack_tensors(name: str, values: Any, iterations: Any = None, ranks: Any = None) -> None:
    """Stack all values into one, along a new first dimension; their shapes must be equal."""
    arrays = _values_list(values)
    if arrays and _are_stackable(arrays):
        shapes = [tuple(value.shape) for value in arrays]
        if len(set(shapes)) > 1:
            raise ValueError(
                f"{name!r} has values of different shapes ({_join_shapes(shapes)}), which cannot be stacked; "
                "stack_padded_tensors pads them"
            )
        _replace_by_stacked(_stack(arrays), values, iterations, ranks)


class ArrayTransform:
    """A callback that transforms each array independently, also inside lists, dicts and other containers.
    Called with a single value it returns the transformed value, as `keep=` of a capture expects."""

    def __init__(self, label: str, transform: Callable[[Any], Any]) -> None:
        self.__name__ = label
        self._transform = transform

    def __call__(self, name: Any, values: Any = _NO_VALUES, iterations: Any = None, ranks: Any = None) -> Any:
        if values is _NO_VALUES:
            return map_leaves(name, self._transform_leaf)
        entries = _values_list(values)
        entries[:] = [map_leaves(value, self._transform_leaf) for value in entries]
        return None

    def _transform_leaf(self, value: Any) -> Any:
        return self._transform(value) if _is_array(value) else value

    def __repr__(self) -> str:
        return self.__name__


def mean(dim: int | Sequence[int] | None = None) -> ArrayTransform:
    """The mean over these dimensions, or over all; integers are converted to floating point first."""
    axes = dim if dim is None or isinstance(dim, int) else tuple(dim)

    def transform(value: Any) -> Any:
        value = _to_inexact(value)
        return value.mean(dim=axes) if _is_tensor(value) else value.mean(axis=axes)

    return ArrayTransform(f"mean({'' if dim is None else dim})", transform)


def norm() -> ArrayTransform:
    """The L2 norm of the whole array."""

    def transform(value: Any) -> Any:
        flat = _to_inexact(value).reshape(-1)
        if framework_of(flat).describe(flat).dtype in ("float16", "bfloat16"):
            flat = _cast_to("float32", flat)  # the sum of squares would overflow half precision
        return _library_of(flat).linalg.norm(flat)

    return ArrayTransform("norm()", transform)


def histogram(bins: int, range: tuple[float, float] | None = None) -> ArrayTransform:
    """Counts of the numbers in `bins` bins of equal width.

    Without a range each array is binned between its own minimum and maximum, which are not stored: give a
    range to compare steps. Numbers outside the range, NaN and Inf are not counted.
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"histogram({bins!r}) has no bins; give a whole number from 1 on")

    def transform(value: Any) -> Any:
        if DTYPE_TABLE[framework_of(value).describe(value).dtype].family == "complex":
            raise UnsupportedValueError("complex numbers have no order to count them by; trace x.abs()")
        flat = _to_inexact(value).reshape(-1)
        flat = flat[_library_of(flat).isfinite(flat)]
        limits = range if range is not None or flat.shape[0] else (0.0, 1.0)
        if _is_tensor(flat):
            return _histogram_of_tensor(flat, bins, limits)
        return _library_of(flat).histogram(flat, bins, limits)[0].astype(int)

    return ArrayTransform(f"histogram({bins})", transform)


def slice_of(*index: Any) -> ArrayTransform:
    """A copy of `value[index]`: `slice_of(0)`, `slice_of(..., slice(0, 4))`."""

    def transform(value: Any) -> Any:
        part = value[index]
        # A view would keep the full array in memory.
        return part.clone() if _is_tensor(part) else part.copy()

    return ArrayTransform(f"slice_of({', '.join(map(repr, index))})", transform)


def cast(dtype: Any) -> ArrayTransform:
    """The same numbers in another dtype: `cast("float16")`, `cast(torch.bfloat16)`, `cast(np.float32)`."""
    name = _dtype_name(dtype)
    return ArrayTransform(f"cast({name!r})", lambda value: _cast_to(name, value))


def _values_list(values: Any) -> list[Any]:
    """The list itself, or the `values` list of a results object."""
    entries: list[Any] = getattr(values, "values", values)
    return entries


def _replace_by_stacked(stacked: Any, values: Any, iterations: Any, ranks: Any) -> None:
    if not isinstance(values, list):
        iterations, ranks = values.iterations, values.ranks
    _values_list(values)[:] = [stacked]
    for column in (iterations, ranks):
        if column is not None:
            column[:] = [tuple(column)]


def _are_stackable(values: list[Any]) -> bool:
    return all(map(_is_array, values)) and len({framework_of(value).name for value in values}) == 1


def _is_array(value: Any) -> bool:
    description = framework_of(value).describe(value)
    return description.layout == "strided" and description.dtype in DTYPE_TABLE


def _is_tensor(value: Any) -> bool:
    return framework_of(value).name == "torch"


def _library_of(value: Any) -> Any:
    """The array's library: torch, jax.numpy or numpy, which share most function names."""
    name = framework_of(value).name
    return np if name == "numpy" else sys.modules["torch" if name == "torch" else "jax.numpy"]


def _stack(values: list[Any]) -> Any:
    if _is_tensor(values[0]) and len({value.dtype for value in values}) > 1:
        dtype = values[0].dtype
        for value in values[1:]:
            dtype = sys.modules["torch"].promote_types(dtype, value.dtype)
        values = [value.to(dtype) for value in values]
    return _library_of(values[0]).stack(values)


def _pad_all(values: list[Any], shapes: _Shapes, padding: complex) -> list[Any]:
    if len(set(shapes)) == 1:
        return values
    full_shape = tuple(map(max, zip(*shapes, strict=True)))
    return [_pad(value, shape, full_shape, padding) for value, shape in zip(values, shapes, strict=True)]


def _pad(value: Any, shape: tuple[int, ...], full_shape: tuple[int, ...], padding: complex) -> Any:
    if _is_tensor(value):
        padded = value.new_full(full_shape, padding)
        padded[tuple(map(slice, shape))] = value
        return padded
    pad_widths = [(0, size - length) for length, size in zip(shape, full_shape, strict=True)]
    return _library_of(value).pad(value, pad_widths, constant_values=padding)


def _to_inexact(value: Any) -> Any:
    """Converted to a dtype that supports mean(): integers and one-byte floats do not."""
    framework = framework_of(value)
    dtype_info = DTYPE_TABLE[framework.describe(value).dtype]
    if dtype_info.family in ("float", "complex") and dtype_info.itemsize > 1:
        return value
    is_short = dtype_info.family == "float" or framework.name == "jax"  # jax's 64-bit types are mostly off
    return _cast_to("float32" if is_short else "float64", value)


def _cast_to(name: str, value: Any) -> Any:
    if _is_tensor(value):
        return value.to(getattr(sys.modules["torch"], name))
    return value.astype(_numpy_dtype(name))


def _histogram_of_tensor(flat: Any, bins: int, limits: tuple[float, float] | None) -> Any:
    flat = flat if flat.itemsize >= 4 else flat.float()
    low, high = flat.aminmax() if limits is None else limits
    return flat.histc(bins, float(low), float(high)).long()


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_TABLE and dtype is not None:  # numpy reads None as float64
        try:
            name = np.dtype(dtype).name
        except TypeError:
            pass
    if name not in DTYPE_TABLE:
        raise ValueError(f"cast({dtype!r}) names no type of numbers; there are {', '.join(DTYPE_TABLE)}")
    return name


def _numpy_dtype(name: str) -> Any:
    """The numpy dtype of that name; for one numpy lacks (bfloat16), the dtype of an empty ml_dtypes array."""
    dtype_info = DTYPE_TABLE[name]
    if dtype_info.native:
        return np.dtype(dtype_info.storage)
    empty = framework_of(np.empty(0)).from_bits(np.empty(0, dtype_info.storage), name)
    if framework_of(empty).describe(empty).dtype != name:
        raise UnsupportedValueError(f"numpy has no type {name!r}; installing ml_dtypes adds it")
    return empty.dtype


def _join_shapes(shapes: _Shapes) -> str:
    distinct = list(dict.fromkeys(map(str, shapes)))
    return ", ".join(distinct[:4]) + (", ..." if len(distinct) > 4 else "")
