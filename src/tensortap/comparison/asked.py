"""What a caller may ask of a comparison: refused at the door where nobody could answer it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def patterns_of(only: Any) -> list[str]:
    """One pattern or several, as a list."""
    patterns = [only] if isinstance(only, str) else list(only) if isinstance(only, Iterable) else None
    if patterns is None or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f"only takes a pattern such as '**.mlp', or several of them, not {only!r}")
    return patterns


def check_executor(executor: Any) -> None:
    """Refuse what takes no work."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise TypeError(
            "executor takes an executor of concurrent.futures, such as ThreadPoolExecutor(4), "
            f"not {executor!r}; without one, threads are used"
        )
