"""How a handler is called: in the thread pool, its exceptions as responses, 304 for what the client has."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tensortap.core.errors import RefusedError
from tensortap.viewer.web.responses import error_response
from tensortap.viewer.workspace.state import ViewerState

Handler = Callable[[ViewerState, Request], Response]
Endpoint = Callable[[Request], Awaitable[Response]]


def viewer_state(request: Request) -> ViewerState:
    state: ViewerState = request.app.state.viewer
    return state


def read_endpoint(handler: Handler) -> Endpoint:
    """Endpoint of a read-only handler."""

    async def endpoint(request: Request) -> Response:
        state = viewer_state(request)
        state.active_requests += 1
        try:
            response = await asyncio.get_running_loop().run_in_executor(
                state.workers, handler, state, request
            )
        except Exception as error:  # noqa: BLE001 - whatever it is, the page gets a sentence
            return await error_response(request, error)
        finally:
            state.active_requests -= 1
        tag = response.headers.get("etag")
        return not_modified(tag) if tag is not None and client_has(request, tag) else response

    return endpoint


def action_endpoint(
    handler: Callable[[ViewerState, Request, dict[str, Any]], Response], *, is_action: bool = True
) -> Endpoint:
    """Endpoint of a POST handler; an action outside the viewer needs --allow-actions."""

    async def endpoint(request: Request) -> Response:
        state = viewer_state(request)
        try:
            if is_action and not state.allows_actions:
                raise RefusedError("this viewer only looks; start it with --allow-actions to do that")
            body = _parse_body(await request.body())
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(state.workers, handler, state, request, body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page gets a sentence
            return await error_response(request, error)

    return endpoint


def etag_of(*parts: Any) -> str:
    return f'"{hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()}"'


def client_has(request: Request, tag: str) -> bool:
    return tag in (cached_tag.strip() for cached_tag in request.headers.get("if-none-match", "").split(","))


def not_modified(tag: str) -> Response:
    return Response(status_code=304, headers={"etag": tag, "cache-control": "no-cache"})


def optional_int_param(request: Request, name: str, fallback: int | None = None) -> int | None:
    """An integer query parameter."""
    text = request.query_params.get(name, "")
    if not text:
        return fallback
    if not text.lstrip("-").isdecimal() or len(text) > 18:
        raise ValueError(f"{name}={text!r} is no whole number")
    return int(text)


def int_param(request: Request, name: str, fallback: int) -> int:
    number = optional_int_param(request, name, fallback)
    return fallback if number is None else number


def _parse_body(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(value, dict):
        raise ValueError("the body must be an object")
    return value
