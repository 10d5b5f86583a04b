"""Trace the calls of decorated functions and what they call: the wrappers, and the scope of a trace."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, Protocol

from tensortap.core.patterns import matches_pattern
from tensortap.core.ranks import current_rank_info, rank_info
from tensortap.core.settings import is_on
from tensortap.core.tap import Tap
from tensortap.frameworks.base import disable_compile
from tensortap.sources.calls.changes import NO_RESULT
from tensortap.sources.calls.follow import OWN_FOLDER, CallTrace, FunctionInfo, get_function_info
from tensortap.sources.function_names import unwrap_function
from tensortap.sources.probes.settrace import active_observers

# They are no level of the tree; the functions they call are.
_TRANSPARENT = {"<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
_MODULE_CALLS = {"_call_impl", "_wrapped_call_impl"}
# Python calls these implicitly, or so often that they would hide everything else.
IMPLICIT_METHODS = frozenset(
    ("__del__", "__repr__", "__str__", "__format__", "__getattr__", "__getattribute__", "__setattr__",
     "__delattr__", "__hash__", "__eq__", "__ne__", "__bool__", "__instancecheck__", "__subclasscheck__")
)  # fmt: skip
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")


class TraceScope:
    """The code to trace: the program's own, the packages of decorated functions, and requested modules."""

    def __init__(self, follow: Sequence[str] | bool | None = None) -> None:
        self._packages: set[str] = set()
        self._is_all = follow is True
        self._patterns = () if isinstance(follow, bool) or follow is None else tuple(follow)

    def add(self, module: str | None) -> None:
        """Add the package of a decorated function."""
        self._packages.add(root_package(module))

    def contains(self, frame: FrameType) -> bool:
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED or code.co_filename.startswith(OWN_FOLDER):
            return False
        if code.co_name in _TRANSPARENT or code.co_name in IMPLICIT_METHODS or code.co_name in _MODULE_CALLS:
            return False
        module = frame.f_globals.get("__name__")
        return not is_generated(code) and self._is_inside(module if isinstance(module, str) else "", code)

    def _is_inside(self, module: str, code: CodeType) -> bool:
        root = root_package(module)
        if self._is_all or root in self._packages:
            return True
        if any(
            matches_pattern(pattern, module) or matches_pattern(f"{pattern}.**", module)
            for pattern in self._patterns
        ):
            return True
        return root != "tensortap" and not is_library(_file_of(code, root))


def root_package(module: str | None) -> str:
    """The top-level package."""
    return (module or "").partition(".")[0]


def is_generated(code: CodeType) -> bool:
    """Whether it is generated, like a dataclass's `__init__`: without a file, with a dunder name."""
    return code.co_filename.startswith("<") and code.co_name.startswith("__")


def _file_of(code: CodeType, root: str) -> str:
    if not code.co_filename.startswith("<"):
        return code.co_filename
    if code.co_filename.startswith("<frozen"):
        return _library_folders()[0]
    return getattr(sys.modules.get(root), "__file__", None) or ""


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether it is of the standard library or site-packages."""
    return bool(_INSTALLED.search(file)) or file.startswith(_library_folders())


@lru_cache(maxsize=1)
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


MAX_DEPTH = 20
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property, functools.partialmethod)
# Called before there is an object, or a class, to trace.
_NEVER_WRAPPED = IMPLICIT_METHODS | {"__new__", "__init_subclass__", "__class_getitem__", "__set_name__"}


class TracedFunctions:
    """Traces the calls of the functions it has wrapped, into every tap it is attached to.

    `targets` are patterns of variables (`video`, `self.cache`, `mask_*`), by default all. `follow` names
    modules to trace besides the program's own, or is True for all. `max_depth` limits the levels below the
    decorated function.
    """

    def __init__(
        self,
        targets: Sequence[str] | None = None,
        follow: Sequence[str] | bool | None = None,
        max_depth: int = MAX_DEPTH,
    ) -> None:
        self.targets = None if targets is None else tuple(targets)
        self.max_depth = max_depth
        self.is_enabled = True
        self.taps: tuple[Tap, ...] = ()
        self._launch_ranks = rank_info()
        self._scope = TraceScope(follow)
        # By the id of the code, whose hash is slow.
        self._infos: dict[int, tuple[CodeType, FunctionInfo | None]] = {}
        self._is_target_by_path: dict[str, bool] = {}

    def start(self, tap: Tap) -> None:
        self.taps = (*self.taps, tap)

    def stop(self) -> None:
        self.taps = ()

    def wrap(self, function: Any) -> Any:
        """The wrapper of a function or method of any kind; a class is returned itself, with its own methods
        wrapped."""
        if isinstance(function, type):
            return self._wrap_class(function)
        if not callable(function) and not isinstance(function, _DESCRIPTORS):
            raise TypeError(
                f"only functions, methods and classes can be followed, not {function!r}; "
                "put the decorator right above a def or a class"
            )
        unwrap_function(function)  # raises if there is no Python code
        return self._wrap_inside(function)

    def _wrap_class(self, owner: type) -> type:
        for name, member in list(vars(owner).items()):
            if name not in _NEVER_WRAPPED and _is_method_of(owner, member):
                wrapped = self._wrap_inside(member)
                setattr(owner, name, wrapped)
                if isinstance(wrapped, functools.cached_property):
                    wrapped.__set_name__(owner, name)
        return owner

    def _wrap_inside(self, function: Any) -> Any:
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self._wrap_inside(function.__func__))
        if isinstance(function, property):
            accessors = (function.fget, function.fset, function.fdel)
            get, put, delete = (accessor and self._wrap_inside(accessor) for accessor in accessors)
            return property(get, put, delete, function.__doc__)
        if isinstance(function, functools.cached_property):
            return functools.cached_property(self._wrap_inside(function.func))
        if isinstance(function, functools.partialmethod):
            inner = self._wrap_inside(function.func)
            return functools.partialmethod(inner, *function.args, **function.keywords)
        return self._wrap_callable(function)

    def _wrap_callable(self, function: Callable[..., Any]) -> Callable[..., Any]:
        real = unwrap_function(function)
        self._scope.add(real.__module__)
        self._infos.clear()
        return wrap_call(function, functools.partial(self._make_trace, real))

    def _make_trace(self, real: FunctionType) -> CallTrace | None:
        """A trace for this call; None without taps, or if it is part of a trace that they receive already."""
        if not self.taps or not self.is_enabled or not is_on():
            return None
        code = real.__code__
        for trace in active_observers():
            if isinstance(trace, CallTrace) and trace.will_trace(code) and self._is_covered_by(trace):
                trace.source.include(code)
                return None
        self.include(code)
        return CallTrace(self, code, current_rank_info(self._launch_ranks).rank)

    def _is_covered_by(self, trace: CallTrace) -> bool:
        return all(any(tap is traced for traced in trace.source.taps) for tap in self.taps)

    def include(self, code: CodeType) -> None:
        """Trace it whatever the scope, because it was decorated."""
        self._infos[id(code)] = (code, get_function_info(code))

    def function_info(self, frame: FrameType) -> FunctionInfo | None:
        code = frame.f_code
        cached = self._infos.get(id(code))
        if cached is None:
            info = get_function_info(code) if self._scope.contains(frame) else None
            cached = self._infos[id(code)] = (code, info)
        return cached[1]

    @property
    def wants(self) -> Callable[[str], bool] | None:
        return None if self.targets is None else self._is_target

    def _is_target(self, path: str) -> bool:
        is_target = self._is_target_by_path.get(path)
        if is_target is None:
            is_target = self._is_target_by_path[path] = any(
                _matches_target(pattern, path) for pattern in self.targets or ()
            )
        return is_target

    def fail(self) -> None:
        """Called while an exception is being handled."""
        for tap in self.taps:
            tap.fail(self)


def _matches_target(pattern: str, path: str) -> bool:
    """Whether the pattern matches the variable, a part of it, or a container of it."""
    return (
        matches_pattern(pattern, path)
        or matches_pattern(f"{pattern}.**", path)
        or pattern.startswith(f"{path}.")
    )


def _is_method_of(owner: type, member: Any) -> bool:
    """Not a method that a library has added, as `dataclasses` and `enum` do: it would all be traced."""
    if not isinstance(member, (FunctionType, *_DESCRIPTORS)):
        return False
    try:
        real = unwrap_function(member)
    except TypeError:  # wraps something without Python code
        return False
    is_own_code = root_package(real.__module__) == root_package(owner.__module__) or not is_library(
        real.__code__.co_filename
    )
    return is_own_code and not is_generated(real.__code__)


class CallTracer(Protocol):
    """Traces one call of a function."""

    def begin(self) -> None:
        """Trace this thread from here to `end`."""

    def end(self, result: Any = NO_RESULT) -> None:
        """Also called if `begin` was interrupted; safe to call twice. `result` is a plain function's."""


MakeTracer = Callable[[], CallTracer | None]  # None: call it untraced


def wrap_call(function: Callable[..., Any], make_tracer: MakeTracer) -> Callable[..., Any]:
    """A wrapper of the same kind: plain function, generator, coroutine or async generator."""
    if inspect.isasyncgenfunction(function):
        wrapper = _wrap_async_generator(function, make_tracer)
    elif inspect.iscoroutinefunction(function):
        wrapper = _wrap_coroutine(function, make_tracer)
    elif inspect.isgeneratorfunction(function):
        wrapper = _wrap_generator(function, make_tracer)
    else:
        wrapper = _wrap_plain(function, make_tracer)
    functools.update_wrapper(wrapper, function)
    disable_compile(wrapper, "a watched function runs line by line")
    return wrapper


def _wrap_plain(function: Callable[..., Any], make_tracer: MakeTracer) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        tracer = make_tracer()
        if tracer is None:
            return function(*args, **kwargs)
        result = NO_RESULT
        try:
            tracer.begin()
            result = function(*args, **kwargs)
            return result
        finally:
            tracer.end(result)

    return call


def _wrap_generator(function: Callable[..., Any], make_tracer: MakeTracer) -> Callable[..., Any]:
    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        tracer = make_tracer()
        inner = function(*args, **kwargs)
        return (yield from inner if tracer is None else _TracedIterator(inner, tracer))

    return generate


def _wrap_coroutine(function: Callable[..., Any], make_tracer: MakeTracer) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> Any:
        tracer = make_tracer()
        inner = function(*args, **kwargs)
        return await (inner if tracer is None else _TracedAwaitable(inner, tracer))

    return run


def _wrap_async_generator(function: Callable[..., Any], make_tracer: MakeTracer) -> Callable[..., Any]:
    async def generate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        tracer = make_tracer()
        inner = function(*args, **kwargs)
        awaitable = inner.asend(None)
        while True:
            try:
                value = await (awaitable if tracer is None else _TracedAwaitable(awaitable, tracer))
            except StopAsyncIteration:
                return
            try:
                awaitable = inner.asend((yield value))
            except GeneratorExit:
                closing = inner.aclose()
                await (closing if tracer is None else _TracedAwaitable(closing, tracer))
                raise
            except BaseException as error:  # noqa: BLE001 - thrown into the wrapper, passed on
                awaitable = inner.athrow(error)

    return generate


class _TracedIterator:
    """A generator or coroutine that is traced while it runs, not while it is suspended."""

    def __init__(self, inner: Any, tracer: CallTracer) -> None:
        self._inner, self._tracer = inner, tracer

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        try:
            self._tracer.begin()
            return self._inner.send(value)
        finally:
            self._tracer.end()

    def throw(self, *error: Any) -> Any:
        try:
            self._tracer.begin()
            return self._inner.throw(*error)
        finally:
            self._tracer.end()

    def close(self) -> None:
        try:
            self._tracer.begin()
            self._inner.close()
        finally:
            self._tracer.end()


class _TracedAwaitable:
    def __init__(self, inner: Any, tracer: CallTracer) -> None:
        self._inner, self._tracer = inner, tracer

    def __await__(self) -> Any:
        # The awaitable of `asend` is its own iterator; a coroutine has send and throw itself.
        return _TracedIterator(self._inner, self._tracer)
