"""The ways to look at the numbers of one tensor, or of a difference: tiles, histogram, profile, elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from tensortap.viewer import measures, tiles
from tensortap.viewer.answers import binary_response, json_response
from tensortap.viewer.numbers import TensorDifference, Grid, MappedTensor
from tensortap.viewer.problems import NotFoundError
from tensortap.viewer.refining import finest_level
from tensortap.viewer.serving import int_param, client_has, etag_of, not_modified
from tensortap.viewer.state import ViewerState

_MOST_TOP = 1000
_CACHED = {"cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class TensorView:
    """What is looked at; `key` says it in short, and `tell` is called when its tiles have become exact."""

    numbers: MappedTensor | TensorDifference
    key: Hashable
    tell: Callable[[], None]

    def grid(self, request: Request) -> Grid:
        asked = request.query_params
        return self.numbers.grid(asked.get("axes", ""), asked.get("index", ""))


def view_response(state: ViewerState, request: Request, what: str, look: TensorView) -> Response:
    known = _WAYS.get(what)
    if known is None:
        raise NotFoundError(f"there is no {what!r} of a value; there are {', '.join(_WAYS)}")
    return known(state, request, look)


def _tile(state: ViewerState, request: Request, look: TensorView) -> Response:
    level, y, x = (int_param(request, name, 0) for name in ("lod", "y", "x"))
    asked = request.query_params
    view = (look.key, asked.get("axes", ""), asked.get("index", ""))
    tag = etag_of(state.boot, view, level, y, x)
    if client_has(request, tag):
        return not_modified(tag)
    grid = look.grid(request)
    tiles.tile_span(grid.shape, level, y, x)
    facts = {"lod": level, "y": y, "x": x, "shape": grid.shape, "lods": tiles.count_levels(grid.shape)}
    if level == 0:
        return _values(tiles.read_elements(grid, y, x), grid, facts, tag)
    made = state.refined.tile(view, level, y, x) or tiles.compute_tile(grid, level, y, x)
    if not made.is_exact and level >= finest_level(grid.shape):
        state.refined.want(view, grid, look.tell)
    return _pixels(made, facts, tag)


def _values(found: Any, grid: Grid, facts: dict[str, Any], tag: str) -> Response:
    column = found.astype(np.float64 if grid.is_wide else np.float32)
    more = {**_size(found.shape), "exact": True, "how": "exact", **_ends(found, found)}
    return binary_response({"value": column, "flags": tiles.nonfinite_flags(found)}, {**facts, **more}, etag=tag, **_CACHED)


def _pixels(made: tiles.Tile, facts: dict[str, Any], tag: str) -> Response:
    columns = {"min": made.low, "max": made.high, "mean": made.mean, "flags": made.flags}
    how = {"exact": made.is_exact, "how": "exact" if made.is_exact else "sampled"}
    # What was sampled will become exact: the page must not take it for that.
    headers = {**_CACHED, "etag": tag} if made.is_exact else {}
    return binary_response(columns, {**facts, **_size(made.shape), **how, **_ends(made.low, made.high)}, **headers)


def _size(shape: tuple[int, ...]) -> dict[str, int]:
    return {"height": shape[0], "width": shape[1]}


def _ends(low: Any, high: Any) -> dict[str, float | None]:
    lows, highs = low[np.isfinite(low)], high[np.isfinite(high)]
    return {
        "low": float(lows.min()) if lows.size else None,
        "high": float(highs.max()) if highs.size else None,
    }


def _range(state: ViewerState, request: Request, look: TensorView) -> Response:
    return json_response(measures.value_range(look.grid(request)))


def _histogram(state: ViewerState, request: Request, look: TensorView) -> Response:
    of_view = "index" in request.query_params or "axes" in request.query_params
    numbers = look.grid(request) if of_view and not int_param(request, "all", 0) else look.numbers
    scale = request.query_params.get("scale", "linear")
    return json_response(measures.histogram(numbers, int_param(request, "bins", 64), scale))


def _profile(state: ViewerState, request: Request, look: TensorView) -> Response:
    return json_response(measures.profile(look.numbers, int_param(request, "axis", 0)))


def _top(state: ViewerState, request: Request, look: TensorView) -> Response:
    count = min(max(int_param(request, "k", 20), 1), _MOST_TOP)
    found = measures.top_elements(look.numbers, count, request.query_params.get("by", "abs"))
    places = [np.unravel_index(at, look.numbers.shape or (1,)) for at, _ in found]
    rows = [
        _row(look.numbers, [int(one) for one in place][: len(look.numbers.shape)], at, value)
        for place, (at, value) in zip(places, found, strict=True)
    ]
    return json_response({"elements": rows, "exact": True})


def _elements(state: ViewerState, request: Request, look: TensorView) -> Response:
    numbers = look.numbers
    held = numbers.a if isinstance(numbers, TensorDifference) else numbers
    found = measures.parse_elements(held, request.query_params.get("at", ""))
    return json_response({"elements": [_row(numbers, list(place), at) for place, at in found]})


def _row(numbers: MappedTensor | TensorDifference, place: list[int], at: int, value: float | None = None) -> dict[str, Any]:
    value = float(numbers.flat(at, at + 1)[0]) if value is None else value
    row: dict[str, Any] = {"index": place, "value": value, "text": measures.format_number(value)}
    if isinstance(numbers, TensorDifference):
        return {**row, "a": float(numbers.a.flat(at, at + 1)[0]), "b": float(numbers.b.flat(at, at + 1)[0])}
    bits = np.ascontiguousarray(numbers.bits.reshape(-1)[at : at + 1])
    return {**row, "bits": f"0x{bits.tobytes()[::-1].hex()}", "text": _exact_text(bits, value)}


def _exact_text(bits: Any, value: float) -> str:
    """Integers of any size as they are."""
    return (
        str(bits[0])
        if bits.dtype.kind in "iub" and math.isfinite(value) and bits[0] == value
        else measures.format_number(value)
    )


_WAYS: dict[str, Callable[[ViewerState, Request, TensorView], Response]] = {
    "tile.bin": _tile,
    "range": _range,
    "hist": _histogram,
    "profile": _profile,
    "top": _top,
    "elements": _elements,
}
