"""What the page of a running job asks for, and what it asks the job to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tensortap.comparison.operands import Operand
from tensortap.viewer import downloads, looks
from tensortap.viewer.answers import json_response
from tensortap.viewer.events import event_stream_response, format_event
from tensortap.viewer.live_jobs import LiveJob, first_number, find_listening_jobs, operand_of_value, live_record_facts, statistics_of_value
from tensortap.viewer.numbers import MappedTensor
from tensortap.viewer.problems import NotFoundError, error_response
from tensortap.viewer.serving import action_endpoint, read_endpoint, viewer_state
from tensortap.viewer.state import ViewerState
from tensortap.viewer.tensors import default_view, statistics_facts

_TURN = 0.05  # seconds between two looks at what came
_METERS = 0.5
_MOST_PLACES = 5000
_THEN = ("tell", "send", "dump")


def jobs(state: ViewerState, request: Request) -> Response:
    return json_response({"jobs": [job.told for job in find_listening_jobs().values()], "actions": state.allows_actions})


def job(state: ViewerState, request: Request) -> Response:
    return json_response(_job(state, request).told())


def catalog(state: ViewerState, request: Request) -> Response:
    live, words = _job(state, request), request.query_params.get("q", "")
    places = live.session.catalog(words, timeout=1.0)
    tapped = {
        name: tap["tap"]
        for tap in live.taps()
        if tap["state"] in ("armed", "requested")
        for name in tap["names"]
    }
    rows = [
        {
            "name": place.name,
            "kind": place.kind,
            "class": place.module_class,
            "dtype": place.dtype,
            "shape": place.shape,
            "tap": tapped.get(place.name),
        }
        for place in places[:_MOST_PLACES]
    ]
    return json_response({"places": rows, "of": len(places)})


def tap(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    patterns = body.get("patterns")
    if not isinstance(patterns, list) or not patterns or not all(isinstance(one, str) for one in patterns):
        raise ValueError("patterns is a list of texts: what is to be tapped")
    live = _job(state, request)
    options = {name: body[name] for name in ("every", "first", "keep", "ranks") if body.get(name) is not None}
    return json_response({"tap": live.tap_told(live.session.tap(*patterns, **options))})


def untap(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    live, number = _job(state, request), body.get("tap")
    ended = list(live.session.taps.values()) if number == "*" else [live.tap(number)]
    for tapped in ended:
        live.session.end_tap(tapped)
        live.session.taps.pop(tapped.number, None)
        live.session.shelf.forget(tapped.number)
    return json_response({"ended": len(ended)})


def watch(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    condition, then = body.get("condition"), body.get("then", "tell")
    if not isinstance(condition, str) or then not in _THEN:
        raise ValueError(f"a watch has a condition, and then is one of {', '.join(_THEN)}")
    first = body.get("first", 10)
    if type(first) is not int or first < 1:
        raise ValueError(f"a watch ends after a whole number of steps in which it held, not after {first!r}")
    live = _job(state, request)
    return json_response({"tap": live.tap_told(live.session.when(condition, then=then, first=first))})


def record(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    folders = [root for root in state.library.roots if root.is_dir()]
    folder = folders[0] if folders else Path("runs")
    return json_response({"path": _job(state, request).record(folder, bool(body.get("on")))})


def close(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    state.live.leave(request.path_params["job"])
    return json_response({})


def latest(state: ViewerState, request: Request) -> Response:
    live, (number, name, rank) = _job(state, request), _which(request)
    record = live.latest(number, name, rank)
    held, known = operand_of_value(record.value), statistics_of_value(record.value)
    shape = list(held.bits.shape) if held is not None else []
    return json_response(
        {
            "name": name,
            "kind": record.kind,
            "step": first_number(record.step),
            "rank": rank,
            "call": record.call,
            "time": record.time,
            "dtype": held.dtype if held is not None else type(record.value).__name__,
            "shape": shape,
            "nbytes": held.bits.nbytes if held is not None else 0,
            "is_array": held is not None,
            "statistics": None if known is None else statistics_facts(known),
            "text": None if held is not None else repr(record.value)[:4000],
            "python": f"import tensortap as tt\n\ns = tt.attach({live.about['pid']})\nx = s.once({name!r})",
            "view": default_view(shape),
        }
    )


def value(state: ViewerState, request: Request) -> Response:
    live, (number, name, rank), what = _job(state, request), _which(request), request.path_params["what"]
    if what == "history":
        return json_response(live.history(number, name, rank))
    record = live.latest(number, name, rank)
    held: Operand | None = operand_of_value(record.value)
    if held is None:
        raise NotFoundError(f"{name!r} is not made of numbers")
    if what == "value.npy":
        return downloads.npy_response(held, name)
    key = (request.path_params["job"], number, name, rank, record.step, record.call, record.time)
    return looks.view_response(state, request, what, looks.TensorView(MappedTensor(held), key, lambda: None))


async def stream(request: Request) -> Response:
    state = viewer_state(request)
    loop = asyncio.get_running_loop()
    try:
        live = await loop.run_in_executor(state.workers, _job, state, request)
    except Exception as error:  # noqa: BLE001  whatever it is, the page gets a sentence
        return await error_response(request, error)
    return event_stream_response(_texts(state, live))


async def _texts(state: ViewerState, live: LiveJob) -> AsyncIterator[bytes]:
    """Meters twice a second, and the newest of each name as soon as it has come."""
    seen: dict[int, int] = {}
    next_meters = 0.0
    loop = asyncio.get_running_loop()
    while not state.is_over.is_set():
        if time.monotonic() >= next_meters:
            next_meters = time.monotonic() + _METERS
            meters = {
                "time": time.time(),
                **live.session.status,
                "taps": live.taps(),
                "open": live.session.is_open,
            }
            yield format_event("meters", meters)
        news = await loop.run_in_executor(state.workers, _news, live, seen)
        if news:
            yield format_event("records", {"records": news})
        if not live.session.is_open:
            why = next((peer.why for peer in live.session.peers if peer.why), "the session is closed")
            yield format_event("gone", {"text": why})
            return
        await asyncio.sleep(_TURN if news or live.session.taps else 4 * _TURN)


def _news(live: LiveJob, seen: dict[int, int]) -> list[dict[str, Any]]:
    """The last of each name that came since, for each tap."""
    found = []
    for number in list(live.session.taps):
        lasts = [entry for entry in live.session.shelf.lasts(number) if entry.number > seen.get(number, 0)]
        if lasts:
            seen[number] = max(entry.number for entry in lasts)
        found += [live_record_facts(entry.record, number, entry.number) for entry in lasts]
    return found


def _job(state: ViewerState, request: Request) -> LiveJob:
    return state.live.job(request.path_params["job"])


def _which(request: Request) -> tuple[int, str, int]:
    words = request.path_params
    if not words["tap"].isdecimal() or len(words["tap"]) > 12:
        raise NotFoundError(f"there is no tap {words['tap'][:100]!r}")
    return int(words["tap"]), words["name"], words["rank"]


_BASE = "/api/live/{job}/value/{tap}/{name:path}/{rank:int}"  # a name may hold slashes
ROUTES = [
    Route("/api/live", read_endpoint(jobs)),
    Route("/api/live/{job}", read_endpoint(job)),
    Route("/api/live/{job}/catalog", read_endpoint(catalog)),
    Route("/api/live/{job}/stream", stream),
    Route("/api/live/{job}/tap", action_endpoint(tap), methods=["POST"]),
    Route("/api/live/{job}/untap", action_endpoint(untap), methods=["POST"]),
    Route("/api/live/{job}/watch", action_endpoint(watch), methods=["POST"]),
    Route("/api/live/{job}/record", action_endpoint(record), methods=["POST"]),
    Route("/api/live/{job}/close", action_endpoint(close, is_action=False), methods=["POST"]),
    Route(_BASE, read_endpoint(latest)),
    Route(f"{_BASE}/{{what}}", read_endpoint(value)),
]
