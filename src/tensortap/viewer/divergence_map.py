"""Tensors in the order of execution against steps: how far the two runs are apart at each."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.comparison.diagnosis.verdict import Origin
from tensortap.comparison.runs.compare import Comparison
from tensortap.viewer.answers import NO_ROW
from tensortap.viewer.pairs import ERRORS, PairColumns

Array = np.ndarray[Any, Any]
_MAX_CELLS = 4 << 20


def divergence_columns(
    comparison: Comparison, pairs: PairColumns, error: str, rank: int | None, query: str
) -> tuple[dict[str, Array], dict[str, Any]]:
    """Columns of the map and what stands at its edges."""
    if error not in ERRORS:
        raise ValueError(f"there is no error {error!r}; there are {', '.join(ERRORS)}")
    known_ranks = np.unique(pairs.numeric["rank"]).astype(np.int64).tolist()
    rank = (known_ranks[0] if known_ranks else 0) if rank is None else rank
    chosen = np.flatnonzero(pairs.numeric["rank"] == rank)
    if query:
        chosen = np.intersect1d(chosen, pairs.matching(query))
    line_of_pair, names, kinds = _tensor_lines(pairs, chosen)
    steps = np.unique(pairs.numeric["step"][chosen]).astype(np.int64)
    _check_cell_count(len(names) * len(steps))
    cells = line_of_pair, np.searchsorted(steps, pairs.numeric["step"][chosen])
    shape = len(names), len(steps)
    errors, pair_numbers, verdicts = (
        np.full(shape, np.nan, np.float32),
        np.full(shape, NO_ROW, np.uint32),
        np.full(shape, 255, np.uint8),
    )
    errors[cells], pair_numbers[cells], verdicts[cells] = (
        pairs.errors[error][chosen],
        chosen,
        pairs.verdicts[chosen],
    )
    facts = {
        "names": names,
        "name_kinds": kinds,
        "steps": steps,
        "error": error,
        "rank": rank,
        "ranks": known_ranks,
    }
    facts |= {"first": _first_cell(comparison, pairs, pair_numbers), **_error_range(errors)}
    return {"error": errors, "pair": pair_numbers, "verdict": verdicts}, facts


def _tensor_lines(pairs: PairColumns, chosen: Array) -> tuple[Array, list[str], list[str]]:
    """The line of each pair: names in the order in which they first came; repeated calls are lines too."""
    codes, name_texts = pairs.categorical["name"]
    kinds, kind_texts = pairs.categorical["kind"]
    calls = pairs.numeric["call"].astype(np.int64)
    calls_per_name = int(calls.max(initial=0)) + 1
    keys = ((codes * len(kind_texts) + kinds) * calls_per_name + calls)[chosen]
    unique_keys, firsts, lines = np.unique(keys, return_index=True, return_inverse=True)
    # As in a step, not as in the list: what begins later in the run may come earlier in a step.
    ordered = np.lexsort([firsts, pairs.numeric["order"][chosen][firsts]])
    position = np.empty(len(ordered), np.int64)
    position[ordered] = np.arange(len(ordered))
    rest, call = np.divmod(unique_keys[ordered], calls_per_name)
    name, kind = np.divmod(rest, max(len(kind_texts), 1))
    names = [
        name_texts[code] + (f"@{call_number}" if call_number else "")
        for code, call_number in zip(name, call, strict=True)
    ]
    return position[lines], names, [kind_texts[code] for code in kind]


def pair_of_first_origin(comparison: Comparison, pairs: PairColumns) -> int | None:
    """The pair that shows the first origin."""
    origin = comparison.first
    return None if origin is None else pair_of_origin(origin, pairs)


def pair_of_origin(origin: Origin, pairs: PairColumns) -> int | None:
    return pairs.by_moment.get((origin.seen_at, origin.step, origin.rank, origin.call))


def _first_cell(comparison: Comparison, pairs: PairColumns, pair_numbers: Array) -> dict[str, int] | None:
    pair = pair_of_first_origin(comparison, pairs)
    where: Array = np.argwhere(pair_numbers == (NO_ROW - 1 if pair is None else pair))
    return {"tensor": int(where[0][0]), "step": int(where[0][1])} if len(where) else None


def _error_range(errors: Array) -> dict[str, float | None]:
    positive = errors[np.isfinite(errors) & (errors > 0)]
    return {
        "low": float(positive.min()) if positive.size else None,
        "high": float(positive.max()) if positive.size else None,
    }


def _check_cell_count(cells: int) -> None:
    if cells > _MAX_CELLS:
        raise ValueError(f"a map of {cells:,} cells is too large; narrow it with a query")
