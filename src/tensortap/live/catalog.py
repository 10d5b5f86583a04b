"""What a job could show, as the session prints it."""

from __future__ import annotations

from typing import Any

from tensortap.formats.table import table_html, table_text
from tensortap.live.offers import Place


class Catalog(list[Place]):
    """Sites with their shapes, where those are known; nothing of them is captured yet."""

    @property
    def names(self) -> list[str]:
        return [place.name for place in self]

    def __repr__(self) -> str:
        return (
            f"{len(self)} sites\n{table_text(self._table())}" if self else "no site of that name is offered"
        )

    def _repr_html_(self) -> str:
        return table_html(f"{len(self)} sites", self._table())

    def _table(self) -> list[list[str]]:
        return [["site", "is", "of", "type", "shape"], *([*place[:4], shape_text(place)] for place in self)]


def shape_text(place: Place) -> str:
    return "" if place.shape is None else str(list(place.shape))


def place_of(row: Any) -> Place | None:
    """A row of the catalog as it travels; None for one that is not sound."""
    if type(row) is not list or len(row) < 5 or not all(type(one) is str for one in row[:4]):
        return None
    name, kind, module_class, dtype, shape = row[:5]
    is_shape = type(shape) is list and all(type(one) is int for one in shape)
    return Place(name, kind, module_class, dtype, tuple(shape) if is_shape else None)
