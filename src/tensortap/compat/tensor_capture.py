"""TensorCapture: the values of chosen modules, and those registered by hand, of a model's latest forward."""

import atexit
import contextlib
import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, TypeVar

from tensortap.core.settings import is_on
from tensortap.core.tap import Tap
from tensortap.recording.last_forward import (
    LastForward,
    available_modules,
    is_tracing,
    modules_being_called,
    modules_without_forward,
    resolve_modules,
)
from tensortap.sources.hooks.eager_mode import run_eagerly
from tensortap.sources.manual import ManualSource
from tensortap.sources.sites import require_module, unwrap

__all__ = [
    "disable_tensor_capture",
    "enable_tensor_capture",
    "get_available_modules",
    "get_captured_tensors_dict",
    "register_tensor",
]

Model = TypeVar("Model")
log = logging.getLogger("tensortap.capture")

# In the order of enabling. A model owns its capture through its hooks, so both are collected together.
_enabled: tuple[weakref.ref[LastForward], ...] = ()
_compiled = contextlib.ExitStack()
_standalone_source = ManualSource()  # for values that go into the user's own tap alone


def enable_tensor_capture(
    model: Model,
    modules_to_capture: Iterable[str] | None,
    max_tensors: int | None = None,
    capture_inputs: bool = False,
    *,
    tap: Tap | None = None,
) -> Model:
    """Capture what these modules return, and with `capture_inputs` what they are given; return the model.

    >>> model = tt.enable_tensor_capture(model, ["layers.0", "layers.1"], max_tensors=5)
    >>> output = model(x)
    >>> tt.get_captured_tensors_dict()["layers.0.outputs"]

    `max_tensors` limits what `register_tensor` adds, not the modules. Enabling again replaces the selection.
    With `tap` all that is captured also flows into that tap.
    """
    global _enabled
    if not is_on():
        return model
    names = [modules_to_capture] if isinstance(modules_to_capture, str) else modules_to_capture or ()
    modules = resolve_modules(require_module(model), names)
    _check_max_tensors(max_tensors)
    for name in modules_without_forward(modules):
        log.warning("%r only holds other modules and is never called; list those instead", name)
    disable_tensor_capture(model)
    last_forward = LastForward(model, max_tensors)
    last_forward.start(modules, has_inputs=capture_inputs, user_tap=tap)
    if not _enabled:
        _compiled.enter_context(run_eagerly())
        atexit.register(_compiled.close)  # while the interpreter is still whole
    _enabled = (*_enabled, weakref.ref(last_forward, _forget))
    return model


def disable_tensor_capture(model: Model) -> Model:
    """Take every hook off the model again, forget what was captured of it, and return it."""
    last_forward = _capture_of(model) if _enabled else None
    if last_forward is not None:
        last_forward.stop()
        _forget(weakref.ref(last_forward))
    return model


def get_available_modules(model: Any) -> list[str]:
    """The names of all modules in a model, each module once, in the model's order."""
    return available_modules(model)


def register_tensor(name: str, tensor: Any, *, tap: Tap | None = None) -> None:
    """Capture this value under this name; nothing happens while no model is enabled.

    >>> tt.register_tensor("after_layer_1", x)

    Within a forward it belongs to the models whose forwards are running, and the next forward replaces it;
    elsewhere it belongs to the model enabled last, and stays. With `tap` it also flows into that tap.
    """
    if not _enabled and tap is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"a name is a text, not {name!r}; register_tensor(name, tensor) takes the name first")
    for last_forward in _running_captures() or _alive_captures()[-1:]:
        last_forward.register(name, tensor, depth=1)
    if tap is not None and is_on() and not is_tracing():
        _standalone_source.emit(tensor, name, depth=1, tap=tap)


def get_captured_tensors_dict(*, model: Any = None, pad: bool = False) -> OrderedDict[str, Any]:
    """All captured tensors by name: modules as listed, inputs before outputs, then registered ones.

    It speaks of the given model, else of the one whose forward is running, else of the one enabled last.
    With `pad`, and while the program is traced or exported, there are exactly `max_tensors` registered ones:
    placeholders stand where fewer came.
    """
    if not _enabled:
        return OrderedDict()
    last_forward = (
        _capture_of(model)
        if model is not None
        else next(iter(_running_captures() or _alive_captures()[-1:]), None)
    )
    return OrderedDict() if last_forward is None else last_forward.tensors(pads=pad)


def _alive_captures() -> list[LastForward]:
    return [last_forward for reference in _enabled if (last_forward := reference()) is not None]


def _capture_of(model: Any) -> LastForward | None:
    inner = unwrap(require_module(model))
    return next((last_forward for last_forward in _alive_captures() if last_forward.model is inner), None)


def _running_captures() -> list[LastForward]:
    """The captures of models whose forward is running in this thread, innermost first."""
    by_model = {id(last_forward.model): last_forward for last_forward in _alive_captures()}
    called = dict.fromkeys(map(id, modules_being_called()))
    return [by_model[module] for module in called if module in by_model]


def _forget(gone: weakref.ref[LastForward]) -> None:
    global _enabled
    _enabled = tuple(reference for reference in _enabled if reference != gone)
    if not _enabled:
        atexit.unregister(_compiled.close)
        _compiled.close()


def _check_max_tensors(max_tensors: Any) -> None:
    is_count = isinstance(max_tensors, int) and not isinstance(max_tensors, bool) and max_tensors >= 0
    if max_tensors is not None and not is_count:
        raise ValueError(
            f"max_tensors is {max_tensors!r}; give a whole number from 0 on, or None for no limit"
        )
