"""The function that holds the code, behind methods, partials and decorators."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, MethodType
from typing import Any

from tensortap.core.errors import UnsupportedValueError


def real_function(function: Any) -> FunctionType:
    """Follows bound, static and class methods, properties, partials and `__wrapped__`; and, where a decorator
    left no `__wrapped__`, the one function that a wrapper closes over (see `_decorated`)."""
    found, passed, inner = None, set(), function
    while inner is not None and id(inner) not in passed:
        passed.add(id(inner))
        if isinstance(inner, FunctionType):
            found = inner
        inner = _inside(inner)
    if found is None:
        raise UnsupportedValueError(
            f"{function!r} is not a Python function, so it has no local variables; "
            "give a function, a method, or a decorated one"
        )
    return found


def _inside(function: Any) -> Any:
    if isinstance(function, MethodType | staticmethod | classmethod):
        return function.__func__
    if isinstance(function, property):
        return function.fget
    if isinstance(function, functools.partial | functools.partialmethod | functools.cached_property):
        return function.func
    inner = getattr(function, "__wrapped__", None)
    if inner is None and isinstance(function, FunctionType):
        return _decorated(function)
    return inner


def _decorated(wrapper: FunctionType) -> FunctionType | None:
    """What a wrapper without `functools.wraps` calls: it takes whatever it is given (`*args`) and closes over
    exactly one function that was not defined beside it."""
    if not wrapper.__code__.co_flags & inspect.CO_VARARGS:
        return None
    beside = wrapper.__qualname__.rpartition(".")[0]
    held = [cell.cell_contents for cell in wrapper.__closure__ or () if _is_filled(cell)]
    functions = [one for one in held if isinstance(one, FunctionType)]
    outside = [one for one in functions if one.__qualname__.rpartition(".")[0] != beside]
    return outside[0] if len(functions) == len(outside) == 1 else None


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises where nothing was bound yet
    except ValueError:
        return False
    return True
