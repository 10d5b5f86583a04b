"""Which step an unedited program is in: its optimizers', else counted by the forwards of its models."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

from tensortap.core.steps import count_step


class Counting:
    """Until something is trained, every forward begins a step; several models share one until the first of
    them comes again. From then on the forward does that comes after every optimizer has taken its step; which
    ones there are to wait for is learned when one comes twice."""

    def __init__(self, optimizers: Collection[Any], is_learning: Callable[[], bool]) -> None:
        self._optimizers, self._is_learning = optimizers, is_learning
        self._expected: set[int] | None = None
        self._stepped: set[int] = set()  # optimizers, within this step
        self._met: set[int] = set()  # models, within this step
        self._is_training = False
        self._taken: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._most = 0  # that any optimizer has taken, also one that is gone
        self.step = 0
        count_step(0)

    @property
    def count(self) -> int:
        """How many steps there were, as far as that can be told without looking at every forward."""
        return self._most or (self.step + bool(self._met))

    def begin_forward(self, model: int) -> None:
        if self._is_over(model):
            self._go_on()
        self._met.add(model)
        self._is_training = self._is_training or (bool(self._optimizers) and self._is_learning())

    def end_optimizer_step(self, optimizer: Any, *_: Any) -> None:
        """As torch calls it after the step of any optimizer."""
        key = id(optimizer)
        self._is_training = True
        self._taken[optimizer] = taken = self._taken.get(optimizer, 0) + 1
        self._most = max(self._most, taken)
        if key in self._stepped:
            self._expected = set(self._stepped)
            self._go_on()
        self._stepped.add(key)

    def _is_over(self, model: int) -> bool:
        if not self._is_training:
            return model in self._met
        expected = set(map(id, self._optimizers)) if self._expected is None else self._expected
        return bool(self._stepped) and self._stepped >= expected

    def _go_on(self) -> None:
        self._met.clear()
        self._stepped.clear()
        self.step += 1
        count_step(self.step)
