"""All that is known of one record, but its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensortap.comparison.operands import Operand
from tensortap.core.errors import TensortapError
from tensortap.kernels.statistics import Statistics, statistics
from tensortap.viewer.counted import absmax
from tensortap.viewer.numbers import MappedTensor
from tensortap.viewer.stock import CachedRun

_LONGEST = 4000
_IMPORT = "import tensortap as tt\n\n"
_AT_ONCE = 256 << 20  # bytes that are read for the statistics of a page


def record_facts(stock: CachedRun, row: int, address: str) -> dict[str, Any]:
    stock.check(row)
    held, problem = _operand(stock, row)
    shape = list(held.bits.shape) if held is not None else _shape(stock, row)
    moment = {field: int(stock.plain(field)[row]) for field in ("step", "rank", "call", "order", "nbytes")}
    return {
        "row": row,
        "name": stock.text("name", row),
        "kind": stock.text("kind", row),
        **moment,
        "time": float(stock.plain("time")[row]),
        "dtype": stock.text("dtype", row),
        "shape": shape,
        **stock.book.facts(row),
        "is_array": held is not None,
        "problem": problem,
        "statistics": operand_statistics(held) if held is not None else None,
        "value": scalar_value(held),
        "text": None if held is not None or problem else _text(stock, row),
        "python": loading_code(stock, row),
        "download": f"{address}/value.npy",
        "view": default_view(shape),
        **_neighbours(stock, row),
    }


def default_view(shape: list[int]) -> dict[str, Any]:
    """The last two axes, and the first of all others."""
    shown = list(range(len(shape)))[-2:]
    return {"axes": shown, "index": ",".join(":" if axis in shown else "0" for axis in range(len(shape)))}


def scalar_value(held: Operand | None) -> float | None:
    """The number itself, where there is only one; statistics do not say which infinity it is."""
    return None if held is None or held.bits.size != 1 else float(MappedTensor(held).flat(0, 1)[0])


def operand_statistics(held: Operand) -> dict[str, Any] | None:
    if held.bits.nbytes > _AT_ONCE:
        return None
    return statistics_facts(statistics(held.bits, held.dtype))


def statistics_facts(found: Statistics) -> dict[str, Any]:
    names = ("count", "min", "max", "mean", "std", "norm", "nan", "inf")
    return {**{name: getattr(found, name) for name in names}, "absmax": absmax(found)}


def loading_code(stock: CachedRun, row: int) -> str:
    """The lines that load it in a program."""
    opened, what = _opened(stock, row)
    name = "trace" if stock.book.type == "trace" else "run"
    return f"{_IMPORT}{name} = {opened}\nx = {name}{what}"


def loading_expression(stock: CachedRun, row: int) -> str:
    """The same as one expression."""
    return "".join(_opened(stock, row))


def _opened(stock: CachedRun, row: int) -> tuple[str, str]:
    """What opens the run, and what takes the value out of it."""
    name = stock.text("name", row)
    if stock.book.type == "trace":
        position = int(stock.alike_before(row).sum())
        return f"tt.TraceFile({str(stock.path)!r})", f"[{name!r}][{position}]"
    moment = ", ".join(f"{field}={int(stock.plain(field)[row])}" for field in ("step", "rank", "call"))
    return f"tt.Run({str(stock.path)!r})", f".load({name!r}, {moment})"


def _operand(stock: CachedRun, row: int) -> tuple[Operand | None, str]:
    try:
        return stock.operand(row), ""
    except (TensortapError, OSError, ValueError) as error:
        return None, str(error)


def _shape(stock: CachedRun, row: int) -> list[int]:
    text = stock.text("shape", row)
    return [int(size) for size in text.split(",")] if text else []


def _text(stock: CachedRun, row: int) -> str:
    """What is not an array, in words of Python's own."""
    try:
        value = stock.book.value(row)
    except (TensortapError, OSError, ValueError, KeyError, EOFError, TypeError) as error:
        return f"it cannot be read: {error}"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _neighbours(stock: CachedRun, row: int) -> dict[str, Any]:
    rows = stock.alike(row, "steps")
    place = int(np.flatnonzero(rows == row)[0])
    steps = stock.plain("step")[rows]
    return {
        "previous": int(rows[place - 1]) if place else None,
        "next": int(rows[place + 1]) if place + 1 < len(rows) else None,
        "steps": [int(steps[0]), int(steps[-1]), len(rows)],
    }
