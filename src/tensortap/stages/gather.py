"""Buffer records, then gather every rank's on rank 0 once per interval."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tensortap.core.errors import GatherError, UnsupportedValueError
from tensortap.core.protocols import Stage
from tensortap.core.ranks import from_process_group
from tensortap.core.record import Record
from tensortap.core.settings import is_strict
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.dtensor import wait_local
from tensortap.frameworks.pytree import map_leaves
from tensortap.frameworks.retention import RetentionPolicy, copy_on_write, copy_to_host
from tensortap.stages.callbacks import Callback, CallbackChain
from tensortap.stages.payload import Problem, RefusedValues, pack_records, unpack_records

if TYPE_CHECKING:
    from tensortap.stages.collective import GatherCollective, GatherRound

log = logging.getLogger("tensortap.gather")

RecordsByName = dict[str, list[Record]]


def snapshot_local_shards(value: Any) -> Any:
    """The same pytree with a snapshot of each leaf; of a DTensor, of its local shard."""
    return map_leaves(value, lambda leaf: copy_on_write(wait_local(leaf)))


class Gather(Stage):
    """Buffers records and at every `interval`-th tick gathers them on rank 0, which releases them name by
    name in rank order; the other ranks release nothing.

    A collective per step: every rank of the default process group must tick and close, even with nothing to
    send; one that closes early stays until the others close. Before the gather, `pre` edits the values of
    each name on every rank; after it, `post` edits the merged values on rank 0. In a single process only the
    callbacks apply, and without them each record passes at once.

    A step for which `counts(step)` is False does not count towards the interval, for ranks that take steps
    the others do not.

    `keep` makes what is buffered of a value, by default a snapshot; None buffers the value itself.
    Values that cannot be sent are named in `refused` and counted in `skipped`. `timeout` is in seconds, by
    default that of the program's process group; `budget` limits the bytes in flight.
    """

    def __init__(
        self,
        interval: int = 1,
        *,
        pre: Iterable[Callback] = (),
        post: Iterable[Callback] = (),
        drop_last: bool = False,
        timeout: float | None = None,
        budget: int = 64 << 20,
        keep: RetentionPolicy | None = snapshot_local_shards,
        counts: Callable[[int], bool] | None = None,
    ) -> None:
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(f"gathering_interval is {interval!r}; give a whole number from 1 on")
        self.refused: dict[str, str] = {}
        self.skipped = 0
        self._interval, self._ticks, self._drop_last = interval, 0, drop_last
        self._pre, self._post, self._keep = CallbackChain(pre), CallbackChain(post), keep
        self._timeout, self._budget, self._counts = timeout, budget, counts
        self._pending: RecordsByName = {}
        self._released: list[Record] = []
        self._unreported = RefusedValues()
        self._problems: list[Problem] = []
        self._collective: GatherCollective | None = None
        self._rank, self._is_closed, self._is_lost = 0, False, False
        self._reported: set[str] = set()

    def push(self, record: Record) -> Iterable[Record]:
        ranks = from_process_group()
        is_distributed = ranks is not None and ranks.world_size > 1 and not self._is_lost
        if ranks is not None and is_distributed:
            self._rank = ranks.rank
            record = record._replace(rank=ranks.rank)
        elif self._rank:
            self._refuse(record.name, "rank 0 cannot be reached any more")
            return ()
        snapshot = self._snapshot(record)
        if snapshot is None:
            return ()
        if not (is_distributed or self._pre or self._post):
            return (*self._release(), snapshot)
        self._pending.setdefault(record.name, []).append(snapshot)
        return ()

    def tick(self, step: int) -> Iterable[Record]:
        self._ticks += self._counts is None or self._counts(step)
        if self._ticks >= self._interval:
            self._ticks = 0
            self._run_round(is_last=False)
            self._report()
        return self._release()

    def close(self) -> Iterable[Record]:
        """Gather the remainder, then take part until no rank has more, so that none waits forever."""
        if not self._is_closed:
            self._is_closed = True
            self._pending = {} if self._drop_last else self._pending
            while not self._run_round(is_last=True):
                pass
            if self._collective is not None and not self._is_lost:
                self._collective.close()
            self._report()
        return self._release()

    def leave(self) -> None:
        """Leave the collective; ranks that wait fail at once, and rank 0 still releases its own records."""
        if self._collective is not None and not self._is_lost:
            self._collective.leave()
        self._is_lost = True

    def _release(self) -> list[Record]:
        released, self._released = self._released, []
        return released

    def _snapshot(self, record: Record) -> Record | None:
        if self._keep is None:
            return record
        try:
            placement = record.placement or framework_of(record.value).placement(record.value)
            return record._replace(value=self._keep(record.value), placement=placement)
        except UnsupportedValueError as error:
            self._refuse(record.name, str(error))
            return None

    def _run_round(self, *, is_last: bool) -> bool:
        """One gather of all ranks; True if it was the last."""
        pending, self._pending = self._apply_callbacks(self._pending, self._pre), {}
        collective = self._current_collective()
        if collective is None:
            self._release_after_callbacks(pending)
            return True
        if collective.rank == 0:
            outcome = collective.gather(*pack_records(()), is_last)
            self._release_after_callbacks(self._merge_ranks(pending, outcome))
        else:
            outcome = self._send_to_rank_0(collective, pending, is_last)
        if outcome.failure:
            self._mark_lost(outcome.failure)
            collective.leave()
        return outcome.is_last or self._is_lost

    def _send_to_rank_0(
        self, collective: GatherCollective, pending: RecordsByName, is_last: bool
    ) -> GatherRound:
        records = [record for series in pending.values() for record in series]
        payload, arrays = pack_records(records, self._problems)
        self._count_refused(payload.refused)
        payload = payload._replace(refused=self._unreported + payload.refused)
        self._unreported, self._problems = RefusedValues(), []  # reported by rank 0
        return collective.gather(payload, arrays, is_last)

    def _merge_ranks(self, pending: RecordsByName, outcome: GatherRound) -> RecordsByName:
        """All records of each name, in rank order."""
        merged = {name: [_move_to_host(record) for record in records] for name, records in pending.items()}
        for rank, payload, arrays in outcome.received:
            records, refused = unpack_records(payload, arrays)
            for record in records:
                merged.setdefault(record.name, []).append(record)
            self._count_refused(payload.refused.from_rank(rank))
            self._count_refused(refused.from_rank(rank))
            self._problems.extend(problem.from_rank(rank) for problem in payload.problems)
        return merged

    def _release_after_callbacks(self, pending: RecordsByName) -> None:
        if self._rank == 0:
            for records in self._apply_callbacks(pending, self._post).values():
                self._released.extend(records)

    def _apply_callbacks(self, pending: RecordsByName, chain: CallbackChain) -> RecordsByName:
        edited = {}
        for name, records in pending.items():
            edited[name], problem = chain.apply(records)
            if problem is not None:
                self._problems.append(problem)
        return edited

    def _current_collective(self) -> GatherCollective | None:
        """The collective; None in a single process, or after other ranks were lost."""
        ranks = from_process_group()
        if self._collective is not None and not self._is_lost and not self._collective.is_current():
            self._collective = None
            if ranks is None:
                self._mark_lost("the process group was destroyed before the last gathering")
        if self._is_lost or ranks is None or ranks.world_size == 1:
            return None
        if self._collective is None:
            from tensortap.stages.collective import GatherCollective

            self._rank = ranks.rank
            self._collective = GatherCollective(self._timeout, self._budget)
        return self._collective

    def _mark_lost(self, reason: str) -> None:
        self._is_lost = True
        consequence = "goes on with its own records" if self._rank == 0 else "keeps no more records"
        self._problems.append(
            Problem(
                f"{reason}; what was gathered is kept, and rank {self._rank} {consequence}. "
                "See the others' logs"
            )
        )

    def _refuse(self, name: str, reason: str) -> None:
        refused = RefusedValues({name: reason}, 1)
        self._unreported += refused
        self._count_refused(refused)

    def _count_refused(self, refused: RefusedValues) -> None:
        self.skipped += refused.count
        for name, reason in refused.reasons.items():
            if name not in self.refused:
                log.warning("a value of %r is left out: %s", name, reason)
                self.refused[name] = reason

    def _report(self) -> None:
        """Log each problem once; in strict mode raise, now that no rank waits for this one."""
        problems, self._problems = self._problems, []
        for problem in problems:
            if problem.sentence not in self._reported:
                self._reported.add(problem.sentence)
                log.error("%s%s", problem.sentence, problem.trace and f"\n{problem.trace}")
        if problems and is_strict():
            raise GatherError("; ".join(problem.sentence for problem in problems))


def _move_to_host(record: Record) -> Record:
    """Moved to the host like the values that were sent, so that all gathered values are on one device."""
    return record.with_value(map_leaves(record.value, _leaf_to_host))


def _leaf_to_host(leaf: Any) -> Any:
    is_on_device = framework_of(leaf).name == "torch" and not leaf.is_cpu
    return copy_to_host(leaf) if is_on_device else leaf
