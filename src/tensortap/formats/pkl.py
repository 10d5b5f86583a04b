"""Pickles: written so that a failure names the attribute, read without running strangers' code."""

import io
import pickle
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from tensortap.core.errors import CorruptRunError, UnsupportedValueError, UntrustedFileError
from tensortap.formats.payload import Payload, from_bytes

SUFFIX = ".pkl"
_PROTOCOL = 4
_DEEPEST = 6

_SAFE = {
    "builtins": "bool int float complex str bytes bytearray list tuple dict set frozenset slice range object",
    "collections": "OrderedDict defaultdict deque Counter",
    "copyreg": "_reconstructor",
    "datetime": "datetime date time timedelta timezone",
    "pathlib": "Path PosixPath PurePosixPath PurePath",
    "numpy": "ndarray dtype float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool_ "
    "bool complex64 complex128 str_ bytes_ datetime64 timedelta64",
    "numpy._core.multiarray": "_reconstruct scalar",
    "numpy.core.multiarray": "_reconstruct scalar",
    "numpy._core.numeric": "_frombuffer",
    "numpy.core.numeric": "_frombuffer",
    "torch": "Size device dtype Tensor FloatStorage DoubleStorage HalfStorage BFloat16Storage LongStorage "
    "IntStorage ShortStorage CharStorage ByteStorage BoolStorage ComplexFloatStorage ComplexDoubleStorage",
    "torch.nn.parameter": "Parameter Buffer",
    "torch._utils": "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter "
    "_rebuild_sparse_tensor _rebuild_qtensor",
    "torch.serialization": "_get_layout",
    "_codecs": "encode",
}
_SAFE_NAMES = {(module, name) for module, names in _SAFE.items() for name in names.split()}


def encode(value: Any) -> Payload:
    stream = io.BytesIO()
    try:
        _Pickler(stream, _PROTOCOL).dump(value)
    except RecursionError:
        raise UnsupportedValueError(
            f"{_called(value)} is nested too deeply to be pickled; dump its parts"
        ) from None
    except Exception as error:
        raise UnsupportedValueError(_cannot(value, error)) from error
    return from_bytes(SUFFIX, stream.getvalue())


def read(stream: BinaryIO, label: str, is_trusted: bool) -> Any:
    """The object in an open file."""
    unpickler = pickle.Unpickler(stream) if is_trusted else _Careful(stream, label)
    try:
        return unpickler.load()
    except UntrustedFileError:
        raise
    except (pickle.UnpicklingError, EOFError, IndexError, UnicodeDecodeError, ValueError) as error:
        raise CorruptRunError(f"{label} is not a whole pickle ({error}); dump it again") from None


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or not _is_wasteful(torch, value):
            return NotImplemented
        return value.detach().cpu().clone().__reduce_ex__(_PROTOCOL)


def _is_wasteful(torch: Any, value: Any) -> bool:
    """A view would drag its whole storage along; a device may not be there when it is read."""
    if value.layout != torch.strided or value.is_meta or type(value) is not torch.Tensor:
        return False
    return bool(
        value.device.type != "cpu"
        or value.untyped_storage().nbytes() > value.numel() * value.element_size()
        or (value.requires_grad and not value.is_leaf)
    )


class _Careful(pickle.Unpickler):
    """Builds numbers, containers, arrays and tensors; refuses every other class."""

    def __init__(self, stream: BinaryIO, label: str) -> None:
        super().__init__(stream)
        self._label = label

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _SAFE_NAMES:
            return super().find_class(module, name)
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _load_storage
        raise UntrustedFileError(
            f"{self._label} wants to load {module}.{name}, and it is not known who made the file; "
            f"pass trust=True if you do"
        )


def _load_storage(data: bytes) -> Any:
    # torch's own loader for tensors inside a pickle, but for weights only.
    return sys.modules["torch"].load(io.BytesIO(data), weights_only=True)


def _cannot(value: Any, error: Exception) -> str:
    culprit = next(_culprits(value, _called(value), 0), _called(value))
    return (
        f"{culprit} cannot be pickled ({error}); dump the parts you need, or register_serializer for its type"
    )


def _culprits(value: Any, label: str, depth: int) -> Iterator[str]:
    """Parts that fail on their own, the deepest first."""
    if depth > _DEEPEST or _pickles(value):
        return
    for name, part in _parts(value):
        yield from _culprits(part, f"{label}{name}", depth + 1)
    yield f"{label} of type {type(value).__name__}"


def _pickles(value: Any) -> bool:
    try:
        pickle.dumps(value, _PROTOCOL)
    except Exception:  # noqa: BLE001 - only asked whether
        return False
    return True


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    return [(f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()]


def _called(value: Any) -> str:
    return f"the {type(value).__name__}"
