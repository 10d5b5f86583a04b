"""Records on their way to another process: what is told of them, and one snapshot of their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.core.record import Record
from tensortap.formats.wire import LIMITS, Limits
from tensortap.formats.wire_values import Packed, packed, record_meta
from tensortap.frameworks.pool import Buffer, BufferPool

_SMALL = 4096  # bytes; below that a buffer of the pool would be mostly empty
_QUICK = 1 << 18  # bytes, copied in some ten microseconds


def described(record: Record, limits: Limits = LIMITS) -> Packed:
    """The meta of a frame with this record, and its bytes where they lie; what cannot be sent is refused."""
    sent = packed(record.value, limits)
    sent.meta = {**record_meta(record), **sent.meta}
    return sent


def copied(sent: Packed, pool: BufferPool) -> Buffer | bytes:
    """The bytes of it as they are now, in one block."""
    if sent.nbytes <= _SMALL:
        return b"".join(sent.buffers) if sent.nbytes else b""
    buffer, at = pool.lend(sent.nbytes), 0
    for view in sent.buffers:
        _copy(buffer.array[at : at + view.nbytes], view)
        at += view.nbytes
    return buffer


def _copy(target: np.ndarray[Any, Any], view: memoryview) -> None:
    if view.nbytes <= _QUICK:
        # numpy would give the interpreter's lock away for this, and the sending thread would take it.
        target.data[:] = view
    else:
        np.copyto(target, np.frombuffer(view, np.uint8))
