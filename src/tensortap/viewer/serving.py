"""How a handler is called: in a thread of the pool, its errors as answers, what the page has already not."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tensortap.core.errors import RefusedError
from tensortap.viewer.problems import answer_to
from tensortap.viewer.state import State

Work = Callable[[State, Request], Response]
Endpoint = Callable[[Request], Awaitable[Response]]


def state_of(request: Request) -> State:
    state: State = request.app.state.viewer
    return state


def served(work: Work) -> Endpoint:
    """A handler that only reads."""

    async def endpoint(request: Request) -> Response:
        state = state_of(request)
        state.active += 1
        try:
            made = await asyncio.get_running_loop().run_in_executor(state.workers, work, state, request)
        except Exception as error:  # noqa: BLE001  whatever it is, the page gets a sentence
            return await answer_to(request, error)
        finally:
            state.active -= 1
        tag = made.headers.get("etag")
        return unchanged(tag) if tag is not None and has_already(request, tag) else made

    return endpoint


def posted(work: Callable[[State, Request, dict[str, Any]], Response], *, is_action: bool = True) -> Endpoint:
    """A handler that changes something: what reaches out of the viewer needs leave."""

    async def endpoint(request: Request) -> Response:
        state = state_of(request)
        try:
            if is_action and not state.allows_actions:
                raise RefusedError("this viewer only looks; start it with --allow-actions to do that")
            body = _object(await request.body())
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(state.workers, work, state, request, body)
        except Exception as error:  # noqa: BLE001  whatever it is, the page gets a sentence
            return await answer_to(request, error)

    return endpoint


def tag_of(*parts: Any) -> str:
    return f'"{hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()}"'


def has_already(request: Request, tag: str) -> bool:
    return tag in (word.strip() for word in request.headers.get("if-none-match", "").split(","))


def unchanged(tag: str) -> Response:
    return Response(status_code=304, headers={"etag": tag, "cache-control": "no-cache"})


def whole(request: Request, name: str, fallback: int | None = None) -> int | None:
    """A whole number out of the query."""
    text = request.query_params.get(name, "")
    if not text:
        return fallback
    if not text.lstrip("-").isdecimal() or len(text) > 18:
        raise ValueError(f"{name}={text!r} is no whole number")
    return int(text)


def certain(request: Request, name: str, fallback: int) -> int:
    found = whole(request, name, fallback)
    return fallback if found is None else found


def _object(body: bytes) -> dict[str, Any]:
    try:
        told = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(told, dict):
        raise ValueError("the body must be an object")
    return told
