"""Rows of padding, of which each run makes something else when its steps are cut otherwise: left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tensortap.comparison.entries import Entry, ValueRef
from tensortap.comparison.glimpse import Step
from tensortap.comparison.joining import Laid, Stepped, Windows, numbers_in
from tensortap.comparison.layouts import applied
from tensortap.comparison.match import Matched, Pair
from tensortap.comparison.modules import module_of
from tensortap.comparison.plans import AlignmentNote
from tensortap.comparison.tokens import steps_for
from tensortap.core.errors import TensortapError
from tensortap.kernels.numbers import Array

IDS, MASK = "input_ids", "attention_mask"
_NOTE = f"what {MASK} hides is not compared: a row of padding may look at another number of others there"
_TOLD = f"without the rows that {MASK} hides"


def without_padding(matched: Matched) -> Matched:
    """The same; of steps whose mask hides tokens, the rows of the others alone. Where nothing is hidden, or
    no mask tells, as it was."""
    hiding = {pair.a.first_step: table for pair, table in _tables(matched.pairs) if not table.all()}
    if not hiding:
        return matched
    pairs = [_taken(pair, hiding.get(pair.a.first_step)) for pair in matched.pairs]
    return replace(matched, pairs=pairs, told=[*matched.told, _NOTE])


def _tables(pairs: Sequence[Pair]) -> Iterator[tuple[Pair, Array]]:
    """Of each step whether each of its ids is a token, in their shape; not of those whose ids differ."""
    masks = {pair.a.first_step: pair for pair in pairs if _is_given(pair, MASK)}
    for pair in pairs:
        mask = masks.get(pair.a.first_step) if _is_given(pair, IDS) else None
        held = [] if mask is None else [_numbers(one.reference) for one in (pair.a, pair.b, mask.a)]
        arrays = [one for one in held if one is not None]
        if len(arrays) < 3 or {one.ndim for one in arrays} != {2} or not np.array_equal(arrays[0], arrays[1]):
            continue
        ids, _, table = arrays
        if _ends_with(table.shape, ids.shape):
            yield pair, table[:, table.shape[1] - ids.shape[1] :] != 0


def _is_given(pair: Pair, what: str) -> bool:
    """Whether it is an input of the model itself that ends so, on either side."""
    is_named = pair.a.name.endswith(what) or pair.b.name.endswith(what)
    return is_named and pair.a.kind == "input" and not module_of(pair.a.name, "input")


def _ends_with(mask: Sequence[int], ids: Sequence[int]) -> bool:
    """Beside a cache, the mask has what came before as well."""
    return mask[0] == ids[0] and mask[1] >= ids[1]


def _numbers(reference: ValueRef) -> Array | None:
    """Of what grows from step to step, the last: the whole."""
    inner = reference.reference if isinstance(reference, Stepped) else reference
    try:
        return numbers_in(inner.references[-1] if isinstance(inner, Windows) else inner)
    except (TensortapError, OSError, ValueError):
        return None


def _taken(pair: Pair, table: Array | None) -> Pair:
    if table is None or not pair.a.dtype or not pair.b.dtype or pair.a.shape != pair.b.shape:
        return pair
    # What tells padding from tokens is compared as it is: it may be wrong.
    is_telling = _is_given(pair, "") or pair.a.name.endswith(MASK) or pair.b.name.endswith(MASK)
    steps = None if is_telling else _steps(pair, table)
    if steps is None:
        return pair
    plan = pair.plan or AlignmentNote(pair.a.name, "", ())
    return replace(
        pair, a=_laid(pair.a, steps), b=_laid(pair.b, steps), plan=plan.then("without padding", _TOLD)
    )


def _steps(pair: Pair, table: Array) -> tuple[Step, ...] | None:
    """What takes the rows of tokens; None where a value has no row for each."""
    stepped = [one.reference.reference for one in (pair.a, pair.b) if isinstance(one.reference, Stepped)]
    windows = [one for one in stepped if isinstance(one, Windows)]
    if windows:
        return _of_windows([one for one in windows if not any(one.places)], table)
    shape, ids, rows = pair.a.shape, table.shape, np.flatnonzero(table)
    is_attention = len(shape) == 4 and (shape[0], shape[2]) == ids and ids[1] != shape[1]
    if is_attention:  # or heads: a row for each of its queries
        return ("transpose", (0, 2, 1, 3)), ("reshape", (-1, shape[1], shape[3])), ("take", 0, rows)
    return steps_for(shape, ids, rows)


def _of_windows(pieces: Sequence[Windows], table: Array) -> tuple[Step, ...] | None:
    """Attention over the tokens so far, step by step: the queries that are tokens."""
    held = [numbers_in(one) for windows in pieces for one in windows.references]
    shapes = [one.shape for one in held if one is not None and one.ndim == 4 and len(one) == len(table)]
    lengths = [shape[2] for shape in shapes]
    if not held or len(shapes) < len(held) or sum(lengths) != table.shape[1]:
        return None
    parts = np.split(table, np.cumsum(lengths)[:-1].tolist(), axis=1)
    kept = [
        np.broadcast_to(part[:, None, :, None], shape).reshape(-1)
        for part, shape in zip(parts, shapes, strict=True)
    ]
    return (("take", 0, np.flatnonzero(np.concatenate(kept))),)


def _laid(entry: Entry, steps: tuple[Step, ...]) -> Entry:
    shape = applied(steps, np.empty(entry.shape, np.bool_)).shape
    return replace(entry, reference=Laid(entry.reference, steps), shape=shape, checksum="")
