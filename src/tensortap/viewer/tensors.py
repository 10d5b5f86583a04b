"""All that is known of one record, but its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.comparison.sides.leaf import Operand
from tensortap.core.errors import TensortapError
from tensortap.kernels.statistics import Statistics, statistics
from tensortap.viewer.counted import absmax
from tensortap.viewer.numbers import MappedTensor
from tensortap.viewer.stock import CachedRun

_MAX_TEXT = 4000
_IMPORT_LINE = "import tensortap as tt\n\n"
_MAX_STATISTICS_BYTES = 256 << 20  # bytes that are read for the statistics of a page


def record_facts(run: CachedRun, row: int, address: str) -> dict[str, Any]:
    run.check_row(row)
    operand, problem = _operand_or_problem(run, row)
    shape = list(operand.bits.shape) if operand is not None else _recorded_shape(run, row)
    moment = {field: int(run.column(field)[row]) for field in ("step", "rank", "call", "order", "nbytes")}
    return {
        "row": row,
        "name": run.text("name", row),
        "kind": run.text("kind", row),
        **moment,
        "time": float(run.column("time")[row]),
        "dtype": run.text("dtype", row),
        "shape": shape,
        **run.dataset.facts(row),
        "is_array": operand is not None,
        "problem": problem,
        "statistics": operand_statistics(operand) if operand is not None else None,
        "value": scalar_value(operand),
        "text": None if operand is not None or problem else _opaque_text(run, row),
        "python": loading_code(run, row),
        "download": f"{address}/value.npy",
        "view": default_view(shape),
        **_adjacent_steps(run, row),
    }


def default_view(shape: list[int]) -> dict[str, Any]:
    """The last two axes, and the first of all others."""
    shown = list(range(len(shape)))[-2:]
    return {"axes": shown, "index": ",".join(":" if axis in shown else "0" for axis in range(len(shape)))}


def scalar_value(operand: Operand | None) -> float | None:
    """The number itself, where there is only one; statistics do not say which infinity it is."""
    return None if operand is None or operand.bits.size != 1 else float(MappedTensor(operand).flat(0, 1)[0])


def operand_statistics(operand: Operand) -> dict[str, Any] | None:
    if operand.bits.nbytes > _MAX_STATISTICS_BYTES:
        return None
    return statistics_facts(statistics(operand.bits, operand.dtype))


def statistics_facts(statistics: Statistics) -> dict[str, Any]:
    names = ("count", "min", "max", "mean", "std", "norm", "nan", "inf")
    return {**{name: getattr(statistics, name) for name in names}, "absmax": absmax(statistics)}


def loading_code(run: CachedRun, row: int) -> str:
    """The lines that load it in a program."""
    opening, access = _loading_parts(run, row)
    name = "trace" if run.dataset.type == "trace" else "run"
    return f"{_IMPORT_LINE}{name} = {opening}\nx = {name}{access}"


def loading_expression(run: CachedRun, row: int) -> str:
    """The same as one expression."""
    return "".join(_loading_parts(run, row))


def _loading_parts(run: CachedRun, row: int) -> tuple[str, str]:
    """What opens the run, and what takes the value out of it."""
    name = run.text("name", row)
    if run.dataset.type == "trace":
        position = int(run.same_name_before(row).sum())
        return f"tt.TraceFile({str(run.path)!r})", f"[{name!r}][{position}]"
    moment = ", ".join(f"{field}={int(run.column(field)[row])}" for field in ("step", "rank", "call"))
    return f"tt.Run({str(run.path)!r})", f".load({name!r}, {moment})"


def _operand_or_problem(run: CachedRun, row: int) -> tuple[Operand | None, str]:
    try:
        return run.operand(row), ""
    except (TensortapError, OSError, ValueError) as error:
        return None, str(error)


def _recorded_shape(run: CachedRun, row: int) -> list[int]:
    text = run.text("shape", row)
    return [int(size) for size in text.split(",")] if text else []


def _opaque_text(run: CachedRun, row: int) -> str:
    """What is not an array, in words of Python's own."""
    try:
        value = run.dataset.value(row)
    except (TensortapError, OSError, ValueError, KeyError, EOFError, TypeError) as error:
        return f"it cannot be read: {error}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 3]}..."


def _adjacent_steps(run: CachedRun, row: int) -> dict[str, Any]:
    rows = run.series_rows(row, "steps")
    position = int(np.flatnonzero(rows == row)[0])
    steps = run.column("step")[rows]
    return {
        "previous": int(rows[position - 1]) if position else None,
        "next": int(rows[position + 1]) if position + 1 < len(rows) else None,
        "steps": [int(steps[0]), int(steps[-1]), len(rows)],
    }
