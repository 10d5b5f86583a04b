"""Endpoints for the values of a tensor or of a difference: tiles, histogram, profile, elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from tensortap.viewer.api.handlers import client_has, etag_of, int_param, not_modified
from tensortap.viewer.data import tensor_stats, tiles
from tensortap.viewer.data.tensor import Grid, MappedTensor, TensorDifference
from tensortap.viewer.data.tiles import finest_level
from tensortap.viewer.web.responses import NotFoundError, binary_response, json_response
from tensortap.viewer.workspace.state import ViewerState

_MAX_TOP = 1000
_CACHED = {"cache-control": "no-cache"}


@dataclass(frozen=True, slots=True)
class TensorView:
    """What is viewed; `key` identifies it in caches, `on_exact` is called once its tiles are exact."""

    numbers: MappedTensor | TensorDifference
    key: Hashable
    on_exact: Callable[[], None]

    def grid(self, request: Request) -> Grid:
        params = request.query_params
        return self.numbers.grid(params.get("axes", ""), params.get("index", ""))


def view_response(state: ViewerState, request: Request, view_name: str, view: TensorView) -> Response:
    handler = _VIEWS.get(view_name)
    if handler is None:
        raise NotFoundError(f"there is no {view_name!r} of a value; there are {', '.join(_VIEWS)}")
    return handler(state, request, view)


def _tile_response(state: ViewerState, request: Request, view: TensorView) -> Response:
    level, y, x = (int_param(request, name, 0) for name in ("lod", "y", "x"))
    params = request.query_params
    view_key = (view.key, params.get("axes", ""), params.get("index", ""))
    tag = etag_of(state.boot_id, view_key, level, y, x)
    if client_has(request, tag):
        return not_modified(tag)
    grid = view.grid(request)
    tiles.tile_span(grid.shape, level, y, x)
    facts = {"lod": level, "y": y, "x": x, "shape": grid.shape, "lods": tiles.count_levels(grid.shape)}
    if level == 0:
        return _elements_tile_response(tiles.read_elements(grid, y, x), grid, facts, tag)
    tile = state.refinement.exact_tile(view_key, level, y, x) or tiles.compute_tile(grid, level, y, x)
    if not tile.is_exact and level >= finest_level(grid.shape):
        state.refinement.request(view_key, grid, view.on_exact)
    return _pooled_tile_response(tile, facts, tag)


def _elements_tile_response(elements: Any, grid: Grid, facts: dict[str, Any], tag: str) -> Response:
    column = elements.astype(np.float64 if grid.needs_float64 else np.float32)
    more = {**_tile_size(elements.shape), "exact": True, "how": "exact", **_finite_range(elements, elements)}
    return binary_response(
        {"value": column, "flags": tiles.nonfinite_flags(elements)}, {**facts, **more}, etag=tag, **_CACHED
    )


def _pooled_tile_response(tile: tiles.Tile, facts: dict[str, Any], tag: str) -> Response:
    columns = {"min": tile.low, "max": tile.high, "mean": tile.mean, "flags": tile.flags}
    how = {"exact": tile.is_exact, "how": "exact" if tile.is_exact else "sampled"}
    # A sampled tile will be replaced by an exact one, so it must not be cached.
    headers = {**_CACHED, "etag": tag} if tile.is_exact else {}
    return binary_response(
        columns, {**facts, **_tile_size(tile.shape), **how, **_finite_range(tile.low, tile.high)}, **headers
    )


def _tile_size(shape: tuple[int, ...]) -> dict[str, int]:
    return {"height": shape[0], "width": shape[1]}


def _finite_range(low: Any, high: Any) -> dict[str, float | None]:
    lows, highs = low[np.isfinite(low)], high[np.isfinite(high)]
    return {
        "low": float(lows.min()) if lows.size else None,
        "high": float(highs.max()) if highs.size else None,
    }


def _range_response(state: ViewerState, request: Request, view: TensorView) -> Response:
    return json_response(tensor_stats.value_range(view.grid(request)))


def _histogram_response(state: ViewerState, request: Request, view: TensorView) -> Response:
    of_view = "index" in request.query_params or "axes" in request.query_params
    numbers = view.grid(request) if of_view and not int_param(request, "all", 0) else view.numbers
    scale = request.query_params.get("scale", "linear")
    return json_response(tensor_stats.histogram(numbers, int_param(request, "bins", 64), scale))


def _profile_response(state: ViewerState, request: Request, view: TensorView) -> Response:
    return json_response(tensor_stats.profile(view.numbers, int_param(request, "axis", 0)))


def _top_response(state: ViewerState, request: Request, view: TensorView) -> Response:
    count = min(max(int_param(request, "k", 20), 1), _MAX_TOP)
    top = tensor_stats.top_elements(view.numbers, count, request.query_params.get("by", "abs"))
    indices = [np.unravel_index(at, view.numbers.shape or (1,)) for at, _ in top]
    rows = [
        _element_row(
            view.numbers, [int(coordinate) for coordinate in index][: len(view.numbers.shape)], at, value
        )
        for index, (at, value) in zip(indices, top, strict=True)
    ]
    return json_response({"elements": rows, "exact": True})


def _elements_response(state: ViewerState, request: Request, view: TensorView) -> Response:
    numbers = view.numbers
    operand = numbers.a if isinstance(numbers, TensorDifference) else numbers
    elements = tensor_stats.parse_elements(operand, request.query_params.get("at", ""))
    return json_response({"elements": [_element_row(numbers, list(index), at) for index, at in elements]})


def _element_row(
    numbers: MappedTensor | TensorDifference, index: list[int], at: int, value: float | None = None
) -> dict[str, Any]:
    value = float(numbers.flat(at, at + 1)[0]) if value is None else value
    row: dict[str, Any] = {"index": index, "value": value, "text": tensor_stats.format_number(value)}
    if isinstance(numbers, TensorDifference):
        return {**row, "a": float(numbers.a.flat(at, at + 1)[0]), "b": float(numbers.b.flat(at, at + 1)[0])}
    bits = np.ascontiguousarray(numbers.bits.reshape(-1)[at : at + 1])
    return {**row, "bits": f"0x{bits.tobytes()[::-1].hex()}", "text": _format_exactly(bits, value)}


def _format_exactly(bits: Any, value: float) -> str:
    """Integers of any size without rounding."""
    return (
        str(bits[0])
        if bits.dtype.kind in "iub" and math.isfinite(value) and bits[0] == value
        else tensor_stats.format_number(value)
    )


_VIEWS: dict[str, Callable[[ViewerState, Request, TensorView], Response]] = {
    "tile.bin": _tile_response,
    "range": _range_response,
    "hist": _histogram_response,
    "profile": _profile_response,
    "top": _top_response,
    "elements": _elements_response,
}
