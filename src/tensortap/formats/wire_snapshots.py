"""Records on their way to another process: what is told of them, and one snapshot of their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.core.record import Record
from tensortap.formats.wire import DEFAULT_LIMITS, FrameLimits
from tensortap.formats.wire_values import WireValue, encode_for_wire, record_meta
from tensortap.frameworks.retention import Buffer, BufferPool

_JOIN_NBYTES = 4096  # bytes; below that a buffer of the pool would be mostly empty
_COPY_WITH_GIL = 1 << 18  # bytes, copied in some ten microseconds


def encode_record(record: Record, limits: FrameLimits = DEFAULT_LIMITS) -> WireValue:
    """The meta of a frame with this record, and its bytes where they lie; what cannot be sent is refused."""
    sent = encode_for_wire(record.value, limits)
    sent.meta = {**record_meta(record), **sent.meta}
    return sent


def copy_buffers(sent: WireValue, pool: BufferPool) -> Buffer | bytes:
    """The bytes of it as they are now, in one block."""
    if sent.nbytes <= _JOIN_NBYTES:
        return b"".join(sent.buffers) if sent.nbytes else b""
    buffer, at = pool.lend(sent.nbytes), 0
    for view in sent.buffers:
        _copy(buffer.array[at : at + view.nbytes], view)
        at += view.nbytes
    return buffer


def _copy(target: np.ndarray[Any, Any], view: memoryview) -> None:
    if view.nbytes <= _COPY_WITH_GIL:
        # numpy would give the interpreter's lock away for this, and the sending thread would take it.
        target.data[:] = view
    else:
        np.copyto(target, np.frombuffer(view, np.uint8))
