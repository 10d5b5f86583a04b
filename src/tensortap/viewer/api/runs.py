"""Endpoints of the run pages: the run list, one run, its records, and downloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, get_args
from urllib.parse import quote

import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tensortap.comparison.diagnosis.verdict import VERDICTS
from tensortap.comparison.sides.leaf import Operand
from tensortap.core.errors import NoRunError
from tensortap.core.record import Kind
from tensortap.formats.npy import npy_header
from tensortap.formats.run_layout import file_stem
from tensortap.kernels.decode import decode
from tensortap.readers.listing import runs_being_written
from tensortap.readers.query.fields import FIELDS
from tensortap.readers.run_query import matching_runs
from tensortap.viewer.api import tensor_views
from tensortap.viewer.api.handlers import etag_of, int_param, optional_int_param, read_endpoint
from tensortap.viewer.compare.pair_columns import ERRORS
from tensortap.viewer.data import run_facts, tensor, trees
from tensortap.viewer.data.cached_run import STATISTIC_NAMES, UNKNOWN, CachedRun
from tensortap.viewer.data.tensor import MappedTensor
from tensortap.viewer.web.responses import NotFoundError, binary_response, json_response, plotly_script_path
from tensortap.viewer.workspace.live_jobs import find_listening_jobs
from tensortap.viewer.workspace.state import ViewerState

_MAX_ROWS = 512
_RUNS_TO_CHECK = 8  # the newest runs of the list get statistics without being opened
_QUICK_START = 'import tensortap as tt\n\nwith tt.capture(model, "layers.*", to="runs"):\n    model(batch)'
_CACHED = {"cache-control": "no-cache"}
Array = np.ndarray[Any, Any]
_SEARCHED = ("folder", "name", "command", "model", "branch", "commit")  # where a bare word is looked for
_CHUNK_ELEMENTS = 4 << 20  # elements


def get_meta(state: ViewerState, request: Request) -> Response:
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


def list_runs(state: ViewerState, request: Request) -> Response:
    state.library.rescan()
    run_ids = state.library.run_ids[::-1]
    being_written = runs_being_written()
    listed = [run_facts.list_run(state.library, run_id, being_written) for run_id in run_ids]
    for run_id, (summary, _) in list(zip(run_ids, listed, strict=True))[:_RUNS_TO_CHECK]:
        state.scan_listed_run(run_id, summary.modified)
    query = request.query_params.get("q", "")
    if query:
        names = ["/".join(str(row[part]) for part in _SEARCHED) for _, row in listed]
        listed = [listed[at] for at in matching_runs([summary for summary, _ in listed], query, names)]
    rows = [row for _, row in listed]
    return json_response({"runs": rows, "jobs": [job.facts for job in find_listening_jobs().values()]})


def get_run(state: ViewerState, request: Request) -> Response:
    run = _requested_run(state, request)
    state.scan_statistics(run)
    return json_response(run_facts.run_page_facts(state.library, run.run_id))


def get_scalars(state: ViewerState, request: Request) -> Response:
    name, kind = request.query_params.get("name", ""), request.query_params.get("kind")
    return json_response(
        {"name": name, "series": run_facts.scalar_series(_requested_run(state, request), name, kind)}
    )


def get_module_tree(state: ViewerState, request: Request) -> Response:
    return json_response({"nodes": trees.module_nodes(_requested_run(state, request))})


def get_columns(state: ViewerState, request: Request) -> Response:
    run = _requested_run(state, request)
    state.scan_statistics(run)
    start = max(int_param(request, "from", 0), 0)
    columns, texts = run.columns(start)
    tag = etag_of(state.boot_id, run.run_id, run.generation, start, len(run))
    return binary_response(
        columns, {"rows": len(run), "from": start, "texts": texts, "etag": tag}, etag=tag, **_CACHED
    )


def get_statistics(state: ViewerState, request: Request) -> Response:
    run = _requested_run(state, request)
    text = request.query_params.get("rows")
    if text is None:
        start = max(int_param(request, "from", 0), 0)
        return binary_response(
            _statistics_of_rows(run, slice(start, None)), {"rows": len(run), "from": start}
        )
    rows = _parse_rows(text, run)
    run.compute_statistics(rows)
    if (run.statistics.known[rows] == UNKNOWN).any():
        state.scan_statistics(run)
    return binary_response(
        {"row": rows.astype(np.uint32), **_statistics_of_rows(run, rows)}, {"rows": len(run)}
    )


def match_rows(state: ViewerState, request: Request) -> Response:
    state.note_query()
    run = _requested_run(state, request)
    params = request.query_params
    matched = run.matching_rows(params.get("q", ""), params.get("sort", ""), params.get("desc", "") == "1")
    return binary_response({"row": matched}, {"matched": len(matched), "of": len(run)})


def find_row(state: ViewerState, request: Request) -> Response:
    params = request.query_params
    wanted: dict[str, Any] = {field: optional_int_param(request, field) for field in ("step", "rank", "call")}
    return json_response(
        {
            "row": _requested_run(state, request).find_row(
                {**wanted, "name": params.get("name", ""), "kind": params.get("kind")}
            )
        }
    )


def get_query_help(state: ViewerState, request: Request) -> Response:
    fields = {field.name: field for field in FIELDS.values()}
    return json_response(
        {
            "fields": [
                {"name": field.name, "example": field.example, "what": field.what}
                for field in fields.values()
            ]
        }
    )


def get_row(state: ViewerState, request: Request) -> Response:
    run, number = _requested_run(state, request), _row_number(request)
    return json_response(
        tensor.record_facts(run, number, f"/api/run/{request.path_params['run']}/row/{number}")
    )


def get_row_view(state: ViewerState, request: Request) -> Response:
    run, number, view_name = _requested_run(state, request), _row_number(request), request.path_params["what"]
    run.check_row(number)
    if view_name == "series.bin":
        return _series_response(run, number, request)
    operand = run.operand(number)
    if operand is None:
        raise NotFoundError(f"{run.text('name', number)!r} is not made of numbers; its page shows what it is")
    if view_name == "value.npy":
        return npy_response(operand, run.text("name", number))
    short_id = state.library.short_id(run.run_id)
    publish_refined = lambda: state.events.publish("refined", f"{short_id} {number}", id=short_id, row=number)  # noqa: E731
    key = (run.run_id, run.generation, number)
    return tensor_views.view_response(
        state, request, view_name, tensor_views.TensorView(MappedTensor(operand), key, publish_refined)
    )


def get_call_tree(state: ViewerState, request: Request) -> Response:
    run, key = _requested_run(state, request), request.query_params.get("tree")
    if key is None:
        return json_response(trees.list_call_trees(run))
    start, count = max(int_param(request, "from", 0), 0), int_param(request, "count", 1000)
    return json_response(trees.call_tree_lines(run, key, start, max(count, 1)))


def _series_response(run: CachedRun, number: int, request: Request) -> Response:
    by = request.query_params.get("by", "steps")
    if by not in ("steps", "ranks"):
        raise ValueError(f"a series goes by steps or by ranks, not by {by!r}")
    rows = run.series_rows(number, by)
    if request.query_params.get("compute") == "1":
        run.compute_statistics(rows)
    columns = {"row": rows.astype(np.uint32), "step": run.column("step")[rows].astype(np.int32)}
    columns["rank"] = run.column("rank")[rows].astype(np.int16)
    return binary_response({**columns, **_statistics_of_rows(run, rows)}, {"name": run.text("name", number)})


def _statistics_of_rows(run: CachedRun, rows: Any) -> dict[str, Any]:
    return {
        "known": run.statistics.known[rows],
        **{name: run.statistics.columns[name][rows] for name in STATISTIC_NAMES},
    }


def _requested_run(state: ViewerState, request: Request) -> CachedRun:
    run = state.library.open_run(request.path_params["run"])
    if not run.path.exists():
        raise NoRunError(f"{run.path} is not there any more")
    run.refresh()
    return run


def _row_number(request: Request) -> int:
    text = request.path_params["row"]
    if not text.isdecimal() or len(text) > 12:
        raise NotFoundError(f"{text!r} is no row")
    return int(text)


def _parse_rows(text: str, run: CachedRun) -> Any:
    numbers = [number for number in text.split(",") if number]
    if len(numbers) > _MAX_ROWS or not all(number.isdecimal() and len(number) < 12 for number in numbers):
        raise ValueError(f"rows= takes up to {_MAX_ROWS} numbers with commas")
    rows = np.array([int(number) for number in numbers], np.int64)
    return rows[rows < len(run)]


_HANDLERS: dict[str, Callable[[ViewerState, Request], Response]] = {
    "/api/meta": get_meta,
    "/api/runs": list_runs,
    "/api/query/help": get_query_help,
    "/api/run/{run}": get_run,
    "/api/run/{run}/scalars": get_scalars,
    "/api/run/{run}/tree": get_module_tree,
    "/api/run/{run}/columns.bin": get_columns,
    "/api/run/{run}/stats.bin": get_statistics,
    "/api/run/{run}/rows.bin": match_rows,
    "/api/run/{run}/find": find_row,
    "/api/run/{run}/trace": get_call_tree,
    "/api/run/{run}/row/{row}": get_row,
    "/api/run/{run}/row/{row}/{what}": get_row_view,
}
ROUTES = [Route(path, read_endpoint(handler)) for path, handler in _HANDLERS.items()]


def npy_response(operand: Operand, name: str) -> StreamingResponse:
    """In its own dtype, or the smallest numpy dtype that can hold it."""
    dtype = decode(operand.bits.reshape(-1)[:1], operand.dtype).dtype
    head = npy_header(dtype, operand.bits.shape)
    stem = file_stem(name)
    size = len(head) + operand.bits.size * dtype.itemsize
    return StreamingResponse(
        _npy_chunks(head, operand),
        media_type="application/octet-stream",
        headers={
            "content-disposition": f"attachment; filename*=UTF-8''{quote(stem, safe='')}.npy",
            "content-length": str(size),
        },
    )


def _npy_chunks(head: bytes, operand: Operand) -> Iterator[bytes]:
    yield head
    flat = np.asarray(operand.bits).reshape(-1)
    for start in range(0, flat.size, _CHUNK_ELEMENTS):
        yield np.ascontiguousarray(decode(flat[start : start + _CHUNK_ELEMENTS], operand.dtype)).tobytes()
