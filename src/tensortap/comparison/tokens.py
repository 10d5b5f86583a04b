"""Which row of one side is which token of the other, by their ids and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tensortap.comparison.glimpse import ArrayOp
from tensortap.kernels.decode import Array

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of both sides that are the same token of the same sequence, as positions in the flattened ids."""

    a: Array
    b: Array
    shapes: tuple[Shape, Shape]  # of the ids
    description: str
    is_sure: bool = True
    sequences: tuple[Array, Array] | None = None  # those of sequences that belong together, of ids in a table
    have_same_columns: bool = False  # whether each sequence stands in the same columns on both sides
    unmatched: tuple[int, int] = (0, 0)  # sequences that the other side does not have
    count: int = 0  # sequences that both have


def match_tokens(
    a: Array, b: Array, a_mask: Array | None = None, b_mask: Array | None = None
) -> TokenRows | None:
    """The tokens that both sides have: whole sequences, wherever they stand and however they are padded.

    None where both sides have a sequence of their own, which is other data; unsure where one could be
    either of two."""
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
    """What takes whole sequences of a value: whatever its other axes are where tokens stand in the same
    columns, else where it has nothing for each token."""
    is_fitting = shape[:1] == ids[:1] and (have_same_columns or ids[1] not in shape[1:])
    return (("take", 0, sequences),) if is_fitting else None


def is_by_position(shape: Shape, ids: Shape) -> bool:
    """Whether a value is the same for all sequences: one line for each position."""
    return len(ids) == 2 and shape[:1] == (1,) and len(shape) > 1 and ids[1] in shape[1:]


def ops_for_tokens(shape: Shape, ids: Shape, rows: Array) -> tuple[ArrayOp, ...] | None:
    """What takes these rows of a value, one per token; None where its axes do not say which is which."""
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
    """Where each row of a whole is among those of its pieces one after another, of values with a row for each
    token of several lines that were cut into columns of these lengths."""
    positions = np.arange(sequences * sum(lengths)).reshape(sequences, -1)
    shards = np.split(positions, np.cumsum(lengths)[:-1].tolist(), axis=1)
    return np.argsort(np.concatenate([shard.reshape(-1) for shard in shards]))


def are_token_lengths(
    sizes: Sequence[int], lengths: Sequence[int], other_length: int = 0, other_dims: Shape = ()
) -> bool:
    """Whether the sizes of pieces are those of the tokens, or of what there is `beside` each of them: what a
    router has sorted has others, which may by chance be in proportion. A value that has the tokens along
    another of its axes, the `rest`, may have anything along this one."""
    times = sum(sizes) // sum(lengths)
    if any(size != times * length for size, length in zip(sizes, lengths, strict=True)):
        return False
    return not other_length or times in (1, other_length) or other_length in other_dims


def _take_flat_rows(trailing: Shape, rows: Array) -> tuple[ArrayOp, ...]:
    return ("reshape", (-1, *trailing)), ("take", 0, rows)


def _sequences(ids: Array, mask: Array | None) -> list[tuple[Array, Array]]:
    """The tokens of each sequence and where they stand, without padding."""
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
    """Equal sequences in their order. One that is repeated has the same values each time."""
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
    """Which sequence is which, where each has a line."""
    if a.ndim != 2 or b.ndim != 2:
        return None
    first, second = (
        np.array([pair[side][0] // ids.shape[1] for pair in pairs]) for side, ids in enumerate((a, b))
    )
    return first, second


def _have_same_columns(a: Array, b: Array, pairs: Sequence[tuple[Array, Array]]) -> bool:
    """Whether all have the same columns, and nothing of them is padding."""
    width = a.shape[1]
    return width == b.shape[1] and all(
        len(a_positions) == len(b_positions) == width for a_positions, b_positions in pairs
    )


def _has_repeats(sequences: Sequence[tuple[Array, Array]]) -> bool:
    return len({_token_key(tokens) for tokens, _ in sequences}) < len(sequences)


def _token_key(tokens: Array) -> bytes:
    return tokens.astype(np.int64).tobytes()
