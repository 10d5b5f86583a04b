"""Align the rows of two sides by token id: reordered, differently padded or packed sequences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensortap.comparison.layout.sampling import ArrayOp, relative_distance
from tensortap.comparison.matching.match import EntryPair, Matching
from tensortap.comparison.sharding.derived import UnresolvedRef, load_numbers, reordered_entry
from tensortap.comparison.sides.entry import AlignmentNote, Entry
from tensortap.core.errors import TensortapError
from tensortap.kernels.decode import Array, Shape

MASK = "attention_mask"
_MAX_DISTANCE = 0.01  # relative


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of both sides for the same tokens of the same sequences, as positions in the flattened ids."""

    a: Array
    b: Array
    shapes: tuple[Shape, Shape]  # of the ids
    description: str
    is_sure: bool = True
    sequences: tuple[Array, Array] | None = None  # batch indices of paired sequences, if the ids are 2-D
    have_same_columns: bool = False  # of both sides
    unmatched: tuple[int, int] = (0, 0)  # number of sequences that the other side does not have
    count: int = 0  # number of sequences that both have


def match_tokens(
    a: Array, b: Array, a_mask: Array | None = None, b_mask: Array | None = None
) -> TokenRows | None:
    """The tokens that both sides have: full sequences, wherever they are and however padded.

    None if both sides have sequences of their own, which is other data; not `is_sure` if a repeated
    sequence could be either of two.
    """
    a_sequences, b_sequences = _sequences(a, a_mask), _sequences(b, b_mask)
    pairs = _pair_sequences(a_sequences, b_sequences)
    if not pairs or len(pairs) < min(len(a_sequences), len(b_sequences)):
        return None
    rows = [np.concatenate([pair[side] for pair in pairs]) for side in (0, 1)]
    description = f"{len(rows[0])} tokens of {len(pairs)} sequences by their ids"
    unmatched = len(a_sequences) - len(pairs), len(b_sequences) - len(pairs)
    is_sure = not any(unmatched) or (not _has_repeats(a_sequences) and not _has_repeats(b_sequences))
    indices = _sequence_indices(a, b, pairs)
    same_columns = indices is not None and _have_same_columns(a, b, pairs)
    shapes = a.shape, b.shape
    return TokenRows(
        rows[0], rows[1], shapes, description, is_sure, indices, same_columns, unmatched, len(pairs)
    )


def ops_for_sequences(
    shape: Shape, ids: Shape, sequences: Array, *, have_same_columns: bool
) -> tuple[ArrayOp, ...] | None:
    """The ops that take full sequences of a value; None unless its columns agree or it has none per token."""
    is_fitting = shape[:1] == ids[:1] and (have_same_columns or ids[1] not in shape[1:])
    return (("take", 0, sequences),) if is_fitting else None


def is_by_position(shape: Shape, ids: Shape) -> bool:
    """Whether a value is shared by all sequences, with one row per position."""
    return len(ids) == 2 and shape[:1] == (1,) and len(shape) > 1 and ids[1] in shape[1:]


def ops_for_tokens(shape: Shape, ids: Shape, rows: Array) -> tuple[ArrayOp, ...] | None:
    """The ops that take these token rows of a value; None if its axes do not tell tokens apart."""
    if len(ids) == 2 and ids[0] == 1 and shape[:1] == ids[1:] and shape[:2] != ids:
        return _take_flat_rows(shape[1:], rows)
    if shape[: len(ids)] == ids:
        trailing = shape[len(ids) :]
        return None if len(ids) == 2 and ids[1] in trailing[:-1] else _take_flat_rows(trailing, rows)
    if len(ids) == 2 and len(shape) == 4 and (shape[0], shape[2]) == ids and shape[3] != ids[1]:
        return (("transpose", (0, 2, 1, 3)), *_take_flat_rows((shape[1], shape[3]), rows))
    if shape[:1] == (int(np.prod(ids)),):
        return _take_flat_rows(shape[1:], rows)
    return None


def token_row_order(sequences: int, lengths: Sequence[int]) -> Array:
    """The order of flattened token rows among concatenated shards of these lengths."""
    positions = np.arange(sequences * sum(lengths)).reshape(sequences, -1)
    shards = np.split(positions, np.cumsum(lengths)[:-1].tolist(), axis=1)
    return np.argsort(np.concatenate([shard.reshape(-1) for shard in shards]))


def are_token_lengths(
    sizes: Sequence[int], lengths: Sequence[int], other_length: int = 0, other_dims: Shape = ()
) -> bool:
    """Whether the shard lengths are proportional to the token counts, by 1 or `other_length`. Rows sorted
    by a router may be proportional by chance; values with tokens along another axis (`other_dims`) may
    have any factor."""
    times = sum(sizes) // sum(lengths)
    if any(size != times * length for size, length in zip(sizes, lengths, strict=True)):
        return False
    return not other_length or times in (1, other_length) or other_length in other_dims


def _take_flat_rows(trailing: Shape, rows: Array) -> tuple[ArrayOp, ...]:
    return ("reshape", (-1, *trailing)), ("take", 0, rows)


def _sequences(ids: Array, mask: Array | None) -> list[tuple[Array, Array]]:
    """The tokens of each sequence and their positions, without padding."""
    table = np.atleast_2d(ids)
    is_token = np.ones(table.shape, bool) if mask is None else np.atleast_2d(mask) != 0
    positions = np.arange(table.size).reshape(table.shape)
    return [
        (tokens[kept], columns[kept])
        for tokens, columns, kept in zip(table, positions, is_token, strict=True)
        if kept.any()
    ]


def _pair_sequences(
    a: Sequence[tuple[Array, Array]], b: Sequence[tuple[Array, Array]]
) -> list[tuple[Array, Array]]:
    """Pair equal sequences in order; repeated ones have the same values each time."""
    b_positions: dict[bytes, list[Array]] = {}
    for tokens, columns in b:
        b_positions.setdefault(_token_key(tokens), []).append(columns)
    pairs = []
    for tokens, columns in a:
        candidates = b_positions.get(_token_key(tokens))
        if candidates:
            pairs.append((columns, candidates.pop(0)))
    return pairs


def _sequence_indices(a: Array, b: Array, pairs: Sequence[tuple[Array, Array]]) -> tuple[Array, Array] | None:
    """The batch indices of paired sequences, if both ids are 2-D."""
    if a.ndim != 2 or b.ndim != 2:
        return None
    first, second = (
        np.array([pair[side][0] // ids.shape[1] for pair in pairs]) for side, ids in enumerate((a, b))
    )
    return first, second


def _have_same_columns(a: Array, b: Array, pairs: Sequence[tuple[Array, Array]]) -> bool:
    """Whether all sequences fill the same columns, without padding."""
    width = a.shape[1]
    return width == b.shape[1] and all(
        len(a_positions) == len(b_positions) == width for a_positions, b_positions in pairs
    )


def _has_repeats(sequences: Sequence[tuple[Array, Array]]) -> bool:
    return len({_token_key(tokens) for tokens, _ in sequences}) < len(sequences)


def _token_key(tokens: Array) -> bytes:
    return tokens.astype(np.int64).tobytes()


def align_tokens(matching: Matching) -> Matching:
    """Keep only the rows of common tokens, for steps whose ids differ. Sequences that only one side has
    are reported as gaps."""
    rows_by_step: dict[int, TokenRows] = {}
    messages, gaps = list[str](), list[str]()
    for pair in matching.pairs:
        if not (pair.a.is_token_ids and pair.b.is_token_ids):
            continue
        step = pair.a.first_step
        if step not in rows_by_step:
            rows = _match_ids(pair, matching)
            if rows is not None:
                rows_by_step[step] = rows
                messages.append(_describe_rows(rows, step))
                gaps += _describe_unmatched(rows, step) if rows.is_sure else []
    if not rows_by_step:
        return matching
    pairs = [_take_tokens(pair, rows_by_step.get(pair.a.first_step)) for pair in matching.pairs]
    return replace(
        matching, pairs=pairs, messages=[*matching.messages, *messages], gaps=[*matching.gaps, *gaps]
    )


def _describe_unmatched(rows: TokenRows, step: int) -> list[str]:
    """Report the sequences without a partner, per side."""
    both = rows.count
    return [
        f"{count} of the {count + both} sequences of step {step} {'is' if count == 1 else 'are'} only in "
        f"{side}; {both} {'was' if both == 1 else 'were'} compared"
        for side, count in zip("AB", rows.unmatched, strict=True)
        if count
    ]


def _describe_rows(rows: TokenRows, step: int) -> str:
    if rows.is_sure:
        return f"rows of step {step} are compared token by token: {rows.description}"
    return f"the tokens of step {step} are ambiguous: sequences repeat ({rows.description})"


def _match_ids(pair: EntryPair, matching: Matching) -> TokenRows | None:
    try:
        a, b = load_numbers(pair.a.reference), load_numbers(pair.b.reference)
        if a is None or b is None or np.array_equal(a, b) or max(a.ndim, b.ndim) > 2:
            return None
        masks = [
            _find_mask(side, pair.a.first_step, ids)
            for side, ids in zip(_entries_by_side(matching), (a, b), strict=True)
        ]
    except (TensortapError, OSError, ValueError):
        return None
    return match_tokens(a, b, *masks)


def _find_mask(side: Iterable[Entry], step: int, ids: Array) -> Array | None:
    for entry in side:
        if entry.first_step == step and entry.name.endswith(MASK) and entry.shape == ids.shape:
            return load_numbers(entry.reference)
    return None


def _entries_by_side(matching: Matching) -> tuple[list[Entry], list[Entry]]:
    a = [*(pair.a for pair in matching.pairs), *matching.only_a]
    return a, [*(pair.b for pair in matching.pairs), *matching.only_b]


def _take_tokens(pair: EntryPair, rows: TokenRows | None) -> EntryPair:
    if rows is None or not pair.a.dtype or not pair.b.dtype:
        return pair
    a = ops_for_tokens(pair.a.shape, rows.shapes[0], rows.a)
    b = ops_for_tokens(pair.b.shape, rows.shapes[1], rows.b)
    note = pair.alignment or AlignmentNote(pair.a.name, "", ())
    if _is_shared_by_sequences(pair, rows):
        return _take_positions(pair, rows, note)
    if not rows.is_sure:
        reason = "ambiguous: a sequence that one side has once and the other several times may be any of them"
        return pair if pair.a.shape == pair.b.shape else _mark_unresolved(pair, note, reason)
    if rows.sequences is not None and (a is None or b is None):
        a, b = (
            ops_for_sequences(entry.shape, ids, sequences, have_same_columns=rows.have_same_columns)
            for entry, ids, sequences in zip((pair.a, pair.b), rows.shapes, rows.sequences, strict=True)
        )
    if a is not None and b is not None:
        entries = (reordered_entry(pair.a, a), reordered_entry(pair.b, b))
        return replace(
            pair, a=entries[0], b=entries[1], alignment=note.extended("rows by token", rows.description)
        )
    has_tokens = rows.shapes[0][-1] in pair.a.shape[1:] and rows.shapes[1][-1] in pair.b.shape[1:]
    if not (has_tokens and len(pair.a.shape) > 2) and (not _may_have_token_rows(pair) or _is_near(pair)):
        return pair
    reason = "its axes do not say which row is which token, and the tokens stand elsewhere in B"
    return _mark_unresolved(pair, note, reason)


def _may_have_token_rows(pair: EntryPair) -> bool:
    """Whether it may have rows per token in an order of its own, such as those of one expert."""
    return pair.a.kind not in ("param", "grad_param") and min(len(pair.a.shape), len(pair.b.shape)) > 0


def _is_near(pair: EntryPair) -> bool:
    """Whether the values are nearly equal, in spite of the token order."""
    if pair.a.shape != pair.b.shape:
        return False
    try:
        a, b = load_numbers(pair.a.reference), load_numbers(pair.b.reference)
    except (TensortapError, OSError, ValueError):
        return True  # unreadable values are reported later
    return a is None or b is None or relative_distance(a, b) <= _MAX_DISTANCE


def _mark_unresolved(pair: EntryPair, note: AlignmentNote, reason: str) -> EntryPair:
    b = replace(pair.b, reference=UnresolvedRef(reason))
    return replace(pair, b=b, alignment=replace(note.extended("unaligned", reason), is_usable=False))


def _is_shared_by_sequences(pair: EntryPair, rows: TokenRows) -> bool:
    """Whether both sides have it once for all sequences, and there are several."""
    is_shared = max(shape[0] for shape in rows.shapes) > 1 and all(len(shape) == 2 for shape in rows.shapes)
    both = zip((pair.a, pair.b), rows.shapes, strict=True)
    return is_shared and all(is_by_position(entry.shape, ids) for entry, ids in both)


def _take_positions(pair: EntryPair, rows: TokenRows, note: AlignmentNote) -> EntryPair:
    """Take the positions that both sides have, if tokens stand in the same columns."""
    columns = [side % ids[1] for side, ids in zip((rows.a, rows.b), rows.shapes, strict=True)]
    axes = [entry.shape.index(ids[1], 1) for entry, ids in zip((pair.a, pair.b), rows.shapes, strict=True)]
    if pair.a.shape == pair.b.shape or axes[0] != axes[1] or not np.array_equal(columns[0], columns[1]):
        return pair
    take = ("take", axes[0], np.unique(columns[0]))
    note = note.extended("rows by position", f"{len(take[2])} positions that both have")
    return replace(
        pair, a=reordered_entry(pair.a, (take,)), b=reordered_entry(pair.b, (take,)), alignment=note
    )
