"""The jax framework."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Placement
from tensortap.frameworks.base import Description
from tensortap.frameworks.numpy import FRAMEWORK as NUMPY
from tensortap.frameworks.numpy import dtype_name, storage_view

_Array = np.ndarray[Any, Any]
_64_BIT_DTYPES = ("int64", "uint64", "float64", "complex128")


class _Jax:
    name = "jax"
    suffix = ".npy"

    def owns(self, kind: type) -> bool:
        return issubclass(kind, (jax.Array, jax.core.Tracer))

    def describe(self, value: Any) -> Description:
        dtype = str(value.dtype) if _is_prng_key(value) else dtype_name(value.dtype)
        nbytes = int(value.size) * int(value.dtype.itemsize)
        layout = "key" if _is_prng_key(value) else "strided"
        return Description(
            type(value).__name__, dtype, tuple(value.shape), nbytes, _device_name(value), layout
        )

    def snapshot(self, value: Any) -> Any:
        """The array itself: jax arrays are immutable."""
        _require_values(value)
        return value

    def mark(self, value: Any) -> Callable[[Any], bool]:
        reference = weakref.ref(value)
        return lambda other: other is not None and other is reference()

    def bits(self, value: Any) -> _Array:
        """The array's own memory, read-only, when it is on the CPU."""
        _require_values(value)
        return storage_view(np.asarray(value))

    def to_numpy(self, value: Any) -> _Array:
        _require_values(value)
        return NUMPY.to_numpy(np.asarray(value))

    def from_bits(self, bits: _Array, dtype: str) -> Any:
        """A jax array; while jax's x64 mode is off, 64-bit arrays stay numpy arrays, since jax would
        truncate them."""
        if dtype in _64_BIT_DTYPES and not getattr(jax.config, "jax_enable_x64", False):
            return NUMPY.from_bits(bits, dtype)
        try:
            return jnp.asarray(NUMPY.from_bits(bits, dtype))
        except TypeError as error:
            raise UnsupportedValueError(
                f"jax has no number type {dtype!r}; numpy's from_bits() makes an array of it"
            ) from error

    def placement(self, value: Any) -> Placement | None:
        return None


FRAMEWORK = _Jax()


def _is_prng_key(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.extended))


def _device_name(value: Any) -> str:
    """The platform and the device ids; just `cpu` for the single CPU."""
    if isinstance(value, jax.core.Tracer):
        return "traced"
    devices = sorted(value.devices(), key=lambda device: int(device.id))
    if len(devices) > 1:
        return f"{devices[0].platform}:{','.join(str(device.id) for device in devices)}"
    return "cpu" if devices[0].platform == "cpu" else f"{devices[0].platform}:{devices[0].id}"


def _require_values(value: Any) -> None:
    shape = list(value.shape)
    if isinstance(value, jax.core.Tracer):
        reason = f"a jax tracer of shape {shape} has no values; capture outside of jit, grad and vmap"
    elif value.is_deleted():
        reason = f"a jax array of shape {shape} was deleted or donated; capture it before that"
    elif not value.is_fully_addressable:
        reason = (
            f"a jax array of shape {shape} lies partly on other processes; capture its addressable shards"
        )
    elif _is_prng_key(value):
        reason = f"a jax key array of shape {shape} is not numbers; capture jax.random.key_data(key)"
    else:
        return
    raise UnsupportedValueError(reason)
