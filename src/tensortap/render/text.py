"""A short repr of any value on one line, and tables as text and HTML."""

from __future__ import annotations

import logging
import re
from time import perf_counter
from typing import Any
from weakref import WeakSet

from tensortap.render.words import escape_unprintable, format_number

MAX_LENGTH = 80
MAX_SECONDS = 0.05
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# Their repr is exhaustive and multi-line.
_VERBOSE_REPR_MODULES = (
    "torch.nn.modules.module",
    "torch.optim.optimizer",
    "pandas.core.frame",
    "pandas.core.series",
)
log = logging.getLogger("tensortap.tree.words")


class ShortRepr:
    """Remembers the classes whose repr raised or was too slow: their values are shown by class name."""

    def __init__(self) -> None:
        self._by_name: WeakSet[type] = WeakSet()

    def format(self, value: Any) -> str:
        kind = type(value)
        if kind is int:
            return str(value) if -(1 << 200) < value < 1 << 200 else format_number(value)
        if kind is float or kind is bool or value is None:
            return repr(value)
        if kind is str or kind is bytes:
            return _string_repr(value)
        own = getattr(kind, "__repr__", object.__repr__)
        if (
            own is object.__repr__
            or kind in self._by_name
            or getattr(own, "__module__", None) in _VERBOSE_REPR_MODULES
        ):
            return class_name(kind)
        return self._safe_repr(value, kind)

    def _safe_repr(self, value: Any, kind: type) -> str:
        began = perf_counter()
        try:
            text = repr(value)
        except Exception as error:  # an object's own repr may raise anything; not called again
            log.debug("the repr of a %s failed", class_name(kind), exc_info=True)
            self._by_name.add(kind)
            return f"{class_name(kind)} (its repr raises {type(error).__name__})"
        if perf_counter() - began > MAX_SECONDS:
            self._by_name.add(kind)
        return truncate(_ADDRESS.sub("", " ".join(text[: 4 * MAX_LENGTH].split())))


def class_name(kind: type) -> str:
    return escape_unprintable(str(type.__dict__["__qualname__"].__get__(kind)))


def truncate(text: str, longest: int = MAX_LENGTH, ending: str = "…") -> str:
    return text if len(text) <= longest else f"{text[: longest - len(ending)]}{ending}"


def _string_repr(value: str | bytes) -> str:
    if len(value) <= MAX_LENGTH:
        return truncate(repr(value), 2 * MAX_LENGTH)
    return f"{repr(value[: MAX_LENGTH // 2])[:MAX_LENGTH]}… ({len(value)} long)"


_MAX_COLUMN_WIDTH = 60


def format_table(rows: list[list[str]]) -> str:
    """Columns as wide as needed, up to a limit; longer cells are never truncated, they shift their line."""
    widths = [min(_MAX_COLUMN_WIDTH, max(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def format_nbytes(nbytes: float) -> str:
    """`1.23 MB`"""
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if nbytes < 1000:
            break
        nbytes, unit = nbytes / 1000, larger
    return f"{nbytes:.3g} {unit}"
