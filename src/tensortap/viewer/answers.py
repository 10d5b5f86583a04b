"""What the server answers with: JSON without odd numbers, and columns in one binary envelope."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from starlette.responses import Response

MAGIC = b"TTC1"
NO_ROW = 0xFFFFFFFF  # a row that does not exist
_COLUMN_TYPES = {"|u1": "u1", "<i2": "i2", "<u2": "u2", "<i4": "i4", "<u4": "u4", "<f4": "f4", "<f8": "f8"}
Array = np.ndarray[Any, Any]


def encode_columns(columns: Mapping[str, Array], facts: Mapping[str, Any]) -> bytes:
    """Columns one after the other, each at a multiple of eight bytes, below a header that says where."""
    described, parts, offset = [], [], 0
    for name, column in columns.items():
        data = np.ascontiguousarray(column).reshape(-1)
        described.append(
            {"name": name, "type": _COLUMN_TYPES[data.dtype.str], "offset": offset, "length": data.size}
        )
        parts.append(_pad_to_eight(data.tobytes()))
        offset += len(parts[-1])
    header = json.dumps(to_jsonable({**facts, "columns": described}), allow_nan=False).encode()
    header += b" " * (-(8 + len(header)) % 8)
    return b"".join([MAGIC, len(header).to_bytes(4, "little"), header, *parts])


def decode_columns(answer: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header and the columns of an envelope: what the page does, for tests and programs."""
    if answer[:4] != MAGIC:
        raise ValueError(f"an answer of the viewer begins with {MAGIC!r}, not {answer[:4]!r}")
    end = 8 + int.from_bytes(answer[4:8], "little")
    header = json.loads(answer[8:end])
    columns = {
        column["name"]: np.frombuffer(answer, f"<{column['type']}", column["length"], end + column["offset"])
        for column in header["columns"]
    }
    return header, columns


def binary_response(columns: Mapping[str, Array], facts: Mapping[str, Any], **headers: str) -> Response:
    return Response(
        encode_columns(columns, facts), media_type="application/octet-stream", headers=dict(headers) or None
    )


def json_response(facts: Any, status: int = 200) -> Response:
    """As JSON."""
    body = json.dumps(to_jsonable(facts), allow_nan=False, ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    return Response(body.decode("utf-8", "replace"), status, media_type="application/json")


def to_jsonable(value: Any) -> Any:
    """As JSON can hold it: a number that is not finite becomes a word."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else _nonfinite_name(value)
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_jsonable(part) for part in value]
    if isinstance(value, np.ndarray):
        return to_jsonable(value.tolist())
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _nonfinite_name(value: float) -> str:
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _pad_to_eight(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 8)
