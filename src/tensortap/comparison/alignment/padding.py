"""Drop padding rows, whose values depend on how a run is split into steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tensortap.comparison.alignment.tokens import MASK, ops_for_tokens
from tensortap.comparison.layout.sampling import ArrayOp
from tensortap.comparison.matching.match import EntryPair, Matching
from tensortap.comparison.sharding.derived import (
    ConcatenatedStepsRef,
    WindowsRef,
    load_numbers,
    reordered_entry,
)
from tensortap.comparison.sides.entry import TOKEN_IDS, AlignmentNote, ValueRef, module_of
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array

_NOTE = f"what {MASK} hides is not compared: a row of padding may look at another number of others there"
_DETAIL = f"without the rows that {MASK} hides"


def drop_padding(matching: Matching) -> Matching:
    """Keep only the token rows of steps whose attention mask hides some; other steps stay as they are."""
    hiding = {pair.a.first_step: mask for pair, mask in _token_masks(matching.pairs) if not mask.all()}
    if not hiding:
        return matching
    pairs = [_drop_padding_rows(pair, hiding.get(pair.a.first_step)) for pair in matching.pairs]
    return replace(matching, pairs=pairs, messages=[*matching.messages, _NOTE])


def _token_masks(pairs: Sequence[EntryPair]) -> Iterator[tuple[EntryPair, Array]]:
    """For each step with equal ids on both sides and a mask: which ids are tokens."""
    masks = {pair.a.first_step: pair for pair in pairs if _is_model_input(pair, MASK)}
    for pair in pairs:
        mask = masks.get(pair.a.first_step) if _is_model_input(pair, TOKEN_IDS) else None
        loaded = (
            []
            if mask is None
            else [_load_last_numbers(entry.reference) for entry in (pair.a, pair.b, mask.a)]
        )
        arrays = [array for array in loaded if array is not None]
        if (
            len(arrays) < 3
            or {array.ndim for array in arrays} != {2}
            or not np.array_equal(arrays[0], arrays[1])
        ):
            continue
        ids, _, table = arrays
        if _covers_ids(table.shape, ids.shape):
            yield pair, table[:, table.shape[1] - ids.shape[1] :] != 0


def _is_model_input(pair: EntryPair, suffix: str) -> bool:
    """Whether it is an input of the model itself whose name ends so, on either side."""
    is_named = pair.a.name.endswith(suffix) or pair.b.name.endswith(suffix)
    return is_named and pair.a.kind == "input" and not module_of(pair.a.name, "input")


def _covers_ids(mask: Sequence[int], ids: Sequence[int]) -> bool:
    """Whether the mask covers the ids; with a KV cache it also covers earlier tokens."""
    return mask[0] == ids[0] and mask[1] >= ids[1]


def _load_last_numbers(reference: ValueRef) -> Array | None:
    """The numbers; of a value that grows from step to step, those of the last step."""
    inner = reference.reference if isinstance(reference, ConcatenatedStepsRef) else reference
    try:
        return load_numbers(inner.references[-1] if isinstance(inner, WindowsRef) else inner)
    except (TensortapError, OSError, ValueError):
        return None


def _drop_padding_rows(pair: EntryPair, table: Array | None) -> EntryPair:
    if table is None or not pair.a.dtype or not pair.b.dtype or pair.a.shape != pair.b.shape:
        return pair
    # The mask itself and the model inputs are compared in full: they may be wrong.
    is_telling = _is_model_input(pair, "") or pair.a.name.endswith(MASK) or pair.b.name.endswith(MASK)
    ops = None if is_telling else _ops_for_token_rows(pair, table)
    if ops is None:
        return pair
    note = pair.alignment or AlignmentNote(pair.a.name, "", ())
    return replace(
        pair,
        a=reordered_entry(pair.a, ops),
        b=reordered_entry(pair.b, ops),
        alignment=note.extended("without padding", _DETAIL),
    )


def _ops_for_token_rows(pair: EntryPair, table: Array) -> tuple[ArrayOp, ...] | None:
    """The ops that take the token rows; None if the value has no row per token."""
    stepped = [
        entry.reference.reference
        for entry in (pair.a, pair.b)
        if isinstance(entry.reference, ConcatenatedStepsRef)
    ]
    windows = [reference for reference in stepped if isinstance(reference, WindowsRef)]
    if windows:
        return _ops_for_windows([windowed for windowed in windows if not any(windowed.windows)], table)
    shape, ids, rows = pair.a.shape, table.shape, np.flatnonzero(table)
    is_attention = len(shape) == 4 and (shape[0], shape[2]) == ids and ids[1] != shape[1]
    if is_attention:  # or heads: one row per query
        return ("transpose", (0, 2, 1, 3)), ("reshape", (-1, shape[1], shape[3])), ("take", 0, rows)
    return ops_for_tokens(shape, ids, rows)


def _ops_for_windows(references: Sequence[WindowsRef], table: Array) -> tuple[ArrayOp, ...] | None:
    """The ops that take the token queries of attention that grows step by step."""
    loaded = [load_numbers(reference) for windows in references for reference in windows.references]
    shapes = [
        array.shape for array in loaded if array is not None and array.ndim == 4 and len(array) == len(table)
    ]
    lengths = [shape[2] for shape in shapes]
    if not loaded or len(shapes) < len(loaded) or sum(lengths) != table.shape[1]:
        return None
    parts = np.split(table, np.cumsum(lengths)[:-1].tolist(), axis=1)
    kept = [
        np.broadcast_to(part[:, None, :, None], shape).reshape(-1)
        for part, shape in zip(parts, shapes, strict=True)
    ]
    return (("take", 0, np.flatnonzero(np.concatenate(kept))),)
