"""The places of one module where values come by: what is wanted of them, and the records they become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import time
from typing import TYPE_CHECKING, Any

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Kind, Placement, Record
from tensortap.core.steps import next_order
from tensortap.frameworks import dtensor
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import leaves
from tensortap.sources.loaded import never, plain_tensors, recomputing, tensor_class
from tensortap.sources.sites import VARIABLES, Wanted, classes_of, gradient_kind, own_name, site_stem

if TYPE_CHECKING:
    import torch

    from tensortap.sources.port_source import PortSource
    from tensortap.sources.recomputed import Recomputed

_CONSTANTS = (bool, int, float, str)  # what a variable holds besides tensors, most of the time
Naming = Callable[[str, Kind, str, str], str]


class Port:
    """The output of a module under one of its names, or its inputs, or its parameters and buffers."""

    step = -1
    calls = 0  # how often it was passed in this step
    has_emitted = has_gradient = False
    may_be_piece = False  # of something larger, without saying so itself
    was_entered = False  # its function, which may end before it binds the variable
    raw: Any = None  # what a parallel layer computed, before it was made local
    _recomputed = _before = 0

    def __init__(
        self, source: PortSource, module: Any, path: str, kind: Kind, wanted: Sequence[Wanted]
    ) -> None:
        self.source, self.module, self.path, self.kind = source, module, path, kind
        self.parameter = wanted[0].site.parameter if kind in VARIABLES else ""
        self.function: Any = wanted[0].site.function  # of one that belongs to no model
        self.is_own_call = wanted[0].site.is_own_call
        self._plain = plain_tensors()
        # A variable is not seen while a checkpoint repeats its function.
        self._is_repeated = never if kind in VARIABLES else recomputing()
        self.gradients = [selected for selected in wanted if selected.site.is_gradient]
        self.values = (
            [selected for selected in wanted if not selected.site.is_gradient] if self.gradients else wanted
        )
        # Where something narrower is wanted besides, each value is asked for: else nobody knew if it came.
        self.takes_all = all(selected.takes_all for selected in self.values)
        takes_all_gradients = all(selected.takes_all for selected in self.gradients)
        self.is_simple = kind == "output" and self.takes_all and takes_all_gradients
        self.fired: set[Wanted] = set()
        self.parts: set[str] = set()  # what came by where only some of it was wanted
        self.unfit: dict[str, str] = {}  # why something that came by gave no record
        self._names: dict[str, str] = {}
        self.again = _recomputed(self) if self.gradients else None

    @property
    def count(self) -> int:
        """How often it was passed."""
        return self._before + self.calls + self._recomputed

    def begin(self, step: int) -> None:
        self._before = self.count
        self.step, self.calls, self._recomputed = step, 0, 0

    def see_output(self, output: Any) -> None:
        call = self._next_call()
        if type(output) in self._plain:
            self._see_leaf(self.parameter, "", output, call)
        else:
            self._see(self.parameter, output, call)

    def short_way(self) -> Callable[[Any], None]:
        """`see_output` for a value that is wanted whole and without its gradient: what is asked for each
        time is found once."""
        source, name, kind = self.source, self.name(self.parameter), self.kind
        if not self.takes_all or self.gradients or self.may_be_piece:
            return self.see_output
        retainers = {tensor_class(): source.take_tensor, **dict.fromkeys(_CONSTANTS, source.take)}
        find_retainer, emit, rank = retainers.get, source.pour_directly, source.rank

        def observe(value: Any) -> None:
            retain = find_retainer(type(value))
            if retain is None:
                self.see_output(value)
                return
            step = source.step
            if self.step != step:
                self.begin(step)
            call = self.calls
            self.calls = call + 1
            self.has_emitted = True
            try:
                retained = retain(value)
            except UnsupportedValueError as error:
                source.refused.setdefault(name, str(error))
                return
            emit(Record(name, retained, kind, step, rank, call, next_order(), time(), None, None))

        return observe

    def see_inputs(self, named: Iterable[tuple[str, Any]]) -> None:
        call = self._next_call()
        for parameter, value in named:
            self._see(parameter, value, call)

    def see_stored(self, module: Any) -> None:
        """Parameters and buffers, as they are when the module's call ends."""
        call = self._next_call()
        for selected in self.values:
            name = selected.site.parameter
            if not selected.site.is_after_step and hasattr(module, name):
                self._see_leaf(name, "", getattr(module, name), call)

    def emit(
        self, name: str, value: Any, kind: Kind, step: int, call: int, placement: Placement | None
    ) -> None:
        shards = None if type(value) in self._plain else dtensor.simulated_ranks(value, placement)
        for rank, shard, shard_placement in shards or [(self.source.rank, value, placement)]:
            self._pour(name, shard, kind, step, rank, call, shard_placement)

    def _pour(
        self, name: str, value: Any, kind: Kind, step: int, rank: int, call: int, placement: Placement | None
    ) -> None:
        source = self.source
        try:
            retained = source.take(value)
        except UnsupportedValueError as error:
            source.refused.setdefault(name, str(error))
            return
        source.pour(Record(name, retained, kind, step, rank, call, next_order(), time(), None, placement))

    def name(self, parameter: str, item: str = "") -> str:
        key = parameter + item  # an item begins with a dot or a bracket, so nothing is mixed up
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self.source.naming(self.path, self.kind, parameter, item)
        return name

    def _next_call(self) -> int:
        """How often this port was passed in this step; negative while a checkpoint computes again what was
        seen before."""
        if self.step != self.source.step:
            self.begin(self.source.step)
        if self._is_repeated():
            self._recomputed += 1
            return -self._recomputed
        self.calls += 1
        return self.calls - 1

    def _see(self, parameter: str, value: Any, call: int) -> None:
        keeps_container = (
            self.source.keeps_structures and self.kind in (*VARIABLES, "output") and self.takes_all
        )
        for item, leaf in [("", value)] if keeps_container else leaves(value):
            if type(leaf) in self._plain or self._is_fit(leaf, keeps_container):
                self._see_leaf(parameter, item, leaf, call)
            elif leaf is not None:
                self.unfit[parameter + item] = f"it was a {type(leaf).__name__}, not a tensor"

    def _is_fit(self, leaf: Any, keeps_container: bool) -> bool:
        if self.kind in VARIABLES:  # a module would be copied, weights and all, each time it is bound
            return "Module" not in classes_of(leaf)
        return keeps_container or framework_of(leaf).name != "python"

    def see_shown(self, parameter: str, item: str, leaf: Any, call: int) -> None:
        """One leaf that a compiled graph shows, which counts its calls itself."""
        if self.step != self.source.step:
            self.begin(self.source.step)
        self.calls = max(call + 1, self.calls)
        self._take(parameter, item, leaf, call)

    def take_gradient(self, wanted: Sequence[Wanted], name: str, gradient: Any, step: int, call: int) -> None:
        if self.source.is_over:
            return
        self.fired.update(wanted)
        self.source.has_gradients = True
        kind = gradient_kind(self.kind)
        placement = None if type(gradient) in self._plain else framework_of(gradient).placement(gradient)
        self.emit(name, gradient, kind, step, call, placement)

    def _see_leaf(self, parameter: str, item: str, leaf: Any, call: int) -> None:
        self._take(parameter, item, leaf, call)
        if self.again is not None and framework_of(leaf).name == "torch" and self.kind != "param":
            if call >= 0:
                self.again.expect(parameter + item, leaf, call)
                self._watch_gradient(parameter, item, leaf, call)
            else:
                self.again.watch(parameter, item, leaf, call)

    def _take(self, parameter: str, item: str, leaf: Any, call: int) -> None:
        if self.values and call >= 0 and (self.takes_all or self._accepts(parameter, item, call)):
            has_no_placement = type(leaf) in self._plain and self.raw is None and not self.may_be_piece
            placement = None if has_no_placement else self.source.placement(self, leaf)
            self.has_emitted = True
            self.emit(self.name(parameter, item), leaf, self.kind, self.step, call, placement)

    def _accepts(self, parameter: str, item: str, call: int) -> bool:
        self.parts.add(parameter + item)
        accepting = [selected for selected in self.values if selected.accepts(parameter, item, call)]
        self.fired.update(accepting)
        return bool(accepting)

    def _watch_gradient(self, parameter: str, item: str, leaf: torch.Tensor, call: int) -> None:
        accepting = self.wanting_gradient(parameter, item, call)
        if not accepting:
            return
        if not leaf.requires_grad:
            self.unfit[parameter + item] = _no_gradient(leaf)
            return
        hook = _Gradient(self, accepting, self.name(parameter, item) + ".grad", call)
        self.source.keep_handle(leaf.register_hook(hook), leaf.is_leaf)  # type: ignore[no-untyped-call]

    def wanting_gradient(self, parameter: str, item: str, call: int) -> list[Wanted]:
        return [selected for selected in self.gradients if selected.accepts(parameter, item, call)]


class _Gradient:
    """Waits on a tensor for its gradient; the step and call are those of the tensor."""

    __slots__ = ("_call", "_name", "_port", "_step", "_wanted")
    __torch_unserializable__ = True  # a tensor that is saved meanwhile leaves it behind, without a warning

    def __init__(self, point: Port, wanted: Sequence[Wanted], name: str, call: int) -> None:
        self._port, self._wanted, self._name, self._call = point, wanted, name, call
        self._step = point.source.step

    def __call__(self, gradient: torch.Tensor) -> None:
        point = self._port
        try:
            point.take_gradient(self._wanted, self._name, gradient, self._step, self._call)
        except Exception:  # noqa: BLE001 - a guest in someone's backward pass
            point.source.fail()


def native_naming(model: Any) -> Naming:
    """`layers.0`, `layers.0[1]`, `encoder.out.logits`, `layers.0.in.mask`, `out`, `pkg.mod:func.x`."""
    own = "" if model is None else own_name(model)

    def name(path: str, kind: Kind, parameter: str, item: str) -> str:
        stem = site_stem(path, kind, parameter, own)
        if not path or not item.startswith("."):
            return stem + item
        # The field of what a function returns is none of its variables.
        suffix = ".out" if kind == "output" else ".return" if kind == "return" and ":" in path else ""
        return stem + suffix + item

    return name


def _recomputed(point: Port) -> Recomputed:
    from tensortap.sources.recomputed import Recomputed

    return Recomputed(point)


def _no_gradient(leaf: torch.Tensor) -> str:
    import torch

    if not torch.is_grad_enabled():
        return "it was computed under no_grad, so no gradient comes to it"
    if not (leaf.is_floating_point() or leaf.is_complex()):
        return f"a tensor of {str(leaf.dtype).removeprefix('torch.')} has no gradient"
    return "nothing it was computed from requires a gradient"
