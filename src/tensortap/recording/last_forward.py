"""The engine of tensor_capture: module values of a model's last forward, and those registered by hand."""

from __future__ import annotations

import ast
import logging
import re
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from tensortap.core.errors import UnknownModuleError, UnsupportedValueError
from tensortap.core.patterns import closest_names, matches_pattern
from tensortap.core.protocols import Stage
from tensortap.core.record import Kind, Record
from tensortap.core.tap import Tap
from tensortap.frameworks.pytree import leaves
from tensortap.frameworks.retention import copy_on_write
from tensortap.recording.destination import RetainingSink, TapSink
from tensortap.sources.hooks.modules import ModuleSource
from tensortap.sources.manual import ManualSource
from tensortap.sources.sites import (
    ModuleSite,
    SelectedSite,
    has_forward,
    require_module,
    unwrap,
    walk_modules,
)
from tensortap.stages.select import When

_ITEM = re.compile(r"""\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]]*)\]""")
log = logging.getLogger("tensortap.capture")


class _CapturedValue(NamedTuple):
    """A value, and whether it belongs to a graph being traced instead of being a snapshot."""

    value: Any
    is_traced: bool


class _RegisteredValue(NamedTuple):
    order: int
    name: str
    captured: _CapturedValue
    is_inside: bool  # registered within a forward of the model
    forward: int  # the number of forwards started before it


class LastForward(Stage):
    """Keeps the values since the last forward of the model started; passes every record on.

    A new forward replaces all values of the previous one. Values registered outside of a forward stay until
    their name is registered again after another forward. At most `max_registered` registered values are kept.
    """

    def __init__(self, model: Any, max_registered: int | None) -> None:
        self.model, self._max_registered = unwrap(model), max_registered
        self._sort_keys: dict[str, tuple[int, bool]] = {}
        self._positions: dict[str, int] = {}
        self._module_values: dict[str, list[_CapturedValue]] = {}
        self._registered: dict[str, list[_RegisteredValue]] = {}  # by registered name
        self._forwards_completed = 0  # followed by another forward
        self._refused: set[str] = set()
        self._manual = ManualSource()
        self._modules: ModuleSource | None = None
        self._tap = Tap()

    def start(self, modules: Mapping[str, Any], *, has_inputs: bool, user_tap: Tap | None) -> None:
        """Register hooks on the modules; records also flow into `user_tap`, unless they are traced."""
        self._positions = {path: position for position, path in enumerate(modules)}
        kinds: tuple[Kind, ...] = ("input", "output") if has_inputs else ("output",)
        wanted = [
            SelectedSite(ModuleSite(path, kind, module)) for path, module in modules.items() for kind in kinds
        ]
        filters: list[Stage] = [] if user_tap is None else [When(lambda record: not is_tracing())]
        sinks = [] if user_tap is None else [RetainingSink(TapSink(user_tap), None, is_ours=False)]
        self._tap = Tap(stages=[self, *filters], sinks=sinks, on_error="log")
        self._modules = ModuleSource(self.model, wanted, naming=self._name, by_position=True)
        self._tap.attach(self._manual).attach(self._modules)

    def stop(self) -> None:
        """Remove all hooks and values."""
        self._tap.close()
        self._module_values, self._registered = {}, {}

    def register(self, name: str, value: Any, *, depth: int) -> None:
        if not _is_recomputing():
            self._manual.emit(value, name, depth=depth + 1)

    def tensors(self, *, pads: bool) -> OrderedDict[str, Any]:
        """Module values in the order of the modules, inputs before outputs, then registered values; with
        `pads` or while tracing, padded to exactly `max_registered` of those."""
        is_traced = is_tracing()
        tensors: OrderedDict[str, Any] = OrderedDict()
        names = list(self._module_values)  # another thread may be running a forward
        for name in sorted(names, key=self._sort_keys.__getitem__):
            for captured in self._module_values.get(name, ()):
                if captured.is_traced == is_traced:
                    tensors[_unused_name(name, tensors)] = captured.value
        registered = sorted(
            self._all_registered(is_traced), key=lambda registered_value: registered_value.order
        )
        for registered_value in registered:
            tensors[_unused_name(registered_value.name, tensors)] = registered_value.captured.value
        for slot in range(len(registered), (self._max_registered or 0) if pads or is_traced else 0):
            tensors[_unused_name(f"placeholder_{slot}", tensors)] = _placeholder(self.model)
        return tensors

    def push(self, record: Record) -> Iterable[Record]:
        if record.kind == "value":
            self._store_registered(record)
        else:
            self._store_module_value(record)
        return (record,)

    def tick(self, step: int) -> Iterable[Record]:
        """Called when the next forward starts; a recursive call belongs to the same forward."""
        if self._active_calls() < 2:
            self._forwards_completed += 1
            self._module_values = {}
            outside = {
                name: [entry for entry in registered if not entry.is_inside]
                for name, registered in self._registered.items()
            }
            self._registered = {name: registered for name, registered in outside.items() if registered}
        return ()

    def _store_module_value(self, record: Record) -> None:
        captured = self._snapshot(record.name, record.value)
        if captured is None:
            return
        previous = self._module_values.setdefault(record.name, [])
        if previous and not self._active_calls():
            previous.clear()  # a submodule called directly: no forward separates its calls
        previous.append(captured)

    def _store_registered(self, record: Record) -> None:
        is_traced, is_inside = is_tracing(), self._active_calls() > 0
        previous = self._registered.get(record.name, [])
        current = [
            entry
            for entry in previous
            if entry.forward == self._forward or entry.captured.is_traced != is_traced
        ]
        self._registered[record.name] = current
        for item, leaf in leaves(record.value):
            if leaf is None:
                continue
            if self._is_full(is_traced, record.name):
                return
            captured = self._snapshot(record.name + item, leaf)
            if captured is not None:
                name = record.name + _dotted_item(item)
                current.append(_RegisteredValue(record.order, name, captured, is_inside, self._forward))

    def _all_registered(self, is_traced: bool) -> list[_RegisteredValue]:
        by_name = list(self._registered.values())
        return [
            entry for registered in by_name for entry in registered if entry.captured.is_traced == is_traced
        ]

    @property
    def _forward(self) -> int:
        return self._forwards_completed + (self._modules is not None and self._modules.has_run)

    def _active_calls(self) -> int:
        return sum(module is self.model for module in modules_being_called())

    def _is_full(self, is_traced: bool, name: str) -> bool:
        if self._max_registered is None or len(self._all_registered(is_traced)) < self._max_registered:
            return False
        self._warn_once(
            name, f"{name!r} is not captured: max_tensors={self._max_registered} are registered already"
        )
        return True

    def _snapshot(self, name: str, value: Any) -> _CapturedValue | None:
        if is_tracing():
            # Cloned within the graph, so that later in-place writes do not show.
            return _CapturedValue(value.clone() if hasattr(value, "clone") else value, True)
        try:
            return _CapturedValue(copy_on_write(value), False)
        except UnsupportedValueError as error:
            self._warn_once(name, f"{name!r} is not captured: {error}")
            return None

    def _warn_once(self, name: str, message: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            log.warning("%s", message)

    def _name(self, path: str, kind: Kind, parameter: str, item: str) -> str:
        """`layers.0.outputs`, `layers.0.outputs.1`, `layers.0.inputs.0`, `layers.0.inputs.kwargs.mask`."""
        parts = [path, "outputs" if kind == "output" else f"inputs.{parameter}"]
        name = ".".join(filter(None, parts)) + _dotted_item(item)
        self._sort_keys[name] = self._positions[path], kind == "output"
        return name


def resolve_modules(model: Any, names: Iterable[str]) -> dict[str, Any]:
    """The modules of those names by path; a name may also be a pattern such as `layers.*`."""
    known = {**dict(model.named_modules(remove_duplicate=False)), **_modules_by_path(model)}
    available = available_modules(model)
    modules: dict[str, Any] = {}
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a module is given by its name, not as {name!r}")
        matching = (
            [name]
            if name in known
            else [path for path in available if "*" in name and matches_pattern(name, path)]
        )
        if not matching:
            raise UnknownModuleError(_explain_unknown_module(name, available))
        modules.update({path: known[path] for path in matching})
    return modules


def available_modules(model: Any) -> list[str]:
    """The path of every module, each module once, in the model's order."""
    first_names: dict[int, str] = {}
    for path, module in _modules_by_path(require_module(model)).items():
        first_names.setdefault(id(module), path)
    return [path for path in first_names.values() if path]


def modules_without_forward(modules: Mapping[str, Any]) -> list[str]:
    """Paths of containers such as ModuleList, which are never called."""
    return [path for path, module in modules.items() if not has_forward(module)]


def modules_being_called() -> list[Any]:
    """The modules being called in this thread, innermost first.

    Read from the stack, because no hook runs when an interrupt ends a forward.
    """
    call = sys.modules["torch"].nn.Module._call_impl.__code__
    return [frame.f_locals["self"] for frame in _stack_frames() if frame.f_code is call]


def is_tracing() -> bool:
    """Is the program being traced, exported or compiled?"""
    torch = sys.modules["torch"]
    return bool(torch.jit.is_tracing() or torch.compiler.is_compiling())


def _is_recomputing() -> bool:
    """Is activation checkpointing recomputing a forward in the backward pass?"""
    if sys.modules["torch"]._C._current_graph_task_id() == -1:
        return False
    return any(frame.f_globals.get("__name__") == "torch.utils.checkpoint" for frame in _stack_frames())


def _stack_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _modules_by_path(model: Any) -> dict[str, Any]:
    return {".".join(names): module for names, module in walk_modules(model)}


def _explain_unknown_module(name: str, available: list[str]) -> str:
    near = closest_names(name, available) or available[:3]
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"no module {name!r} in the model; {hint}get_available_modules(model) lists all {len(available)}"


def _dotted_item(item: str) -> str:
    """`['k'][0]` as `.k.0`."""
    return _ITEM.sub(lambda match: f".{_literal_key(match[1])}", item)


def _literal_key(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _unused_name(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or `name_1`, `name_2` where it is taken."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def _placeholder(model: Any) -> Any:
    """A single zero on the model's device, which any reduction accepts."""
    parameter = next(model.parameters(), None)
    return sys.modules["torch"].zeros(1, device=None if parameter is None else parameter.device)
