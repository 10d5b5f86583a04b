"""The ASGI application: routes behind the access check, and a task that polls for new runs and rows."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mimetypes
from collections.abc import AsyncIterator
from functools import lru_cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tensortap.viewer.access import AccessMiddleware, AccessTokens
from tensortap.viewer.api import compare, live, runs
from tensortap.viewer.api.handlers import client_has, not_modified, read_endpoint, viewer_state
from tensortap.viewer.web.events import event_stream_response
from tensortap.viewer.web.responses import plotly_script_path, problem_response
from tensortap.viewer.workspace.live_jobs import find_listening_jobs
from tensortap.viewer.workspace.state import ViewerState

_STATIC = Path(__file__).parent / "static"
_POLL_INTERVAL = 0.5  # seconds
_POLLS_PER_RESCAN = 6  # of the folders
_CACHE_FOREVER = "private, max-age=31536000, immutable"
_CACHE_ONE_DAY = "private, max-age=86400"
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
_PAGES = ("/", "/run/{rest:path}", "/compare", "/live", "/live/{rest:path}")


def create_app(state: ViewerState, tokens: AccessTokens, hosts: tuple[str, ...] = ()) -> Starlette:
    app = Starlette(
        routes=[
            *runs.ROUTES,
            *compare.ROUTES,
            *live.ROUTES,
            Route("/api/events", _stream_events),
            Route("/api/{rest:path}", read_endpoint(_unknown_route)),
            Route("/plotly.js", read_endpoint(_plotly_script)),
            Route("/static/{path:path}", read_endpoint(_static_file)),
            Route("/favicon.ico", read_endpoint(_favicon)),
            *(Route(path, read_endpoint(_index_page)) for path in _PAGES),
        ],
        middleware=[Middleware(AccessMiddleware, tokens=tokens, hosts=hosts)],
        lifespan=_lifespan,
    )
    app.state.viewer = state
    return app


@contextlib.asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    polling = asyncio.create_task(_poll_for_changes(app.state.viewer))
    try:
        yield
    finally:
        polling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await polling


async def _poll_for_changes(state: ViewerState) -> None:
    """While a page is subscribed: publish which runs grew, appeared or disappeared."""
    loop, turn, jobs = asyncio.get_running_loop(), 0, frozenset[str]()
    while not state.is_over.is_set():
        await asyncio.sleep(_POLL_INTERVAL)
        if not state.events.has_subscribers:
            continue
        turn += 1
        try:
            await loop.run_in_executor(state.workers, _publish_growth, state)
            if turn % _POLLS_PER_RESCAN == 0:
                jobs = await loop.run_in_executor(state.workers, _publish_run_list, state, jobs)
        except RuntimeError:  # the pool has been closed
            return


def _publish_growth(state: ViewerState) -> None:
    for run in state.library.open_runs:
        try:
            added = run.refresh()
        except (OSError, ValueError):  # deleted or damaged: reported when it is requested
            continue
        if added:
            short_id = state.library.short_id(run.run_id)
            state.events.publish("run", run.run_id, id=short_id, rows=len(run), added=added)


def _publish_run_list(state: ViewerState, before: frozenset[str]) -> frozenset[str]:
    jobs = frozenset(find_listening_jobs())
    if state.library.rescan() or jobs != before:
        state.events.publish("runs")
    return jobs


async def _stream_events(request: Request) -> Response:
    return event_stream_response(viewer_state(request).events.subscribe().messages())


def _unknown_route(state: ViewerState, request: Request) -> Response:
    return problem_response("unknown", f"there is nothing at {request.url.path}", 404)


def _index_page(state: ViewerState, request: Request) -> Response:
    return _file_response(_STATIC / "index.html", request)


def _favicon(state: ViewerState, request: Request) -> Response:
    # Browsers request it at each URL change, which happens with every key typed into a query.
    return _file_response(_STATIC / "icon.svg", request, _CACHE_ONE_DAY)


def _static_file(state: ViewerState, request: Request) -> Response:
    path = (_STATIC / request.path_params["path"]).resolve()
    if not path.is_relative_to(_STATIC.resolve()) or not path.is_file():
        return problem_response("unknown", "there is no such file", 404)
    return _file_response(path, request)


def _plotly_script(state: ViewerState, request: Request) -> Response:
    path = plotly_script_path()
    if path is None:
        return problem_response(
            "missing", "charts are drawn by plotly, so: pip install 'tensortap[view]'", 404
        )
    return _file_response(path, request, _CACHE_FOREVER)


def _file_response(path: Path, request: Request, caching: str = "no-cache") -> Response:
    if not path.is_file():
        return problem_response("missing", f"{path.name} is not installed", 404)
    status = path.stat()
    tag = _etag_of_file(path, status.st_mtime_ns, status.st_size)
    if client_has(request, tag):
        return not_modified(tag)
    kind = _MEDIA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Response(path.read_bytes(), media_type=kind, headers={"etag": tag, "cache-control": caching})


@lru_cache(maxsize=256)
def _etag_of_file(path: Path, changed: int, size: int) -> str:
    return f'"{hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()}"'
