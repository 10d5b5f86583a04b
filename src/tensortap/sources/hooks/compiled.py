"""Values inside the graphs of torch.compile.

The hooks are compiled with the model; an operator passes values and gradients to callbacks,
without graph breaks.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from tensortap.core.settings import is_strict
from tensortap.core.tap import Tap
from tensortap.sources.hooks.modules import ModuleSource
from tensortap.sources.observation.point import ObservationPoint
from tensortap.sources.sites import forward_signature

Callback = Callable[[torch.Tensor, str], None]
Keys = tuple[int | None, int | None]  # for the value, for its gradient
MAX_DEPTH = 20
log = logging.getLogger("tensortap.graph")

# A graph can hold a number but no function, so callbacks are looked up by number, once per process.
# Numbers are never reused: a graph that outlives its capture must not call the next one's callbacks.
_callbacks: dict[int, Callback] = {}
_next_keys = itertools.count(1)


def register_callback(callback: Callback) -> int:
    """A key under which `see` and `see_gradient` call `callback(tensor, position)` until it is unregistered.

    The tensor is the program's own and its memory is reused after the call: copy what you keep.
    """
    key = next(_next_keys)
    _callbacks[key] = callback
    return key


def unregister_callback(key: int) -> None:
    _callbacks.pop(key, None)


def see(tensor: torch.Tensor, key: int, position: str = "") -> None:
    """Call the callback of `key` with a tensor, each time this line runs, compiled or not."""
    _see(tensor, key, position)


def see_gradient(tensor: torch.Tensor, key: int, position: str = "") -> torch.Tensor:
    """The same tensor; the callback of `key` gets its gradient in each backward pass.

    Use the returned tensor: for an autograd leaf it is a view, because a hook on the leaf itself would
    outlive the call. A leaf's gradient is therefore that of this use alone.
    """
    if not tensor.requires_grad:
        return tensor
    hooked: Any = tensor.view_as(tensor) if tensor.is_leaf else tensor

    def observe(gradient: torch.Tensor) -> torch.Tensor:
        see(gradient, key, position)
        return gradient  # compiled autograd would take None as the gradient

    hooked.register_hook(observe)
    return cast(torch.Tensor, hooked)


def output_hook(value_key: int | None = None, gradient_key: int | None = None) -> Callable[..., Any]:
    """A hook for `register_forward_hook` that observes each tensor of the output, with its position.

    Positions read like `pytree.leaves`: `""`, `[0]`, `['k'][0]`, `.logits`. Tuples, lists, deques,
    dictionaries, named tuples, dataclasses and `ModelOutput` are traversed, other containers are skipped.
    """

    keys = (value_key, gradient_key)

    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        observed = _observe_tensors(output, "", keys)
        return None if observed is output else observed

    return _never_compile_alone(hook)


def input_hook(
    value_key: int | None = None, gradient_key: int | None = None, names: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """A hook for `register_forward_pre_hook(hook, with_kwargs=True)` that observes each input tensor.

    `names` are the parameters of `forward`: a position begins with `.hidden_states` however it was passed;
    that of an argument beyond them begins with `[3]`.
    """

    keys = (value_key, gradient_key)

    def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        positions = [f".{names[i]}" if i < len(names) else f"[{i}]" for i in range(len(args))]
        observed = [
            _observe_tensors(argument, position, keys)
            for position, argument in zip(positions, args, strict=True)
        ]
        return tuple(observed), {
            name: _observe_tensors(argument, f".{name}", keys) for name, argument in kwargs.items()
        }

    return _never_compile_alone(hook)


def tensor_observer(key: int) -> Callable[[Any, str], None]:
    """A function that observes a tensor, or the tensors of a container, under a name; compiled or not."""

    def observe(value: Any, name: str) -> None:
        _observe_tensors(value, name, (key, None))

    return observe


@contextlib.contextmanager
def fresh_graphs(hooks: int = 0) -> Iterator[None]:
    """Reset dynamo on enter and on exit, so that hooks registered inside are compiled in, and gone after.

    `hooks` is how many there will be: layers that are compiled one by one shared a graph until each has its
    own key, so dynamo's recompile limits are raised by that many.
    """
    # Imported here: it takes a second, and a program that compiles nothing never needs it.
    import torch._dynamo

    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(_dynamo_settings(torch._dynamo.config, hooks)):
            yield
    finally:
        torch._dynamo.reset()


def _dynamo_settings(config: Any, hooks: int) -> dict[str, Any]:
    # Without guards on hooks, two models of one class share the graph of whichever ran first.
    limits = ["recompile_limit", "accumulated_recompile_limit"]
    return {"skip_nnmodule_hook_guards": False} | {name: getattr(config, name) + 2 * hooks for name in limits}


def _never_compile_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let dynamo inline it into a graph, but never compile it as a graph of its own.

    The hooks of a compiled model's root run outside its graph; so does everything after a graph break.
    """
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return function


def _observe_tensors(value: Any, position: str, keys: Keys, depth: int = 0) -> Any:
    """Observe the tensors of a value; returns the value, rebuilt only if a tensor was replaced by a view."""
    if isinstance(value, torch.Tensor):
        if keys[0] is not None:
            see(value, keys[0], position)
        return value if keys[1] is None else see_gradient(value, keys[1], position)
    members = _members_of(value) if depth < MAX_DEPTH else []
    observed = [_observe_tensors(item, position + step, keys, depth + 1) for step, item in members]
    is_same = all(new is old for new, (_, old) in zip(observed, members, strict=True))
    return value if is_same else _rebuild(value, observed)


def _members_of(value: Any) -> list[tuple[str, Any]]:
    """The members of a container. Not `pytree.children`: dynamo traces this, and cannot trace that."""
    kind = type(value)
    if hasattr(kind, "__dataclass_fields__") and not isinstance(value, dict):
        return [(f".{name}", getattr(value, name, None)) for name in kind.__dataclass_fields__]
    if hasattr(kind, "__dataclass_fields__"):
        return [(f".{name}", item) for name, item in value.items()]
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return [(f".{name}", getattr(value, name)) for name in kind._fields]
    if isinstance(value, (list, tuple, deque)):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    return []


def _rebuild(value: Any, members: list[Any]) -> Any:
    """Rebuild a plain container; others are returned unchanged, and gradients in them are not observed."""
    if type(value) is dict:
        return dict(zip(value, members, strict=True))
    return type(value)(members) if type(value) in (list, tuple) else value


@_never_compile_alone
def _dispatch(tensor: torch.Tensor, key: int, position: str) -> None:
    callback = _callbacks.get(key)
    if callback is None:
        return
    try:
        callback(tensor, position)
    except Exception:  # the graph is the user's: our failure must not end it
        if is_strict():
            raise
        log.exception("a value at %r could not be taken; this site is left out from now on", position)
        unregister_callback(key)


def _see_batch(
    info: Any, dims: tuple[int | None, ...], tensor: torch.Tensor, *site: Any
) -> tuple[None, None]:
    """Inside `vmap` the full batch is observed at once, batch dimension first."""
    _see(tensor if dims[0] is None else tensor.movedim(dims[0], 0), *site)
    return None, None


def _define_operator() -> tuple[Any, Callable[[torch.Tensor, int, str], None]]:
    """The operator that observes a value in a graph.

    Defined with `Library`: a call costs 2-3 us, with the wrappers of `custom_op` 40.
    """
    library = _new_library("tensortap", "FRAGMENT")
    # A replayed CUDA graph runs no Python.
    library.define("see(Tensor tensor, int key, str position) -> ()", tags=(torch.Tag.cudagraph_unsafe,))
    library.impl("see", _dispatch, "CompositeExplicitAutograd")
    library.impl("see", torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake("tensortap::see", lambda tensor, key, position: None, lib=library)
    torch.library.register_vmap("tensortap::see", _see_batch, lib=library)
    operator = torch.ops.tensortap.see.default
    # An operator without outputs is removed from a graph as dead code, unless it is registered as effectful.
    _register_effectful_op(operator, _EffectType.ORDERED)
    return library, operator


_new_library: Any = torch.library.Library
_library, _see = _define_operator()  # the operator lives as long as its library


_POSITION_PATTERN = re.compile(r"\.?([^.\[]*)(.*)", re.DOTALL)


class CompiledModuleSource(ModuleSource):
    """The modules of a compiled model, from `start` to `stop`; graphs compiled meanwhile have the hooks."""

    uncalled_reason = "not called, or inside a part of the compiled graph that shows nothing (torch.cond)"

    def start(self, tap: Tap) -> None:
        self._keys: list[int] = []
        super().start(tap)

    def stop(self) -> None:
        super().stop()
        for key in self._keys:
            unregister_callback(key)

    @property
    def hook_count(self) -> int:
        return len(self.points)

    def _hook_step(self) -> Any:
        """The first input tensor of the model begins a step."""
        key = self._register(lambda tensor, position: self._begin_step_at_first(position))
        names = forward_signature(self.model).positional
        hook = input_hook(key, None, names)
        return self.model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)

    def _begin_step_at_first(self, position: str) -> None:
        self._first_position = getattr(self, "_first_position", position)
        if position == self._first_position:
            self.begin_step()

    def _hook(self, module: Any, points: Sequence[ObservationPoint]) -> None:
        for point in points:
            counter = _CallCounter(point)
            value_key = self._register(counter.on_value)
            gradient_key = self._register(counter.on_gradient) if point.gradients else None
            if point.kind == "input":
                hook = input_hook(value_key, gradient_key, forward_signature(module).positional)
                handle = module.register_forward_pre_hook(hook, with_kwargs=True)
            elif point.kind == "output":
                handle = module.register_forward_hook(output_hook(value_key, gradient_key))
            else:
                names = [
                    selected.site.parameter for selected in point.values if not selected.site.is_after_step
                ]
                handle = module.register_forward_hook(_parameter_hook(value_key, names))
            self._handles.append(handle)

    def _register(self, callback: Any) -> int:
        key = register_callback(callback)
        self._keys.append(key)
        return key


class _CallCounter:
    """Numbers the calls of one point in a graph: each position once per call, gradients in reverse order."""

    def __init__(self, point: ObservationPoint) -> None:
        self._point = point
        self._step = -1
        self._values: Counter[str] = Counter()
        self._gradients: Counter[str] = Counter()

    def on_value(self, tensor: torch.Tensor, position: str) -> None:
        source = self._point.source
        if source.is_idle:
            return
        if source.step != self._step:
            self._step = source.step
            self._values.clear()
            self._gradients.clear()
        call = self._values[position]
        self._values[position] += 1
        parameter, item = self._split(position)
        self._point.observe_in_graph(parameter, item, tensor, call)

    def on_gradient(self, tensor: torch.Tensor, position: str) -> None:
        point = self._point
        if point.source.is_idle:
            return
        call = max(0, self._values[position] - 1 - self._gradients[position])
        self._gradients[position] += 1
        parameter, item = self._split(position)
        accepting = [selected for selected in point.gradients if selected.accepts(parameter, item, call)]
        if accepting:
            name = point.name(parameter, item) + ".grad"
            point.record_gradient(accepting, name, tensor, point.source.step, call)

    def _split(self, position: str) -> tuple[str, str]:
        if self._point.kind == "output":
            return "", position
        match = _POSITION_PATTERN.fullmatch(position)
        assert match is not None
        return (match[1], match[2]) if match[1] else ("args", match[2])


def _parameter_hook(key: int, names: Sequence[str]) -> Any:
    def hook(module: Any, arguments: Any, output: Any) -> None:
        for name in names:
            see(getattr(module, name), key, f".{name}")

    return hook
