"""Decorated functions and what they call: each call, argument, change of a variable, and how it ended."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from tensortap.core.patterns import matches_pattern
from tensortap.core.ranks import current_rank_info, rank_info
from tensortap.core.settings import is_on
from tensortap.core.tap import Tap
from tensortap.sources.driving import wrapper
from tensortap.sources.following import Known, Tree, known_of
from tensortap.sources.line_tracing import followers
from tensortap.sources.real_functions import real_function
from tensortap.sources.territory import UNASKED, Territory, is_generated, is_library, package

MAX_DEPTH = 20
_DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property, functools.partialmethod)
# Made before there is an object, or a class, that could be followed.
_LEFT_ALONE = UNASKED | {"__new__", "__init_subclass__", "__class_getitem__", "__set_name__"}


class Functions:
    """Follows the calls of the functions it has wrapped, into every tap it is attached to.

    `targets` are patterns of variables (`video`, `self.cache`, `mask_*`); without them all are told. `follow`
    names modules besides the program's own, or is True for all. `max_depth` bounds the levels below the
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
        self._launched = rank_info()
        self._territory = Territory(follow)
        self._known: dict[
            int, tuple[CodeType, Known | None]
        ] = {}  # by the id of the code, whose hash is slow
        self._wanted: dict[str, bool] = {}

    def start(self, tap: Tap) -> None:
        self.taps = (*self.taps, tap)

    def stop(self) -> None:
        self.taps = ()

    def wrap(self, function: Any) -> Any:
        """What to put in the place of a function or a method of any sort; a class is given back itself, with
        all methods of its own wrapped."""
        if isinstance(function, type):
            return self._wrap_class(function)
        if not callable(function) and not isinstance(function, _DESCRIPTORS):
            raise TypeError(
                f"only functions, methods and classes can be followed, not {function!r}; "
                "put the decorator right above a def or a class"
            )
        real_function(function)  # raises where there is no Python code
        return self._wrap_inside(function)

    def _wrap_class(self, owner: type) -> type:
        for name, found in list(vars(owner).items()):
            if name not in _LEFT_ALONE and _is_method_of(owner, found):
                wrapped = self._wrap_inside(found)
                setattr(owner, name, wrapped)
                if isinstance(wrapped, functools.cached_property):
                    wrapped.__set_name__(owner, name)
        return owner

    def _wrap_inside(self, function: Any) -> Any:
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self._wrap_inside(function.__func__))
        if isinstance(function, property):
            parts = (function.fget, function.fset, function.fdel)
            get, put, delete = (part and self._wrap_inside(part) for part in parts)
            return property(get, put, delete, function.__doc__)
        if isinstance(function, functools.cached_property):
            return functools.cached_property(self._wrap_inside(function.func))
        if isinstance(function, functools.partialmethod):
            inner = self._wrap_inside(function.func)
            return functools.partialmethod(inner, *function.args, **function.keywords)
        return self._wrap_callable(function)

    def _wrap_callable(self, function: Callable[..., Any]) -> Callable[..., Any]:
        real = real_function(function)
        self._territory.add(real.__module__)
        self._known.clear()
        return wrapper(function, functools.partial(self._decide, real))

    def _decide(self, real: FunctionType) -> Tree | None:
        """A tree for this call; none where nobody listens, or it is part of one that they hear already."""
        if not self.taps or not self.is_enabled or not is_on():
            return None
        code = real.__code__
        for tree in followers():
            if isinstance(tree, Tree) and tree.will_follow(code) and self._is_heard_by(tree):
                tree.source.take_in(code)
                return None
        self.take_in(code)
        return Tree(self, code, current_rank_info(self._launched).rank)

    def _is_heard_by(self, tree: Tree) -> bool:
        return all(any(tap is one for one in tree.source.taps) for tap in self.taps)

    def take_in(self, code: CodeType) -> None:
        """Whatever it is, it was decorated."""
        self._known[id(code)] = (code, known_of(code))

    def known(self, frame: FrameType) -> Known | None:
        code = frame.f_code
        found = self._known.get(id(code))
        if found is None:
            known = known_of(code) if self._territory.holds(frame) else None
            found = self._known[id(code)] = (code, known)
        return found[1]

    @property
    def wants(self) -> Callable[[str], bool] | None:
        return None if self.targets is None else self._is_target

    def _is_target(self, path: str) -> bool:
        found = self._wanted.get(path)
        if found is None:
            found = self._wanted[path] = any(_is_wanted(one, path) for one in self.targets or ())
        return found

    def fail(self) -> None:
        """Called while an exception is being handled."""
        for tap in self.taps:
            tap.fail(self)


def _is_wanted(pattern: str, path: str) -> bool:
    """The variable itself, or a part of it, or what holds the part that is wanted."""
    return (
        matches_pattern(pattern, path)
        or matches_pattern(f"{pattern}.**", path)
        or pattern.startswith(f"{path}.")
    )


def _is_method_of(owner: type, found: Any) -> bool:
    """Not what a library has put there, as `dataclasses` and `enum` do: all of theirs would be followed."""
    if not isinstance(found, (FunctionType, *_DESCRIPTORS)):
        return False
    try:
        real = real_function(found)
    except TypeError:  # around something that has no Python code
        return False
    is_ours = package(real.__module__) == package(owner.__module__) or not is_library(
        real.__code__.co_filename
    )
    return is_ours and not is_generated(real.__code__)
