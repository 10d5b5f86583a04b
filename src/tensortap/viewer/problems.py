"""What went wrong, as an answer: a status, a kind, and a sentence."""

from __future__ import annotations

import logging
from typing import Any

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
from tensortap.viewer.answers import json_response

log = logging.getLogger("tensortap.viewer")


class TooLargeError(ValueError):
    """What was asked for would take more memory than the viewer allows itself."""


class NotFoundError(LookupError):
    """No run, row, pair or job of that name."""

    def __str__(self) -> str:
        return str(self.args[0])


# What reading a file that someone has damaged, by chance or on purpose, may raise.
DAMAGED_FILE_ERRORS = (
    TensortapError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)
# The first that fits counts.
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
    """The error of a handler; one that nobody foresaw is logged with its trace, and told without."""
    for kind, word, status in _STATUS_OF_ERRORS:
        if isinstance(error, kind):
            return problem_response(word, str(error), status, **_query_position(error))
    log.error("%s failed", request.url.path, exc_info=error)
    return problem_response("failed", f"the viewer failed: {type(error).__name__}; its log tells more", 500)


def problem_response(kind: str, text: str, status: int, **more: Any) -> Response:
    return json_response({"error": {"kind": kind, "text": text, **more}}, status)


def _query_position(error: Exception) -> dict[str, int]:
    return {"at": error.at} if isinstance(error, QueryError) else {}
