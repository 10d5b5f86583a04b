"""Values of a compiled model, out of its graphs: the hooks are compiled with it and show what they see."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from tensortap.core.tap import Tap
from tensortap.sources.graph import forget, input_hook, output_hook, see, ticket
from tensortap.sources.modules import Modules
from tensortap.sources.ports import Port
from tensortap.sources.sites import inputs_of

_PARAMETER = re.compile(r"\.?([^.\[]*)(.*)", re.DOTALL)


class GraphModules(Modules):
    """The modules of a compiled model, from `start` to `stop`; graphs made meanwhile hold the hooks."""

    unseen = "not called, or inside a part of the compiled graph that shows nothing (torch.cond)"

    def start(self, tap: Tap) -> None:
        self._keys: list[int] = []
        super().start(tap)

    def stop(self) -> None:
        super().stop()
        for key in self._keys:
            forget(key)

    @property
    def hook_count(self) -> int:
        return len(self.ports)

    def _hook_step(self) -> Any:
        """The first tensor that the model is given begins a step."""
        key = self._ticket(lambda tensor, position: self._first(position))
        names = inputs_of(self.model).positional
        hook = input_hook(key, None, names)
        return self.model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)

    def _first(self, position: str) -> None:
        self._first_position = getattr(self, "_first_position", position)
        if position == self._first_position:
            self.begin_step()

    def _hook(self, module: Any, points: Sequence[Port]) -> None:
        for point in points:
            counter = _Shown(point)
            value_key = self._ticket(counter.value)
            gradient_key = self._ticket(counter.gradient) if point.gradients else None
            if point.kind == "input":
                hook = input_hook(value_key, gradient_key, inputs_of(module).positional)
                handle = module.register_forward_pre_hook(hook, with_kwargs=True)
            elif point.kind == "output":
                handle = module.register_forward_hook(output_hook(value_key, gradient_key))
            else:
                names = [
                    selected.site.parameter for selected in point.values if not selected.site.is_after_step
                ]
                handle = module.register_forward_hook(_stored_hook(value_key, names))
            self._handles.append(handle)

    def _ticket(self, callback: Any) -> int:
        key = ticket(callback)
        self._keys.append(key)
        return key


class _Shown:
    """Counts what a graph shows of one port: each position once per call, gradients in the reverse order."""

    def __init__(self, point: Port) -> None:
        self._port = point
        self._step = -1
        self._values: Counter[str] = Counter()
        self._gradients: Counter[str] = Counter()

    def value(self, tensor: torch.Tensor, position: str) -> None:
        source = self._port.source
        if source.is_resting:
            return
        if source.step != self._step:
            self._step = source.step
            self._values.clear()
            self._gradients.clear()
        call = self._values[position]
        self._values[position] += 1
        parameter, item = self._split(position)
        self._port.see_shown(parameter, item, tensor, call)

    def gradient(self, tensor: torch.Tensor, position: str) -> None:
        point = self._port
        if point.source.is_resting:
            return
        call = max(0, self._values[position] - 1 - self._gradients[position])
        self._gradients[position] += 1
        parameter, item = self._split(position)
        accepting = [selected for selected in point.gradients if selected.accepts(parameter, item, call)]
        if accepting:
            name = point.name(parameter, item) + ".grad"
            point.take_gradient(accepting, name, tensor, point.source.step, call)

    def _split(self, position: str) -> tuple[str, str]:
        if self._port.kind == "output":
            return "", position
        match = _PARAMETER.fullmatch(position)
        assert match is not None
        return (match[1], match[2]) if match[1] else ("args", match[2])


def _stored_hook(key: int, names: Sequence[str]) -> Any:
    def hook(module: Any, arguments: Any, output: Any) -> None:
        for name in names:
            see(getattr(module, name), key, f".{name}")

    return hook
