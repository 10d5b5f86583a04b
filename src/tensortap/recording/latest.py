"""What the latest forward of a model gave: the values of chosen modules, and those registered by hand."""

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
from tensortap.core.parts import Stage
from tensortap.core.paths import matches_pattern, closest_names
from tensortap.core.record import Kind, Record
from tensortap.core.tap import Tap
from tensortap.frameworks.keep import cow
from tensortap.frameworks.nested import leaves
from tensortap.recording.keeping import Into, Kept
from tensortap.sources.manual import Manual
from tensortap.sources.modules import Modules
from tensortap.sources.sites import ModuleSite, Wanted, has_forward, require_module, unwrapped, walk
from tensortap.stages.select import When

_ITEM = re.compile(r"""\[('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]]*)\]""")
log = logging.getLogger("tensortap.capture")


class _Held(NamedTuple):
    """A value, and whether it is part of a graph that is being traced rather than a snapshot."""

    value: Any
    is_traced: bool


class _Registered(NamedTuple):
    order: int
    name: str
    held: _Held
    is_inside: bool  # registered within a forward of the model
    forward: int  # how many forwards of the model had begun


class Latest(Stage):
    """Holds what came by since the latest forward of the model began; passes every record on.

    A forward that begins replaces all that the one before it gave. Values registered outside of one stay
    until their name is registered again after another forward. At most `most` registered ones are held.
    """

    def __init__(self, model: Any, most: int | None) -> None:
        self.model, self._most = unwrapped(model), most
        self._places: dict[str, tuple[int, bool]] = {}
        self._positions: dict[str, int] = {}
        self._seen: dict[str, list[_Held]] = {}
        self._registered: dict[str, list[_Registered]] = {}  # by the name that was given
        self._over = 0  # forwards that another one followed
        self._refused: set[str] = set()
        self._manual = Manual()
        self._modules: Modules | None = None
        self._tap = Tap()

    def start(self, modules: Mapping[str, Any], *, has_inputs: bool, onwards: Tap | None) -> None:
        """Hang hooks on the modules; what they give also goes on into that tap, unless it is traced."""
        self._positions = {path: position for position, path in enumerate(modules)}
        kinds: tuple[Kind, ...] = ("input", "output") if has_inputs else ("output",)
        wanted = [Wanted(ModuleSite(path, kind, one)) for path, one in modules.items() for kind in kinds]
        others: list[Stage] = [] if onwards is None else [When(lambda record: not is_tracing())]
        sinks = [] if onwards is None else [Kept(Into(onwards), None, is_ours=False)]
        self._tap = Tap(stages=[self, *others], sinks=sinks, on_error="log")
        self._modules = Modules(self.model, wanted, naming=self._name, by_position=True)
        self._tap.attach(self._manual).attach(self._modules)

    def stop(self) -> None:
        """Take every hook off, and forget."""
        self._tap.close()
        self._seen, self._registered = {}, {}

    def register(self, name: str, value: Any, *, depth: int) -> None:
        if not _is_recomputing():
            self._manual.emit(value, name, depth=depth + 1)

    def tensors(self, *, pads: bool) -> OrderedDict[str, Any]:
        """Modules in the order they were listed, inputs before outputs, then what was registered; with
        `pads` or while a graph is traced, exactly `most` of those."""
        traced = is_tracing()
        found: OrderedDict[str, Any] = OrderedDict()
        seen = list(self._seen)  # another thread may be running a forward
        for name in sorted(seen, key=self._places.__getitem__):
            for held in self._seen.get(name, ()):
                if held.is_traced == traced:
                    found[_unused(name, found)] = held.value
        registered = sorted(self._all_registered(traced), key=lambda one: one.order)
        for one in registered:
            found[_unused(one.name, found)] = one.held.value
        for slot in range(len(registered), (self._most or 0) if pads or traced else 0):
            found[_unused(f"placeholder_{slot}", found)] = _placeholder(self.model)
        return found

    def push(self, record: Record) -> Iterable[Record]:
        if record.kind == "value":
            self._register(record)
        else:
            self._see(record)
        return (record,)

    def tick(self, step: int) -> Iterable[Record]:
        """Called when the next forward begins; a model that calls itself is still in the same one."""
        if self._calls_under_way() < 2:
            self._over += 1
            self._seen = {}
            outside = {
                name: [one for one in registered if not one.is_inside]
                for name, registered in self._registered.items()
            }
            self._registered = {name: registered for name, registered in outside.items() if registered}
        return ()

    def _see(self, record: Record) -> None:
        held = self._hold(record.name, record.value)
        if held is None:
            return
        before = self._seen.setdefault(record.name, [])
        if before and not self._calls_under_way():
            before.clear()  # a module that is called by itself, again: no forward says where one ends
        before.append(held)

    def _register(self, record: Record) -> None:
        traced, is_inside = is_tracing(), self._calls_under_way() > 0
        before = self._registered.get(record.name, [])
        now = [one for one in before if one.forward == self._forward or one.held.is_traced != traced]
        self._registered[record.name] = now
        for item, leaf in leaves(record.value):
            if leaf is None:
                continue
            if self._is_full(traced, record.name):
                return
            held = self._hold(record.name + item, leaf)
            if held is not None:
                name = record.name + _dotted(item)
                now.append(_Registered(record.order, name, held, is_inside, self._forward))

    def _all_registered(self, traced: bool) -> list[_Registered]:
        found = list(self._registered.values())
        return [one for registered in found for one in registered if one.held.is_traced == traced]

    @property
    def _forward(self) -> int:
        return self._over + (self._modules is not None and self._modules.has_run)

    def _calls_under_way(self) -> int:
        return sum(module is self.model for module in modules_called())

    def _is_full(self, traced: bool, name: str) -> bool:
        if self._most is None or len(self._all_registered(traced)) < self._most:
            return False
        self._say_once(name, f"{name!r} is not captured: max_tensors={self._most} are registered already")
        return True

    def _hold(self, name: str, value: Any) -> _Held | None:
        if is_tracing():
            # A copy that the graph makes too: what is written to the tensor afterwards must not show.
            return _Held(value.clone() if hasattr(value, "clone") else value, True)
        try:
            return _Held(cow(value), False)
        except UnsupportedValueError as error:
            self._say_once(name, f"{name!r} is not captured: {error}")
            return None

    def _say_once(self, name: str, message: str) -> None:
        if name not in self._refused:
            self._refused.add(name)
            log.warning("%s", message)

    def _name(self, path: str, kind: Kind, parameter: str, item: str) -> str:
        """`layers.0.outputs`, `layers.0.outputs.1`, `layers.0.inputs.0`, `layers.0.inputs.kwargs.mask`."""
        words = [path, "outputs" if kind == "output" else f"inputs.{parameter}"]
        name = ".".join(filter(None, words)) + _dotted(item)
        self._places[name] = self._positions[path], kind == "output"
        return name


def modules_of(model: Any, names: Iterable[str]) -> dict[str, Any]:
    """The modules of those names, each once; a name may also be a pattern such as `layers.*`."""
    known = {**dict(model.named_modules(remove_duplicate=False)), **_by_path(model)}
    available = available_modules(model)
    found: dict[str, Any] = {}
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a module is given by its name, not as {name!r}")
        meant = [name] if name in known else [one for one in available if "*" in name and matches_pattern(name, one)]
        if not meant:
            raise UnknownModuleError(_unknown(name, available))
        found.update({one: known[one] for one in meant})
    return found


def available_modules(model: Any) -> list[str]:
    """Every named module once, in order."""
    first_names: dict[int, str] = {}
    for path, module in _by_path(require_module(model)).items():
        first_names.setdefault(id(module), path)
    return [path for path in first_names.values() if path]


def uncallable(modules: Mapping[str, Any]) -> list[str]:
    """Those that only hold others, so that nothing ever comes out of them."""
    return [path for path, module in modules.items() if not has_forward(module)]


def modules_called() -> list[Any]:
    """The modules whose calls are under way in this thread, innermost first.

    Asked of the stack, because no hook is run when a forward is left by an interrupt.
    """
    call = sys.modules["torch"].nn.Module._call_impl.__code__
    return [frame.f_locals["self"] for frame in _frames() if frame.f_code is call]


def is_tracing() -> bool:
    """Whether the program is being traced, exported or compiled rather than run."""
    torch = sys.modules["torch"]
    return bool(torch.jit.is_tracing() or torch.compiler.is_compiling())


def _is_recomputing() -> bool:
    """Whether a checkpoint computes again, for its gradients, what was registered before."""
    if sys.modules["torch"]._C._current_graph_task_id() == -1:
        return False
    return any(frame.f_globals.get("__name__") == "torch.utils.checkpoint" for frame in _frames())


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _by_path(model: Any) -> dict[str, Any]:
    return {".".join(names): module for names, module in walk(model)}


def _unknown(name: str, available: list[str]) -> str:
    near = closest_names(name, available) or available[:3]
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"no module {name!r} in the model; {meant}get_available_modules(model) lists all {len(available)}"


def _dotted(item: str) -> str:
    """`['k'][0]` as `.k.0`."""
    return _ITEM.sub(lambda found: f".{_key(found[1])}", item)


def _key(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        return text


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    """The name, or `name_1`, `name_2` where it is taken."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def _placeholder(model: Any) -> Any:
    """A zero, where the model is: no shape to allocate, and nothing that a reduction stumbles over."""
    parameter = next(model.parameters(), None)
    return sys.modules["torch"].zeros(1, device=None if parameter is None else parameter.device)
