"""Values of a model's modules, seen by hooks on the selected ones alone."""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tensortap.core.ranks import ranks
from tensortap.core.record import Kind, Placement, Record
from tensortap.core.steps import declared_step
from tensortap.core.tap import Tap
from tensortap.frameworks import sharded
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.keep import as_it_is
from tensortap.frameworks.parallel_layers import placement_by_convention, placement_of_parameter
from tensortap.sources.hooks import InputHook, OutputHook, RawHook, SimpleHook, StepHook
from tensortap.sources.parameters import Parameters
from tensortap.sources.ports import Naming, Port, native_naming
from tensortap.sources.probes import Probes
from tensortap.sources.sites import VARIABLES, Wanted, takes_hooks, unwrapped


class Stopped(BaseException):
    """Leaves a forward after the last selected site; no Exception, so that no model swallows it."""

    def __init__(self, source: Modules) -> None:
        super().__init__("the last selected site was passed (stop=True)")
        self.source = source


class Modules:
    """Hooks on the modules that are wanted, from `start` to `stop`; the model itself keeps no trace.

    `rests(step)` says in which steps nothing is wanted, `is_last(port)` when the forward may be left.
    With `keeps_structures` an output or a variable is one record, whatever it holds.
    With `by_position` the naming gets `0`, `1` and `kwargs.mask` for inputs, not the names of parameters.
    """

    unseen = "not called"  # what is known of a module that gave nothing, and of which nothing else is known

    def __init__(
        self,
        model: Any,
        wanted: Sequence[Wanted],
        *,
        naming: Naming | None = None,
        by_position: bool = False,
        keeps_structures: bool = False,
        rests: Callable[[int], bool] | None = None,
        is_last: Callable[[Port], bool] | None = None,
    ) -> None:
        self.model, self.by_position = unwrapped(model), by_position
        self.keeps_structures = keeps_structures
        self.naming = naming or native_naming(self.model)
        self.step, self.rank = 0, 0
        self.has_run, self.is_resting = False, False
        self.is_over = False  # a backward pass may come later
        self.may_stop = self.is_special = is_last is not None
        self.stopped_after, self.failure = "", ""
        self._rests, self._is_last = rests, is_last
        self._tap: Tap | None = None
        self.pour: Callable[[Record], object] = as_it_is
        self.pour_directly: Callable[[Record], object] = as_it_is
        self.take: Callable[[Any], Any] = as_it_is  # what a record holds of a value
        self.take_tensor: Callable[[Any], Any] = as_it_is  # the same, for an ordinary tensor
        self.refused: dict[str, str] = {}
        self._handles: list[Any] = []
        # Bounded for modules that are called by themselves; one that is let go finds that all is over.
        self._gradient_handles: deque[Any] = deque(maxlen=10_000)
        self._lasting_handles: list[Any] = []
        self.ports = self._make_ports(wanted)
        stored = [port for port in self.ports if port.kind == "param"]
        self._parameters = Parameters(self, stored) if stored else None

    def start(self, tap: Tap) -> None:
        self._tap, self.rank = tap, ranks().rank
        self.pour, self.pour_directly = tap.emit, tap.shortcut()
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            if takes_hooks(self.model):
                self._handles.append(self._hook_step())
            by_module: defaultdict[Any, list[Port]] = defaultdict(list)
            for port in self.ports:
                if takes_hooks(port.module) and port.kind not in VARIABLES:
                    by_module[port.module].append(port)
            for module, ports in by_module.items():
                self._hook(module, ports)
            if self._parameters is not None:
                self._handles += self._parameters.hooks()
            self._handles += Probes(self, [port for port in self.ports if port.kind in VARIABLES]).place()
            undo.pop_all()

    def stop(self) -> None:
        self.is_over = True
        for handle in [*self._handles, *self._gradient_handles, *self._lasting_handles]:
            handle.remove()
        self._handles, self._lasting_handles = [], []
        self._gradient_handles.clear()

    def forget(self) -> None:
        """Let go of the model at once: ports and their source hold each other."""
        self.ports = []
        self._parameters = None

    def fail(self) -> None:
        """Called while an exception is being handled, within the program's forward or backward."""
        assert self._tap is not None
        self.failure = _sentence(sys.exception())
        self._tap.fail(self)

    def keep_handle(self, handle: Any, is_on_leaf: bool = False) -> None:
        (self._lasting_handles if is_on_leaf else self._gradient_handles).append(handle)

    def passed(self, ports: Sequence[Port]) -> None:
        for port in ports:
            if self._is_last is not None and self._is_last(port):
                self.stopped_after = port.path or "the model itself"
                raise Stopped(self)

    def placement(self, port: Port, leaf: Any) -> Placement | None:
        """How a piece sits in the whole, as the tensor says, or the hooks of its layer, or its form."""
        found = framework_of(leaf).placement(leaf)
        if found is None and port.raw is not None:
            found = sharded.placement_of_local(port.raw, leaf, port.module)
        if found is None and port.kind == "param":
            return placement_of_parameter(port.module, leaf)
        return found or placement_by_convention(port.module, leaf, port.kind)  # type: ignore[arg-type]

    def _make_ports(self, wanted: Sequence[Wanted]) -> list[Port]:
        groups: defaultdict[tuple[str, Kind, str], list[Wanted]] = defaultdict(list)
        for one in wanted:
            site = one.site
            groups[site.path, site.of, site.parameter if site.of in VARIABLES else ""].append(one)
        return [
            Port(self, found[0].site.module, path, kind, found) for (path, kind, _), found in groups.items()
        ]

    @cached_property
    def _has_pieces(self) -> bool:
        """Whether layers may hand out local pieces of distributed tensors."""
        if "torch.distributed.tensor" not in sys.modules:
            return False
        return any(sharded.is_distributed(type(one)) for one in self.model.parameters())

    def _hook(self, module: Any, ports: Sequence[Port]) -> None:
        if len(ports) == 1 and ports[0].is_simple and not self._may_hand_out_pieces(module):
            hook = SimpleHook(self, ports[0])
            self._handles.append(module.register_forward_hook(hook.see))
            return
        inputs = [port for port in ports if port.kind == "input"]
        outputs = [port for port in ports if port.kind == "output"]
        parameters = [port for port in ports if port.kind == "param"]
        if inputs:
            before = InputHook(self, inputs, module)
            self._handles.append(module.register_forward_pre_hook(before.see, with_kwargs=True))
        if self._may_hand_out_pieces(module):
            for port in ports:
                port.may_be_piece = True
        if outputs and module._forward_hooks and self._has_pieces:
            self._handles.append(module.register_forward_hook(RawHook(self, outputs).see, prepend=True))
        if outputs or parameters:
            after = OutputHook(self, outputs, [port for port in parameters if port.values])
            self._handles.append(module.register_forward_hook(after.see))

    def _may_hand_out_pieces(self, module: Any) -> bool:
        if self._has_pieces:
            return True
        return any(hasattr(one, "tensor_model_parallel") for one in module._parameters.values())

    def _hook_step(self) -> Any:
        return self.model.register_forward_pre_hook(StepHook(self).see, prepend=True)

    def begin_step(self) -> None:
        if self.has_run and self._tap is not None:
            self._tap.tick(self.step)
        declared = declared_step()
        self.step = declared if declared is not None else self.step + self.has_run
        self.has_run = True
        self.is_resting = self._rests is not None and self._rests(self.step)
        self.is_special = self.is_resting or self.may_stop
        self._gradient_handles.clear()  # what has not come by now belongs to a graph that is gone
        # A parameter that was passed on as it is outlives the graph: its old hooks would count it twice.
        for handle in self._lasting_handles:
            handle.remove()
        self._lasting_handles.clear()


def _sentence(error: BaseException | None) -> str:
    """What a reader sees of it: its class, and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
