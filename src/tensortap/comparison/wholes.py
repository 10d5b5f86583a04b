"""A value that was in pieces, whole: what it is made of, and whether its copies are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tensortap.comparison.entries import Entry
from tensortap.comparison.floor import analytic_noise
from tensortap.comparison.glimpse import relative_distance
from tensortap.comparison.joining import load_numbers, shards_of
from tensortap.kernels.decode import Array


class FullValue(NamedTuple):
    """A value that is whole, in short how it was made, the sentence, and whether its copies are apart."""

    entry: Entry
    summary: str = ""
    details: str = ""
    replica_mismatch: str = ""


def load_shards(entry: Entry) -> list[Array] | None:
    loaded = [load_numbers(shard.reference) for shard in shards_of(entry)]
    arrays = [array for array in loaded if array is not None]
    return arrays if len(arrays) == len(loaded) else None


def describe_ranks(shards: Sequence[Entry]) -> str:
    ranks = [shard.first_rank for shard in shards]
    is_run = ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2
    return f"ranks {ranks[0]} to {ranks[-1]}" if is_run else f"ranks {', '.join(map(str, ranks))}"


def farthest_replica(replicas: Sequence[Array], full: Array) -> tuple[int, str]:
    """Copies should be equal. Where they are not, the worst is compared: a good one would hide it."""
    if all(np.array_equal(replicas[0], other, equal_nan=True) for other in replicas[1:]):
        return 0, ""
    with np.errstate(invalid="ignore"):
        distances = [
            np.nan_to_num(np.abs(replica.astype(np.float64) - full), nan=np.inf).max() for replica in replicas
        ]
    worst = int(np.argmax(distances))
    return worst, f"its {len(replicas)} copies are not equal: copy {worst}, the farthest, is compared"


def do_replicas_differ(replicas: Sequence[Array], dtype: str) -> bool:
    """Whether they differ by more than rounding."""
    most = analytic_noise(dtype).relative_l2 if replicas[0].dtype.kind == "f" else 0.0
    return any(relative_distance(replicas[0], other) > most for other in replicas[1:])
