"""A value as bytes, ready for any file: head, elements, tail."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

TailBuilder = Callable[[int], bytes]


@dataclass(slots=True)
class Payload:
    """`bits` may be strided: the writer makes it contiguous, copying at most once.

    `is_raw` means that the bits are the elements themselves, so a reader may memory-map them; `tail` is built
    from the CRC of the bits, for formats that store one after them.
    """

    suffix: str
    bits: np.ndarray[Any, Any]
    head: bytes = b""
    tail: TailBuilder | None = None
    is_raw: bool = True
    is_private: bool = False  # nobody else can write to the bits
    staging: memoryview | None = None  # memory around the bits, with room for the head before and more after


def payload_from_bytes(suffix: str, data: bytes) -> Payload:
    return Payload(suffix, np.frombuffer(data, np.uint8), is_raw=False, is_private=True)
