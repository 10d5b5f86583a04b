"""Endpoints of the live page: job facts, taps, conditions, values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tensortap.comparison.sides.leaf import Operand
from tensortap.core.record import first_number
from tensortap.viewer.api import runs, tensor_views
from tensortap.viewer.api.handlers import action_endpoint, read_endpoint, viewer_state
from tensortap.viewer.data.tensor import MappedTensor, default_view, statistics_facts
from tensortap.viewer.web.events import event_stream_response, format_event
from tensortap.viewer.web.responses import NotFoundError, error_response, json_response
from tensortap.viewer.workspace.live_jobs import (
    LiveJob,
    find_listening_jobs,
    live_record_facts,
    operand_of_value,
    statistics_of_value,
)
from tensortap.viewer.workspace.state import ViewerState

_POLL_INTERVAL = 0.05  # seconds
_METERS_INTERVAL = 0.5
_MAX_SITES = 5000
_IMPORT_LINE = "import tensortap as tt\n\n"
_CONDITION_ACTIONS = ("tell", "send", "dump")


def list_jobs(state: ViewerState, request: Request) -> Response:
    return json_response(
        {"jobs": [job.facts for job in find_listening_jobs().values()], "actions": state.allows_actions}
    )


def get_job(state: ViewerState, request: Request) -> Response:
    return json_response(_requested_job(state, request).facts())


def get_catalog(state: ViewerState, request: Request) -> Response:
    live, query = _requested_job(state, request), request.query_params.get("q", "")
    sites = live.session.catalog(query, timeout=1.0)
    tapped = {
        name: tap["tap"]
        for tap in live.taps()
        if tap["state"] in ("armed", "requested")
        for name in tap["names"]
    }
    rows = [
        {
            "name": site.name,
            "kind": site.kind,
            "class": site.module_class,
            "dtype": site.dtype,
            "shape": site.shape,
            "tap": tapped.get(site.name),
        }
        for site in sites[:_MAX_SITES]
    ]
    return json_response({"places": rows, "of": len(sites)})


def add_tap(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    patterns = body.get("patterns")
    if (
        not isinstance(patterns, list)
        or not patterns
        or not all(isinstance(pattern, str) for pattern in patterns)
    ):
        raise ValueError("patterns is a list of texts: what is to be tapped")
    live = _requested_job(state, request)
    options = {name: body[name] for name in ("every", "first", "keep", "ranks") if body.get(name) is not None}
    return json_response({"tap": live.tap_facts(live.session.tap(*patterns, **options))})


def remove_taps(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    live, number = _requested_job(state, request), body.get("tap")
    ended = list(live.session.taps.values()) if number == "*" else [live.tap(number)]
    for tapped in ended:
        live.session.end_tap(tapped)
        live.session.taps.pop(tapped.number, None)
        live.session.buffer.forget(tapped.number)
    return json_response({"ended": len(ended)})


def add_condition(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    condition, then = body.get("condition"), body.get("then", "tell")
    if not isinstance(condition, str) or then not in _CONDITION_ACTIONS:
        raise ValueError(f"a watch has a condition, and then is one of {', '.join(_CONDITION_ACTIONS)}")
    first = body.get("first", 10)
    if type(first) is not int or first < 1:
        raise ValueError(f"a watch ends after a whole number of steps in which it held, not after {first!r}")
    live = _requested_job(state, request)
    return json_response({"tap": live.tap_facts(live.session.when(condition, then=then, first=first))})


def set_recording(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    folders = [root for root in state.library.roots if root.is_dir()]
    folder = folders[0] if folders else Path("runs")
    return json_response({"path": _requested_job(state, request).record(folder, bool(body.get("on")))})


def close_session(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    state.live.close_job(request.path_params["job"])
    return json_response({})


def get_latest(state: ViewerState, request: Request) -> Response:
    live, (number, name, rank) = _requested_job(state, request), _tap_name_and_rank(request)
    record = live.latest(number, name, rank)
    operand, record_statistics = operand_of_value(record.value), statistics_of_value(record.value)
    shape = list(operand.bits.shape) if operand is not None else []
    return json_response(
        {
            "name": name,
            "kind": record.kind,
            "step": first_number(record.step),
            "rank": rank,
            "call": record.call,
            "time": record.time,
            "dtype": operand.dtype if operand is not None else type(record.value).__name__,
            "shape": shape,
            "nbytes": operand.bits.nbytes if operand is not None else 0,
            "is_array": operand is not None,
            "statistics": None if record_statistics is None else statistics_facts(record_statistics),
            "text": None if operand is not None else repr(record.value)[:4000],
            "python": f"{_IMPORT_LINE}s = tt.attach({live.job_facts['pid']})\nx = s.once({name!r})",
            "view": default_view(shape),
        }
    )


def get_value_view(state: ViewerState, request: Request) -> Response:
    live, (number, name, rank), view_name = (
        _requested_job(state, request),
        _tap_name_and_rank(request),
        request.path_params["what"],
    )
    if view_name == "history":
        return json_response(live.history(number, name, rank))
    record = live.latest(number, name, rank)
    operand: Operand | None = operand_of_value(record.value)
    if operand is None:
        raise NotFoundError(f"{name!r} is not made of numbers")
    if view_name == "value.npy":
        return runs.npy_response(operand, name)
    key = (request.path_params["job"], number, name, rank, record.step, record.call, record.time)
    return tensor_views.view_response(
        state, request, view_name, tensor_views.TensorView(MappedTensor(operand), key, lambda: None)
    )


async def stream_job(request: Request) -> Response:
    state = viewer_state(request)
    loop = asyncio.get_running_loop()
    try:
        live = await loop.run_in_executor(state.workers, _requested_job, state, request)
    except Exception as error:  # noqa: BLE001 - whatever it is, the page gets a sentence
        return await error_response(request, error)
    return event_stream_response(_live_events(state, live))


async def _live_events(state: ViewerState, live: LiveJob) -> AsyncIterator[bytes]:
    """Meters twice a second, and the newest record of each name as it arrives."""
    last_number: dict[int, int] = {}
    next_meters = 0.0
    loop = asyncio.get_running_loop()
    while not state.is_over.is_set():
        if time.monotonic() >= next_meters:
            next_meters = time.monotonic() + _METERS_INTERVAL
            meters = {
                "time": time.time(),
                **live.session.status,
                "taps": live.taps(),
                "open": live.session.is_open,
            }
            yield format_event("meters", meters)
        news = await loop.run_in_executor(state.workers, _new_records, live, last_number)
        if news:
            yield format_event("records", {"records": news})
        if not live.session.is_open:
            why = next(
                (peer.close_reason for peer in live.session.peers if peer.close_reason),
                "the session is closed",
            )
            yield format_event("gone", {"text": why})
            return
        await asyncio.sleep(_POLL_INTERVAL if news or live.session.taps else 4 * _POLL_INTERVAL)


def _new_records(live: LiveJob, last_number: dict[int, int]) -> list[dict[str, Any]]:
    """Per tap: the newest record of each name since the last call."""
    records = []
    for number in list(live.session.taps):
        lasts = [
            entry
            for entry in live.session.buffer.latest_by_name(number)
            if entry.number > last_number.get(number, 0)
        ]
        if lasts:
            last_number[number] = max(entry.number for entry in lasts)
        records += [live_record_facts(entry.record, number, entry.number) for entry in lasts]
    return records


def _requested_job(state: ViewerState, request: Request) -> LiveJob:
    return state.live.job(request.path_params["job"])


def _tap_name_and_rank(request: Request) -> tuple[int, str, int]:
    params = request.path_params
    if not params["tap"].isdecimal() or len(params["tap"]) > 12:
        raise NotFoundError(f"there is no tap {params['tap'][:100]!r}")
    return int(params["tap"]), params["name"], params["rank"]


_VALUE_ROUTE = "/api/live/{job}/value/{tap}/{name:path}/{rank:int}"  # names may contain slashes
ROUTES = [
    Route("/api/live", read_endpoint(list_jobs)),
    Route("/api/live/{job}", read_endpoint(get_job)),
    Route("/api/live/{job}/catalog", read_endpoint(get_catalog)),
    Route("/api/live/{job}/stream", stream_job),
    Route("/api/live/{job}/tap", action_endpoint(add_tap), methods=["POST"]),
    Route("/api/live/{job}/untap", action_endpoint(remove_taps), methods=["POST"]),
    Route("/api/live/{job}/watch", action_endpoint(add_condition), methods=["POST"]),
    Route("/api/live/{job}/record", action_endpoint(set_recording), methods=["POST"]),
    Route("/api/live/{job}/close", action_endpoint(close_session, is_action=False), methods=["POST"]),
    Route(_VALUE_ROUTE, read_endpoint(get_latest)),
    Route(f"{_VALUE_ROUTE}/{{what}}", read_endpoint(get_value_view)),
]
