"""A model that is given to torch.jit, which cannot follow hooks, is let go of first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

# Where a module becomes one of torch.jit's own kind, by script() and by trace(); both take it first.
_ENTRY_POINTS = {"torch.jit._recursive": "create_script_module", "torch.jit._trace": "make_module"}


def is_jit_imported() -> bool:
    return all(hasattr(sys.modules.get(module_name), name) for module_name, name in _ENTRY_POINTS.items())


class ScriptingHook:
    """Stands in these places, and tells which module it is before it goes on."""

    def __init__(self, release: Callable[[Any], object]) -> None:
        self._functions = {
            module_name: getattr(sys.modules[module_name], name)
            for module_name, name in _ENTRY_POINTS.items()
        }
        self._wrappers = {
            module_name: _release_before(function, release)
            for module_name, function in self._functions.items()
        }
        for entry_module, name in _ENTRY_POINTS.items():
            setattr(sys.modules[entry_module], name, self._wrappers[entry_module])

    def remove(self) -> None:
        for module_name, name in _ENTRY_POINTS.items():
            if getattr(sys.modules[module_name], name) is self._wrappers[module_name]:
                setattr(sys.modules[module_name], name, self._functions[module_name])


def _release_before(function: Callable[..., Any], release: Callable[[Any], object]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(module: Any, *arguments: Any, **options: Any) -> Any:
        release(module)
        return function(module, *arguments, **options)

    return wrapper


def is_scripting() -> bool:
    """Whether modules are looked at, or called for the sake of a trace, by torch.jit in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.jit."):
            return True
        frame = frame.f_back
    return False
