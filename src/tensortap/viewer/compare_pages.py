"""What the page of a comparison asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tensortap.comparison.entries import Entry
from tensortap.comparison.operands import Operand
from tensortap.core.errors import RefusedError
from tensortap.viewer import compare_facts, export, looks
from tensortap.viewer.answers import NO_ROW, binary_response, json_response
from tensortap.viewer.comparisons import ComparisonRequest, ComparisonJob
from tensortap.viewer.divergence_map import divergence_columns
from tensortap.viewer.measures import sample_values
from tensortap.viewer.numbers import TensorDifference, MappedTensor
from tensortap.viewer.problems import NotFoundError
from tensortap.viewer.serving import int_param, action_endpoint, read_endpoint, etag_of, optional_int_param
from tensortap.viewer.state import ViewerState
from tensortap.viewer.stock import CachedRun

_CACHED = {"cache-control": "no-cache"}
_RULES_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,60}\.toml")
_SCATTER_POINTS = 4000
_DIFFERENCE_MODES = ("value", "abs", "rel", "ulp", "sign")


def ask(state: ViewerState, request: Request) -> Response:
    words = request.query_params
    missing = [side for side in ("a", "b") if not words.get(side)]
    if missing:
        raise ValueError(
            f"a comparison needs two runs, and the address does not say which is {' and '.join(missing)}; "
            "select two in the list of runs"
        )
    limit = words.get("limit", "")
    asked = ComparisonRequest(
        words.get("a", ""),
        words.get("b", ""),
        optional_int_param(request, "step"),
        optional_int_param(request, "rank"),
        tuple(words.getlist("only")),
        float(limit) if limit else None,
    )
    return json_response(state.comparisons.told(state.comparisons.ask(asked)))


def comparison(state: ViewerState, request: Request) -> Response:
    identity = state.comparisons.identity(request.path_params["c"])
    job, facts = state.comparisons.job(identity), state.comparisons.told(identity)
    return json_response(
        {**facts, "comparison": compare_facts.comparison_facts(state.library, job)} if job.found is not None else facts
    )


def pairs(state: ViewerState, request: Request) -> Response:
    job = _job(state, request)
    columns, texts = job.pairs.columns()
    tag = etag_of(state.boot, request.path_params["c"], len(job.pairs), job.key)
    return binary_response(columns, {"pairs": len(job.pairs), "texts": texts}, etag=tag, **_CACHED)


def matching(state: ViewerState, request: Request) -> Response:
    state.queried()
    job, asked = _job(state, request), request.query_params
    found = job.pairs.matching(asked.get("q", ""), asked.get("sort", ""), asked.get("desc", "") == "1")
    return binary_response({"row": found}, {"matched": len(found), "of": len(job.pairs)})


def divergence_map(state: ViewerState, request: Request) -> Response:
    job, asked = _job(state, request), request.query_params
    error = asked.get("error", "relative_l2")
    columns, facts = divergence_columns(job.comparison, job.pairs, error, optional_int_param(request, "rank"), asked.get("q", ""))
    return binary_response(columns, facts)


def pair(state: ViewerState, request: Request) -> Response:
    job, number = _job(state, request), _pair_number(state, request)
    return json_response(compare_facts.pair_facts(state.library, job, number, request.url.path))


def value(state: ViewerState, request: Request) -> Response:
    job, number, what = _job(state, request), _pair_number(state, request), request.path_params["what"]
    a, b = _pair_tensors(job, number)
    if what == "scatter":
        return _scatter_response(a, b, int_param(request, "n", _SCATTER_POINTS))
    side, how = request.query_params.get("side", "d"), request.query_params.get("d", "value")
    if side not in ("a", "b", "d") or how not in _DIFFERENCE_MODES:
        raise ValueError(f"side is a, b or d, and d one of {', '.join(_DIFFERENCE_MODES)}; not {side!r} and {how!r}")
    numbers: MappedTensor | TensorDifference = a if side == "a" else b if side == "b" else TensorDifference(a, b, how)  # type: ignore[arg-type]
    short = request.path_params["c"]
    tell = lambda: state.events.tell("refined", f"{short} {number}", c=short, pair=number)  # noqa: E731
    return looks.view_response(state, request, what, looks.TensorView(numbers, (job.key, number, side, how), tell))


def names(state: ViewerState, request: Request) -> Response:
    return json_response(compare_facts.name_matching_facts(_job(state, request), None, state.allows_actions))


def rules(state: ViewerState, request: Request, body: dict[str, Any]) -> Response:
    """Compare again with rules for the names; they are written to a file only where that is allowed."""
    job, text = _job(state, request), str(body.get("toml", ""))
    if job.asked is None:
        raise ValueError(
            "this comparison was made in Python; give compare_runs(..., map=...) the rules there"
        )
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the rules are not TOML: {error}") from None
    if body.get("save"):
        _save_rules(state, str(body["save"]), text)
    identity = state.comparisons.ask(job.asked._replace(rules=text), {"rule": [], **read} if read else None)
    return json_response(state.comparisons.told(identity))


def export_html(state: ViewerState, request: Request) -> Response:
    job = _job(state, request)
    patch = job.b.book.metadata().get("patch", b"") if job.b is not None else b""
    headers = {"content-disposition": 'attachment; filename="comparison.html"'}
    return Response(
        export.render_comparison_page(job, compare_facts.comparison_facts(state.library, job), patch),
        media_type="text/html",
        headers=headers,
    )


def report(state: ViewerState, request: Request) -> Response:
    made = json_response(_job(state, request).comparison.to_json())
    made.headers["content-disposition"] = 'attachment; filename="comparison.json"'
    return made


def _job(state: ViewerState, request: Request) -> ComparisonJob:
    return state.comparisons.job(request.path_params["c"])


def _pair_number(state: ViewerState, request: Request) -> int:
    text, count = request.path_params["pair"], len(_job(state, request).pairs)
    if not text.isdecimal() or len(text) > 12 or int(text) >= count:
        raise NotFoundError(f"there is no pair {text!r}; there are {count}")
    return int(text)


def _pair_tensors(job: ComparisonJob, number: int) -> tuple[MappedTensor, MappedTensor]:
    one = job.pairs.table[number].pair
    held = [
        _side_operand(stock, int(rows[number]), entry)
        for stock, rows, entry in zip((job.a, job.b), job.pairs.rows, (one.a, one.b), strict=True)
    ]
    if held[0] is None or held[1] is None:
        raise NotFoundError(f"{one.a.name!r} is not made of numbers")
    return MappedTensor(held[0]), MappedTensor(held[1])


def _side_operand(stock: CachedRun | None, row: int, entry: Entry) -> Operand | None:
    """Out of the run where it lies there as it is."""
    return entry.operand() if stock is None or row == NO_ROW else stock.operand(row)


def _scatter_response(a: MappedTensor, b: MappedTensor, count: int) -> Response:
    """The same places of both, evenly among all."""
    TensorDifference(a, b, "value")
    count = min(max(count, 1), 20_000)
    sampled = [sample_values(one, count, count)[0] for one in (a, b)]
    every = max(1, -(-len(sampled[0]) // count))
    return json_response(
        {
            "a": sampled[0][::every],
            "b": sampled[1][::every],
            "looked": len(sampled[0][::every]),
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
    Route("/api/compare", read_endpoint(ask)),
    Route("/api/compare/{c}", read_endpoint(comparison)),
    Route("/api/compare/{c}/pairs.bin", read_endpoint(pairs)),
    Route("/api/compare/{c}/rows.bin", read_endpoint(matching)),
    Route("/api/compare/{c}/map.bin", read_endpoint(divergence_map)),
    Route("/api/compare/{c}/names", read_endpoint(names)),
    Route("/api/compare/{c}/export.html", read_endpoint(export_html)),
    Route("/api/compare/{c}/report.json", read_endpoint(report)),
    Route("/api/compare/{c}/rules", action_endpoint(rules, is_action=False), methods=["POST"]),
    Route("/api/compare/{c}/pair/{pair}", read_endpoint(pair)),
    Route("/api/compare/{c}/pair/{pair}/{what}", read_endpoint(value)),
]
