"""Tensor Dumper: dump values into a timestamped run with everything needed to reproduce it, and compare."""

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from tensortap.comparison.values.compare import compare, difference
from tensortap.core.errors import NotInitialisedError
from tensortap.core.interpreter import call_at_child_exit
from tensortap.core.ranks import rank_info
from tensortap.core.record import Record
from tensortap.core.settings import is_on
from tensortap.core.steps import listen_if_requested
from tensortap.core.tap import Tap
from tensortap.formats.run_layout import agree_on_run, write_failed_error
from tensortap.frameworks.base import disable_compile
from tensortap.metadata.collect import Metadata
from tensortap.metadata.process import timestamp_zone
from tensortap.sinks.run_directory import Layout, RunDirectory
from tensortap.sources.manual import ManualSource

__all__ = ["close", "compare", "difference", "disable", "dump", "enable", "flush", "init", "update_metadata"]

_is_enabled = is_on()
_source = ManualSource()
_standalone_source = ManualSource()  # for values that go into the user's own tap alone
_tap: Tap | None = None
_metadata: Metadata | None = None
_attempts = 0


def init(
    folder_name: str | os.PathLike[str],
    *,
    background: bool = False,
    on_full: Literal["wait", "drop"] = "wait",
    budget: int = 256 << 20,
    layout: Layout = "files",
    stats: bool = False,
    timezone: str | None = None,
    env: Literal["all", "redact", "names"] = "redact",
    live: bool = False,
) -> Path | None:
    """Start a run in a new timestamped folder under `folder_name`, with its metadata; return its path.

    Calling it again starts another run. All ranks share one folder. `live` opens the program to live
    sessions (`tt.listen()`). With `TENSORTAP=0` it does nothing and returns None.

    >>> tt.init("experiments")
    >>> tt.dump(output, "layer1_output")
    """
    global _tap, _metadata, _source, _attempts, _is_enabled
    if not is_on():
        _is_enabled = False
        return None
    zone = timestamp_zone(timezone)
    _check_choice("layout", layout, get_args(Layout))
    _check_choice("on_full", on_full, ("wait", "drop"))
    _check_choice("env", env, ("all", "redact", "names"))
    if not isinstance(budget, int) or budget <= 0:
        raise ValueError(f"budget is a number of bytes above zero, not {budget!r}")
    close()
    ranks = rank_info()
    _attempts += 1
    run = agree_on_run(Path(folder_name), zone, ranks, _attempts)
    metadata = Metadata(run, timezone=timezone, env=env) if ranks.rank == 0 else None
    if metadata is not None:
        _collect(metadata, metadata.write)
    sink = RunDirectory(
        run,
        layout=layout,
        background=background,
        on_full=on_full,
        budget=budget,
        stats=stats,
        write_through=True,
    )
    _source = ManualSource()
    _tap, _metadata = Tap(sinks=[sink]).attach(_source), metadata
    disable_compile(dump, "dump writes a file")
    _close_at_exit()
    _listen_if_asked(live, Path(folder_name).name)
    return run


def dump(obj: Any, name: str | None = None, update_metadata: bool = True, *, tap: Tap | None = None) -> None:
    """Write a value to the run: tensors as .pt, arrays as .npy, anything else as .pkl.

    Without a name the caller's variable gives it. When `dump` returns the file is complete (with
    `init(background=True)`: the value is safe from later changes). `update_metadata` looks whether the
    git repository moved since the last call, and collects its facts again if it did.
    """
    if not _is_enabled:
        return
    is_emitted = False
    while not is_emitted:
        current, source, metadata = _tap, _source, _metadata
        if current is None and tap is not None:
            _standalone_source.emit(obj, name, depth=1, tap=tap)
            return
        if current is None:
            raise NotInitialisedError("dump() needs a run: call init('experiments') first, once per process")
        if update_metadata and metadata is not None:
            _collect(metadata, metadata.refresh)
        # Another thread may have begun a new run meanwhile: then the value belongs there.
        is_emitted = source.emit(obj, name, depth=1, tap=tap) or _tap is current


def enable() -> None:
    """Let `dump` write again; `TENSORTAP=0` in the environment is stronger."""
    global _is_enabled
    _is_enabled = is_on()


def disable() -> None:
    """Make `dump` return at once, whatever it is given."""
    global _is_enabled
    _is_enabled = False


def update_metadata() -> None:
    """Collect the facts of the run again; files are rewritten only where something changed."""
    if not is_on():
        return
    if _tap is None:
        raise NotInitialisedError("update_metadata() needs a run: call init('experiments') first")
    if _metadata is not None:
        _collect(_metadata, _metadata.write)


def flush() -> None:
    """Return when everything dumped so far is on disk."""
    if _tap is not None:
        _tap.flush()


def close() -> None:
    """End the run: write what waits and close its files. `init` starts the next one."""
    global _tap, _metadata
    tap, _tap, _metadata = _tap, None, None
    atexit.unregister(close)
    if tap is not None:
        tap.close()


def _listen_if_asked(is_wanted: bool, name: str) -> None:
    if is_wanted:
        from tensortap.live.job.endpoint import listen  # imported lazily: only live runs need it

        listen(name, dump_to=_dump_live_record)
    listen_if_requested()


def _dump_live_record(record: Record) -> None:
    """Write a record that a live session dumps."""
    if _tap is not None:
        _tap.emit(record)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; give {' or '.join(map(repr, choices))}")


def _collect(metadata: Metadata, collect: Callable[[], object]) -> None:
    try:
        collect()
    except OSError as error:
        raise write_failed_error("the metadata", metadata.folder, error) from error


def _close_at_exit() -> None:
    atexit.register(close)
    call_at_child_exit(close)
