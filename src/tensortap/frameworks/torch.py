"""The torch framework, careful not to disturb the program's modes, autograd graph or RNG.

Also: how our functions are excluded from torch.compile, as one clean graph break.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch._C import DisableTorchFunction, _DisableTorchDispatch, _functorch

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Placement
from tensortap.frameworks import dtensor
from tensortap.frameworks.base import Description
from tensortap.frameworks.dtensor import (
    component_tensors,
    layout_of,
    require_strided,
    static_shape,
    tensor_nbytes,
)
from tensortap.frameworks.fingerprint import bytes_fingerprint
from tensortap.frameworks.numpy import torch_compatible
from tensortap.kernels.decode import decode

_Array = np.ndarray[Any, Any]

PLAIN_TENSOR_TYPES = frozenset((torch.Tensor, torch.nn.Parameter))
_STRIDED = torch.strided
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_count_dispatch_modes = torch._C._len_torch_dispatch_stack
_has_function_mode = torch._C._is_torch_function_mode_enabled
_WORD_DTYPES = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}
_DTYPES = {name: getattr(torch, name) for name in DTYPE_TABLE if hasattr(torch, name)}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_NUMPY_NATIVE = frozenset(_DTYPES[name] for name, row in DTYPE_TABLE.items() if row.native)


class _Torch:
    name = "torch"
    suffix = ".pt"

    def owns(self, kind: type) -> bool:
        return issubclass(kind, torch.Tensor)

    def describe(self, value: torch.Tensor) -> Description:
        """A DTensor is described by its local tensor."""
        kind = type(value)
        if kind in PLAIN_TENSOR_TYPES and has_no_modes():
            return _describe(value, kind.__name__)
        with outside_modes():
            return _describe(local_tensor(value), kind.__name__)

    def snapshot(self, value: torch.Tensor) -> torch.Tensor:
        """A detached clone on the same device; a parameter or an ordinary subclass becomes a plain tensor."""
        with outside_modes(), _outside_inference():
            return _clone(value)

    def mark(self, value: torch.Tensor) -> Callable[[Any], bool]:
        """The version counter detects most changes; `x.data.add_()` and numpy aliases only show in the
        content."""
        version_then, fingerprint = version_counter(value), _fingerprint(value)
        reference: Callable[[], Any] = weakref.ref(value)

        def is_same(other: Any) -> bool:
            if other is None or other is not reference() or version_counter(other) != version_then:
                return False
            return _fingerprint(other) == fingerprint

        return is_same

    def bits(self, value: torch.Tensor) -> _Array:
        if type(value) in PLAIN_TENSOR_TYPES and has_no_modes():
            return _bits(value)
        with outside_modes():
            return _bits(_unwrap_subclass(local_tensor(value)))

    def to_numpy(self, value: torch.Tensor) -> _Array:
        with outside_modes():
            return _decode_numbers(local_tensor(value))

    def from_bits(self, bits: _Array, dtype: str) -> torch.Tensor:
        """A tensor on the array's own memory, or on a copy where torch cannot wrap it."""
        torch_dtype = getattr(torch, dtype, None)
        if not isinstance(torch_dtype, torch.dtype):
            raise UnsupportedValueError(f"torch has no number type {dtype!r}; it has {', '.join(_DTYPES)}")
        with outside_modes():
            words = torch.from_numpy(torch_compatible(bits))
            return words if words.dtype == torch_dtype else words.view(torch_dtype)

    def placement(self, value: torch.Tensor) -> Placement | None:
        if type(value) in PLAIN_TENSOR_TYPES or not dtensor.is_distributed(type(value)):
            return None
        with outside_modes():
            return dtensor.dtensor_placement(value)


FRAMEWORK = _Torch()


def has_no_modes() -> bool:
    """Whether no dispatch mode, function mode or functorch transform is active."""
    return not (_has_function_mode() or _has_modes())


def _has_modes() -> bool:
    return _count_dispatch_modes() > 0 or _functorch.peek_interpreter_stack() is not None


def outside_modes() -> contextlib.AbstractContextManager[Any]:
    """Disable `__torch_function__` overrides, dispatch modes and functorch transforms."""
    return _without_active_modes() if _has_modes() else DisableTorchFunction()


@contextlib.contextmanager
def _without_active_modes() -> Iterator[None]:
    # Imported lazily: private modules that a program without modes never loads.
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
    from torch.utils._python_dispatch import _disable_current_modes

    with DisableTorchFunction(), _disable_current_modes(), temporarily_clear_interpreter_stack():
        yield


def _outside_inference() -> contextlib.AbstractContextManager[Any]:
    """A copy made in inference mode could not be written to later."""
    is_inside = torch.is_inference_mode_enabled()
    return torch.inference_mode(False) if is_inside else contextlib.nullcontext()


def local_tensor(value: torch.Tensor) -> torch.Tensor:
    """The local tensor inside a DTensor or a `torch.func.grad` wrapper."""
    tensor: torch.Tensor = dtensor.wait_local(value)
    while _functorch.is_gradtrackingtensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor


def _describe(tensor: torch.Tensor, kind: str) -> Description:
    if (
        tensor.layout is not _STRIDED
        or tensor.is_quantized
        or tensor.is_nested
        or type(tensor) not in PLAIN_TENSOR_TYPES
    ):
        return _describe_other_layout(tensor, kind)
    device = "cpu" if tensor.is_cpu else str(tensor.device)
    return Description(kind, _dtype_name(tensor), tuple(tensor.shape), tensor.nbytes, device)


def _describe_other_layout(tensor: torch.Tensor, kind: str) -> Description:
    shape, nbytes, device = tuple(static_shape(tensor)), tensor_nbytes(tensor), str(tensor.device)
    return Description(kind, _dtype_name(tensor), shape, nbytes, device, layout_of(tensor))


def _dtype_name(tensor: torch.Tensor) -> str:
    return _DTYPE_NAMES.get(tensor.dtype) or str(tensor.dtype).removeprefix("torch.")


def _bits(tensor: torch.Tensor) -> _Array:
    try:
        return _share_with_numpy(tensor)
    except (RuntimeError, TypeError, BufferError):
        pass
    return _share_with_numpy(_make_readable(tensor))


def _share_with_numpy(tensor: torch.Tensor) -> _Array:
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not _has_full_storage(tensor):
        raise RuntimeError("no memory behind the tensor")
    words = tensor if tensor.dtype in _NUMPY_NATIVE else _as_words(tensor)
    if words.is_neg() or words.is_conj():
        raise RuntimeError("a lazily negated tensor is not what its memory says")
    # Not `.numpy()`: that makes the storage non-resizable for good, and FSDP resizes it.
    array: _Array = np.from_dlpack(words)
    return array


def _as_words(tensor: torch.Tensor) -> torch.Tensor:
    """A view as integers of the same width, for dtypes that numpy lacks."""
    if tensor.is_quantized:
        raise TypeError("its bytes mean nothing without their scale")
    return tensor.view(_WORD_DTYPES[tensor.dtype.itemsize])


def _has_full_storage(tensor: torch.Tensor) -> bool:
    """Whether the storage covers shape and strides; past its end there is foreign memory."""
    count, itemsize = tensor.numel(), tensor.itemsize
    if count == 0:
        return True
    if not tensor.is_contiguous():
        count = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + count) * itemsize
    return end <= tensor.untyped_storage().nbytes() and tensor.data_ptr() != 0


def _make_readable(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements where numpy can read them; raises if there are none."""
    require_values(tensor)
    require_strided(tensor)
    _require_storage(tensor)
    with _without_complex32_warning(tensor):
        stored = tensor.detach().clone() if tensor._is_zerotensor() else tensor.detach()
        return stored.cpu().resolve_conj().resolve_neg()


def _unwrap_subclass(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor inside a subclass, on the same memory."""
    if type(tensor) in PLAIN_TENSOR_TYPES or tensor.layout is not _STRIDED:
        return tensor
    if not _has_dispatch(tensor):
        return tensor.as_subclass(torch.Tensor)
    require_values(tensor)
    with _DisableTorchDispatch():
        below = tensor.as_subclass(torch.Tensor)
    if not _has_full_storage(below):
        raise UnsupportedValueError(
            f"a {type(tensor).__name__} of shape {static_shape(tensor)} has no bytes of its own; "
            "capture the tensors it is made of"
        )
    return below


def require_values(tensor: torch.Tensor) -> None:
    if type(tensor).__name__ == "FakeTensor" or torch._is_functional_tensor(tensor):
        what, remedy = "a fake tensor", "capture outside of tracing and compiling"
    elif tensor.is_meta:
        what, remedy = "a meta tensor", "materialise it first (e.g. model.to_empty(device='cpu'))"
    elif _functorch.is_functorch_wrapped_tensor(tensor):
        what, remedy = "a tensor inside vmap", "capture outside of it"
    else:
        return
    raise UnsupportedValueError(f"{what} of shape {static_shape(tensor)} has no values; {remedy}")


def _require_storage(tensor: torch.Tensor) -> None:
    # Other devices may have no accessible storage, and cannot be read past its end from here.
    has_storage = tensor.device.type in ("cpu", "cuda") and not tensor._is_zerotensor()
    if has_storage and not _has_full_storage(tensor):
        raise UnsupportedValueError(
            f"the storage of a tensor of shape {static_shape(tensor)} was freed; "
            "capture it while it is in use"
        )


def _has_dispatch(tensor: torch.Tensor) -> bool:
    return type(tensor).__torch_dispatch__ is not _NO_DISPATCH


def _clone(value: torch.Tensor) -> torch.Tensor:
    tensor = local_tensor(value)
    if dtensor.is_distributed(type(value)):
        copy: torch.Tensor = dtensor.wrap_local(value.detach(), _clone(tensor))
        return copy
    if _has_dispatch(tensor):
        return _clone_wrapper_subclass(tensor)
    tensor = _unwrap_subclass(tensor)
    if layout_of(tensor) == "strided" and not tensor.is_meta:
        require_values(tensor)
        _require_storage(tensor)
    with _without_complex32_warning(tensor):
        return tensor.detach().clone()


def _without_complex32_warning(tensor: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Torch warns once that complex32 is experimental; our copy should not trigger that."""
    is_half = tensor.dtype is torch.complex32
    return warnings.catch_warnings(action="ignore") if is_half else contextlib.nullcontext()


def _clone_wrapper_subclass(tensor: torch.Tensor) -> torch.Tensor:
    try:
        return tensor.detach().clone()
    except (RuntimeError, TypeError) as error:
        raise UnsupportedValueError(f"a {type(tensor).__name__} cannot be copied: {error}") from error


def explain_no_gradient(tensor: torch.Tensor) -> str:
    """Why a tensor that requires no gradient requires none."""
    if not torch.is_grad_enabled():
        return "it was computed under no_grad, so no gradient comes to it"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return f"a tensor of {_dtype_name(tensor)} has no gradient"
    return "nothing it was computed from requires a gradient"


def version_counter(value: torch.Tensor) -> int | None:
    with outside_modes():
        tensor = local_tensor(value)
        return None if tensor.is_inference() else tensor._version


def _fingerprint(value: torch.Tensor) -> tuple[Any, ...] | None:
    """None if there are no values; identity and version counter decide alone then."""
    with outside_modes():
        tensor = local_tensor(value)
        try:
            if layout_of(tensor) == "strided":
                return (tensor.dtype, tuple(tensor.shape), bytes_fingerprint(_bits(_unwrap_subclass(tensor))))
            return tuple(bytes_fingerprint(_bits(part)) for part in component_tensors(tensor))
        except UnsupportedValueError:
            return None


def _decode_numbers(tensor: torch.Tensor) -> _Array:
    layout = layout_of(tensor)
    if layout == "quantized":
        tensor = tensor.dequantize()
    elif layout not in ("strided", "nested"):
        tensor = tensor.detach().cpu().to_dense()
    bits = _bits(_unwrap_subclass(tensor))
    if tensor.dtype in _NUMPY_NATIVE:
        return bits
    if tensor.dtype in _DTYPE_NAMES:
        return decode(bits, _DTYPE_NAMES[tensor.dtype])
    raise UnsupportedValueError(f"numpy cannot hold the numbers of {tensor.dtype}; bits() gives its bytes")
