"""What the pages of runs ask for."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any, get_args

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tensortap.comparison.verdict import VERDICTS
from tensortap.core.errors import NoRunError
from tensortap.core.record import Kind
from tensortap.readers.query import parse_query
from tensortap.readers.query_fields import FIELDS
from tensortap.viewer import call_lines, downloads, looks, module_tree, summaries, tensors
from tensortap.viewer.answers import binary_response, json_response
from tensortap.viewer.counted import STATISTIC_NAMES, UNKNOWN
from tensortap.viewer.listed import RunListTable
from tensortap.viewer.live_jobs import find_listening_jobs
from tensortap.viewer.numbers import MappedTensor
from tensortap.viewer.pairs import ERRORS
from tensortap.viewer.plotly_file import plotly_script_path
from tensortap.viewer.problems import NotFoundError
from tensortap.viewer.serving import int_param, read_endpoint, etag_of, optional_int_param
from tensortap.viewer.state import ViewerState
from tensortap.viewer.stock import CachedRun

_MOST_ROWS = 512
_GLIMPSED = 8  # runs, the newest: how healthy they are is found out because they are listed
_QUICK_START = 'import tensortap as tt\n\nwith tt.capture(model, "layers.*", to="runs"):\n    model(batch)'
_CACHED = {"cache-control": "no-cache"}


def meta(state: ViewerState, request: Request) -> Response:
    return json_response(
        {
            "version": version("tensortap"),
            "actions": state.allows_actions,
            "start": state.start,
            "roots": [str(root) for root in state.library.roots],
            "plotly": plotly_script_path() is not None,
            "verdicts": VERDICTS,
            "kinds": get_args(Kind),
            "errors": ERRORS,
            "quick_start": _QUICK_START,
        }
    )


def runs(state: ViewerState, request: Request) -> Response:
    state.library.look()
    identities = state.library.identities[::-1]
    rows = [summaries.run_list_row(state.library, identity) for identity in identities]
    for identity, row in list(zip(identities, rows, strict=True))[:_GLIMPSED]:
        state.glimpse(identity, row["modified"])
    query = request.query_params.get("q", "")
    if query:
        rows = [rows[place] for place in np.flatnonzero(parse_query(query).mask(RunListTable(rows)))]
    return json_response({"runs": rows, "jobs": [job.told for job in find_listening_jobs().values()]})


def run(state: ViewerState, request: Request) -> Response:
    stock = _stock(state, request)
    state.look_through(stock)
    return json_response(summaries.run_page_facts(state.library, stock.identity))


def scalars(state: ViewerState, request: Request) -> Response:
    name, kind = request.query_params.get("name", ""), request.query_params.get("kind")
    return json_response({"name": name, "series": summaries.scalar_series(_stock(state, request), name, kind)})


def tree(state: ViewerState, request: Request) -> Response:
    return json_response({"nodes": module_tree.module_nodes(_stock(state, request))})


def columns(state: ViewerState, request: Request) -> Response:
    stock = _stock(state, request)
    state.look_through(stock)
    start = max(int_param(request, "from", 0), 0)
    found, texts = stock.columns(start)
    tag = etag_of(state.boot, stock.identity, stock.edition, start, len(stock))
    return binary_response(
        found, {"rows": len(stock), "from": start, "texts": texts, "etag": tag}, etag=tag, **_CACHED
    )


def statistics(state: ViewerState, request: Request) -> Response:
    stock = _stock(state, request)
    asked = request.query_params.get("rows")
    if asked is None:
        start = max(int_param(request, "from", 0), 0)
        return binary_response(_statistics(stock, slice(start, None)), {"rows": len(stock), "from": start})
    rows = _rows(asked, stock)
    stock.compute(rows)
    if (stock.counted.known[rows] == UNKNOWN).any():
        state.look_through(stock)
    return binary_response({"row": rows.astype(np.uint32), **_statistics(stock, rows)}, {"rows": len(stock)})


def matching(state: ViewerState, request: Request) -> Response:
    state.queried()
    stock = _stock(state, request)
    asked = request.query_params
    found = stock.rows(asked.get("q", ""), asked.get("sort", ""), asked.get("desc", "") == "1")
    return binary_response({"row": found}, {"matched": len(found), "of": len(stock)})


def find(state: ViewerState, request: Request) -> Response:
    asked = request.query_params
    wanted: dict[str, Any] = {field: optional_int_param(request, field) for field in ("step", "rank", "call")}
    return json_response(
        {
            "row": _stock(state, request).find(
                {**wanted, "name": asked.get("name", ""), "kind": asked.get("kind")}
            )
        }
    )


def query_help(state: ViewerState, request: Request) -> Response:
    fields = {field.name: field for field in FIELDS.values()}
    return json_response(
        {"fields": [{"name": one.name, "example": one.example, "what": one.what} for one in fields.values()]}
    )


def row(state: ViewerState, request: Request) -> Response:
    stock, number = _stock(state, request), _row(request)
    return json_response(tensors.record_facts(stock, number, f"/api/run/{request.path_params['run']}/row/{number}"))


def value(state: ViewerState, request: Request) -> Response:
    stock, number, what = _stock(state, request), _row(request), request.path_params["what"]
    stock.check(number)
    if what == "series.bin":
        return _series(stock, number, request)
    held = stock.operand(number)
    if held is None:
        raise NotFoundError(
            f"{stock.text('name', number)!r} is not made of numbers; its page shows what it is"
        )
    if what == "value.npy":
        return downloads.npy_response(held, stock.text("name", number))
    short = state.library.short(stock.identity)
    tell = lambda: state.events.tell("refined", f"{short} {number}", id=short, row=number)  # noqa: E731
    key = (stock.identity, stock.edition, number)
    return looks.view_response(state, request, what, looks.TensorView(MappedTensor(held), key, tell))


def trace(state: ViewerState, request: Request) -> Response:
    stock, key = _stock(state, request), request.query_params.get("tree")
    if key is None:
        return json_response(call_lines.list_call_trees(stock))
    start, count = max(int_param(request, "from", 0), 0), int_param(request, "count", 1000)
    return json_response(call_lines.call_tree_lines(stock, key, start, max(count, 1)))


def _series(stock: CachedRun, number: int, request: Request) -> Response:
    by = request.query_params.get("by", "steps")
    if by not in ("steps", "ranks"):
        raise ValueError(f"a series goes by steps or by ranks, not by {by!r}")
    rows = stock.alike(number, by)
    if request.query_params.get("compute") == "1":
        stock.compute(rows)
    place = {"row": rows.astype(np.uint32), "step": stock.plain("step")[rows].astype(np.int32)}
    place["rank"] = stock.plain("rank")[rows].astype(np.int16)
    return binary_response({**place, **_statistics(stock, rows)}, {"name": stock.text("name", number)})


def _statistics(stock: CachedRun, rows: Any) -> dict[str, Any]:
    return {"known": stock.counted.known[rows], **{name: stock.counted.columns[name][rows] for name in STATISTIC_NAMES}}


def _stock(state: ViewerState, request: Request) -> CachedRun:
    stock = state.library.stock(request.path_params["run"])
    if not stock.path.exists():
        raise NoRunError(f"{stock.path} is not there any more")
    stock.refresh()
    return stock


def _row(request: Request) -> int:
    text = request.path_params["row"]
    if not text.isdecimal() or len(text) > 12:
        raise NotFoundError(f"{text!r} is no row")
    return int(text)


def _rows(asked: str, stock: CachedRun) -> Any:
    words = [word for word in asked.split(",") if word]
    if len(words) > _MOST_ROWS or not all(word.isdecimal() and len(word) < 12 for word in words):
        raise ValueError(f"rows= takes up to {_MOST_ROWS} numbers with commas")
    found = np.array([int(word) for word in words], np.int64)
    return found[found < len(stock)]


_HANDLERS: dict[str, Callable[[ViewerState, Request], Response]] = {
    "/api/meta": meta,
    "/api/runs": runs,
    "/api/query/help": query_help,
    "/api/run/{run}": run,
    "/api/run/{run}/scalars": scalars,
    "/api/run/{run}/tree": tree,
    "/api/run/{run}/columns.bin": columns,
    "/api/run/{run}/stats.bin": statistics,
    "/api/run/{run}/rows.bin": matching,
    "/api/run/{run}/find": find,
    "/api/run/{run}/trace": trace,
    "/api/run/{run}/row/{row}": row,
    "/api/run/{run}/row/{row}/{what}": value,
}
ROUTES = [Route(path, read_endpoint(handler)) for path, handler in _HANDLERS.items()]
