"""Tensors in the order of execution against steps: how far the two runs are apart at each."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.comparison.findings import Origin
from tensortap.comparison.runs import Comparison
from tensortap.viewer.answers import NO_ROW
from tensortap.viewer.pairs import ERRORS, PairColumns

Array = np.ndarray[Any, Any]
_MAX_CELLS = 4 << 20


def divergence_columns(
    found: Comparison, pairs: PairColumns, error: str, rank: int | None, query: str
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Columns of the map and what stands at its edges."""
    if error not in ERRORS:
        raise ValueError(f"there is no error {error!r}; there are {', '.join(ERRORS)}")
    ranks = np.unique(pairs.plain["rank"]).astype(np.int64).tolist()
    rank = (ranks[0] if ranks else 0) if rank is None else rank
    chosen = np.flatnonzero(pairs.plain["rank"] == rank)
    if query:
        chosen = np.intersect1d(chosen, pairs.matching(query))
    lines, names, kinds = _tensor_lines(pairs, chosen)
    steps = np.unique(pairs.plain["step"][chosen]).astype(np.int64)
    _check_cell_count(len(names) * len(steps))
    at = lines, np.searchsorted(steps, pairs.plain["step"][chosen])
    shape = len(names), len(steps)
    sizes, numbers, verdicts = (
        np.full(shape, np.nan, np.float32),
        np.full(shape, NO_ROW, np.uint32),
        np.full(shape, 255, np.uint8),
    )
    sizes[at], numbers[at], verdicts[at] = pairs.errors[error][chosen], chosen, pairs.verdicts[chosen]
    facts = {
        "names": names,
        "name_kinds": kinds,
        "steps": steps,
        "error": error,
        "rank": rank,
        "ranks": ranks,
    }
    facts |= {"first": _first_cell(found, pairs, numbers), **_error_range(sizes)}
    return {"error": sizes, "pair": numbers, "verdict": verdicts}, facts


def _tensor_lines(pairs: PairColumns, chosen: Array) -> tuple[Array, list[str], list[str]]:
    """The line of each pair: names in the order in which they first came; repeated calls are lines too."""
    codes, texts = pairs.coded["name"]
    kinds, words = pairs.coded["kind"]
    calls = pairs.plain["call"].astype(np.int64)
    most = int(calls.max(initial=0)) + 1
    keys = ((codes * len(words) + kinds) * most + calls)[chosen]
    found, firsts, lines = np.unique(keys, return_index=True, return_inverse=True)
    # As in a step, not as in the list: what begins later in the run may come earlier in a step.
    ordered = np.lexsort([firsts, pairs.plain["order"][chosen][firsts]])
    moved = np.empty(len(ordered), np.int64)
    moved[ordered] = np.arange(len(ordered))
    rest, call = np.divmod(found[ordered], most)
    name, kind = np.divmod(rest, max(len(words), 1))
    names = [texts[one] + (f"@{again}" if again else "") for one, again in zip(name, call, strict=True)]
    return moved[lines], names, [words[one] for one in kind]


def pair_of_first_origin(found: Comparison, pairs: PairColumns) -> int | None:
    """The pair that shows the first origin."""
    origin = found.first
    return None if origin is None else pair_of_origin(origin, pairs)


def pair_of_origin(origin: Origin, pairs: PairColumns) -> int | None:
    return pairs.places.get((origin.seen_at, origin.step, origin.rank, origin.call))


def _first_cell(found: Comparison, pairs: PairColumns, numbers: Array) -> dict[str, int] | None:
    pair = pair_of_first_origin(found, pairs)
    where: Array = np.argwhere(numbers == (NO_ROW - 1 if pair is None else pair))
    return {"tensor": int(where[0][0]), "step": int(where[0][1])} if len(where) else None


def _error_range(sizes: Array) -> dict[str, float | None]:
    told = sizes[np.isfinite(sizes) & (sizes > 0)]
    return {"low": float(told.min()) if told.size else None, "high": float(told.max()) if told.size else None}


def _check_cell_count(cells: int) -> None:
    if cells > _MAX_CELLS:
        raise ValueError(f"a map of {cells:,} cells is too large; narrow it with a query")
