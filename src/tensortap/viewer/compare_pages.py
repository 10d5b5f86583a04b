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
from tensortap.viewer.answers import NONE, binary, told
from tensortap.viewer.comparisons import Asked, Job
from tensortap.viewer.divergence_map import divergence
from tensortap.viewer.measures import looked_at
from tensortap.viewer.numbers import Apart, Tensor
from tensortap.viewer.problems import UnknownThingError
from tensortap.viewer.serving import certain, posted, served, tag_of, whole
from tensortap.viewer.state import State
from tensortap.viewer.stock import Stock

_CACHED = {"cache-control": "no-cache"}
_FILE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,60}\.toml")
_SCATTER = 4000
_HOWS = ("value", "abs", "rel", "ulp", "sign")


def ask(state: State, request: Request) -> Response:
    words = request.query_params
    missing = [side for side in ("a", "b") if not words.get(side)]
    if missing:
        raise ValueError(
            f"a comparison needs two runs, and the address does not say which is {' and '.join(missing)}; "
            "select two in the list of runs"
        )
    limit = words.get("limit", "")
    asked = Asked(
        words.get("a", ""),
        words.get("b", ""),
        whole(request, "step"),
        whole(request, "rank"),
        tuple(words.getlist("only")),
        float(limit) if limit else None,
    )
    return told(state.comparisons.told(state.comparisons.ask(asked)))


def comparison(state: State, request: Request) -> Response:
    identity = state.comparisons.identity(request.path_params["c"])
    job, facts = state.comparisons.job(identity), state.comparisons.told(identity)
    return told(
        {**facts, "comparison": compare_facts.whole(state.library, job)} if job.found is not None else facts
    )


def pairs(state: State, request: Request) -> Response:
    job = _job(state, request)
    columns, texts = job.pairs.columns()
    tag = tag_of(state.boot, request.path_params["c"], len(job.pairs), job.key)
    return binary(columns, {"pairs": len(job.pairs), "texts": texts}, etag=tag, **_CACHED)


def matching(state: State, request: Request) -> Response:
    state.queried()
    job, asked = _job(state, request), request.query_params
    found = job.pairs.matching(asked.get("q", ""), asked.get("sort", ""), asked.get("desc", "") == "1")
    return binary({"row": found}, {"matched": len(found), "of": len(job.pairs)})


def divergence_map(state: State, request: Request) -> Response:
    job, asked = _job(state, request), request.query_params
    error = asked.get("error", "relative_l2")
    columns, facts = divergence(job.comparison, job.pairs, error, whole(request, "rank"), asked.get("q", ""))
    return binary(columns, facts)


def pair(state: State, request: Request) -> Response:
    job, number = _job(state, request), _number(state, request)
    return told(compare_facts.pair(state.library, job, number, request.url.path))


def value(state: State, request: Request) -> Response:
    job, number, what = _job(state, request), _number(state, request), request.path_params["what"]
    a, b = _tensors(job, number)
    if what == "scatter":
        return _scatter(a, b, certain(request, "n", _SCATTER))
    side, how = request.query_params.get("side", "d"), request.query_params.get("d", "value")
    if side not in ("a", "b", "d") or how not in _HOWS:
        raise ValueError(f"side is a, b or d, and d one of {', '.join(_HOWS)}; not {side!r} and {how!r}")
    numbers: Tensor | Apart = a if side == "a" else b if side == "b" else Apart(a, b, how)  # type: ignore[arg-type]
    short = request.path_params["c"]
    tell = lambda: state.events.tell("refined", f"{short} {number}", c=short, pair=number)  # noqa: E731
    return looks.answer(state, request, what, looks.Look(numbers, (job.key, number, side, how), tell))


def names(state: State, request: Request) -> Response:
    return told(compare_facts.names(_job(state, request), None, state.allows_actions))


def rules(state: State, request: Request, body: dict[str, Any]) -> Response:
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
        _save(state, str(body["save"]), text)
    identity = state.comparisons.ask(job.asked._replace(rules=text), {"rule": [], **read} if read else None)
    return told(state.comparisons.told(identity))


def export_html(state: State, request: Request) -> Response:
    job = _job(state, request)
    patch = job.b.book.metadata().get("patch", b"") if job.b is not None else b""
    headers = {"content-disposition": 'attachment; filename="comparison.html"'}
    return Response(
        export.page(job, compare_facts.whole(state.library, job), patch),
        media_type="text/html",
        headers=headers,
    )


def report(state: State, request: Request) -> Response:
    made = told(_job(state, request).comparison.to_json())
    made.headers["content-disposition"] = 'attachment; filename="comparison.json"'
    return made


def _job(state: State, request: Request) -> Job:
    return state.comparisons.job(request.path_params["c"])


def _number(state: State, request: Request) -> int:
    text, count = request.path_params["pair"], len(_job(state, request).pairs)
    if not text.isdecimal() or len(text) > 12 or int(text) >= count:
        raise UnknownThingError(f"there is no pair {text!r}; there are {count}")
    return int(text)


def _tensors(job: Job, number: int) -> tuple[Tensor, Tensor]:
    one = job.pairs.table[number].pair
    held = [
        _operand(stock, int(rows[number]), entry)
        for stock, rows, entry in zip((job.a, job.b), job.pairs.rows, (one.a, one.b), strict=True)
    ]
    if held[0] is None or held[1] is None:
        raise UnknownThingError(f"{one.a.name!r} is not made of numbers")
    return Tensor(held[0]), Tensor(held[1])


def _operand(stock: Stock | None, row: int, entry: Entry) -> Operand | None:
    """Out of the run where it lies there as it is."""
    return entry.operand() if stock is None or row == NONE else stock.operand(row)


def _scatter(a: Tensor, b: Tensor, count: int) -> Response:
    """The same places of both, evenly among all."""
    Apart(a, b, "value")
    count = min(max(count, 1), 20_000)
    sampled = [looked_at(one, count, count)[0] for one in (a, b)]
    every = max(1, -(-len(sampled[0]) // count))
    return told(
        {
            "a": sampled[0][::every],
            "b": sampled[1][::every],
            "looked": len(sampled[0][::every]),
            "of": a.bits.size,
        }
    )


def _save(state: State, name: str, text: str) -> None:
    if not state.allows_actions:
        raise RefusedError("this viewer only looks; start it with --allow-actions to save rules")
    if not _FILE.fullmatch(name):
        raise ValueError(f"{name!r} is no name for a file of rules; letters, digits and - _ . then .toml")
    folder: Path = state.library.roots[0] if state.library.roots else Path.cwd()
    path = (folder if folder.is_dir() else folder.parent) / name
    if path.is_symlink() or (path.exists() and not _is_rules(path)):
        raise RefusedError(f"{name} is there already, and is no file of rules; choose another name")
    path.write_text(text, encoding="utf-8")


def _is_rules(path: Path) -> bool:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).keys() <= {"rule", "ignore"}
    except (OSError, ValueError):
        return False


ROUTES = [
    Route("/api/compare", served(ask)),
    Route("/api/compare/{c}", served(comparison)),
    Route("/api/compare/{c}/pairs.bin", served(pairs)),
    Route("/api/compare/{c}/rows.bin", served(matching)),
    Route("/api/compare/{c}/map.bin", served(divergence_map)),
    Route("/api/compare/{c}/names", served(names)),
    Route("/api/compare/{c}/export.html", served(export_html)),
    Route("/api/compare/{c}/report.json", served(report)),
    Route("/api/compare/{c}/rules", posted(rules, is_action=False), methods=["POST"]),
    Route("/api/compare/{c}/pair/{pair}", served(pair)),
    Route("/api/compare/{c}/pair/{pair}/{what}", served(value)),
]
