"""An observation point of a module or function, and the base of the sources that observe through hooks and
probes.

torch is used only if the program has imported it: sources of plain functions must not import it themselves.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from time import time
from typing import TYPE_CHECKING, Any

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.ranks import rank_info
from tensortap.core.record import Kind, Placement, Record
from tensortap.core.steps import next_order
from tensortap.core.tap import Tap
from tensortap.frameworks import dtensor
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.pytree import leaves
from tensortap.frameworks.retention import keep_unchanged
from tensortap.frameworks.torch_if_loaded import plain_tensor_types, tensor_class, torch_if_loaded
from tensortap.sources.sites import (
    VARIABLES,
    SelectedSite,
    class_names,
    gradient_kind,
    model_output_name,
    site_stem,
)

if TYPE_CHECKING:
    from tensortap.sources.observation.checkpointing import Recomputation


_CONSTANTS = (bool, int, float, str)  # what a variable holds besides tensors, most of the time
Naming = Callable[[str, Kind, str, str], str]


class ObservationPoint:
    """The output of a module under one of its names, or its inputs, or its parameters and buffers."""

    step = -1
    calls = 0  # in this step
    has_emitted = has_gradient = False
    may_be_shard = False  # a plain tensor that is a local shard
    was_entered = False  # its function, which may return before it binds the variable
    raw_output: Any = None  # the DTensor a parallel layer computed, before to_local()
    _recomputed_calls = _earlier_calls = 0

    def __init__(
        self, source: HookSource, module: Any, path: str, kind: Kind, selected_sites: Sequence[SelectedSite]
    ) -> None:
        self.source, self.module, self.path, self.kind = source, module, path, kind
        self.parameter = selected_sites[0].site.parameter if kind in VARIABLES else ""
        self.function: Any = selected_sites[0].site.function  # of one that belongs to no model
        self.is_own_call = selected_sites[0].site.is_own_call
        self._plain_types = plain_tensor_types()
        # Variables are not observed while a checkpoint recomputes their function.
        self._is_recomputing = always_false if kind in VARIABLES else recomputation_test()
        self.gradients = [selected for selected in selected_sites if selected.site.is_gradient]
        self.values = (
            [selected for selected in selected_sites if not selected.site.is_gradient]
            if self.gradients
            else selected_sites
        )
        # If something narrower is selected too, each part is tested: otherwise it is unknown whether it came.
        self.takes_all = all(selected.takes_all for selected in self.values)
        takes_all_gradients = all(selected.takes_all for selected in self.gradients)
        self.is_simple = kind == "output" and self.takes_all and takes_all_gradients
        self.fired_sites: set[SelectedSite] = set()
        self.observed_parts: set[str] = set()  # parts seen, where only some are selected
        self.rejections: dict[str, str] = {}  # why a part gave no record
        self._names: dict[str, str] = {}
        self.recomputation = _make_recomputation(self) if self.gradients else None

    @property
    def count(self) -> int:
        """Calls in all steps."""
        return self._earlier_calls + self.calls + self._recomputed_calls

    def begin(self, step: int) -> None:
        self._earlier_calls = self.count
        self.step, self.calls, self._recomputed_calls = step, 0, 0

    def observe_output(self, output: Any) -> None:
        call = self._next_call()
        if type(output) in self._plain_types:
            self._observe_leaf(self.parameter, "", output, call)
        else:
            self._observe(self.parameter, output, call)

    def fast_observer(self) -> Callable[[Any], None]:
        """`observe_output` for a value selected whole and without its gradient, with the checks that are the
        same for every call done once."""
        source, name, kind = self.source, self.name(self.parameter), self.kind
        if not self.takes_all or self.gradients or self.may_be_shard:
            return self.observe_output
        retainers = {tensor_class(): source.retain_tensor, **dict.fromkeys(_CONSTANTS, source.retain)}
        find_retainer, emit, rank = retainers.get, source.emit_fast, source.rank

        def observe(value: Any) -> None:
            retain = find_retainer(type(value))
            if retain is None:
                self.observe_output(value)
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

    def observe_inputs(self, named: Iterable[tuple[str, Any]]) -> None:
        call = self._next_call()
        for parameter, value in named:
            self._observe(parameter, value, call)

    def observe_parameters(self, module: Any) -> None:
        """Parameters and buffers, as they are when the module's call ends."""
        call = self._next_call()
        for selected in self.values:
            name = selected.site.parameter
            if not selected.site.is_after_step and hasattr(module, name):
                self._observe_leaf(name, "", getattr(module, name), call)

    def emit(
        self, name: str, value: Any, kind: Kind, step: int, call: int, placement: Placement | None
    ) -> None:
        shards = None if type(value) in self._plain_types else dtensor.simulated_ranks(value, placement)
        for rank, shard, shard_placement in shards or [(self.source.rank, value, placement)]:
            self._emit_record(name, shard, kind, step, rank, call, shard_placement)

    def _emit_record(
        self, name: str, value: Any, kind: Kind, step: int, rank: int, call: int, placement: Placement | None
    ) -> None:
        source = self.source
        try:
            retained = source.retain(value)
        except UnsupportedValueError as error:
            source.refused.setdefault(name, str(error))
            return
        source.emit_record(
            Record(name, retained, kind, step, rank, call, next_order(), time(), None, placement)
        )

    def name(self, parameter: str, item: str = "") -> str:
        key = parameter + item  # an item begins with a dot or a bracket, so keys are unique
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self.source.naming(self.path, self.kind, parameter, item)
        return name

    def _next_call(self) -> int:
        """The number of this call in this step; negative while a checkpoint recomputes."""
        if self.step != self.source.step:
            self.begin(self.source.step)
        if self._is_recomputing():
            self._recomputed_calls += 1
            return -self._recomputed_calls
        self.calls += 1
        return self.calls - 1

    def _observe(self, parameter: str, value: Any, call: int) -> None:
        keeps_container = (
            self.source.keeps_structures and self.kind in (*VARIABLES, "output") and self.takes_all
        )
        for item, leaf in [("", value)] if keeps_container else leaves(value):
            if type(leaf) in self._plain_types or self._is_recordable(leaf, keeps_container):
                self._observe_leaf(parameter, item, leaf, call)
            elif leaf is not None:
                self.rejections[parameter + item] = f"it was a {type(leaf).__name__}, not a tensor"

    def _is_recordable(self, leaf: Any, keeps_container: bool) -> bool:
        if self.kind in VARIABLES:  # a module would be copied, weights and all, each time it is bound
            return "Module" not in class_names(leaf)
        return keeps_container or framework_of(leaf).name != "python"

    def observe_in_graph(self, parameter: str, item: str, leaf: Any, call: int) -> None:
        """Observe one leaf inside a compiled graph, which counts its calls itself."""
        if self.step != self.source.step:
            self.begin(self.source.step)
        self.calls = max(call + 1, self.calls)
        self._record_leaf(parameter, item, leaf, call)

    def record_gradient(
        self, selected: Sequence[SelectedSite], name: str, gradient: Any, step: int, call: int
    ) -> None:
        if self.source.is_over:
            return
        self.fired_sites.update(selected)
        self.source.has_gradients = True
        kind = gradient_kind(self.kind)
        placement = (
            None if type(gradient) in self._plain_types else framework_of(gradient).placement(gradient)
        )
        self.emit(name, gradient, kind, step, call, placement)

    def _observe_leaf(self, parameter: str, item: str, leaf: Any, call: int) -> None:
        self._record_leaf(parameter, item, leaf, call)
        if self.recomputation is not None and framework_of(leaf).name == "torch" and self.kind != "param":
            if call >= 0:
                self.recomputation.expect(parameter + item, leaf, call)
                self._hook_gradient(parameter, item, leaf, call)
            else:
                self.recomputation.hook_gradient(parameter, item, leaf, call)

    def _record_leaf(self, parameter: str, item: str, leaf: Any, call: int) -> None:
        if self.values and call >= 0 and (self.takes_all or self._accepts(parameter, item, call)):
            has_no_placement = (
                type(leaf) in self._plain_types and self.raw_output is None and not self.may_be_shard
            )
            placement = None if has_no_placement else self.source.placement(self, leaf)
            self.has_emitted = True
            self.emit(self.name(parameter, item), leaf, self.kind, self.step, call, placement)

    def _accepts(self, parameter: str, item: str, call: int) -> bool:
        self.observed_parts.add(parameter + item)
        accepting = [selected for selected in self.values if selected.accepts(parameter, item, call)]
        self.fired_sites.update(accepting)
        return bool(accepting)

    def _hook_gradient(self, parameter: str, item: str, leaf: Any, call: int) -> None:
        accepting = self.gradients_selecting(parameter, item, call)
        if not accepting:
            return
        if not leaf.requires_grad:
            from tensortap.frameworks.torch import explain_no_gradient  # loaded: the leaf is a tensor

            self.rejections[parameter + item] = explain_no_gradient(leaf)
            return
        hook = _GradientHook(self, accepting, self.name(parameter, item) + ".grad", call)
        self.source.keep_handle(leaf.register_hook(hook), leaf.is_leaf)

    def gradients_selecting(self, parameter: str, item: str, call: int) -> list[SelectedSite]:
        return [selected for selected in self.gradients if selected.accepts(parameter, item, call)]


class _GradientHook:
    """Gradient hook on a tensor; records with the step and call of the tensor."""

    __slots__ = ("_call", "_name", "_point", "_selected", "_step")
    __torch_unserializable__ = True  # torch.save of the tensor drops the hook without a warning

    def __init__(
        self, point: ObservationPoint, selected: Sequence[SelectedSite], name: str, call: int
    ) -> None:
        self._point, self._selected, self._name, self._call = point, selected, name, call
        self._step = point.source.step

    def __call__(self, gradient: Any) -> None:
        point = self._point
        try:
            point.record_gradient(self._selected, self._name, gradient, self._step, self._call)
        except Exception:  # noqa: BLE001 - a guest in someone's backward pass
            point.source.fail()


def native_naming(model: Any) -> Naming:
    """`layers.0`, `layers.0[1]`, `encoder.out.logits`, `layers.0.in.mask`, `out`, `pkg.mod:func.x`."""
    own = "" if model is None else model_output_name(model)

    def name(path: str, kind: Kind, parameter: str, item: str) -> str:
        stem = site_stem(path, kind, parameter, own)
        if not path or not item.startswith("."):
            return stem + item
        # A field of the return value is not a variable of the function.
        suffix = ".out" if kind == "output" else ".return" if kind == "return" and ":" in path else ""
        return stem + suffix + item

    return name


def _make_recomputation(point: ObservationPoint) -> Recomputation:
    from tensortap.sources.observation.checkpointing import Recomputation

    return Recomputation(point)


class StopForward(BaseException):
    """Leaves a forward after the last selected site; a BaseException, so that no model swallows it."""

    def __init__(self, source: HookSource) -> None:
        super().__init__("the last selected site was passed (stop=True)")
        self.source = source


class HookSource:
    """Base of sources with observation points. `skips_step(step)`: nothing is recorded in that step; with
    `keeps_structures` an output or a variable is one record, also if it is a container."""

    uncalled_reason = "not called"  # the default explanation of a module without a record

    def __init__(
        self,
        model: Any,
        selected_sites: Sequence[SelectedSite],
        naming: Naming,
        *,
        keeps_structures: bool = False,
        skips_step: Callable[[int], bool] | None = None,
    ) -> None:
        self.model, self.naming, self.keeps_structures = model, naming, keeps_structures
        self.step, self.rank = 0, 0
        self.has_run, self.is_idle, self.is_special = False, False, False
        self.was_active = False  # in any step
        self.is_over = False  # a backward pass may come later
        self.has_gradients = False  # some have come
        self.stopped_after, self.failure = "", ""
        self._skips_step = skips_step
        self._tap: Tap | None = None
        self.emit_record: Callable[[Record], object] = keep_unchanged
        self.emit_fast: Callable[[Record], object] = keep_unchanged
        self.retain: Callable[[Any], Any] = keep_unchanged  # value to what a record holds
        self.retain_tensor: Callable[[Any], Any] = keep_unchanged  # the same, for an ordinary tensor
        self.refused: dict[str, str] = {}
        self._handles: list[Any] = []
        # Bounded for submodules that are called without the model; a dropped hook finds the source stopped.
        self._gradient_handles: deque[Any] = deque(maxlen=10_000)
        self._lasting_handles: list[Any] = []
        self.points = self._make_points(selected_sites)

    def start(self, tap: Tap) -> None:
        self._tap, self.rank = tap, rank_info().rank
        self.emit_record, self.emit_fast = tap.emit, tap.fast_emit()

    def stop(self) -> None:
        self.is_over = True
        for handle in [*self._handles, *self._gradient_handles, *self._lasting_handles]:
            handle.remove()
        self._handles, self._lasting_handles = [], []
        self._gradient_handles.clear()

    def sync_step(self) -> None:
        """Update the step before a value of a function is observed."""

    def forget(self) -> None:
        """Release the model at once: points and their source reference each other."""
        self.points = []

    def fail(self) -> None:
        """Called while an exception is being handled, within the program's forward or backward."""
        assert self._tap is not None
        self.failure = _first_line_of(sys.exception())
        self._tap.fail(self)

    def keep_handle(self, handle: Any, is_on_leaf: bool = False) -> None:
        (self._lasting_handles if is_on_leaf else self._gradient_handles).append(handle)

    def placement(self, point: ObservationPoint, leaf: Any) -> Placement | None:
        """The placement of a shard, as the value itself states."""
        return framework_of(leaf).placement(leaf)

    def _make_points(self, selected_sites: Sequence[SelectedSite]) -> list[ObservationPoint]:
        groups: defaultdict[tuple[str, Kind, str], list[SelectedSite]] = defaultdict(list)
        for selected in selected_sites:
            site = selected.site
            groups[site.path, site.of, site.parameter if site.of in VARIABLES else ""].append(selected)
        return [
            ObservationPoint(self, group[0].site.module, path, kind, group)
            for (path, kind, _), group in groups.items()
        ]

    def _clear_gradients(self) -> None:
        """Drop gradient hooks of the previous step, whose graph is gone."""
        self._gradient_handles.clear()
        # A parameter returned unchanged outlives the graph: its old hooks would record it twice.
        for handle in self._lasting_handles:
            handle.remove()
        self._lasting_handles.clear()


def _first_line_of(error: BaseException | None) -> str:
    """The class of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


def may_be_recomputing() -> bool:
    """Whether this may be the recomputation of a checkpoint: within a backward pass, with grad enabled.
    Functions of the backward pass itself run with grad disabled."""
    torch = torch_if_loaded()
    return torch is not None and torch._C._current_graph_task_id() != -1 and bool(torch.is_grad_enabled())


def recomputation_test() -> Callable[[], bool]:
    """A fast function that tells whether a backward pass is running in this thread."""
    if torch_if_loaded() is None:
        return always_false
    from tensortap.sources.observation.checkpointing import is_recomputing

    return is_recomputing


def always_false() -> bool:
    return False
