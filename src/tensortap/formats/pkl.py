"""Pickles: written so that an error names the attribute, and read by a restricted unpickler unless
trusted, which builds numbers, containers, arrays and tensors, and nothing else."""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections import OrderedDict
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO, ClassVar

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import (
    CorruptRunError,
    UnsupportedValueError,
    UntrustedFileError,
    damaged_file_error,
)
from tensortap.formats.payload import Payload, payload_from_bytes

SUFFIX = ".pkl"
_PROTOCOL = 4
_MAX_SEARCH_DEPTH = 6

# What unpickling raises for an invalid or truncated stream.
UNPICKLING_ERRORS = (
    pickle.UnpicklingError,
    EOFError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RuntimeError,
    AssertionError,
    struct.error,
)


def encode(value: Any) -> Payload:
    stream = io.BytesIO()
    try:
        _Pickler(stream, _PROTOCOL).dump(value)
    except RecursionError:
        raise UnsupportedValueError(
            f"{_describe_type(value)} is nested too deeply to be pickled; dump its parts"
        ) from None
    except Exception as error:  # a class's own __reduce__ may raise anything
        raise UnsupportedValueError(_explain_failure(value, error)) from error
    return payload_from_bytes(SUFFIX, stream.getvalue())


def read(stream: BinaryIO, label: str, is_trusted: bool) -> Any:
    """The object in an open file."""
    return _read_trusted(stream, label) if is_trusted else _read_restricted(stream, label)


def _read_trusted(stream: BinaryIO, label: str) -> Any:
    try:
        return pickle.load(stream)
    except (pickle.UnpicklingError, EOFError, IndexError, ValueError) as error:
        raise _damaged_pickle_error(label, error) from None
    except (ImportError, AttributeError) as error:
        raise missing_class_error(label, error) from error


def _read_restricted(stream: BinaryIO, label: str) -> Any:
    try:
        return RestrictedUnpickler(stream, label).load()
    except UntrustedFileError:
        raise
    except UNPICKLING_ERRORS as error:
        raise _damaged_pickle_error(label, error) from None


def _damaged_pickle_error(label: str, error: BaseException) -> CorruptRunError:
    return damaged_file_error(label, "pickle", str(error).split("\n")[0] or type(error).__name__)


def missing_class_error(label: str, error: BaseException) -> UnsupportedValueError:
    return UnsupportedValueError(
        f"{label} needs a class that is not here ({error}); define or import it, then load again"
    )


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or not _is_plain_tensor(torch, value):
            return NotImplemented
        if _needs_copy(value):
            value = value.detach().cpu().clone()
        function, (storage, *rest), *state = value.__reduce_ex__(_PROTOCOL)
        if isinstance(storage, torch.UntypedStorage):
            # Storages of fp8 and uint16: torch pickles them in a form that it cannot read back.
            storage = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)
        return function, (storage, *rest), *state


def _is_plain_tensor(torch: Any, value: Any) -> bool:
    is_dense = value.layout == torch.strided and not (value.is_meta or value.is_quantized or value.is_nested)
    return type(value) is torch.Tensor and is_dense


def _needs_copy(value: Any) -> bool:
    """A view would pickle its whole storage; a device may not exist when it is read."""
    return bool(
        value.device.type != "cpu"
        or value.untyped_storage().nbytes() > value.numel() * value.element_size()
        or (value.requires_grad and not value.is_leaf)
    )


def _explain_failure(value: Any, error: Exception) -> str:
    culprit = next(_find_unpicklable(value, _describe_type(value), 0, set()), _describe_type(value))
    return (
        f"{culprit} cannot be pickled ({error}); dump the parts you need, or register_serializer for its type"
    )


def _find_unpicklable(value: Any, label: str, depth: int, above: set[int]) -> Iterator[str]:
    """Parts that fail on their own, the deepest first."""
    if depth > _MAX_SEARCH_DEPTH or id(value) in above or _is_picklable(value):
        return
    for name, part in _list_parts(value):
        yield from _find_unpicklable(part, f"{label}{name}", depth + 1, {*above, id(value)})
    yield f"{label} of type {type(value).__name__}"


def _is_picklable(value: Any) -> bool:
    try:
        pickle.dumps(value, _PROTOCOL)
    except Exception:  # noqa: BLE001 - a class's own __reduce__ may raise anything; the answer names it
        return False
    return True


def _list_parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    names = [*getattr(value, "__dict__", {}), *_slots(type(value))]
    return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)]


def _slots(kind: type) -> Iterator[str]:
    for parent in kind.__mro__:
        slots = parent.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _describe_type(value: Any) -> str:
    return f"the {type(value).__name__}"


_ALLOWED_BY_MODULE = {
    "builtins": "bool int float complex str bytes bytearray list tuple dict set frozenset slice range",
    "collections": "OrderedDict defaultdict deque Counter",
    "datetime": "datetime date time timedelta timezone",
    "pathlib": "Path PosixPath PurePosixPath PurePath",
    "numpy": "ndarray dtype float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool_ "
    "bool complex64 complex128 str_ bytes_ datetime64 timedelta64",
    "numpy._core.multiarray": "_reconstruct",
    "numpy.core.multiarray": "_reconstruct",
    "numpy._core.numeric": "_frombuffer",
    "numpy.core.numeric": "_frombuffer",
    "torch": "Size device dtype Tensor FloatStorage DoubleStorage HalfStorage BFloat16Storage LongStorage "
    "IntStorage ShortStorage CharStorage ByteStorage BoolStorage ComplexFloatStorage ComplexDoubleStorage "
    "per_tensor_affine per_channel_affine " + " ".join(DTYPE_TABLE),
    "torch.nn.parameter": "Parameter Buffer",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
    "_rebuild_sparse_tensor _rebuild_qtensor",
    "torch.serialization": "_get_layout",
    "_codecs": "encode",
}
_ALLOWED_GLOBALS = {(module, name) for module, names in _ALLOWED_BY_MODULE.items() for name in names.split()}
_SCALAR_GLOBALS = {("numpy._core.multiarray", "scalar"), ("numpy.core.multiarray", "scalar")}
_STORAGE_GLOBAL = ("torch.storage", "_load_from_bytes")


class RestrictedUnpickler(pickle._Unpickler):
    """Refuses every class that is not allowed, and every state that could corrupt an allowed one."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    memo: dict[int, Any]

    def __init__(self, stream: BinaryIO, label: str) -> None:
        super().__init__(stream)
        self._label = label
        self._filled: dict[int, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module  # in Python 2 pickles
        if (module, name) in _ALLOWED_GLOBALS:
            return super().find_class(module, name)
        if (module, name) in _SCALAR_GLOBALS:
            return self._scalar
        if (module, name) == _STORAGE_GLOBAL:
            return self._storage
        raise self._refusal(f"{module}.{name}")

    def load_build(self) -> None:
        target = self.stack[-2]
        if isinstance(target, np.dtype):
            self._build_dtype(target)
        elif type(target) is np.ndarray and id(target) not in self._filled:
            # A second BUILD would free memory that is still referenced.
            self._filled[id(target)] = target
            super().load_build()  # type: ignore[misc]
        elif isinstance(target, OrderedDict):  # the attributes of a state_dict
            super().load_build()  # type: ignore[misc]
        else:
            raise self._refusal(f"a state for {type(target).__name__}")

    dispatch[pickle.BUILD[0]] = load_build

    def _build_dtype(self, target: np.dtype[Any]) -> None:
        """Replace the dtype by one that numpy built itself: numpy trusts the flags in a pickled state, and
        wrong ones turn bytes into pointers."""
        built = _dtype_from_state(target, self.stack.pop())
        self.stack[-1] = built
        for key in [key for key, known in self.memo.items() if known is target]:
            self.memo[key] = built

    def _scalar(self, dtype: Any, data: Any = b"") -> Any:
        if not isinstance(data, bytes) or dtype.hasobject:
            raise self._refusal("a scalar that is not made of bytes")
        return np.frombuffer(data, dtype, 1)[0]

    def _storage(self, data: bytes) -> Any:
        """torch's own loader for tensors inside a pickle, with weights_only."""
        try:
            return import_module("torch").load(io.BytesIO(data), weights_only=True)
        except pickle.UnpicklingError:
            raise self._refusal("more than numbers inside a tensor") from None

    def _refusal(self, what: str) -> UntrustedFileError:
        return UntrustedFileError(
            f"{self._label} wants to load {what}, and it is not known who made the file; "
            f"pass trust=True if you do"
        )


def _dtype_from_state(bare: np.dtype[Any], state: Any) -> np.dtype[Any]:
    _, order, part, names, fields, size, *_ = state
    if part is not None:
        return np.dtype((part[0], part[1]))
    if names is not None:
        members = [fields[name] for name in names]
        formats, offsets = [field[0] for field in members], [field[1] for field in members]
        return np.dtype({"names": list(names), "formats": formats, "offsets": offsets, "itemsize": size})
    if bare.kind in "mM":
        unit, count = state[8][1][:2]
        return np.dtype(f"{order}{bare.kind}8[{count}{unit if isinstance(unit, str) else unit.decode()}]")
    return bare.newbyteorder(order)
