"""What is kept of a captured value: a snapshot that shares memory, a copy, a reference, or a few numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tensortap.frameworks.base import Framework, framework_of
from tensortap.kernels.statistics import statistics

RetentionPolicy = Callable[[Any], Any]


def retention_policy(keep: str | RetentionPolicy) -> RetentionPolicy:
    """The function behind the word; a function of the user's own is taken as it is."""
    if callable(keep):
        return keep
    found = _KEEPERS.get(keep) if isinstance(keep, str) else None
    if found is None:
        raise ValueError(
            f"keep is {keep!r}; give {', '.join(map(repr, _KEEPERS))}, or a function of the value"
        )
    return found


def as_it_is(value: Any) -> Any:
    """The very value, graph and all: for whoever hands it on at once."""
    return value


def for_tensors(keep: RetentionPolicy) -> RetentionPolicy:
    """The same for values that are torch tensors for sure."""
    if keep is not cow or sys.modules.get("torch") is None:
        return keep
    from tensortap.frameworks.torch_snapshots import share

    return share


def cow(value: Any) -> Any:
    """A snapshot that shares memory with the original until one of them is written to, where that exists."""
    kind: type = type(value)
    share = _sharing.get(kind)  # a plain dictionary: this runs for every captured value
    return share(value) if share is not None else _sharing_of(kind, framework_of(value))(value)


def clone(value: Any) -> Any:
    """A copy of its own."""
    framework = framework_of(value)
    if framework.name != "torch":
        return framework.snapshot(value)
    from tensortap.frameworks.torch_snapshots import copied

    return copied(value)


def reference(value: Any) -> Any:
    """The value itself, without its graph: what is written to it later shows."""
    return value.detach() if framework_of(value).name == "torch" else value


def on_host(value: Any) -> Any:
    """A copy in the host's memory."""
    if framework_of(value).name != "torch" or value.device.type == "cpu":
        return cow(value)
    from tensortap.frameworks.torch_snapshots import fetched

    return fetched(value)


def summary(value: Any) -> Any:
    """min, max, mean, std, norm and the number of NaN and Inf, instead of the value."""
    framework = framework_of(value)
    if framework.name != "torch":
        return statistics(framework.bits(value), framework.describe(value).dtype)
    return _summarise()(value)


_KEEPERS: dict[str, RetentionPolicy] = {
    "cow": cow,
    "clone": clone,
    "ref": reference,
    "cpu": on_host,
    "stats": summary,
}


_sharing: dict[type, RetentionPolicy] = {}


def _sharing_of(kind: type, framework: Framework) -> RetentionPolicy:
    if framework.name != "torch":
        return framework.snapshot  # asked each time: another framework may come to own these values
    from tensortap.frameworks.torch_snapshots import share  # torch is there already: the value is its own

    return _sharing.setdefault(kind, share)


@lru_cache(maxsize=1)
def _summarise() -> RetentionPolicy:
    from tensortap.frameworks.torch_summary import summarise

    return summarise
