"""Show values and gradients from inside compiled graphs, without breaking or recompiling them."""

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from tensortap.core.settings import is_strict

__all__ = ["forget", "fresh_graphs", "input_hook", "output_hook", "see", "see_gradient", "ticket"]

Callback = Callable[[torch.Tensor, str], None]
Keys = tuple[int | None, int | None]  # for the value, for its gradient
MAX_DEPTH = 20
log = logging.getLogger("tensortap.graph")

# A graph can hold a number but no function, so the functions are found by number, once per process.
# A number is never given twice: a graph that outlives its capture must not speak to the next one.
_callbacks: dict[int, Callback] = {}
_numbers = itertools.count(1)


def ticket(callback: Callback) -> int:
    """A key under which `see` and `see_gradient` call `callback(tensor, position)`, until `forget(key)`.

    The tensor is the program's own and its memory is used again after the call: copy what is kept.
    """
    key = next(_numbers)
    _callbacks[key] = callback
    return key


def forget(key: int) -> None:
    _callbacks.pop(key, None)


def see(tensor: torch.Tensor, key: int, position: str = "") -> None:
    """Show a tensor to the callback of `key`, each time this line runs, compiled or not."""
    _see(tensor, key, position)


def see_gradient(tensor: torch.Tensor, key: int, position: str = "") -> torch.Tensor:
    """The same tensor; its gradient is shown to the callback of `key` in each backward pass.

    Go on with what is returned: for a leaf of autograd it is a view, because a hook on the leaf itself
    would stay there after the call. A leaf's gradient is therefore that of this use alone.
    """
    if not tensor.requires_grad:
        return tensor
    hooked: Any = tensor.view_as(tensor) if tensor.is_leaf else tensor

    def observe(gradient: torch.Tensor) -> torch.Tensor:
        see(gradient, key, position)
        return gradient  # compiled autograd takes None for the gradient itself

    hooked.register_hook(observe)
    return cast(torch.Tensor, hooked)


def output_hook(value_key: int | None = None, gradient_key: int | None = None) -> Callable[..., Any]:
    """A hook for `register_forward_hook` that shows each tensor of the output, with its position.

    Positions read like `pytree.leaves`: `""`, `[0]`, `['k'][0]`, `.logits`. Tuples, lists, deques,
    dictionaries, named tuples, dataclasses and `ModelOutput` are opened, any other container is passed by.
    """

    keys = (value_key, gradient_key)

    def hook(module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        observed = _shown(output, "", keys)
        return None if observed is output else observed

    return _never_alone(hook)


def input_hook(
    value_key: int | None = None, gradient_key: int | None = None, names: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """A hook for `register_forward_pre_hook(hook, with_kwargs=True)` that shows each tensor given.

    `names` are the parameters of `forward`: then a position begins with `.hidden_states` however that
    was passed; an argument beyond them begins with `[3]`.
    """

    keys = (value_key, gradient_key)

    def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        positions = [f".{names[i]}" if i < len(names) else f"[{i}]" for i in range(len(args))]
        observed = [
            _shown(argument, position, keys) for position, argument in zip(positions, args, strict=True)
        ]
        return tuple(observed), {
            name: _shown(argument, f".{name}", keys) for name, argument in kwargs.items()
        }

    return _never_alone(hook)


def shown_by(key: int) -> Callable[[Any, str], None]:
    """A function that shows a value, or the tensors of a container, under a name; compiled or not."""

    def observe(value: Any, name: str) -> None:
        _shown(value, name, (key, None))

    return observe


@contextlib.contextmanager
def fresh_graphs(hooks: int = 0) -> Iterator[None]:
    """Forget all compiled graphs on enter and on exit; hooks put on inside are then seen, and gone after.

    `hooks` is how many there will be: blocks that are compiled one by one shared a graph until each
    holds a key of its own, so dynamo is allowed that many graphs more.
    """
    # Imported here: it takes a second, and a program that compiles nothing never needs it.
    import torch._dynamo

    torch._dynamo.reset()
    try:
        with torch._dynamo.config.patch(_settings(torch._dynamo.config, hooks)):
            yield
    finally:
        torch._dynamo.reset()


def _settings(config: Any, hooks: int) -> dict[str, Any]:
    # Without guards on hooks, two models of one class share the graph of whichever ran first.
    limits = ["recompile_limit", "accumulated_recompile_limit"]
    return {"skip_nnmodule_hook_guards": False} | {name: getattr(config, name) + 2 * hooks for name in limits}


def _never_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let dynamo trace it into a graph, but run it as it is where no graph is: not as a graph of its own.

    The hooks of a compiled model's root run outside of its graph; so does everything after a graph break.
    """
    set_code_exec_strategy(function.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return function


def _shown(value: Any, position: str, keys: Keys, depth: int = 0) -> Any:
    """The value after its tensors were shown; another container only if a tensor in it is another."""
    if isinstance(value, torch.Tensor):
        if keys[0] is not None:
            see(value, keys[0], position)
        return value if keys[1] is None else see_gradient(value, keys[1], position)
    members = _parts(value) if depth < MAX_DEPTH else []
    observed = [_shown(item, position + step, keys, depth + 1) for step, item in members]
    is_same = all(new is old for new, (_, old) in zip(observed, members, strict=True))
    return value if is_same else _rebuilt(value, observed)


def _parts(value: Any) -> list[tuple[str, Any]]:
    """What a container holds. Not `pytree.children`: this is traced by dynamo, which cannot follow that."""
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


def _rebuilt(value: Any, members: list[Any]) -> Any:
    """Only plain containers; from any other the value goes on, and such a leaf's gradient is not seen."""
    if type(value) is dict:
        return dict(zip(value, members, strict=True))
    return type(value)(members) if type(value) in (list, tuple) else value


@_never_alone
def _call_back(tensor: torch.Tensor, key: int, position: str) -> None:
    callback = _callbacks.get(key)
    if callback is None:
        return
    try:
        callback(tensor, position)
    except Exception:  # the graph that runs is the user's: a failure of ours must not end it
        if is_strict():
            raise
        log.exception("a value at %r could not be taken; this site is left out from now on", position)
        forget(key)


def _see_batch(
    info: Any, dims: tuple[int | None, ...], tensor: torch.Tensor, *site: Any
) -> tuple[None, None]:
    """Inside `vmap` the whole batch is shown at once, its dimension first."""
    _see(tensor if dims[0] is None else tensor.movedim(dims[0], 0), *site)
    return None, None


def _define() -> tuple[Any, Callable[[torch.Tensor, int, str], None]]:
    """The operator that stands in a graph where a value is seen.

    Written with `Library`: a call costs 2-3 us, where the wrappers of `custom_op` make it 40.
    """
    library = _new_library("tensortap", "FRAGMENT")
    # A replayed CUDA graph calls no Python.
    library.define("see(Tensor tensor, int key, str position) -> ()", tags=(torch.Tag.cudagraph_unsafe,))
    library.impl("see", _call_back, "CompositeExplicitAutograd")
    library.impl("see", torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake("tensortap::see", lambda tensor, key, position: None, lib=library)
    torch.library.register_vmap("tensortap::see", _see_batch, lib=library)
    operator = torch.ops.tensortap.see.default
    # An operator that returns nothing is removed from a graph, unless its order is known to matter.
    _register_effectful_op(operator, _EffectType.ORDERED)
    return library, operator


_new_library: Any = torch.library.Library
_library, _see = _define()  # without its library an operator is gone
