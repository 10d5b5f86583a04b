"""A value's content as an exact key or a few bytes, to test later whether it is unchanged."""

import hashlib
from typing import Any

import numpy as np

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.base import framework_of
from tensortap.kernels.hashing import checksum

_INLINE_NBYTES = 4096


def exact_key(value: Any) -> Any:
    """Equal exactly if the values are: NaN equals itself, and 0.0 differs from -0.0."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, complex):
        return value.real.hex(), value.imag.hex()
    return value


def bytes_fingerprint(bits: np.ndarray[Any, Any]) -> bytes | str:
    """The bytes themselves if they are few, else a digest."""
    if bits.nbytes <= _INLINE_NBYTES:
        return bits.tobytes()
    block = np.ascontiguousarray(bits).reshape(-1).view(np.uint8)
    return checksum(block) or hashlib.blake2b(block.data, digest_size=16).digest()


def value_fingerprint(value: Any) -> tuple[Any, ...] | None:
    """Dtype, shape and fingerprint of the bytes; None if the value has no bytes."""
    framework = framework_of(value)
    try:
        bits, described = framework.bits(value), framework.describe(value)
    except UnsupportedValueError:
        return None
    return described.dtype, described.shape, bytes_fingerprint(bits)
