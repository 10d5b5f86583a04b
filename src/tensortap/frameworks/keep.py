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
    found = _POLICIES.get(keep) if isinstance(keep, str) else None
    if found is None:
        raise ValueError(
            f"keep is {keep!r}; give {', '.join(map(repr, _POLICIES))}, or a function of the value"
        )
    return found


def keep_unchanged(value: Any) -> Any:
    """The very value, graph and all: for whoever hands it on at once."""
    return value


def specialise_for_torch(keep: RetentionPolicy) -> RetentionPolicy:
    """The same for values that are torch tensors for sure."""
    if keep is not copy_on_write or sys.modules.get("torch") is None:
        return keep
    from tensortap.frameworks.torch_snapshots import share_copy_on_write

    return share_copy_on_write


def copy_on_write(value: Any) -> Any:
    """A snapshot that shares memory with the original until one of them is written to, where that exists."""
    kind: type = type(value)
    share = _sharing_by_type.get(kind)  # a plain dictionary: this runs for every captured value
    return share(value) if share is not None else _resolve_sharing(kind, framework_of(value))(value)


def clone(value: Any) -> Any:
    """A copy of its own."""
    framework = framework_of(value)
    if framework.name != "torch":
        return framework.snapshot(value)
    from tensortap.frameworks.torch_snapshots import copy_tensor

    return copy_tensor(value)


def detached_reference(value: Any) -> Any:
    """The value itself, without its graph: what is written to it later shows."""
    return value.detach() if framework_of(value).name == "torch" else value


def copy_to_host(value: Any) -> Any:
    """A copy in the host's memory."""
    if framework_of(value).name != "torch" or value.device.type == "cpu":
        return copy_on_write(value)
    from tensortap.frameworks.torch_snapshots import copy_tensor_to_host

    return copy_tensor_to_host(value)


def summarise_value(value: Any) -> Any:
    """min, max, mean, std, norm and the number of NaN and Inf, instead of the value."""
    framework = framework_of(value)
    if framework.name != "torch":
        return statistics(framework.bits(value), framework.describe(value).dtype)
    return _torch_summarise()(value)


_POLICIES: dict[str, RetentionPolicy] = {
    "cow": copy_on_write,
    "clone": clone,
    "ref": detached_reference,
    "cpu": copy_to_host,
    "stats": summarise_value,
}


_sharing_by_type: dict[type, RetentionPolicy] = {}


def _resolve_sharing(kind: type, framework: Framework) -> RetentionPolicy:
    if framework.name != "torch":
        return framework.snapshot  # asked each time: another framework may come to own these values
    from tensortap.frameworks.torch_snapshots import (
        share_copy_on_write,  # torch is there already: the value is its own
    )

    return _sharing_by_type.setdefault(kind, share_copy_on_write)


@lru_cache(maxsize=1)
def _torch_summarise() -> RetentionPolicy:
    from tensortap.frameworks.torch_summary import summarise_tensor

    return summarise_tensor
