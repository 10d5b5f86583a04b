"""Responses: JSON without NaN and infinities, columns in one binary message, errors with an HTTP status."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from tensortap.core.errors import (
    CorruptRunError,
    MissingExtraError,
    NoRunError,
    NotServingError,
    NotWholeError,
    RefusedError,
    TensortapError,
    UnknownNameError,
    UnsupportedValueError,
    UntrustedFileError,
)
from tensortap.readers.query.parser import QueryError

log = logging.getLogger("tensortap.viewer")
MAGIC = b"TTC1"
NO_ROW = 0xFFFFFFFF  # in a column of rows: no such row
_COLUMN_TYPES = {"|u1": "u1", "<i2": "i2", "<u2": "u2", "<i4": "i4", "<u4": "u4", "<f4": "f4", "<f8": "f8"}
Array = np.ndarray[Any, Any]


def encode_columns(columns: Mapping[str, Array], facts: Mapping[str, Any]) -> bytes:
    """A JSON header with names, types and offsets, then the columns, each aligned to eight bytes."""
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
    """The header and the columns of `encode_columns`: what the page does, for tests and programs."""
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
    body = json.dumps(to_jsonable(facts), allow_nan=False, ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    return Response(body.decode("utf-8", "replace"), status, media_type="application/json")


def to_jsonable(value: Any) -> Any:
    """The value in JSON types; a non-finite number becomes the string nan, inf or -inf."""
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


class TooLargeError(ValueError):
    """A request would need more memory than the viewer allows."""


class NotFoundError(LookupError):
    """No run, row, pair or job of that name."""

    def __str__(self) -> str:
        return str(self.args[0])


# Exceptions that reading a damaged or malicious file may raise.
DAMAGED_FILE_ERRORS = (
    TensortapError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)
# The first match counts.
_STATUS_OF_ERRORS: tuple[tuple[type[BaseException], str, int], ...] = (
    (QueryError, "query", 400),
    (TooLargeError, "large", 413),
    (RefusedError, "refused", 403),
    (UntrustedFileError, "refused", 403),
    (NotFoundError, "unknown", 404),
    (UnknownNameError, "unknown", 404),
    (NoRunError, "unknown", 404),
    (NotServingError, "gone", 410),
    (MissingExtraError, "missing", 501),
    (CorruptRunError, "corrupt", 422),
    (NotWholeError, "corrupt", 422),
    (UnsupportedValueError, "usage", 400),
    (TensortapError, "usage", 400),
    (TimeoutError, "busy", 503),
    (OSError, "corrupt", 422),
    (ValueError, "usage", 400),
    (TypeError, "usage", 400),
)


async def error_response(request: Request, error: Exception) -> Response:
    """The response for an exception; of an unexpected one the traceback goes to the log only."""
    for kind, problem_kind, status in _STATUS_OF_ERRORS:
        if isinstance(error, kind):
            return problem_response(problem_kind, str(error), status, **_query_position(error))
    log.error("%s failed", request.url.path, exc_info=error)
    return problem_response("failed", f"the viewer failed: {type(error).__name__}; its log tells more", 500)


def problem_response(kind: str, text: str, status: int, **more: Any) -> Response:
    return json_response({"error": {"kind": kind, "text": text, **more}}, status)


def _query_position(error: Exception) -> dict[str, int]:
    return {"at": error.at} if isinstance(error, QueryError) else {}


@lru_cache(maxsize=1)
def plotly_script_path() -> Path | None:
    """The bundled plotly.min.js; None if plotly is not installed. Does not import it."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path if path.is_file() else None
