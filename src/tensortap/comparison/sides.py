"""What can be compared, as a side: runs, folders of runs, trace files, files, captures, records, values."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensortap.comparison import held_sides, run_side
from tensortap.comparison.entries import Entry as Entry
from tensortap.comparison.entries import Side as Side
from tensortap.core.record import Record
from tensortap.formats import safetensors
from tensortap.readers.run import Run
from tensortap.recording.captured import Captured

_TRACE_SUFFIXES = (".h5", ".hdf5")


def load_side(source: Any, label: str = "") -> Side:
    """What can be compared: a run or a folder of runs, a trace file, a file of values, a capture, records, or
    values by name.

    >>> load_side("runs/20251028_143041")
    >>> load_side(cap)
    >>> load_side({"logits": before})
    """
    if isinstance(source, Side):
        return source
    side = _load_path(Path(source)) if isinstance(source, (str, os.PathLike)) else _side_from_object(source)
    return replace(side, label=label) if label else side


def _load_path(path: Path) -> Side:
    from tensortap.comparison import file_sides  # late: h5py is optional

    if path.suffix.lower() in _TRACE_SUFFIXES:
        return file_sides.side_from_trace_file(path)
    if path.suffix.lower() == safetensors.SUFFIX and path.is_file():
        return file_sides.side_from_safetensors(path)
    return file_sides.side_from_file(path) if path.is_file() else run_side.side_from_folder(path)


def _side_from_object(source: Any) -> Side:
    if isinstance(source, Run):
        return run_side.side_from_run(source)
    if isinstance(source, Captured):
        return held_sides.side_from_capture(source)
    if isinstance(source, Mapping):
        return held_sides.side_from_values(source)
    if isinstance(source, Sequence) and all(isinstance(record, Record) for record in source):
        return held_sides.side_from_records(source)
    if type(source).__name__ == "TraceFile":
        return _load_path(source.path)
    raise TypeError(
        f"cannot compare a {type(source).__name__}; give a run, a folder of runs, a .h5 file, "
        "a file of values, a capture, a list of records, or a dict of values by name"
    )
