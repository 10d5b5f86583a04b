"""Tensor Tracker: calls, arguments and every change of a variable as a tree in the log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import get_ident
from typing import Any

from tensortap.core.settings import is_on
from tensortap.core.tap import Tap
from tensortap.recording.snoop import (
    DecoratedFunctions,
    WatchOptions,
    check_module_patterns,
    check_options,
)
from tensortap.sinks.tree_log import ValueLog
from tensortap.sinks.tree_writer import TreeFiles, logger
from tensortap.sources.calls.functions import MAX_DEPTH

__all__ = ["_log_change", "auto_diff", "h4logger", "log2file", "logger", "var_tracker"]

_value_log = ValueLog()
_default_files: TreeFiles | None = None  # of log2file, while the logger has none of its own


class AutoDiff(DecoratedFunctions):
    """Decorate a function: its inputs, outputs, calls and changes of variables are logged as a tree.

    >>> @auto_diff
    ... def process_data(inputs): ...
    >>> @auto_diff(stats=True, max_depth=3, tap=my_tap)
    ... def process_data(inputs): ...
    >>> auto_diff.disable()     # decorated functions run plainly; auto_diff.enable()

    The options are those of `tt.watch`; `targets` are names as `var_tracker` takes them.
    """

    def __call__(
        self,
        function: Any = None,
        *,
        targets: str | Sequence[str] = (),
        max_depth: int = MAX_DEPTH,
        max_items: int = 8,
        stats: bool = False,
        follow: str | Sequence[str] | bool | None = None,
        tap: Tap | None = None,
    ) -> Any:
        names = (targets,) if isinstance(targets, str) else tuple(targets)
        unchecked = WatchOptions(names, max_depth, max_items, stats, check_module_patterns(follow), tap=tap)
        options = check_options(unchecked, decorator="targets")
        if function is None:
            return lambda decorated: self.decorate(decorated, options)
        return self.decorate(function, options)


auto_diff = AutoDiff()


def var_tracker(
    *targets: str,
    auto_diff: bool = True,
    max_depth: int = MAX_DEPTH,
    max_items: int = 8,
    stats: bool = False,
    follow: str | Sequence[str] | bool | None = None,
    tap: Tap | None = None,
) -> Any:
    """Decorate a function: of all variables in it and in what it calls, changes of these are logged.

    >>> @var_tracker("video", "mask_*", "batch.*.mask", "latents.shape")
    ... def transform_video(video_tensor): ...

    With `auto_diff` the calls, their inputs and their outputs are shown around them.
    """
    if not targets or not all(isinstance(target, str) for target in targets):
        raise TypeError(
            f"var_tracker takes names of variables, not {targets[0]!r}; write @var_tracker('video')"
            if targets
            else "var_tracker needs the name of a variable; write @var_tracker('video')"
        )
    unchecked = WatchOptions(
        targets, max_depth, max_items, stats, check_module_patterns(follow), bool(auto_diff), tap
    )
    options = check_options(unchecked, decorator="var_tracker")
    return lambda function: _AUTO_DIFF.decorate(function, options)


_AUTO_DIFF = auto_diff  # an argument of var_tracker has its name


def h4logger(folder: str | os.PathLike[str] | None = None) -> TreeFiles:
    """A handler for `logger` with one file per process and thread,
    `./logs/<LTAG or NOTAG>/process_<pid>_thread_<id>.log`.

    >>> logger.addHandler(h4logger())
    """
    return TreeFiles(folder)


def log2file(message: object) -> None:
    """Write a message to the file of this thread; the handler is made if `logger` has none."""
    if is_on():
        _file_handler().put(get_ident(), [str(message)])


def _file_handler() -> TreeFiles:
    global _default_files
    added = next((handler for handler in logger.handlers if isinstance(handler, TreeFiles)), None)
    if added is None and _default_files is None:
        _default_files = h4logger()
    return added or _default_files  # type: ignore[return-value]


def _log_change(
    prefix: str, name: str, value: Any, indent: str = "", lineno: int = 0, *, stats: bool = False
) -> None:
    """Write one value as a line of the tree, a container with the arrays in it.

    >>> _log_change("Linear", "input", input, "", 0)
    ├─ Linear [Var] input@0 len(value): 1
    ├─ Linear [Tensor] input[0]@0 → shape=torch.Size([2, 4]) | dtype=torch.float32
    """
    if is_on():
        _value_log.write(prefix, name, value, indent, lineno, stats=stats)
