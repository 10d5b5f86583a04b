"""An unpickler for strangers' files: it builds numbers, containers, arrays and tensors, and nothing else."""

import io
import pickle
from collections import OrderedDict
from importlib import import_module
from typing import Any, BinaryIO, ClassVar

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UntrustedFileError

_SAFE = {
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
_SAFE_NAMES = {(module, name) for module, names in _SAFE.items() for name in names.split()}
_SCALARS = {("numpy._core.multiarray", "scalar"), ("numpy.core.multiarray", "scalar")}
_STORAGE = ("torch.storage", "_load_from_bytes")


class CarefulUnpickler(pickle._Unpickler):
    """Refuses every class that is not on the list, and every state that could make a listed one lie."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    memo: dict[int, Any]

    def __init__(self, stream: BinaryIO, label: str) -> None:
        super().__init__(stream)
        self._label = label
        self._filled: dict[int, Any] = {}

    def find_class(self, module: str, name: str) -> Any:
        module = "builtins" if module == "__builtin__" else module  # in pickles for Python 2
        if (module, name) in _SAFE_NAMES:
            return super().find_class(module, name)
        if (module, name) in _SCALARS:
            return self._scalar
        if (module, name) == _STORAGE:
            return self._storage
        raise self._refused(f"{module}.{name}")

    def load_build(self) -> None:
        target = self.stack[-2]
        if isinstance(target, np.dtype):
            self._build_dtype(target)
        elif type(target) is np.ndarray and id(target) not in self._filled:
            # A second filling would free memory that others may look at.
            self._filled[id(target)] = target
            super().load_build()  # type: ignore[misc]
        elif isinstance(target, OrderedDict):  # the attributes of a state_dict
            super().load_build()  # type: ignore[misc]
        else:
            raise self._refused(f"a state for {type(target).__name__}")

    dispatch[pickle.BUILD[0]] = load_build

    def _build_dtype(self, target: np.dtype[Any]) -> None:
        """Put a dtype that numpy made itself in its place: numpy takes the flags of a state at its word, and
        wrong ones turn bytes into pointers."""
        built = _dtype_of_state(target, self.stack.pop())
        self.stack[-1] = built
        for key in [key for key, known in self.memo.items() if known is target]:
            self.memo[key] = built

    def _scalar(self, dtype: Any, data: Any = b"") -> Any:
        if not isinstance(data, bytes) or dtype.hasobject:
            raise self._refused("a scalar that is not made of bytes")
        return np.frombuffer(data, dtype, 1)[0]

    def _storage(self, data: bytes) -> Any:
        """torch's own loader for tensors inside a pickle, but for weights only."""
        try:
            return import_module("torch").load(io.BytesIO(data), weights_only=True)
        except pickle.UnpicklingError:
            raise self._refused("more than numbers inside a tensor") from None

    def _refused(self, what: str) -> UntrustedFileError:
        return UntrustedFileError(
            f"{self._label} wants to load {what}, and it is not known who made the file; "
            f"pass trust=True if you do"
        )


def _dtype_of_state(bare: np.dtype[Any], state: Any) -> np.dtype[Any]:
    _, order, part, names, fields, size, *_ = state
    if part is not None:
        return np.dtype((part[0], part[1]))
    if names is not None:
        found = [fields[name] for name in names]
        formats, offsets = [field[0] for field in found], [field[1] for field in found]
        return np.dtype({"names": list(names), "formats": formats, "offsets": offsets, "itemsize": size})
    if bare.kind in "mM":
        unit, count = state[8][1][:2]
        return np.dtype(f"{order}{bare.kind}8[{count}{unit if isinstance(unit, str) else unit.decode()}]")
    return bare.newbyteorder(order)
