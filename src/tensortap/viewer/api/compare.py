"""Endpoints of the comparison page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tensortap.comparison.sides.entry import Entry
from tensortap.comparison.sides.leaf import Operand
from tensortap.core.errors import RefusedError
from tensortap.viewer.api import tensor_views
from tensortap.viewer.api.handlers import (
    action_endpoint,
    etag_of,
    int_param,
    optional_int_param,
    read_endpoint,
)
from tensortap.viewer.compare import export
from tensortap.viewer.compare import facts as compare_facts
from tensortap.viewer.compare.jobs import ComparisonJob, ComparisonRequest
from tensortap.viewer.compare.pair_columns import divergence_columns
from tensortap.viewer.data.cached_run import CachedRun
from tensortap.viewer.data.tensor import MappedTensor, TensorDifference
from tensortap.viewer.data.tensor_stats import sample_values
from tensortap.viewer.web.responses import NO_ROW, NotFoundError, binary_response, json_response
from tensortap.viewer.workspace.state import ViewerState

_CACHED = {"cache-control": "no-cache"}
_RULES_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,60}\.toml")
_SCATTER_POINTS = 4000
_DIFFERENCE_MODES = ("value", "abs", "rel", "ulp", "sign")


def start_comparison(state: ViewerState, request: Request) -> Response:
    params = request.query_params
    missing = [side for side in ("a", "b") if not params.get(side)]
    if missing:
        raise ValueError(
            f"a comparison needs two runs, and the address does not say which is {' and '.join(missing)}; "
            "select two in the list of runs"
        )
    limit = params.get("limit", "")
    comparison_request = ComparisonRequest(
        params.get("a", ""),
        params.get("b", ""),
        optional_int_param(request, "step"),
        optional_int_param(request, "rank"),
        tuple(params.getlist("only")),
        float(limit) if limit else None,
    )
    return json_response(state.comparisons.progress(state.comparisons.submit(comparison_request)))


def get_comparison(state: ViewerState, request: Request) -> Response:
    job_id = state.comparisons.resolve_id(request.path_params["c"])
    job, facts = state.comparisons.job(job_id), state.comparisons.progress(job_id)
    return json_response(
        {**facts, "comparison": compare_facts.comparison_facts(state.library, job)}
        if job.outcome is not None
        else facts
    )


def get_pairs(state: ViewerState, request: Request) -> Response:
    job = _requested_job(state, request)
    columns, texts = job.pairs.columns()
    tag = etag_of(state.boot_id, request.path_params["c"], len(job.pairs), job.key)
    return binary_response(columns, {"pairs": len(job.pairs), "texts": texts}, etag=tag, **_CACHED)


def match_pairs(state: ViewerState, request: Request) -> Response:
    state.note_query()
    job, params = _requested_job(state, request), request.query_params
    matched = job.pairs.matching(params.get("q", ""), params.get("sort", ""), params.get("desc", "") == "1")
    return binary_response({"row": matched}, {"matched": len(matched), "of": len(job.pairs)})


def get_divergence_map(state: ViewerState, request: Request) -> Response:
    job, params = _requested_job(state, request), request.query_params
    error = params.get("error", "relative_l2")
    columns, facts = divergence_columns(
        job.comparison, job.pairs, error, optional_int_param(request, "rank"), params.get("q", "")
    )
    return binary_response(columns, facts)


def get_pair(state: ViewerState, request: Request) -> Response:
    job, number = _requested_job(state, request), _pair_number(state, request)
    return json_response(compare_facts.pair_facts(state.library, job, number, request.url.path))


def get_pair_view(state: ViewerState, request: Request) -> Response:
    job, number, view_name = (
        _requested_job(state, request),
        _pair_number(state, request),
        request.path_params["what"],
    )
    a, b = _pair_tensors(job, number)
    if view_name == "scatter":
        return _scatter_response(a, b, int_param(request, "n", _SCATTER_POINTS))
    side, mode = request.query_params.get("side", "d"), request.query_params.get("d", "value")
    if side not in ("a", "b", "d") or mode not in _DIFFERENCE_MODES:
        raise ValueError(
            f"side is a, b or d, and d one of {', '.join(_DIFFERENCE_MODES)}; not {side!r} and {mode!r}"
        )
    numbers: MappedTensor | TensorDifference = a if side == "a" else b
    if side == "d":
        numbers = TensorDifference(a, b, mode)  # type: ignore[arg-type]
    short_id = request.path_params["c"]
    publish_refined = lambda: state.events.publish("refined", f"{short_id} {number}", c=short_id, pair=number)  # noqa: E731
    return tensor_views.view_response(
        state,
        request,
        view_name,
        tensor_views.TensorView(numbers, (job.key, number, side, mode), publish_refined),
    )


def get_name_matching(state: ViewerState, request: Request) -> Response:
    return json_response(
        compare_facts.name_matching_facts(_requested_job(state, request), None, state.allows_actions)
    )


def apply_rules(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    """Compare again with rename rules; saving them to a file needs --allow-actions."""
    job, text = _requested_job(state, request), str(body.get("toml", ""))
    if job.request is None:
        raise ValueError(
            "this comparison was made in Python; give compare_runs(..., map=...) the rules there"
        )
    try:
        rules = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the rules are not TOML: {error}") from None
    if body.get("save"):
        _save_rules(state, str(body["save"]), text)
    job_id = state.comparisons.submit(
        job.request._replace(rules=text), {"rule": [], **rules} if rules else None
    )
    return json_response(state.comparisons.progress(job_id))


def export_html(state: ViewerState, request: Request) -> Response:
    job = _requested_job(state, request)
    patch = job.b.dataset.metadata().get("patch", b"") if job.b is not None else b""
    headers = {"content-disposition": 'attachment; filename="comparison.html"'}
    return Response(
        export.render_comparison_page(job, compare_facts.comparison_facts(state.library, job), patch),
        media_type="text/html",
        headers=headers,
    )


def get_report(state: ViewerState, request: Request) -> Response:
    response = json_response(_requested_job(state, request).comparison.to_json())
    response.headers["content-disposition"] = 'attachment; filename="comparison.json"'
    return response


def _requested_job(state: ViewerState, request: Request) -> ComparisonJob:
    return state.comparisons.job(request.path_params["c"])


def _pair_number(state: ViewerState, request: Request) -> int:
    text, count = request.path_params["pair"], len(_requested_job(state, request).pairs)
    if not text.isdecimal() or len(text) > 12 or int(text) >= count:
        raise NotFoundError(f"there is no pair {text!r}; there are {count}")
    return int(text)


def _pair_tensors(job: ComparisonJob, number: int) -> tuple[MappedTensor, MappedTensor]:
    pair = job.pairs.table[number].pair
    operands = [
        _side_operand(run, int(rows[number]), entry)
        for run, rows, entry in zip((job.a, job.b), job.pairs.rows, (pair.a, pair.b), strict=True)
    ]
    if operands[0] is None or operands[1] is None:
        raise NotFoundError(f"{pair.a.name!r} is not made of numbers")
    return MappedTensor(operands[0]), MappedTensor(operands[1])


def _side_operand(run: CachedRun | None, row: int, entry: Entry) -> Operand | None:
    """From the run if the entry is a stored record, else from the comparison."""
    return entry.operand() if run is None or row == NO_ROW else run.operand(row)


def _scatter_response(a: MappedTensor, b: MappedTensor, count: int) -> Response:
    """Values of both tensors at the same evenly spaced positions."""
    TensorDifference(a, b, "value")  # raises if the shapes differ
    count = min(max(count, 1), 20_000)
    sampled = [sample_values(tensor, count, count)[0] for tensor in (a, b)]
    stride = max(1, -(-len(sampled[0]) // count))
    return json_response(
        {
            "a": sampled[0][::stride],
            "b": sampled[1][::stride],
            "looked": len(sampled[0][::stride]),
            "of": a.bits.size,
        }
    )


def _save_rules(state: ViewerState, name: str, text: str) -> None:
    if not state.allows_actions:
        raise RefusedError("this viewer only looks; start it with --allow-actions to save rules")
    if not _RULES_FILE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a file of rules; letters, digits and - _ . then .toml")
    folder: Path = state.library.roots[0] if state.library.roots else Path.cwd()
    path = (folder if folder.is_dir() else folder.parent) / name
    if path.is_symlink() or (path.exists() and not _is_rules_file(path)):
        raise RefusedError(f"{name} is there already, and is no file of rules; choose another name")
    path.write_text(text, encoding="utf-8")


def _is_rules_file(path: Path) -> bool:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).keys() <= {"rule", "ignore"}
    except (OSError, ValueError):
        return False


ROUTES = [
    Route("/api/compare", read_endpoint(start_comparison)),
    Route("/api/compare/{c}", read_endpoint(get_comparison)),
    Route("/api/compare/{c}/pairs.bin", read_endpoint(get_pairs)),
    Route("/api/compare/{c}/rows.bin", read_endpoint(match_pairs)),
    Route("/api/compare/{c}/map.bin", read_endpoint(get_divergence_map)),
    Route("/api/compare/{c}/names", read_endpoint(get_name_matching)),
    Route("/api/compare/{c}/export.html", read_endpoint(export_html)),
    Route("/api/compare/{c}/report.json", read_endpoint(get_report)),
    Route("/api/compare/{c}/rules", action_endpoint(apply_rules, is_action=False), methods=["POST"]),
    Route("/api/compare/{c}/pair/{pair}", read_endpoint(get_pair)),
    Route("/api/compare/{c}/pair/{pair}/{what}", read_endpoint(get_pair_view)),
]
