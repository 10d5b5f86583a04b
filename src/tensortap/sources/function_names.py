"""Resolve `pkg.mod:func` and `pkg.mod:Class.method` to the Python function behind methods, partials and
decorators."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from tensortap.core.errors import UnknownModuleError, UnknownNameError, UnsupportedValueError
from tensortap.core.patterns import Alternative, closest_names, segment_matches
from tensortap.sources.sites import ModuleSite


class CallFilter:
    """Whether a call of a shared function is selected: on that object, or on that class or a subclass."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner

    def __call__(self, first: Any) -> bool:
        if not isinstance(self._owner, type):
            return first is self._owner
        return issubclass(first if isinstance(first, type) else type(first), self._owner)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallFilter) and other._owner is self._owner

    def __hash__(self) -> int:
        return id(self._owner)


class NamedFunction(NamedTuple):
    """A function and its holder."""

    path: str  # of the holder: `pkg.mod:`, `pkg.mod:Class`
    name: str
    holder: Any
    function: Any
    call_filter: CallFilter | None = None

    def site(self, kind: Any, parameter: str) -> ModuleSite:
        return ModuleSite(self.path, kind, self.holder, parameter, False, self.function, self.call_filter)


def split_function_path(alternative: Alternative) -> tuple[str, tuple[str, ...]] | None:
    """`pkg.mod` and the segments after the colon; None for a path of another form."""
    for position, segment in enumerate(alternative.segments):
        last, colon, rest = segment.partition(":")
        if colon:
            module_segments = [*alternative.segments[:position], last]
            is_name = all(segment_name.isidentifier() for segment_name in module_segments)
            return (
                (".".join(module_segments), (rest, *alternative.segments[position + 1 :]))
                if is_name
                else None
            )
    return None


def resolve_functions(alternative: Alternative) -> Iterator[tuple[NamedFunction, tuple[str, ...]]]:
    """The functions that the first segments match, each with the remaining segments."""
    parts = split_function_path(alternative)
    if parts is not None:
        yield from _walk_functions(import_python_module(parts[0]), f"{parts[0]}:", parts[1])


def to_named_function(function: Any) -> NamedFunction:
    """The named function of a function object; for a bound method, only calls on its object are selected."""
    real = unwrap_function(function)
    call_filter = CallFilter(function.__self__) if isinstance(function, MethodType) else None
    module, _, qualified = function_path(real).partition(":")
    class_path, _, name = qualified.rpartition(".")
    return NamedFunction(f"{module}:{class_path}", name, inspect.getmodule(real), real, call_filter)


def function_path(function: Any) -> str:
    """`pkg.mod:func`, also of a nested function."""
    unwrapped = unwrap_function(function)
    return f"{unwrapped.__module__}:{unwrapped.__qualname__.replace('.<locals>', '')}"


def is_inspectable(value: Any) -> bool:
    """Whether it is a Python function, possibly decorated; models are not."""
    is_candidate = callable(value) and not isinstance(value, type) and not hasattr(value, "_modules")
    return is_candidate and find_python_function(value) is not None


def find_python_function(member: Any) -> FunctionType | None:
    if isinstance(member, ModuleType | type):
        return None
    try:
        return unwrap_function(member)
    except UnsupportedValueError:
        return None


def matching_members(holder: Any, segment: str) -> Iterator[tuple[str, Any]]:
    """Members that a segment matches: a name matches any member, a wildcard only those defined there."""
    if "*" not in segment:
        value = get_member(holder, segment)
        if value is not None:
            yield segment, value
        return
    for name, candidate in list(vars(holder).items()):
        is_defined_here = (
            isinstance(holder, type) or getattr(candidate, "__module__", None) == holder.__name__
        )
        if is_defined_here and segment_matches(segment, name):
            yield name, candidate


def get_member(holder: Any, name: str) -> Any:
    """The member; of a class without binding it, of a module also through its `__getattr__`."""
    if isinstance(holder, type):
        return inspect.getattr_static(holder, name, None)
    try:
        return getattr(holder, name, None)
    except Exception as error:  # a module's own __getattr__ may raise anything
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UnknownNameError(f"{holder.__name__!r} does not give its {name!r}: {message}") from error


def join_path(path: str, name: str) -> str:
    return f"{path}{name}" if path.endswith(":") else f"{path}.{name}"


def _walk_functions(
    holder: Any, path: str, segments: tuple[str, ...]
) -> Iterator[tuple[NamedFunction, tuple[str, ...]]]:
    for name, value in matching_members(holder, segments[0]):
        if isinstance(value, type):
            yield from _walk_functions(value, join_path(path, name), segments[1:]) if segments[1:] else ()
        elif (function := find_python_function(value)) is not None:
            is_inherited = isinstance(holder, type) and name not in vars(holder)
            is_shared = is_inherited and not isinstance(value, staticmethod)
            call_filter = CallFilter(holder) if is_shared else None
            yield NamedFunction(path, name, holder, function, call_filter), segments[1:]


def import_python_module(name: str) -> Any:
    """The module of that name, imported if the program has not done so."""
    module = sys.modules.get(name)
    if module is not None:
        return module
    try:
        return _import(name)
    except UnknownModuleError:
        raise
    except Exception as error:  # raised by the module itself
        is_absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        raise UnknownModuleError(
            _describe_unknown_module(name) if is_absent else _describe_import_error(name, error)
        ) from error


def _import(name: str) -> Any:
    spec = importlib.util.find_spec(name)  # imports the packages above it
    if spec is None:
        raise UnknownModuleError(_describe_unknown_module(name))
    if _is_main_script(spec):
        raise UnknownModuleError(
            f"{name!r} is the program itself, which must not run twice; write '__main__:...'"
        )
    return importlib.import_module(name)


def _is_main_script(spec: Any) -> bool:
    main = sys.modules.get("__main__")
    files = [getattr(main, "__file__", None), spec.origin]
    return all(file and os.path.exists(file) for file in files) and os.path.samefile(*files)


def _describe_import_error(name: str, error: Exception) -> str:
    first_line = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"the module {name!r} could not be imported: {first_line}"


def _describe_unknown_module(name: str) -> str:
    package = name.rpartition(".")[0]
    siblings = pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", ()))
    suggestions = closest_names(name, [f"{package}.{sibling.name}" for sibling in siblings] or sys.modules)
    hint = f"; did you mean {' or '.join(map(repr, suggestions))}?" if suggestions else "."
    return f"there is no Python module {name!r}{hint} 'pkg.mod:func.var' begins with what is imported"


def unwrap_function(function: Any) -> FunctionType:
    """Unwrap bound, static and class methods, properties, partials and `__wrapped__`; and, if a decorator
    set no `__wrapped__`, the one function that the wrapper closes over."""
    innermost, visited, inner = None, set(), function
    while inner is not None and id(inner) not in visited:
        visited.add(id(inner))
        if isinstance(inner, FunctionType):
            innermost = inner
        inner = _unwrap_once(inner)
    if innermost is None:
        raise UnsupportedValueError(
            f"{function!r} is not a Python function, so it has no local variables; "
            "give a function, a method, or a decorated one"
        )
    return innermost


def _unwrap_once(function: Any) -> Any:
    if isinstance(function, MethodType | staticmethod | classmethod):
        return function.__func__
    if isinstance(function, property):
        return function.fget
    if isinstance(function, functools.partial | functools.partialmethod | functools.cached_property):
        return function.func
    inner = getattr(function, "__wrapped__", None)
    if inner is None and isinstance(function, FunctionType):
        return _wrapped_in_closure(function)
    return inner


def _wrapped_in_closure(wrapper: FunctionType) -> FunctionType | None:
    """The function called by a wrapper without `functools.wraps`: the wrapper takes `*args` and closes over
    exactly one function that was not defined beside it."""
    if not wrapper.__code__.co_flags & inspect.CO_VARARGS:
        return None
    enclosing = wrapper.__qualname__.rpartition(".")[0]
    contents = [cell.cell_contents for cell in wrapper.__closure__ or () if _is_filled(cell)]
    functions = [value for value in contents if isinstance(value, FunctionType)]
    outside = [candidate for candidate in functions if candidate.__qualname__.rpartition(".")[0] != enclosing]
    return outside[0] if len(functions) == len(outside) == 1 else None


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises where nothing was bound yet
    except ValueError:
        return False
    return True
