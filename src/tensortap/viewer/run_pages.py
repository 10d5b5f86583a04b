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
from tensortap.readers.query import parse
from tensortap.readers.query_fields import FIELDS
from tensortap.viewer import call_lines, downloads, looks, module_tree, summaries, tensors
from tensortap.viewer.answers import binary, told
from tensortap.viewer.counted import NAMES, UNKNOWN
from tensortap.viewer.listed import Listed
from tensortap.viewer.live_jobs import listening
from tensortap.viewer.numbers import Tensor
from tensortap.viewer.pairs import ERRORS
from tensortap.viewer.plotly_file import path_of_plotly
from tensortap.viewer.problems import UnknownThingError
from tensortap.viewer.serving import certain, served, tag_of, whole
from tensortap.viewer.state import State
from tensortap.viewer.stock import Stock

_MOST_ROWS = 512
_GLIMPSED = 8  # runs, the newest: how healthy they are is found out because they are listed
_QUICK_START = 'import tensortap as tt\n\nwith tt.capture(model, "layers.*", to="runs"):\n    model(batch)'
_CACHED = {"cache-control": "no-cache"}


def meta(state: State, request: Request) -> Response:
    return told(
        {
            "version": version("tensortap"),
            "actions": state.allows_actions,
            "start": state.start,
            "roots": [str(root) for root in state.library.roots],
            "plotly": path_of_plotly() is not None,
            "verdicts": VERDICTS,
            "kinds": get_args(Kind),
            "errors": ERRORS,
            "quick_start": _QUICK_START,
        }
    )


def runs(state: State, request: Request) -> Response:
    state.library.look()
    identities = state.library.identities[::-1]
    rows = [summaries.in_short(state.library, identity) for identity in identities]
    for identity, row in list(zip(identities, rows, strict=True))[:_GLIMPSED]:
        state.glimpse(identity, row["modified"])
    query = request.query_params.get("q", "")
    if query:
        rows = [rows[place] for place in np.flatnonzero(parse(query).mask(Listed(rows)))]
    return told({"runs": rows, "jobs": [job.told for job in listening().values()]})


def run(state: State, request: Request) -> Response:
    stock = _stock(state, request)
    state.look_through(stock)
    return told(summaries.at_length(state.library, stock.identity))


def scalars(state: State, request: Request) -> Response:
    name, kind = request.query_params.get("name", ""), request.query_params.get("kind")
    return told({"name": name, "series": summaries.scalar_series(_stock(state, request), name, kind)})


def tree(state: State, request: Request) -> Response:
    return told({"nodes": module_tree.nodes_of(_stock(state, request))})


def columns(state: State, request: Request) -> Response:
    stock = _stock(state, request)
    state.look_through(stock)
    start = max(certain(request, "from", 0), 0)
    found, texts = stock.columns(start)
    tag = tag_of(state.boot, stock.identity, stock.edition, start, len(stock))
    return binary(
        found, {"rows": len(stock), "from": start, "texts": texts, "etag": tag}, etag=tag, **_CACHED
    )


def statistics(state: State, request: Request) -> Response:
    stock = _stock(state, request)
    asked = request.query_params.get("rows")
    if asked is None:
        start = max(certain(request, "from", 0), 0)
        return binary(_statistics(stock, slice(start, None)), {"rows": len(stock), "from": start})
    rows = _rows(asked, stock)
    stock.compute(rows)
    if (stock.counted.known[rows] == UNKNOWN).any():
        state.look_through(stock)
    return binary({"row": rows.astype(np.uint32), **_statistics(stock, rows)}, {"rows": len(stock)})


def matching(state: State, request: Request) -> Response:
    state.queried()
    stock = _stock(state, request)
    asked = request.query_params
    found = stock.rows(asked.get("q", ""), asked.get("sort", ""), asked.get("desc", "") == "1")
    return binary({"row": found}, {"matched": len(found), "of": len(stock)})


def find(state: State, request: Request) -> Response:
    asked = request.query_params
    wanted: dict[str, Any] = {field: whole(request, field) for field in ("step", "rank", "call")}
    return told(
        {
            "row": _stock(state, request).find(
                {**wanted, "name": asked.get("name", ""), "kind": asked.get("kind")}
            )
        }
    )


def query_help(state: State, request: Request) -> Response:
    fields = {field.name: field for field in FIELDS.values()}
    return told(
        {"fields": [{"name": one.name, "example": one.example, "what": one.what} for one in fields.values()]}
    )


def row(state: State, request: Request) -> Response:
    stock, number = _stock(state, request), _row(request)
    return told(tensors.facts(stock, number, f"/api/run/{request.path_params['run']}/row/{number}"))


def value(state: State, request: Request) -> Response:
    stock, number, what = _stock(state, request), _row(request), request.path_params["what"]
    stock.check(number)
    if what == "series.bin":
        return _series(stock, number, request)
    held = stock.operand(number)
    if held is None:
        raise UnknownThingError(
            f"{stock.text('name', number)!r} is not made of numbers; its page shows what it is"
        )
    if what == "value.npy":
        return downloads.npy(held, stock.text("name", number))
    short = state.library.short(stock.identity)
    tell = lambda: state.events.tell("refined", f"{short} {number}", id=short, row=number)  # noqa: E731
    key = (stock.identity, stock.edition, number)
    return looks.answer(state, request, what, looks.Look(Tensor(held), key, tell))


def trace(state: State, request: Request) -> Response:
    stock, key = _stock(state, request), request.query_params.get("tree")
    if key is None:
        return told(call_lines.trees_of(stock))
    start, count = max(certain(request, "from", 0), 0), certain(request, "count", 1000)
    return told(call_lines.lines_of(stock, key, start, max(count, 1)))


def _series(stock: Stock, number: int, request: Request) -> Response:
    by = request.query_params.get("by", "steps")
    if by not in ("steps", "ranks"):
        raise ValueError(f"a series goes by steps or by ranks, not by {by!r}")
    rows = stock.alike(number, by)
    if request.query_params.get("compute") == "1":
        stock.compute(rows)
    place = {"row": rows.astype(np.uint32), "step": stock.plain("step")[rows].astype(np.int32)}
    place["rank"] = stock.plain("rank")[rows].astype(np.int16)
    return binary({**place, **_statistics(stock, rows)}, {"name": stock.text("name", number)})


def _statistics(stock: Stock, rows: Any) -> dict[str, Any]:
    return {"known": stock.counted.known[rows], **{name: stock.counted.columns[name][rows] for name in NAMES}}


def _stock(state: State, request: Request) -> Stock:
    stock = state.library.stock(request.path_params["run"])
    if not stock.path.exists():
        raise NoRunError(f"{stock.path} is not there any more")
    stock.refresh()
    return stock


def _row(request: Request) -> int:
    text = request.path_params["row"]
    if not text.isdecimal() or len(text) > 12:
        raise UnknownThingError(f"{text!r} is no row")
    return int(text)


def _rows(asked: str, stock: Stock) -> Any:
    words = [word for word in asked.split(",") if word]
    if len(words) > _MOST_ROWS or not all(word.isdecimal() and len(word) < 12 for word in words):
        raise ValueError(f"rows= takes up to {_MOST_ROWS} numbers with commas")
    found = np.array([int(word) for word in words], np.int64)
    return found[found < len(stock)]


_HANDLERS: dict[str, Callable[[State, Request], Response]] = {
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
ROUTES = [Route(path, served(handler)) for path, handler in _HANDLERS.items()]
