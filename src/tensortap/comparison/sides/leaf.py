"""Leaves of a value: numeric operands, or opaque values that only support ==."""

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
from tensortap.render.text import truncate

PYTHON_NUMBERS = (bool, int, float)
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)


@dataclass(frozen=True, slots=True)
class Operand:
    """Numbers to compute with: an array in the storage type of `dtype`."""

    bits: Array
    dtype: str


def numeric_shape(value: Any) -> tuple[int, ...] | None:
    """The shape of a number or an array; None for anything else, including numpy string scalars."""
    if is_number(value):
        return ()
    return framework_of(value).describe(value).shape if is_array_like(value) else None


def is_array_like(value: Any) -> bool:
    return not isinstance(value, (str, bytes)) and framework_of(value).name != "python"


def is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic)


def is_big_int(value: Any) -> bool:
    """Whether it is an integer that fits no 64-bit type."""
    return isinstance(value, int) and value not in _INT64 and value not in _UINT64


def is_composite_array(value: Any) -> bool:
    """Whether it is an array without a single numeric buffer: structured, object, masked or nested."""
    if isinstance(value, np.ndarray):
        is_masked = isinstance(value, np.ma.MaskedArray)
        return is_masked or value.dtype.names is not None or value.dtype.hasobject
    return is_array_like(value) and framework_of(value).describe(value).layout == "nested"


def as_operand(value: Any) -> Operand | None:
    """The numbers of an array, a tensor or a Python number; None if its dtype is not numeric."""
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
    """Convert to float; integers beyond the range of float64 saturate instead of overflowing."""
    try:
        return float(value)
    except OverflowError:
        return sys.float_info.max if value > 0 else -sys.float_info.max


def _operand_from_array(array: Array) -> Operand | None:
    """Convert dtypes outside the table: long doubles to float64 (lossy), non-numeric to None."""
    if str(array.dtype) in DTYPE_TABLE:
        return Operand(array, str(array.dtype))
    if array.dtype.kind == "f":
        return Operand(array.astype(np.float64), "float64")
    if array.dtype.kind == "c":
        return Operand(array.astype(np.complex128), "complex128")
    return None


def are_equal(a: Any, b: Any) -> tuple[bool, str]:
    """Compare with ==, and describe the difference; an array result must be all true."""
    if a is b:
        return True, ""
    try:
        answer = a == b
        equal = answer if isinstance(answer, bool) else bool(np.all(np.asarray(answer)))
    except Exception as error:  # noqa: BLE001 - any class may fail in its own way; all mean no answer
        return False, f"== of {type(a).__name__} raised {type(error).__name__}: {error}"
    return equal, f"{_short_repr(a)} against {_short_repr(b)}"


def are_close(a: float, b: float, tolerance: Tolerance) -> bool:
    """Whether two Python numbers are within tolerance, without the cost of making arrays."""
    if type(a) is not float and type(b) is not float:
        return a == b or are_close_integers(int(a), int(b), *tolerance.for_integers())[0]
    a, b = _to_finite_float(a), _to_finite_float(b)
    if a == b:
        return True
    if not (math.isfinite(a) and math.isfinite(b)):
        return tolerance.equal_nan and math.isnan(a) and math.isnan(b)
    return abs(a - b) <= tolerance.atol + tolerance.rtol * abs(b)


def are_close_integers(a: int, b: int, atol: float, rtol: float) -> tuple[bool, str]:
    """Compare integers of any length exactly, as floats could not represent them."""
    if math.isinf(atol) or math.isinf(rtol):
        return True, ""
    return abs(a - b) <= Fraction(atol) + Fraction(rtol) * abs(
        b
    ), f"{_short_repr(a)} against {_short_repr(b)}"


def are_equal_arrays(a: Array, b: Array, *, equal_nan: bool) -> bool:
    """Compare arrays of strings or times by value."""
    if a.dtype.kind != b.dtype.kind:
        return False
    return bool(np.array_equal(a, b, equal_nan=equal_nan and a.dtype.kind in "mM"))


def _short_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an object's own repr may fail, and must not hide the answer
        text = f"<{type(value).__name__}>"
    return truncate(text, 60, "...")
