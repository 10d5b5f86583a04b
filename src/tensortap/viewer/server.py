"""Starting the viewer: `tt.view(...)` in a program, `tensortap view` on the command line."""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tensortap.comparison.runs.compare import Comparison
from tensortap.core.errors import MissingExtraError, NoRunError, NotServingError, RefusedError
from tensortap.readers.run import Run
from tensortap.render import html

try:
    import uvicorn

    from tensortap.viewer.access import LOOPBACK, AccessTokens
    from tensortap.viewer.app import create_app
    from tensortap.viewer.compare.jobs import ComparisonRequest
    from tensortap.viewer.data.library import RunLibrary
    from tensortap.viewer.workspace.state import ViewerState
except ModuleNotFoundError as error:
    _missing = (error.name or "").partition(".")[0]
    if _missing not in ("starlette", "uvicorn"):
        raise
    raise MissingExtraError(
        f"the viewer needs {_missing}, which is not installed; pip install 'tensortap[view]'"
    ) from None

_START_TIMEOUT = 10.0
_SHUTDOWN_TIMEOUT = 1


def view(
    *things: Any,
    port: int = 0,
    host: str = "127.0.0.1",
    allow_actions: bool = False,
) -> View:
    """Look at runs, folders of runs, trace files or a comparison in a browser.

    >>> tt.view("runs")                    # shows a link; .url has the address
    >>> tt.view("runs/before", "runs/after")        # opens their comparison
    >>> tt.view(tt.compare_runs(a, b))

    Each address lets one browser in, once; asking for `.url` again makes another. Nothing is changed: with
    `allow_actions`, the page may place taps in running jobs and save rules. `.close()` ends it.
    """
    return View(things, port=port, host=host, allow_actions=allow_actions)


class View:
    """A viewer that runs in threads of this process."""

    def __init__(self, things: Sequence[Any], *, port: int, host: str, allow_actions: bool) -> None:
        comparisons = [thing for thing in things if isinstance(thing, Comparison)]
        paths = [_path_of(thing) for thing in things if not isinstance(thing, Comparison)]
        for comparison in comparisons:
            paths += [Path(label) for label in (comparison.a, comparison.b) if Path(label).exists()]
        library = RunLibrary(dict.fromkeys(paths))
        _check_host(host)
        self._socket = _bind_socket(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self.tokens, self.state = AccessTokens(), ViewerState(library, allows_actions=allow_actions)
        self.state.start = _start_page(self.state, paths, comparisons)
        self._server = _create_server(self.state, self.tokens, host)
        self._thread = threading.Thread(target=self._run, name="tensortap-viewer-server", daemon=True)
        self._thread.start()
        self._close = weakref.finalize(self, _shut_down, self._server, self._thread, self.state, self._socket)
        self._wait()

    @property
    def url(self) -> str:
        """An address that lets one browser in, once; another each time."""
        separator = "&" if "?" in self.state.start else "?"
        return f"{self.address}{self.state.start}{separator}token={self.tokens.mint()}"

    @property
    def address(self) -> str:
        """Where it listens, for a browser that has been let in."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}"

    @property
    def is_open(self) -> bool:
        return self._close.alive and self._thread.is_alive()

    def close(self) -> None:
        """End it; its threads and its port are gone afterwards."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self.is_open:
            return "<viewer, closed>"
        return f"<viewer at {self.address}: {len(self.state.library.run_ids)} runs; .url lets a browser in>"

    def _repr_html_(self) -> str:
        if not self.is_open:
            return html.element("p", "the viewer is closed")
        # A link instead of an iframe: a page that allows framing is open to clickjacking.
        link = html.element("a", "open the viewer", href=self.url, target="_blank", rel="noopener")
        note = f" ({len(self.state.library.run_ids)} runs; the link works once)"
        return html.element("p", link, note)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def _wait(self) -> None:
        waited = threading.Event()
        for _ in range(int(_START_TIMEOUT / 0.01)):
            if self._server.started or not self._thread.is_alive():
                break
            waited.wait(0.01)
        if not self._server.started:
            self.close()
            raise NotServingError("the viewer did not start; the log of uvicorn tells why")


def _shut_down(
    server: uvicorn.Server, thread: threading.Thread, state: ViewerState, listening: socket.socket
) -> None:
    server.should_exit = True
    state.is_over.set()
    state.events.close()
    thread.join(_SHUTDOWN_TIMEOUT + 5)
    state.close()
    listening.close()


def _create_server(state: ViewerState, tokens: AccessTokens, host: str) -> uvicorn.Server:
    hosts = () if host in LOOPBACK else (f"[{host}]" if ":" in host else host,)
    config = uvicorn.Config(
        create_app(state, tokens, hosts),
        lifespan="on",
        ws="none",
        access_log=False,
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT,
        timeout_keep_alive=30,
    )
    return uvicorn.Server(config)


def _start_page(state: ViewerState, paths: list[Path], comparisons: list[Comparison]) -> str:
    """The path of the first page: a comparison, a run, or the run list."""
    library = state.library
    if comparisons:
        return f"/compare?c={state.comparisons.add(comparisons[0])[:8]}"
    run_ids = [library.id_at(str(path)) for path in paths]
    runs = [run_id for run_id in run_ids if run_id is not None]
    if len(paths) == 2 and len(runs) < 2:
        runs = [newest for path in paths if (newest := _newest_run(library, path)) is not None]
    if len(paths) == 2 and len(runs) == 2 and runs[0] != runs[1]:
        state.comparisons.submit(ComparisonRequest(runs[0], runs[1]))
        return f"/compare?a={library.short_id(runs[0])}&b={library.short_id(runs[1])}"
    return f"/run/{library.short_id(runs[0])}" if len(paths) == 1 and runs else "/"


def _newest_run(library: RunLibrary, path: Path) -> str | None:
    """The run at the path, or the newest below it, as in `tensortap compare`."""
    inside = [
        run_id
        for run_id in library.run_ids
        if path.absolute() in (library.path(run_id), *library.path(run_id).parents)
    ]
    return inside[-1] if inside else None


def _path_of(thing: Any) -> Path:
    if isinstance(thing, Run):
        return thing.path
    if isinstance(thing, (str, os.PathLike)):
        return Path(thing)
    path = getattr(thing, "path", None)  # a trace file, a sink, ...
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    raise NoRunError(f"cannot view a {type(thing).__name__}; give a run, a folder of runs, or a Comparison")


def _check_host(host: str) -> None:
    if host not in ("127.0.0.1", "localhost", "::1"):
        raise RefusedError(
            f"the viewer listens on this machine only, not on {host!r}; from elsewhere, let ssh forward its "
            "port: ssh -L 7007:127.0.0.1:7007 host"
        )


def _bind_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With proto=TCP asyncio sets TCP_NODELAY; without it each small response takes 40 ms longer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = (getattr(error, "strerror", None) or str(error)).lower().rstrip(".")
        raise NotServingError(
            f"port {port} of {host} cannot be had ({reason}); port 0 takes a free one"
        ) from None
    return listener
