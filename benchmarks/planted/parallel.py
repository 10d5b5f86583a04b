"""Two ranks of a tensor-parallel model, as two threads that add up their parts, and what goes wrong there."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from planted import answers as asked
from planted.answers import REPLAY, Clean, Limits
from planted.harmless import Records, captured
from planted.models import Batch, Kind
from planted.planting import after, replaced
from planted.score import HARMLESS, IN_RANKS, Case, case_of

RANKS = 2
_BY_COLUMN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_BY_ROW = ("o_proj", "down_proj")


class Exchange:
    """What an all-reduce does, between threads."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(RANKS, timeout=60)
        self._slots: list[Any] = [None] * RANKS

    def sum(self, rank: int, part: torch.Tensor) -> torch.Tensor:
        self._slots[rank] = part
        self._barrier.wait()
        total = self._slots[0] + self._slots[1]
        self._barrier.wait()
        return total

    def abort(self) -> None:
        self._barrier.abort()


Plant = Callable[[nn.Module, int, Exchange], None]
Make = Callable[[nn.Module, int, Exchange], nn.Module]


@dataclass(frozen=True)
class ParallelBug:
    """Planted on every rank, which it is told; the part has to be named."""

    name: str
    role: str
    plant: Plant
    needs_bias: bool = False

    def made(self, kind: Kind) -> Make:
        def make(model: nn.Module, rank: int, exchange: Exchange) -> nn.Module:
            divided(model, rank, exchange)
            self.plant(model.get_submodule(kind.parts[self.role]), rank, exchange)
            return model

        return make


def is_divisible(kind: Kind) -> bool:
    return kind.sort == "dense" and kind.layer == "model.layers"


def divided(model: nn.Module, rank: int, exchange: Exchange) -> nn.Module:
    """The part of a model that one rank has."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if last in _BY_COLUMN:
            _cut(module, rank, 0)
        elif last in _BY_ROW:
            _cut(module, rank, 1)
            replaced(module, lambda _, x, linear=module: _summed(linear, x, rank, exchange))
        elif last == "embed_tokens":
            replaced(module, lambda original, ids: _looked_up(original, ids, rank, exchange))
    return model


def _cut(linear: Any, rank: int, axis: int) -> None:
    linear.weight = nn.Parameter(linear.weight.detach().chunk(RANKS, axis)[rank].clone())
    if linear.bias is not None and axis == 0:
        linear.bias = nn.Parameter(linear.bias.detach().chunk(RANKS)[rank].clone())


def _summed(linear: Any, x: torch.Tensor, rank: int, exchange: Exchange) -> torch.Tensor:
    made = exchange.sum(rank, F.linear(x, linear.weight))
    return made if linear.bias is None else made + linear.bias


def _looked_up(
    original: Any, ids: torch.Tensor, rank: int, exchange: Exchange, offset: int = 0
) -> torch.Tensor:
    """Each rank knows half of the words."""
    known = original.__self__.weight.shape[0] // RANKS
    is_ours = (ids >= rank * known) & (ids < (rank + 1) * known)
    there = original((ids + offset * rank).clamp_max(RANKS * known - 1))
    return exchange.sum(rank, there.masked_fill(~is_ours[..., None], 0))


def run(
    base: Clean,
    make: Make = divided,
    given: Batch | None = None,
    capture: Callable[[nn.Module, Batch], Records] = captured,
) -> Records:
    """Both ranks at once; what each saw, with its number. `make`: the part of a rank from the whole model."""
    exchange = Exchange()

    def of_rank(rank: int) -> Records:
        model = make(base.build(), rank, exchange)
        try:
            records = capture(model, base.batch if given is None else given)
            return [record._replace(rank=rank) for record in records]
        except BaseException:
            exchange.abort()
            raise

    with ThreadPoolExecutor(RANKS) as pool:
        return [record for records in pool.map(of_rank, range(RANKS)) for record in records]


def _not_reduced(linear: Any, rank: int, exchange: Exchange) -> None:
    replaced(linear, lambda _, x: F.linear(x, linear.weight, linear.bias))


def _reduced_twice(linear: Any, rank: int, exchange: Exchange) -> None:
    after(linear, lambda made: exchange.sum(rank, made))


def _bias_everywhere(linear: Any, rank: int, exchange: Exchange) -> None:
    replaced(linear, lambda _, x: exchange.sum(rank, F.linear(x, linear.weight, linear.bias)))


def _stale(module: Any, rank: int, exchange: Exchange) -> None:
    if rank == 1:
        with torch.no_grad():
            module.weight *= 1.01


def _of_the_other(linear: Any, rank: int, exchange: Exchange) -> None:
    """Parts of the weights that were handed out the wrong way round."""
    both = exchange.sum(rank, torch.stack([linear.weight * (rank == at) for at in range(RANKS)]).detach())
    linear.weight = nn.Parameter(both[1 - rank])


def _wrong_offset(embedding: Any, rank: int, exchange: Exchange) -> None:
    plain = type(embedding).forward.__get__(embedding)
    replaced(embedding, lambda _, ids: _looked_up(plain, ids, rank, exchange, 1))


def _nan(module: Any, rank: int, exchange: Exchange) -> None:
    if rank == 1:
        after(
            module,
            lambda made: made.index_put(
                (torch.tensor([0]), torch.tensor([3])), made.new_tensor(float("nan"))
            ),
        )


PARALLEL_BUGS = (
    ParallelBug("all_reduce_is_missing", "out", _not_reduced),
    ParallelBug("all_reduce_twice", "down", _reduced_twice),
    ParallelBug("bias_on_every_rank", "out", _bias_everywhere, needs_bias=True),
    ParallelBug("one_shard_is_stale", "down", _stale),
    ParallelBug("shards_are_swapped", "down", _of_the_other),
    ParallelBug("heads_of_the_other_rank", "query", _of_the_other),
    ParallelBug("copies_are_not_equal", "norm", _stale),
    ParallelBug("vocabulary_begins_one_too_late", "embedding", _wrong_offset),
    ParallelBug("nan_on_one_rank", "activation", _nan),
)


def parallel_cases(base: Clean, limits: Limits, above: set[str]) -> Iterator[Case]:
    """Bugs of the ranks themselves, with a floor alone: the candidate of a replay is one process."""
    ranks = run(base)
    answers = asked.of_records(base, ranks, limits, None, plain=on_one_rank(base, ranks))
    answers[REPLAY] = asked.all_named(asked.by_replay(base, base.build(), limits, a=ranks), None)
    yield case_of(base, "two_ranks", HARMLESS, HARMLESS, None, False, answers)
    for one in fitting_parallel(base):
        located, other = base.kind.parts[one.role], run(base, one.made(base.kind))
        answers = asked.of_records(base, other, limits, located, plain=on_one_rank(base, other))
        yield case_of(base, one.name, "parallel", IN_RANKS, located, one.name in above, answers)


def fitting_parallel(base: Clean) -> list[ParallelBug]:
    if not is_divisible(base.kind):
        return []
    has_bias = base.build().get_submodule(base.kind.parts["out"]).bias is not None
    return [one for one in PARALLEL_BUGS if has_bias or not one.needs_bias]


def on_one_rank(base: Clean, other: Records) -> Records:
    """Others see what is whole on a rank; pieces they leave out."""
    shapes = {(one.name, one.call): getattr(one.value, "shape", None) for one in base.records}
    return [one for one in other if getattr(one.value, "shape", None) == shapes.get((one.name, one.call))]
