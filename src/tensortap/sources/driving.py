"""Wrappers that run a function, a generator or a coroutine as if they were it, and have it followed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Protocol

from tensortap.frameworks.torch import disable_compile

NOTHING: Any = object()  # was returned


class Guide(Protocol):
    """Follows one call of a function."""

    def begin(self) -> None:
        """Follow what this thread runs from here to `end`."""

    def end(self, result: Any = NOTHING) -> None:
        """Also where `begin` was interrupted; safe to call twice. `result` is what a plain function gave."""


Decide = Callable[[], Guide | None]  # None: run it plainly


def wrapper(function: Callable[..., Any], decide: Decide) -> Callable[..., Any]:
    """A function of the same sort (plain, generator, coroutine, asynchronous generator)."""
    if inspect.isasyncgenfunction(function):
        made = _asynchronous_generator(function, decide)
    elif inspect.iscoroutinefunction(function):
        made = _coroutine(function, decide)
    elif inspect.isgeneratorfunction(function):
        made = _generator(function, decide)
    else:
        made = _plain(function, decide)
    functools.update_wrapper(made, function)
    disable_compile(made, "a watched function runs line by line")
    return made


def _plain(function: Callable[..., Any], decide: Decide) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        guide = decide()
        if guide is None:
            return function(*args, **kwargs)
        result = NOTHING
        try:
            guide.begin()
            result = function(*args, **kwargs)
            return result
        finally:
            guide.end(result)

    return call


def _generator(function: Callable[..., Any], decide: Decide) -> Callable[..., Any]:
    def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        guide = decide()
        inner = function(*args, **kwargs)
        return (yield from inner if guide is None else _Driven(inner, guide))

    return generate


def _coroutine(function: Callable[..., Any], decide: Decide) -> Callable[..., Any]:
    async def run(*args: Any, **kwargs: Any) -> Any:
        guide = decide()
        inner = function(*args, **kwargs)
        return await (inner if guide is None else _Awaited(inner, guide))

    return run


def _asynchronous_generator(function: Callable[..., Any], decide: Decide) -> Callable[..., Any]:
    async def generate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        guide = decide()
        inner = function(*args, **kwargs)
        ask = inner.asend(None)
        while True:
            try:
                value = await (ask if guide is None else _Awaited(ask, guide))
            except StopAsyncIteration:
                return
            try:
                ask = inner.asend((yield value))
            except GeneratorExit:
                closing = inner.aclose()
                await (closing if guide is None else _Awaited(closing, guide))
                raise
            except BaseException as error:  # noqa: BLE001 - thrown in, and so it is thrown on
                ask = inner.athrow(error)

    return generate


class _Driven:
    """A generator or coroutine that is followed while it runs, and not while it waits."""

    def __init__(self, inner: Any, guide: Guide) -> None:
        self._inner, self._guide = inner, guide

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        try:
            self._guide.begin()
            return self._inner.send(value)
        finally:
            self._guide.end()

    def throw(self, *error: Any) -> Any:
        try:
            self._guide.begin()
            return self._inner.throw(*error)
        finally:
            self._guide.end()

    def close(self) -> None:
        try:
            self._guide.begin()
            self._inner.close()
        finally:
            self._guide.end()


class _Awaited:
    def __init__(self, inner: Any, guide: Guide) -> None:
        self._inner, self._guide = inner, guide

    def __await__(self) -> Any:
        # What `asend` gives is its own iterator; a coroutine has send and throw itself.
        return _Driven(self._inner, self._guide)
