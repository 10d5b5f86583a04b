"""A test's way to say that two runs are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from tensortap.comparison.runs import Comparison, compare_runs


def assert_runs_match(
    a: Any,
    b: Any,
    *,
    floor: Any = None,
    map: Any = None,
    only: str | Sequence[str] = (),
    step: int | None = None,
    rank: int | None = None,
    limit: float | None = None,
    dims: Mapping[str, str] | None = None,
    executor: Executor | None = None,
    gaps: bool = False,
) -> Comparison:
    """Raise an AssertionError that holds the whole report unless two runs are the same within noise.

    >>> tt.assert_runs_match("runs/reference", cap, floor="runs/floor.json")

    The arguments are those of `compare_runs`. What only one side has, or cannot be read, fails too, unless
    `gaps=True`; two sides without anything in common always fail.
    """
    __tracebackhide__ = True
    selection: dict[str, Any] = {"only": only, "step": step, "rank": rank}
    comparison = compare_runs(
        a, b, floor=floor, map=map, limit=limit, dims=dims, executor=executor, **selection
    )
    is_accepted = comparison.is_green or (
        gaps and not comparison.is_different and comparison.coverage.judged > 0
    )
    if not is_accepted:
        raise AssertionError(str(comparison))
    return comparison
