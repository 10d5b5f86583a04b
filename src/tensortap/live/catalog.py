"""What a job could show, as the session prints it."""

from __future__ import annotations

from typing import Any

from tensortap.live.offers import CatalogEntry
from tensortap.render.text import format_table, format_table_html


class Catalog(list[CatalogEntry]):
    """Sites with their shapes, where those are known; nothing of them is captured yet."""

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def __repr__(self) -> str:
        return (
            f"{len(self)} sites\n{format_table(self._table())}" if self else "no site of that name is offered"
        )

    def _repr_html_(self) -> str:
        return format_table_html(f"{len(self)} sites", self._table())

    def _table(self) -> list[list[str]]:
        return [["site", "is", "of", "type", "shape"], *([*entry[:4], format_shape(entry)] for entry in self)]


def format_shape(entry: CatalogEntry) -> str:
    return "" if entry.shape is None else str(list(entry.shape))


def parse_catalog_row(row: Any) -> CatalogEntry | None:
    """A row of the catalog as it travels; None for one that is not sound."""
    if type(row) is not list or len(row) < 5 or not all(type(cell) is str for cell in row[:4]):
        return None
    name, kind, module_class, dtype, shape = row[:5]
    is_shape = type(shape) is list and all(type(size) is int for size in shape)
    return CatalogEntry(name, kind, module_class, dtype, tuple(shape) if is_shape else None)
