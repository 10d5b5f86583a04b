"""A model that is given to torch.jit, which cannot follow hooks, is let go of first."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

# Where a module becomes one of torch.jit's own kind, by script() and by trace(); both take it first.
_PLACES = {"torch.jit._recursive": "create_script_module", "torch.jit._trace": "make_module"}


def is_there() -> bool:
    return all(hasattr(sys.modules.get(place), name) for place, name in _PLACES.items())


class Scripting:
    """Stands in these places, and tells which module it is before it goes on."""

    def __init__(self, let_go: Callable[[Any], object]) -> None:
        self._functions = {place: getattr(sys.modules[place], name) for place, name in _PLACES.items()}
        self._told = {place: _telling(function, let_go) for place, function in self._functions.items()}
        for place, name in _PLACES.items():
            setattr(sys.modules[place], name, self._told[place])

    def take_down(self) -> None:
        for place, name in _PLACES.items():
            if getattr(sys.modules[place], name) is self._told[place]:
                setattr(sys.modules[place], name, self._functions[place])


def _telling(function: Callable[..., Any], let_go: Callable[[Any], object]) -> Callable[..., Any]:
    @wraps(function)
    def told(module: Any, *arguments: Any, **options: Any) -> Any:
        let_go(module)
        return function(module, *arguments, **options)

    return told


def is_scripting() -> bool:
    """Whether modules are looked at, or called for the sake of a trace, by torch.jit in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.jit."):
            return True
        frame = frame.f_back
    return False
