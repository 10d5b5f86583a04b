"""Orders in which models keep the numbers of one axis: halves of rotary heads, fused projections."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from tensortap.kernels.decode import Array

_MAX_AXIS_LENGTH = 1 << 15  # numbers along an axis: longer ones, as of a vocabulary, have no heads
_MAX_HEAD_WIDTH = 1024  # heads
_FUSED_SECTIONS = {
    "gate and up": (1, 1),
    "query, key and value": (1, 1, 1),
    "2 queries, key and value": (2, 1, 1),
    "4 queries, key and value": (4, 1, 1),
    "8 queries, key and value": (8, 1, 1),
}


@lru_cache(maxsize=8)
def known_orders(size: int) -> tuple[tuple[str, Array], ...]:
    """What each is called, and the rows of B in the order of A."""
    if size > _MAX_AXIS_LENGTH:
        return ()
    orders: list[tuple[str, Array]] = []
    known = {np.arange(size).tobytes()}
    for description, rows in (*_rotary_orders(size), *_fused_orders(size)):
        if rows.tobytes() not in known:
            known.add(rows.tobytes())
            orders.append((description, rows))
    return tuple(orders)


def _rotary_orders(size: int) -> Iterator[tuple[str, Array]]:
    """Heads whose halves are one after the other against heads that take them in turn."""
    for head in (width for width in range(4, min(size, _MAX_HEAD_WIDTH) + 1, 2) if size % width == 0):
        turns = np.concatenate([np.arange(0, head, 2), np.arange(1, head, 2)])
        starts = head * np.arange(size // head)[:, None]
        rows = (starts + turns).reshape(-1)
        description = f"halves (A) against turns (B) in rotary heads of {head}"
        yield description, rows
        yield (
            description.replace("halves (A)", "turns (A)").replace("turns (B)", "halves (B)"),
            np.argsort(rows),
        )


def _fused_orders(size: int) -> Iterator[tuple[str, Array]]:
    """Sections one after the other against a part of each, group by group."""
    for description, shares in _FUSED_SECTIONS.items():
        total = sum(shares)
        for groups in (count for count in range(2, size // total + 1) if size % (count * total) == 0):
            rows = _section_order(shares, groups, size // (groups * total))
            yield f"{description} fused in sections (A) against {groups} groups (B)", rows
            yield f"{description} fused in {groups} groups (A) against sections (B)", np.argsort(rows)


def _section_order(shares: tuple[int, ...], groups: int, width: int) -> Array:
    each = np.arange(groups * sum(shares) * width).reshape(groups, sum(shares), width)
    parts = np.split(each, np.cumsum(shares)[:-1].tolist(), axis=1)
    return np.concatenate([part.reshape(-1) for part in parts])
