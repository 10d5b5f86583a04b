"""Values to HDF5 arrays or strings and back, bit for bit."""

from __future__ import annotations

import ast
import base64
import json
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import Description, Framework, framework_named, framework_of
from tensortap.kernels.decode import decode, float8_table

Array = np.ndarray[Any, Any]
StoredKind = Literal["numbers", "text", "json"]


class StoredForm(NamedTuple):
    """What all values of one dataset have in common."""

    kind: StoredKind
    framework: str = "python"
    dtype: str = ""  # of the value
    stored: str = ""  # numpy dtype string in the file


class StoredCell(NamedTuple):
    """A value in its stored form."""

    form: StoredForm
    content: Any  # an array, or a str


class DtypeCasts(NamedTuple):
    """The dtypes that the user wants stored instead of the values' own."""

    floats: np.dtype[Any] | None = None
    ints: np.dtype[Any] | None = None


def encode_cell(value: Any, casts: DtypeCasts) -> StoredCell:
    if type(value) is str and is_storable_text(value):
        return StoredCell(StoredForm("text"), value)
    framework = framework_of(value)
    description = framework.describe(value)
    if framework.name == "python" and not description.dtype:
        return StoredCell(StoredForm("json"), to_json(value))
    if description.layout not in ("strided", "python"):
        raise UnsupportedValueError(
            f"a {description.type} of shape {list(description.shape)} ({description.layout}) is not one "
            "block of numbers; give it as a dense array"
        )
    return _cast_cell(_encode_array(value, framework, description), casts)


def decode_cell(content: Any, form: StoredForm) -> Any:
    """The value that `encode_cell` was given; arrays are writable and own their memory."""
    if form.kind != "numbers":
        text = content.decode("utf-8") if isinstance(content, bytes) else str(content)
        return from_json(text) if form.kind == "json" else text
    array = np.asarray(content)
    if form.framework == "python":
        return array.tolist()
    bits = _narrow(array, form.dtype) if form.dtype else array
    return _restoring_framework(form.framework).from_bits(bits, form.dtype or str(array.dtype))


def _encode_array(value: Any, framework: Framework, description: Description) -> StoredCell:
    known = DTYPE_TABLE.get(description.dtype)
    bits = framework.bits(value)
    if known is not None:
        stored = bits if known.native else _widen(bits, description.dtype)
    elif bits.dtype.kind in "mM":
        stored = bits.view(np.int64)
    elif bits.dtype.kind == "U":
        stored = np.char.encode(bits, "utf-8")
    elif bits.dtype.names is not None:
        # As bytes: the dtype string of the dataset does not describe structured dtypes.
        stored = np.ascontiguousarray(bits).view(f"V{bits.dtype.itemsize}")
    else:
        stored = bits
    return StoredCell(StoredForm("numbers", framework.name, description.dtype, stored.dtype.str), stored)


def _cast_cell(cell: StoredCell, casts: DtypeCasts) -> StoredCell:
    known = DTYPE_TABLE.get(cell.form.dtype)
    target = {"float": casts.floats, "int": casts.ints}.get(known.family) if known is not None else None
    if target is None:
        return cell
    if target.kind in "iu":
        _check_overflow(cell.content, target)
    with np.errstate(over="ignore"):  # larger numbers become infinity
        content = cell.content.astype(target, copy=False)
    return StoredCell(StoredForm("numbers", cell.form.framework, target.name, content.dtype.str), content)


def _check_overflow(array: Array, target: np.dtype[Any]) -> None:
    if array.size == 0 or np.can_cast(array.dtype, target):
        return
    low, high, limits = int(array.min()), int(array.max()), np.iinfo(target)
    if low < limits.min or high > limits.max:
        raise UnsupportedValueError(
            f"numbers from {low} to {high} do not fit int_dtype {target}; give a wider one, or none"
        )


def _widen(bits: Array, dtype: str) -> Array:
    """The elements in the smallest dtype that HDF5 knows; NaN payloads carry the code."""
    if dtype.startswith("float8"):
        return _float8_codes(dtype).view(np.float32)[bits]
    return decode(bits, dtype)


def _narrow(array: Array, dtype: str) -> Array:
    known = DTYPE_TABLE.get(dtype)
    if known is None:
        return _narrow_unlisted(array, dtype)
    if known.native or array.dtype.kind not in "fc":
        return array
    if dtype == "complex32":
        halves = np.ascontiguousarray(array).view(np.float32).astype(np.float16)
        return halves.view(np.uint32).reshape(array.shape)
    words = np.ascontiguousarray(array, np.float32).view(np.uint32)
    if dtype == "bfloat16":
        return np.asarray(words >> 16).astype(np.uint16)
    codes = _float8_codes(dtype)
    order = np.argsort(codes)
    return order[np.searchsorted(codes, words, sorter=order)].astype(np.uint8).reshape(array.shape)


def _narrow_unlisted(array: Array, dtype: str) -> Array:
    if array.dtype.kind == "S" and "U" in dtype:
        return np.char.decode(array, "utf-8").astype(dtype)
    if array.dtype.kind == "V" and array.dtype.names is None:
        return np.ascontiguousarray(array).view(np.dtype(ast.literal_eval(dtype)))
    return array


@lru_cache(maxsize=8)
def _float8_codes(dtype: str) -> Array:
    """The float32 of each of the 256 codes, as uint32; NaNs differ in their payload."""
    table = float8_table(dtype)
    quiet = np.arange(256, dtype=np.uint32) | 0x7FC00000
    signed = quiet | ((np.arange(256, dtype=np.uint32) & 0x80) << 24)
    return np.where(np.isnan(table), signed, table.view(np.uint32))


def _restoring_framework(name: str) -> Framework:
    """Torch if the value was torch's and torch is installed, else numpy."""
    if name == "torch":
        try:
            return framework_named(name)
        except ImportError:
            pass
    return framework_named("numpy")


def is_storable_text(text: str) -> bool:
    """Whether HDF5 can hold the string: no NUL, and valid UTF-8."""
    if "\0" in text:
        return False
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def to_json(value: Any) -> str:
    """Plain Python as JSON that restores exactly the same value."""
    try:
        return json.dumps(_tag(value))
    except RecursionError:
        raise UnsupportedValueError(
            f"the {type(value).__name__} is nested too deeply; trace its parts"
        ) from None


def from_json(text: str) -> Any:
    return json.loads(text, object_hook=_untag)


def _tag(value: Any) -> Any:
    kind = type(value)
    if kind in (type(None), bool, int, float, str):
        return value
    if kind is list:
        return [_tag(item) for item in value]
    if kind is tuple:
        return {"tuple": [_tag(item) for item in value]}
    if kind is dict:
        return {"dict": [[_tag(key), _tag(item)] for key, item in value.items()]}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    raise UnsupportedValueError(
        f"a value of type {kind.__name__} has no place in an HDF5 file; "
        "trace the arrays, numbers or texts inside it"
    )


def _untag(tagged: dict[str, Any]) -> Any:
    ((tag, content),) = tagged.items()
    if tag == "tuple":
        return tuple(content)
    if tag == "dict":
        return dict(content)
    return complex(*content) if tag == "complex" else base64.b64decode(content)
