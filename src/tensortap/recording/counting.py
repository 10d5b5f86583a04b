"""Which step an unedited program is in: its optimizers', else counted by the forwards of its models."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

from tensortap.core.steps import set_counted_step


class StepCounter:
    """Until something is trained, every forward begins a step; several models share one until the first of
    them comes again. From then on the forward does that comes after every optimizer has taken its step; which
    ones there are to wait for is learned when one comes twice."""

    def __init__(self, optimizers: Collection[Any], is_grad_enabled: Callable[[], bool]) -> None:
        self._optimizers, self._is_grad_enabled = optimizers, is_grad_enabled
        self._awaited_optimizers: set[int] | None = None
        self._optimizers_stepped: set[int] = set()  # optimizers, within this step
        self._models_called: set[int] = set()  # models, within this step
        self._is_training = False
        self._steps_by_optimizer: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._max_steps = 0  # that any optimizer has taken, also one that is gone
        self.step = 0
        set_counted_step(0)

    @property
    def count(self) -> int:
        """How many steps there were, as far as that can be told without looking at every forward."""
        return self._max_steps or (self.step + bool(self._models_called))

    def begin_forward(self, model: int) -> None:
        if self._is_step_over(model):
            self._begin_next_step()
        self._models_called.add(model)
        self._is_training = self._is_training or (bool(self._optimizers) and self._is_grad_enabled())

    def end_optimizer_step(self, optimizer: Any, *_: Any) -> None:
        """As torch calls it after the step of any optimizer."""
        key = id(optimizer)
        self._is_training = True
        self._steps_by_optimizer[optimizer] = steps = self._steps_by_optimizer.get(optimizer, 0) + 1
        self._max_steps = max(self._max_steps, steps)
        if key in self._optimizers_stepped:
            self._awaited_optimizers = set(self._optimizers_stepped)
            self._begin_next_step()
        self._optimizers_stepped.add(key)

    def _is_step_over(self, model: int) -> bool:
        if not self._is_training:
            return model in self._models_called
        awaited = (
            set(map(id, self._optimizers)) if self._awaited_optimizers is None else self._awaited_optimizers
        )
        return bool(self._optimizers_stepped) and self._optimizers_stepped >= awaited

    def _begin_next_step(self) -> None:
        self._models_called.clear()
        self._optimizers_stepped.clear()
        self.step += 1
        set_counted_step(self.step)
