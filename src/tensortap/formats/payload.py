"""A value as bytes, ready for any file: a head, the numbers themselves, and a tail."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

TailBuilder = Callable[[int], bytes]


@dataclass(slots=True)
class Payload:
    """`bits` may be strided: whoever writes makes it one block, and copies at most once.

    `is_raw` says that the bits are the numbers as they are, so that a reader may map them; `tail` is
    made from the CRC of the bits, for formats that keep one behind them.
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
