"""Hold records, then bring every rank's to rank 0 once per interval."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tensortap.core.errors import GatherError, UnsupportedValueError
from tensortap.core.parts import Stage
from tensortap.core.ranks import from_process_group
from tensortap.core.record import Record
from tensortap.core.settings import is_strict
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.keep import Keeper, cow, on_host
from tensortap.frameworks.nested import rebuild
from tensortap.frameworks.sharded import local
from tensortap.stages.callbacks import Callback, Chain
from tensortap.stages.parcel import Problem, Refused, pack, unpack

if TYPE_CHECKING:
    from tensortap.stages.exchange import Exchange, Round

log = logging.getLogger("tensortap.gather")

Held = dict[str, list[Record]]


def piece(value: Any) -> Any:
    """The same structure around a snapshot of each leaf; of a distributed tensor, of its local piece."""
    return rebuild(value, lambda leaf: cow(local(leaf)))


class Gather(Stage):
    """Holds what comes, and at every `interval`-th tick brings it to rank 0, which releases it name by name
    in the order of the ranks; the others release nothing.

    A collective on steps: every rank of the default process group must tick and close, also with nothing to
    send; one that closes early stays until the others close. Before, `pre` edits the values of each name on
    every rank; after, `post` edits the merged ones on rank 0. In a program without other ranks only the
    callbacks remain, and without those each record passes at once.

    A step of which `counts(step)` says no is not counted towards the interval, for ranks that take steps the
    others do not.

    What is held is what `keep` makes of a value, a snapshot unless said otherwise; None takes it as it is.
    Values that cannot be sent are named in `refused` and counted in `skipped`. `timeout` is in seconds, that
    of the program's own group unless given; `budget` is the most bytes under way at once.
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
        keep: Keeper | None = piece,
        counts: Callable[[int], bool] | None = None,
    ) -> None:
        if isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            raise ValueError(f"gathering_interval is {interval!r}; give a whole number from 1 on")
        self.refused: dict[str, str] = {}
        self.skipped = 0
        self._interval, self._ticks, self._drop_last = interval, 0, drop_last
        self._pre, self._post, self._keep = Chain(pre), Chain(post), keep
        self._timeout, self._budget, self._counts = timeout, budget, counts
        self._held: Held = {}
        self._released: list[Record] = []
        self._unsaid = Refused()
        self._problems: list[Problem] = []
        self._exchange: Exchange | None = None
        self._rank, self._is_closed, self._is_lost = 0, False, False
        self._said: set[str] = set()

    def push(self, record: Record) -> Iterable[Record]:
        ranks = from_process_group()
        has_others = ranks is not None and ranks.world > 1 and not self._is_lost
        if ranks is not None and has_others:
            self._rank = ranks.rank
            record = record._replace(rank=ranks.rank)
        elif self._rank:
            self._refuse(record.name, "rank 0 cannot be reached any more")
            return ()
        kept = self._kept(record)
        if kept is None:
            return ()
        if not (has_others or self._pre or self._post):
            return (*self._release(), kept)
        self._held.setdefault(record.name, []).append(kept)
        return ()

    def tick(self, step: int) -> Iterable[Record]:
        self._ticks += self._counts is None or self._counts(step)
        if self._ticks >= self._interval:
            self._ticks = 0
            self._meet(is_last=False)
            self._report()
        return self._release()

    def close(self) -> Iterable[Record]:
        """A last, smaller part; then stay until no rank has more, so that none waits in vain."""
        if not self._is_closed:
            self._is_closed = True
            self._held = {} if self._drop_last else self._held
            while not self._meet(is_last=True):
                pass
            if self._exchange is not None and not self._is_lost:
                self._exchange.close()
            self._report()
        return self._release()

    def leave(self) -> None:
        """Part from the others, who learn it at once if they wait; rank 0 still releases what it holds."""
        if self._exchange is not None and not self._is_lost:
            self._exchange.leave()
        self._is_lost = True

    def _release(self) -> list[Record]:
        released, self._released = self._released, []
        return released

    def _kept(self, record: Record) -> Record | None:
        if self._keep is None:
            return record
        try:
            placement = record.placement or framework_of(record.value).placement(record.value)
            return record._replace(value=self._keep(record.value), placement=placement)
        except UnsupportedValueError as error:
            self._refuse(record.name, str(error))
            return None

    def _meet(self, *, is_last: bool) -> bool:
        """One round of all ranks; True when no rank will come again."""
        held, self._held = self._edited(self._held, self._pre), {}
        others = self._others()
        if others is None:
            self._let_go(held)
            return True
        if others.rank == 0:
            found = others.meet(*pack(()), is_last)
            self._let_go(self._merged(held, found))
        else:
            found = self._send(others, held, is_last)
        if found.lost:
            self._lose(found.lost)
            others.leave()
        return found.is_last or self._is_lost

    def _send(self, others: Exchange, held: Held, is_last: bool) -> Round:
        records = [record for series in held.values() for record in series]
        parcel, arrays = pack(records, self._problems)
        self._count(parcel.refused)
        parcel = parcel._replace(refused=self._unsaid + parcel.refused)
        self._unsaid, self._problems = Refused(), []  # they are told where the values are
        return others.meet(parcel, arrays, is_last)

    def _merged(self, held: Held, found: Round) -> Held:
        """All records of each name, rank after rank."""
        merged = {name: [_on_host(record) for record in records] for name, records in held.items()}
        for rank, parcel, arrays in found.arrived:
            records, refused = unpack(parcel, arrays)
            for record in records:
                merged.setdefault(record.name, []).append(record)
            self._count(parcel.refused.from_rank(rank))
            self._count(refused.from_rank(rank))
            self._problems.extend(problem.from_rank(rank) for problem in parcel.problems)
        return merged

    def _let_go(self, held: Held) -> None:
        if self._rank == 0:
            for records in self._edited(held, self._post).values():
                self._released.extend(records)

    def _edited(self, held: Held, chain: Chain) -> Held:
        edited = {}
        for name, records in held.items():
            edited[name], problem = chain.over(records)
            if problem is not None:
                self._problems.append(problem)
        return edited

    def _others(self) -> Exchange | None:
        """The other ranks; None where this process is alone, or the others are lost."""
        ranks = from_process_group()
        if self._exchange is not None and not self._is_lost and not self._exchange.is_current():
            self._exchange = None
            if ranks is None:
                self._lose("the process group was destroyed before the last gathering")
        if self._is_lost or ranks is None or ranks.world == 1:
            return None
        if self._exchange is None:
            from tensortap.stages.exchange import Exchange

            self._rank = ranks.rank
            self._exchange = Exchange(self._timeout, self._budget)
        return self._exchange

    def _lose(self, why: str) -> None:
        self._is_lost = True
        then = "goes on with its own records" if self._rank == 0 else "keeps no more records"
        self._problems.append(
            Problem(f"{why}; what was gathered is kept, and rank {self._rank} {then}. See the others' logs")
        )

    def _refuse(self, name: str, why: str) -> None:
        refused = Refused({name: why}, 1)
        self._unsaid += refused
        self._count(refused)

    def _count(self, refused: Refused) -> None:
        self.skipped += refused.count
        for name, why in refused.reasons.items():
            if name not in self.refused:
                log.warning("a value of %r is left out: %s", name, why)
                self.refused[name] = why

    def _report(self) -> None:
        """Each problem once in the log; raised in strict mode, when nobody waits for this rank any more."""
        problems, self._problems = self._problems, []
        for problem in problems:
            if problem.sentence not in self._said:
                self._said.add(problem.sentence)
                log.error("%s%s", problem.sentence, problem.trace and f"\n{problem.trace}")
        if problems and is_strict():
            raise GatherError("; ".join(problem.sentence for problem in problems))


def _on_host(record: Record) -> Record:
    """Beside values that were sent, those of rank 0 must not be the only ones on a device."""
    return record.with_value(rebuild(record.value, _leaf_on_host))


def _leaf_on_host(leaf: Any) -> Any:
    is_away = framework_of(leaf).name == "torch" and not leaf.is_cpu
    return on_host(leaf) if is_away else leaf
