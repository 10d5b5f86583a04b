"""A source of values that the program passes itself, by default named after the caller's argument."""

from __future__ import annotations

import ast
import itertools
import linecache
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from sys import _getframe
from types import CodeType, FrameType
from typing import Any, ClassVar

from tensortap.core.ranks import current_rank_info, rank_info
from tensortap.core.record import Record, Site
from tensortap.core.tap import Tap
from tensortap.frameworks.base import framework_of


class ManualSource:
    """Turns calls into records: numbered, timestamped, and named after the caller's variable by default."""

    # Per process: a folder written by two taps in turn is read in that order.
    _order: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self) -> None:
        self._taps: list[Tap] = []
        self._calls: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)
        self._launch_ranks = rank_info()
        self._has_started = False

    def start(self, tap: Tap) -> None:
        self._has_started = True
        self._taps.append(tap)

    def stop(self) -> None:
        self._taps.clear()

    def emit(self, value: Any, name: str | None = None, *, depth: int = 0, tap: Tap | None = None) -> bool:
        """Emit a value to every tap this source is attached to, and, if one of them accepted it or there is
        none, to `tap`; `depth` counts the frames between here and the user's line. False if none accepted
        it."""
        record = self.record(value, name, _getframe(depth + 1))
        is_taken = not self._has_started
        for target in self._taps:
            is_taken |= target.emit(record)
        if tap is not None and is_taken:
            tap.emit(record)
        return is_taken

    def record(self, value: Any, name: str | None, frame: FrameType) -> Record:
        """The record of a value passed by this frame."""
        if name is None:
            name = argument_name(frame) or "value"
        elif not isinstance(name, str):
            raise TypeError(f"a name is a text, not {name!r}; dump(value, name) takes the value first")
        return Record(
            name,
            value,
            rank=current_rank_info(self._launch_ranks).rank,
            call=next(self._calls[name]),
            order=next(self._order),
            time=time.time(),
            site=site_of(frame),
            placement=framework_of(value).placement(value),
        )


def site_of(frame: FrameType) -> Site:
    # Not keyed by code object: codes that differ only in their file compare equal.
    return _site(frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno)


def argument_name(frame: FrameType) -> str | None:
    """The source of the first argument of the call this frame is making, if it is a name or dotted path."""
    return _argument_name(frame.f_code, frame.f_code.co_filename, frame.f_lasti)


@lru_cache(maxsize=4096)
def _site(function: str, file: str, line: int) -> Site:
    return Site(function, file, line)


@lru_cache(maxsize=1024)
def _argument_name(code: CodeType, file: str, instruction: int) -> str | None:
    source = _call_source(code, instruction)
    try:
        call = ast.parse(source, mode="eval").body if source else None
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or not call.args:
        return None
    root = _root_name(call.args[0])
    # A file edited since its import may show other names than the code uses.
    is_known = root in (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    return ast.unparse(call.args[0]) if is_known else None


def _call_source(code: CodeType, instruction: int) -> str | None:
    """The source of the call, from the positions of its instruction."""
    position = list(code.co_positions())[instruction // 2]
    line, end_line, column, end_column = position
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(line, end_line + 1)]
    if not all(lines):
        return None
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode()


def _root_name(node: ast.expr) -> str | None:
    """The first name of a name or dotted path."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
