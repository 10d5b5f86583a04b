"""Drop values equal to the previous value of the same name, call and rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.protocols import Stage
from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.fingerprint import value_fingerprint
from tensortap.frameworks.pytree import children, is_container, leaves


class Changed(Stage):
    """A stage, and a predicate on records, that remembers the last value of each name, call and rank.

    `by="content"` compares fingerprints of the data. `by="object"` passes every new object, even an equal
    one, and the same object again only after it was modified; it must see the program's own values, because
    a snapshot is always a new object. Remembering a value does not keep its array alive.
    """

    def __init__(self, by: Literal["object", "content"] = "content") -> None:
        if by not in _STATE_UPDATES:
            raise ValueError(f"Changed compares by {by!r}; give {' or '.join(map(repr, _STATE_UPDATES))}")
        self._update_state = _STATE_UPDATES[by]
        self._last_states: dict[tuple[str, int, Any], Any] = {}

    def __call__(self, record: Record) -> bool:
        key = record.name, record.call, record.rank
        previous = self._last_states.get(key)
        state = self._update_state(record.value, previous)
        self._last_states[key] = state
        return state is not previous

    def push(self, record: Record) -> Iterable[Record]:
        return (record,) if self(record) else ()


# The state remembered of a value: the `previous` state itself if nothing has changed since.
_StateUpdate = Callable[[Any, Any], Any]


class _ObjectState:
    """The framework's change test, and the empty containers, which it does not cover."""

    def __init__(self, value: Any) -> None:
        self._empty_containers = _empty_containers(value)
        self._is_same = framework_of(value).mark(value)

    def is_unchanged(self, value: Any) -> bool:
        return self._is_same(value) and self._empty_containers == _empty_containers(value)


class _AlwaysChanged:
    """Stands for a value that cannot be inspected, and so may have changed every time."""

    def is_unchanged(self, value: Any) -> bool:
        return False


def _update_object_state(value: Any, previous: Any) -> Any:
    try:
        return previous if previous is not None and previous.is_unchanged(value) else _ObjectState(value)
    except UnsupportedValueError:
        return _AlwaysChanged()


def _update_content_state(value: Any, previous: Any) -> Any:
    state = [(path, _leaf_fingerprint(leaf)) for path, leaf in leaves(value)], _empty_containers(value)
    return previous if previous == state else state


_STATE_UPDATES: dict[str, _StateUpdate] = {"object": _update_object_state, "content": _update_content_state}


def _leaf_fingerprint(value: Any) -> Any:
    """A key that is equal for equal data; a unique one for values whose bytes cannot be read."""
    fingerprint = value_fingerprint(value)
    if fingerprint is not None:
        return fingerprint
    is_constant = isinstance(value, (str, bytes, int, type(None)))
    return (type(value), value) if is_constant else object()


def _empty_containers(value: Any) -> list[tuple[str, type]]:
    """Paths and types of the empty containers in a value, which leaves() does not report."""
    if not is_container(value):
        return []
    empty, seen, pending = [], {id(value)}, [("", value)]
    while pending:
        path, container = pending.pop()
        members = children(container) or []
        if not members:
            empty.append((path, type(container)))
        for child in members:
            if is_container(child.value) and id(child.value) not in seen:
                seen.add(id(child.value))
                pending.append((path + child.step, child.value))
    return empty
