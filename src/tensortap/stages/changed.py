"""Only what differs from the last value of the same name, call and rank goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.parts import Stage
from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.content import content_of
from tensortap.frameworks.nested import is_container, leaves, parts


class Changed(Stage):
    """A stage, and a predicate of records, that remembers the last value of each name, call and rank.

    `by="content"` compares what the values hold. `by="object"` passes every new object, even an equal one,
    and the same object again only after it was changed; it has to see the program's own values, because a
    snapshot is always a new object. No array is kept alive by being remembered.
    """

    def __init__(self, by: Literal["object", "content"] = "content") -> None:
        if by not in _WAYS:
            raise ValueError(f"Changed compares by {by!r}; give {' or '.join(map(repr, _WAYS))}")
        self._look = _WAYS[by]
        self._last: dict[tuple[str, int, Any], Any] = {}

    def __call__(self, record: Record) -> bool:
        key = record.name, record.call, record.rank
        before = self._last.get(key)
        now = self._look(record.value, before)
        self._last[key] = now
        return now is not before

    def push(self, record: Record) -> Iterable[Record]:
        return (record,) if self(record) else ()


# What is remembered of a value: `before` itself when nothing has changed since.
_Look = Callable[[Any, Any], Any]


class _Object:
    """The test that the framework makes, and what it does not look at."""

    def __init__(self, value: Any) -> None:
        self._hollows = _hollows(value)
        self._is_same = framework_of(value).mark(value)

    def is_still(self, value: Any) -> bool:
        return self._is_same(value) and self._hollows == _hollows(value)


class _Unlooked:
    """In place of a value that cannot be looked at, which may have changed every time."""

    def is_still(self, value: Any) -> bool:
        return False


def _look_at_object(value: Any, before: Any) -> Any:
    try:
        return before if before is not None and before.is_still(value) else _Object(value)
    except UnsupportedValueError:
        return _Unlooked()


def _look_at_content(value: Any, before: Any) -> Any:
    now = [(path, _content(leaf)) for path, leaf in leaves(value)], _hollows(value)
    return before if before == now else now


_WAYS: dict[str, _Look] = {"object": _look_at_object, "content": _look_at_content}


def _content(value: Any) -> Any:
    """What differs from another content; where there are no bytes to look at, something unlike all else."""
    found = content_of(value)
    if found is not None:
        return found
    is_constant = isinstance(value, (str, bytes, int, type(None)))
    return (type(value), value) if is_constant else object()


def _hollows(value: Any) -> list[tuple[str, type]]:
    """The empty containers in a value: they have no leaf that would tell of them."""
    if not is_container(value):
        return []
    found, seen, ahead = [], {id(value)}, [("", value)]
    while ahead:
        path, container = ahead.pop()
        inside = parts(container) or []
        if not inside:
            found.append((path, type(container)))
        for part in inside:
            if is_container(part.value) and id(part.value) not in seen:
                seen.add(id(part.value))
                ahead.append((path + part.step, part.value))
    return found
