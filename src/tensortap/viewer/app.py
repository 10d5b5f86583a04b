"""The application: pages, files and answers behind the guard, and a look now and then at what is new."""

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

from tensortap.viewer import compare_pages, live_pages, run_pages
from tensortap.viewer.events import streamed
from tensortap.viewer.guard import Guard, Keys
from tensortap.viewer.live_jobs import listening
from tensortap.viewer.plotly_file import path_of_plotly
from tensortap.viewer.problems import problem
from tensortap.viewer.serving import has_already, served, state_of, unchanged
from tensortap.viewer.state import State

_STATIC = Path(__file__).parent / "static"
_LOOK, _LOOKS_FOR_RUNS = 0.5, 6  # seconds between two looks at open runs; every so many, at the folders
_FOREVER = "private, max-age=31536000, immutable"
_A_DAY = "private, max-age=86400"
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
_PAGES = ("/", "/run/{rest:path}", "/compare", "/live", "/live/{rest:path}")


def application(state: State, keys: Keys, hosts: tuple[str, ...] = ()) -> Starlette:
    app = Starlette(
        routes=[
            *run_pages.ROUTES,
            *compare_pages.ROUTES,
            *live_pages.ROUTES,
            Route("/api/events", _events),
            Route("/api/{rest:path}", served(_nothing)),
            Route("/plotly.js", served(_plotly)),
            Route("/static/{path:path}", served(_static)),
            Route("/favicon.ico", served(_icon)),
            *(Route(path, served(_page)) for path in _PAGES),
        ],
        middleware=[Middleware(Guard, keys=keys, hosts=hosts)],
        lifespan=_life,
    )
    app.state.viewer = state
    return app


@contextlib.asynccontextmanager
async def _life(app: Starlette) -> AsyncIterator[None]:
    looking = asyncio.create_task(_look_out(app.state.viewer))
    try:
        yield
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking


async def _look_out(state: State) -> None:
    """While a page listens: which runs grew, which came or went."""
    loop, turn, jobs = asyncio.get_running_loop(), 0, frozenset[str]()
    while not state.is_over.is_set():
        await asyncio.sleep(_LOOK)
        if not state.events.has_listeners:
            continue
        turn += 1
        try:
            await loop.run_in_executor(state.workers, _see_growth, state)
            if turn % _LOOKS_FOR_RUNS == 0:
                jobs = await loop.run_in_executor(state.workers, _see_runs, state, jobs)
        except RuntimeError:  # the pool has been closed
            return


def _see_growth(state: State) -> None:
    for stock in state.library.opened:
        try:
            added = stock.refresh()
        except (OSError, ValueError):  # gone, or damaged: whoever asks for it is told
            continue
        if added:
            short = state.library.short(stock.identity)
            state.events.tell("run", stock.identity, id=short, rows=len(stock), added=added)


def _see_runs(state: State, before: frozenset[str]) -> frozenset[str]:
    jobs = frozenset(listening())
    if state.library.look() or jobs != before:
        state.events.tell("runs")
    return jobs


async def _events(request: Request) -> Response:
    return streamed(state_of(request).events.listen().texts())


def _nothing(state: State, request: Request) -> Response:
    return problem("unknown", f"there is nothing at {request.url.path}", 404)


def _page(state: State, request: Request) -> Response:
    return _file(_STATIC / "index.html", request)


def _icon(state: State, request: Request) -> Response:
    # Browsers ask for it whenever the address changes, which it does with each key in a query.
    return _file(_STATIC / "icon.svg", request, _A_DAY)


def _static(state: State, request: Request) -> Response:
    path = (_STATIC / request.path_params["path"]).resolve()
    if not path.is_relative_to(_STATIC.resolve()) or not path.is_file():
        return problem("unknown", "there is no such file", 404)
    return _file(path, request)


def _plotly(state: State, request: Request) -> Response:
    path = path_of_plotly()
    if path is None:
        return problem("missing", "charts are drawn by plotly, so: pip install 'tensortap[view]'", 404)
    return _file(path, request, _FOREVER)


def _file(path: Path, request: Request, caching: str = "no-cache") -> Response:
    if not path.is_file():
        return problem("missing", f"{path.name} is not installed", 404)
    found = path.stat()
    tag = _digest(path, found.st_mtime_ns, found.st_size)
    if has_already(request, tag):
        return unchanged(tag)
    kind = _KINDS.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Response(path.read_bytes(), media_type=kind, headers={"etag": tag, "cache-control": caching})


@lru_cache(maxsize=256)
def _digest(path: Path, changed: int, size: int) -> str:
    return f'"{hashlib.blake2b(path.read_bytes(), digest_size=12).hexdigest()}"'
