"""Whether two values, files or structures of them are equal, and how they differ."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensortap.comparison.operands import (
    PYTHON_NUMBERS,
    Operand,
    are_close,
    are_close_integers,
    are_equal,
    are_equal_arrays,
    as_operand,
    is_array_like,
    numeric_shape,
)
from tensortap.comparison.report import Difference, LeafDifference
from tensortap.comparison.structure import LeafPair, describe_leaf, walk_leaf_pairs
from tensortap.core.registry import Registry
from tensortap.formats import serializers
from tensortap.kernels.accumulator import DEFAULT_ATOL, DEFAULT_RTOL, Tolerance
from tensortap.kernels.differences import is_within_tolerance, measure_differences

Comparator = Callable[[Any, Any, float, float], bool]

comparators: Registry[Comparator] = Registry("comparators")


def register_comparator(types: type | tuple[type, ...], function: Comparator) -> None:
    """Compare values of these classes, and of classes below them, with `function(a, b, atol, rtol)`."""
    comparators.add(types, function)


def compare(
    a: Any,
    b: Any,
    atol: float = DEFAULT_ATOL,
    rtol: float = DEFAULT_RTOL,
    *,
    equal_nan: bool = False,
    trust: bool = False,
) -> bool:
    """Whether two values, or files of values, are equal: `|a - b| <= atol + rtol * |b|` everywhere.

    >>> compare(torch.zeros(2), np.zeros(2))
    True
    >>> compare("experiments/20251028_143041/loss.pt", "loss.npy")
    True

    Shapes must be the same. Integers are equal only exactly, unless you give a tolerance of your own.
    """
    tolerance = Tolerance(atol, rtol, equal_nan)
    leaf_pairs = walk_leaf_pairs(_load_if_path(a, trust), _load_if_path(b, trust), _has_comparator)
    return all(pair.reason is None and _is_pair_equal(pair, tolerance) for pair in leaf_pairs)


def difference(
    a: Any,
    b: Any,
    atol: float = DEFAULT_ATOL,
    rtol: float = DEFAULT_RTOL,
    *,
    equal_nan: bool = False,
    trust: bool = False,
) -> Difference:
    """How two values, or files of values, differ; printing it shows a table.

    >>> print(difference(before, after))
    different: 37 of 1,024 numbers (3.6 %) beyond atol + rtol*|b|; ...
    """
    tolerance = Tolerance(atol, rtol, equal_nan)
    leaf_pairs = walk_leaf_pairs(_load_if_path(a, trust), _load_if_path(b, trust), _has_comparator)
    return Difference(tuple(_compare_leaf(pair, tolerance) for pair in leaf_pairs), tolerance)


def _load_if_path(value: Any, trust: bool) -> Any:
    """The value itself, or what is in the file it names."""
    if not _is_path(value):
        return value
    path = Path(value)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the path of a file in it, or a value")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give the path of a dumped value, or a value")
    return serializers.load(path, trust=trust)


def _is_path(value: Any) -> bool:
    if not isinstance(value, str):
        return isinstance(value, os.PathLike)
    return value.lower().endswith(tuple(serializers.known_suffixes())) or os.path.exists(value)


def _find_comparator(a: Any, b: Any) -> Comparator | None:
    own = comparators.for_type(type(a))
    return own if own is not None else comparators.for_type(type(b))


def _has_comparator(a: Any, b: Any) -> bool:
    return _find_comparator(a, b) is not None


def _is_pair_equal(pair: LeafPair, tolerance: Tolerance) -> bool:
    if (
        type(pair.a) in PYTHON_NUMBERS
        and type(pair.b) in PYTHON_NUMBERS
        and not _has_comparator(pair.a, pair.b)
    ):
        return are_close(pair.a, pair.b, tolerance)
    numbers = _pair_operands(pair)
    if numbers is None or isinstance(numbers, str):
        return _compare_opaque(pair, numbers, tolerance)[0]
    a, b = numbers
    return is_within_tolerance(a.bits, a.dtype, b.bits, b.dtype, **_tolerance_kwargs(tolerance))


def _compare_leaf(pair: LeafPair, tolerance: Tolerance) -> LeafDifference:
    a, b = describe_leaf(pair.a), describe_leaf(pair.b)
    if pair.reason is not None:
        return LeafDifference(pair.path, a, b, is_equal=False, reason=pair.reason)
    numbers = _pair_operands(pair)
    if numbers is None or isinstance(numbers, str):
        equal, reason = _compare_opaque(pair, numbers, tolerance)
        return LeafDifference(pair.path, a, b, is_equal=equal, reason=None if equal else reason)
    a_operand, b_operand = numbers
    difference = measure_differences(
        a_operand.bits, a_operand.dtype, b_operand.bits, b_operand.dtype, **_tolerance_kwargs(tolerance)
    )
    return LeafDifference(pair.path, a, b, is_equal=not difference.mismatches, numbers=difference)


def _pair_operands(pair: LeafPair) -> tuple[Operand, Operand] | str | None:
    """The numbers of both sides; a sentence when they cannot be set against each other; None when
    something else must judge."""
    if _has_comparator(pair.a, pair.b) or _are_big_ints(pair):
        return None
    a_shape, b_shape = numeric_shape(pair.a), numeric_shape(pair.b)
    if a_shape is None or b_shape is None:
        # A tensor's == would answer with a tensor, or raise; a plain number's can be asked.
        is_array = is_array_like(pair.a) or is_array_like(pair.b)
        return f"{type(pair.a).__name__} against {type(pair.b).__name__}" if is_array else None
    if a_shape != b_shape:
        return f"shapes differ: {list(a_shape)} against {list(b_shape)}"
    a, b = as_operand(pair.a), as_operand(pair.b)
    if a is None or b is None:
        return None if a is b else f"{describe_leaf(pair.a).dtype} against {describe_leaf(pair.b).dtype}"
    return a, b


def _are_big_ints(pair: LeafPair) -> bool:
    """Integers beyond 64 bits, which only Python can tell apart."""
    both = isinstance(pair.a, int) and isinstance(pair.b, int)
    return both and max(pair.a.bit_length(), pair.b.bit_length()) > 63


def _compare_opaque(pair: LeafPair, reason: str | None, tolerance: Tolerance) -> tuple[bool, str]:
    """The answer for what is not numbers against numbers, and why it is no."""
    if reason is not None:
        return False, reason
    own = _find_comparator(pair.a, pair.b)
    if own is not None:
        return bool(
            own(pair.a, pair.b, tolerance.atol, tolerance.rtol)
        ), f"{_function_name(own)} says they differ"
    if _are_big_ints(pair):
        return are_close_integers(pair.a, pair.b, *tolerance.for_integers())
    if hasattr(pair.a, "dtype") and hasattr(pair.b, "dtype"):
        return _compare_opaque_arrays(pair, tolerance)
    return are_equal(pair.a, pair.b)


def _compare_opaque_arrays(pair: LeafPair, tolerance: Tolerance) -> tuple[bool, str]:
    return are_equal_arrays(pair.a, pair.b, equal_nan=tolerance.equal_nan), "the elements differ"


def _function_name(function: Comparator) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _tolerance_kwargs(tolerance: Tolerance) -> dict[str, Any]:
    return {"atol": tolerance.atol, "rtol": tolerance.rtol, "equal_nan": tolerance.equal_nan}
