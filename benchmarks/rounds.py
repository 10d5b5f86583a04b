"""Contestants that take turns, so that a noisy minute meets all of them, and the ratios of their times."""

import ctypes
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NamedTuple


class Entry(NamedTuple):
    """What is timed, what lets go, untimed, of all that it kept, and how much that is."""

    run: Callable[[], object]
    clear: Callable[[], object] = int
    kept: Callable[[], int] = int


# Entered for each turn: putting up and taking down is not timed.
Contestant = Callable[[], AbstractContextManager[Entry]]
rounds_of = {"small": 61, "big": 41}
repeats_of = {"small": 20, "big": 1}


@dataclass(frozen=True)
class Times:
    """Seconds of processor time per run of each contestant, one number per round."""

    by_name: dict[str, list[float]]

    def ratio(self, name: str, base: str) -> float:
        """The median over the rounds: the two were measured within one round, moments apart."""
        return self._middle(name, base, lambda a, b: a / b)

    def excess(self, name: str, base: str) -> float:
        return self._middle(name, base, lambda a, b: a - b)

    def median(self, name: str) -> float:
        return statistics.median(self.by_name[name])

    def _middle(self, name: str, base: str, of: Callable[[float, float], float]) -> float:
        return statistics.median(map(of, self.by_name[name], self.by_name[base]))


def compete(size: str, contestants: dict[str, Contestant]) -> Times:
    """As many rounds as a model of that size takes."""
    return race(contestants, rounds_of[size], repeats_of[size])


def fewer_rounds() -> None:
    rounds_of.update(small=15, big=7)


@contextmanager
def plain(run: Callable[[], object]) -> Iterator[Entry]:
    yield Entry(run)


def race(contestants: dict[str, Contestant], rounds: int, repeat: int = 1) -> Times:
    """Each round gives everyone one turn of `repeat` runs, in an order drawn anew: what the one before
    did to the caches and the allocator must not always fall on the same one."""
    names, draw = list(contestants), random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        turn(contestants[name], repeat)
    with collected_between_rounds() as collect:
        for _ in range(rounds):
            for name in draw.sample(names, len(names)):
                times[name].append(turn(contestants[name], repeat))
            collect()
    return Times(times)


def turn(contestant: Contestant, repeat: int) -> float:
    with contestant() as entry:
        entry.run()  # untimed: caches and the allocator are still as the one before left them
        entry.clear()
        # The time of the processor, not of the wall: what else runs on the machine is not ours.
        begin = time.process_time()
        for _ in range(repeat):
            entry.run()
        spent = time.process_time() - begin
        entry.clear()
    return spent / repeat


@contextmanager
def collected_between_rounds() -> Iterator[Callable[[], object]]:
    """No collection while someone is timed, but cycles that hold tensors must not pile up either."""
    gc.collect()
    gc.freeze()  # what is there already need not be looked through in every round
    gc.disable()
    try:
        yield gc.collect
    finally:
        gc.enable()
        gc.unfreeze()


def keep_pages() -> None:
    """Let the allocator keep what is freed. By default it gives large blocks back, and whoever holds tensors
    pays for new pages in every forward: several percent of the big one, with any tool."""
    trim, pad, map_above = -1, -2, -3
    set_option = ctypes.CDLL(None).mallopt
    for option, value in ((trim, 2**31 - 1), (pad, 2**26), (map_above, 2**25)):
        assert set_option(option, value), "the allocator is not glibc's"
