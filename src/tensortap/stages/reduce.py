"""Callbacks that make one value of many or less of each, before or after gathering, or after the trace.

Each takes `(name, values, iterations, ranks)` and edits the lists in place, or `(name, results)` with an
object that has them. Torch in, torch out; numpy in, numpy out. What is no array is left as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensortap.core.dtypes import NUMBER_TYPES
from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.nested import rebuild

_Shapes = list[tuple[int, ...]]
_ALONE: Any = object()  # no list of values: the first argument is the value


def stack_padded_tensors(
    name: str, values: Any, iterations: Any = None, ranks: Any = None, *, padding: complex = 0
) -> None:
    """Stack all values to one, along a new first dimension; smaller ones are padded at their ends.

    Iterations and ranks become one tuple each, so that `values[0][i]` is of `iterations[0][i]` and
    `ranks[0][i]`, however often stacking is repeated. Values that are not all arrays stay as they are.
    """
    held = _list_of(values)
    if held and _are_arrays(held):
        shapes = [tuple(value.shape) for value in held]
        if len({len(shape) for shape in shapes}) > 1:
            raise ValueError(
                f"{name!r} has values of different numbers of dimensions ({_listed(shapes)}), which padding "
                "cannot make equal; reduce them first, e.g. with mean()"
            )
        _merge(_stack(_padded(held, shapes, padding)), values, iterations, ranks)


def stack_tensors(name: str, values: Any, iterations: Any = None, ranks: Any = None) -> None:
    """Stack all values to one, along a new first dimension; their shapes must be equal."""
    held = _list_of(values)
    if held and _are_arrays(held):
        shapes = [tuple(value.shape) for value in held]
        if len(set(shapes)) > 1:
            raise ValueError(
                f"{name!r} has values of different shapes ({_listed(shapes)}), which cannot be stacked; "
                "stack_padded_tensors pads them"
            )
        _merge(_stack(held), values, iterations, ranks)


class Each:
    """A callback that changes each array by itself, also inside of lists, dictionaries and the like. Called
    with a value alone it returns what becomes of that, as `keep=` of a capture wants it."""

    def __init__(self, label: str, change: Callable[[Any], Any]) -> None:
        self.__name__ = label
        self._change = change

    def __call__(self, name: Any, values: Any = _ALONE, iterations: Any = None, ranks: Any = None) -> Any:
        if values is _ALONE:
            return rebuild(name, self._changed)
        held = _list_of(values)
        held[:] = [rebuild(value, self._changed) for value in held]
        return None

    def _changed(self, value: Any) -> Any:
        return self._change(value) if _is_array(value) else value

    def __repr__(self) -> str:
        return self.__name__


def mean(dim: int | Sequence[int] | None = None) -> Each:
    """The mean over these dimensions, or over all; whole numbers become floating ones first."""
    axes = dim if dim is None or isinstance(dim, int) else tuple(dim)

    def change(value: Any) -> Any:
        value = _as_inexact(value)
        return value.mean(dim=axes) if _is_tensor(value) else value.mean(axis=axes)

    return Each(f"mean({'' if dim is None else dim})", change)


def norm() -> Each:
    """The root of the sum of all squares."""

    def change(value: Any) -> Any:
        flat = _as_inexact(value).reshape(-1)
        if framework_of(flat).describe(flat).dtype in ("float16", "bfloat16"):
            flat = _as("float32", flat)  # the squares of many half numbers are more than one can hold
        return _library_of(flat).linalg.norm(flat)

    return Each("norm()", change)


def histogram(bins: int, range: tuple[float, float] | None = None) -> Each:
    """How many numbers fall into each of `bins` equal parts of the range, as `bins` counts.

    Without a range each value is counted between its own least and greatest number, and what lies between
    them is not kept: give one to compare steps. Numbers outside of it, NaN and Inf are not counted.
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ValueError(f"histogram({bins!r}) has no bins; give a whole number from 1 on")

    def change(value: Any) -> Any:
        if NUMBER_TYPES[framework_of(value).describe(value).dtype].family == "complex":
            raise UnsupportedValueError("complex numbers have no order to count them by; trace x.abs()")
        flat = _as_inexact(value).reshape(-1)
        flat = flat[_library_of(flat).isfinite(flat)]
        limits = range if range is not None or flat.shape[0] else (0.0, 1.0)
        if _is_tensor(flat):
            return _counts_of_tensor(flat, bins, limits)
        return _library_of(flat).histogram(flat, bins, limits)[0].astype(int)

    return Each(f"histogram({bins})", change)


def slice_of(*index: Any) -> Each:
    """What `value[index]` gives, as a copy of its own: `slice_of(0)`, `slice_of(..., slice(0, 4))`."""

    def change(value: Any) -> Any:
        part = value[index]
        # A view would keep the whole value in memory.
        return part.clone() if _is_tensor(part) else part.copy()

    return Each(f"slice_of({', '.join(map(repr, index))})", change)


def cast(dtype: Any) -> Each:
    """The same numbers in another type: `cast("float16")`, `cast(torch.bfloat16)`, `cast(np.float32)`."""
    name = _dtype_name(dtype)
    return Each(f"cast({name!r})", lambda value: _as(name, value))


def _list_of(values: Any) -> list[Any]:
    """The list itself, or that of an object with all three."""
    held: list[Any] = getattr(values, "values", values)
    return held


def _merge(one: Any, values: Any, iterations: Any, ranks: Any) -> None:
    if not isinstance(values, list):
        iterations, ranks = values.iterations, values.ranks
    _list_of(values)[:] = [one]
    for column in (iterations, ranks):
        if column is not None:
            column[:] = [tuple(column)]


def _are_arrays(values: list[Any]) -> bool:
    return all(map(_is_array, values)) and len({framework_of(value).name for value in values}) == 1


def _is_array(value: Any) -> bool:
    described = framework_of(value).describe(value)
    return described.layout == "strided" and described.dtype in NUMBER_TYPES


def _is_tensor(value: Any) -> bool:
    return framework_of(value).name == "torch"


def _library_of(value: Any) -> Any:
    """The module with the functions for this array: torch, jax.numpy or numpy, which share most names."""
    name = framework_of(value).name
    return np if name == "numpy" else sys.modules["torch" if name == "torch" else "jax.numpy"]


def _stack(values: list[Any]) -> Any:
    if _is_tensor(values[0]) and len({value.dtype for value in values}) > 1:
        wide = values[0].dtype
        for value in values[1:]:
            wide = sys.modules["torch"].promote_types(wide, value.dtype)
        values = [value.to(wide) for value in values]
    return _library_of(values[0]).stack(values)


def _padded(values: list[Any], shapes: _Shapes, padding: complex) -> list[Any]:
    if len(set(shapes)) == 1:
        return values
    whole = tuple(map(max, zip(*shapes, strict=True)))
    return [_pad(value, shape, whole, padding) for value, shape in zip(values, shapes, strict=True)]


def _pad(value: Any, shape: tuple[int, ...], whole: tuple[int, ...], padding: complex) -> Any:
    if _is_tensor(value):
        padded = value.new_full(whole, padding)
        padded[tuple(map(slice, shape))] = value
        return padded
    missing = [(0, size - held) for held, size in zip(shape, whole, strict=True)]
    return _library_of(value).pad(value, missing, constant_values=padding)


def _as_inexact(value: Any) -> Any:
    """A type that can be averaged; neither whole numbers nor those of one byte can."""
    framework = framework_of(value)
    row = NUMBER_TYPES[framework.describe(value).dtype]
    if row.family in ("float", "complex") and row.itemsize > 1:
        return value
    is_short = row.family == "float" or framework.name == "jax"  # where jax's 64-bit types are mostly off
    return _as("float32" if is_short else "float64", value)


def _as(name: str, value: Any) -> Any:
    if _is_tensor(value):
        return value.to(getattr(sys.modules["torch"], name))
    return value.astype(_numpy_type(name))


def _counts_of_tensor(flat: Any, bins: int, limits: tuple[float, float] | None) -> Any:
    flat = flat if flat.itemsize >= 4 else flat.float()
    least, most = flat.aminmax() if limits is None else limits
    return flat.histc(bins, float(least), float(most)).long()


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in NUMBER_TYPES and dtype is not None:  # which numpy takes for float64
        try:
            name = np.dtype(dtype).name
        except TypeError:
            pass
    if name not in NUMBER_TYPES:
        raise ValueError(f"cast({dtype!r}) names no type of numbers; there are {', '.join(NUMBER_TYPES)}")
    return name


def _numpy_type(name: str) -> Any:
    """One that numpy lacks is made by its framework from no bytes at all."""
    row = NUMBER_TYPES[name]
    if row.native:
        return np.dtype(row.storage)
    empty = framework_of(np.empty(0)).from_bits(np.empty(0, row.storage), name)
    if framework_of(empty).describe(empty).dtype != name:
        raise UnsupportedValueError(f"numpy has no type {name!r}; installing ml_dtypes adds it")
    return empty.dtype


def _listed(shapes: _Shapes) -> str:
    found = list(dict.fromkeys(map(str, shapes)))
    return ", ".join(found[:4]) + (", ..." if len(found) > 4 else "")
