"""A tensor as a .npy file, sent piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import numpy as np
from starlette.responses import StreamingResponse

from tensortap.comparison.sides.leaf import Operand
from tensortap.formats.npy import header
from tensortap.formats.run_layout import file_stem
from tensortap.kernels.decode import decode

_CHUNK_ELEMENTS = 4 << 20  # elements


def npy_response(operand: Operand, name: str) -> StreamingResponse:
    """In its own type; one that numpy lacks as the smallest that holds its numbers."""
    dtype = decode(operand.bits.reshape(-1)[:1], operand.dtype).dtype
    head = header(dtype, operand.bits.shape)
    stem = file_stem(name)
    size = len(head) + operand.bits.size * dtype.itemsize
    return StreamingResponse(
        _npy_chunks(head, operand),
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"attachment; filename*=UTF-8''{quote(stem, safe='')}.npy",
            "content-length": str(size),
        },
    )


def _npy_chunks(head: bytes, operand: Operand) -> Iterator[bytes]:
    yield head
    flat = np.asarray(operand.bits).reshape(-1)
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        yield np.ascontiguousarray(decode(flat[start : start + _CHUNK_ELEMENTS], operand.dtype)).tobytes()
