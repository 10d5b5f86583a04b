"""A leaf as a comparison sees it: numbers in an array, or a value that only knows ==."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.frameworks.base import framework_of
from tensortap.kernels.accumulator import Tolerance
from tensortap.kernels.decode import Array

PYTHON_NUMBERS = (bool, int, float)
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


@dataclass(frozen=True, slots=True)
class Operand:
    """Numbers to compute with: an array of the storage type of `dtype`."""

    bits: Array
    dtype: str


def numeric_shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a number or an array; None for any other value, numpy's single strings among them."""
    if is_number(value):
        return ()
    return framework_of(value).describe(value).shape if is_array_like(value) else None


def is_array_like(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and framework_of(value).name != "python"


def is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def is_big_int(value: Any) -> bool:
    """Whether it is an integer that no number type holds."""
    return isinstance(value, int) and value not in _INT64 and value not in _UINT64


def is_composite_array(value: Any) -> bool:
    """Whether it looks like one array, and is not one block of numbers: fields, objects, a mask, pieces."""
    if isinstance(value, np.ndarray):
        is_masked = isinstance(value, np.ma.MaskedArray)
        return is_masked or value.dtype.names is not None or value.dtype.hasobject
    return is_array_like(value) and framework_of(value).describe(value).layout == "nested"


def as_operand(value: Any) -> Operand | None:
    """The numbers of an array, a tensor or a Python number; None for an array of something else."""
    if is_number(value):
        return _operand_from_number(value)
    if isinstance(value, np.ndarray) and value.dtype.type is np.void:
        return None
    framework = framework_of(value)
    description = framework.describe(value)
    if description.layout == "strided" and description.dtype in DTYPE_TABLE:
        return Operand(framework.bits(value), description.dtype)
    return _operand_from_array(framework.to_numpy(value))


def _operand_from_number(value: complex) -> Operand:
    if isinstance(value, bool):
        return Operand(np.asarray(value), "bool")
    if isinstance(value, int):
        return _operand_from_int(int(value))
    if isinstance(value, float):
        return Operand(np.asarray(float(value)), "float64")
    return Operand(np.asarray(complex(value)), "complex128")


def _operand_from_int(value: int) -> Operand:
    if value in _INT64:
        return Operand(np.asarray(value, np.int64), "int64")
    if value in _UINT64:
        return Operand(np.asarray(value, np.uint64), "uint64")
    return Operand(np.asarray(_to_finite_float(value)), "float64")


def _to_finite_float(value: float) -> float:
    """An integer beyond the reach of float64 becomes its largest number, not infinity."""
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def _operand_from_array(array: Array) -> Operand | None:
    """Types outside the table: longer floats lose what float64 cannot hold, other kinds are no numbers."""
    if str(array.dtype) in DTYPE_TABLE:
        return Operand(array, str(array.dtype))
    if array.dtype.kind == "f":
        return Operand(array.astype(np.float64), "float64")
    if array.dtype.kind == "c":
        return Operand(array.astype(np.complex128), "complex128")
    return None


def are_equal(a: Any, b: Any) -> tuple[bool, str]:
    """What == says, and a sentence for when it says no; an answer that is an array must be all true."""
    if a is b:
        return True, ""
    try:
        answer = a == b
        equal = answer if isinstance(answer, bool) else bool(np.all(np.asarray(answer)))
    except Exception as error:  # noqa: BLE001 - any class may fail in its own way; all mean no answer
        return False, f"== of {type(a).__name__} raised {type(error).__name__}: {error}"
    return equal, f"{_short_repr(a)} against {_short_repr(b)}"


def are_close(a: float, b: float, tolerance: Tolerance) -> bool:
    """Two plain numbers by the rule, without the cost of an array around each."""
    if type(a) is not float and type(b) is not float:
        return a == b or are_close_integers(int(a), int(b), *tolerance.for_integers())[0]
    a, b = _to_finite_float(a), _to_finite_float(b)
    if a == b:
        return True
    if not (math.isfinite(a) and math.isfinite(b)):
        return tolerance.equal_nan and math.isnan(a) and math.isnan(b)
    return abs(a - b) <= tolerance.atol + tolerance.rtol * abs(b)


def are_close_integers(a: int, b: int, atol: float, rtol: float) -> tuple[bool, str]:
    """Integers of any length, exactly; floats could not even hold them."""
    if math.isinf(atol) or math.isinf(rtol):
        return True, ""
    return abs(a - b) <= Fraction(atol) + Fraction(rtol) * abs(
        b
    ), f"{_short_repr(a)} against {_short_repr(b)}"


def are_equal_arrays(a: Array, b: Array, *, equal_nan: bool) -> bool:
    """Arrays of text or times, by value."""
    if a.dtype.kind != b.dtype.kind:
        return False
    return bool(np.array_equal(a, b, equal_nan=equal_nan and a.dtype.kind in "mM"))


def _short_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a repr that fails must not hide the answer
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:57]}..."
