"""A sink that logs records as a call tree, each line as it happens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any

from tensortap.core.record import Record
from tensortap.render.call_tree import CALL_END_KINDS, CallTree, ModuleCallTree, RepeatFolder, ValueLines
from tensortap.render.call_tree_values import CallLine, ValueFormatter, choose_labels
from tensortap.sinks.tree_writer import OutputScheduler, output_encoding, output_scheduler, shares_terminal

_BLOCK_ENDS = (*CALL_END_KINDS, "yield")
_CALL_KINDS = ("call", "input", "local", "return", "yield", "raise")


class TreeLog:
    """Traced calls as trees, one per outermost call; records of a model's modules as a tree per step.

    Lines go to the logger `tensortap.tree`. `max_items`: how many arrays of a container are shown;
    `stats`: min, max, mean and norm of every array; `is_target`: which names are highlighted.
    """

    # A tree belongs to the thread that runs its call, and the scheduler has its own lock. With the tap's,
    # a user's __repr__ that waits for another thread could deadlock.
    needs_no_lock = True

    def __init__(
        self,
        *,
        max_depth: int | None = None,
        max_items: int = 8,
        stats: bool = False,
        is_target: Callable[[str], bool] | None = None,
        output: OutputScheduler = output_scheduler,
    ) -> None:
        self._values = ValueFormatter(stats=stats, max_items=max_items)
        self._max_depth, self._is_target, self._output = max_depth, is_target, output
        self._trees: dict[tuple[int, int], OpenTree] = {}  # by tree number, or by thread

    def write(self, record: Record) -> None:
        site = record.site
        is_call = site is not None and site.tree != 0 and record.kind in _CALL_KINDS
        key = (site.tree, 0) if site is not None and is_call else (0, get_ident())
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = self._open_tree(record, is_call)
        tree.add(record)
        if not is_call:
            if tree.is_over:
                self._end_tree(key, tree, for_now=True)
        elif site is not None and not site.depth and record.kind in _BLOCK_ENDS:
            self._end_tree(key, tree, for_now=record.kind == "yield")

    def flush(self) -> None:
        for key, tree in list(self._trees.items()):
            if not key[0]:
                tree.flush()

    def close(self) -> None:
        """Write open trees as far as they got."""
        for key, tree in list(self._trees.items()):
            self._end_tree(key, tree)

    def _open_tree(self, record: Record, is_call: bool) -> OpenTree:
        labels = choose_labels(output_encoding())
        extra = _origin_label(record)
        if not is_call:
            formatter: CallTree | ModuleCallTree = ModuleCallTree(
                self._values, labels, max_depth=self._max_depth, extra=extra
            )
        else:
            formatter = CallTree(
                self._values, labels, max_depth=self._max_depth, is_target=self._is_target, extra=extra
            )
        file = record.site.file if record.site is not None else ""
        return OpenTree(formatter, RepeatFolder(labels), self._output, file, labels.goes_on)

    def _end_tree(self, key: tuple[int, int], tree: OpenTree, *, for_now: bool = False) -> None:
        tree.flush()
        if not for_now:
            self._trees.pop(key, None)
        self._output.end(tree, for_now=for_now)


class OpenTree:
    """One tree from its first line to its last."""

    def __init__(
        self,
        formatter: CallTree | ModuleCallTree,
        fold: RepeatFolder,
        output: OutputScheduler,
        file: str,
        continuation_label: str,
    ) -> None:
        self._formatter, self._fold, self._output = formatter, fold, output
        self._continuation_label = continuation_label
        self.file = file
        self.thread, self.thread_name = get_ident(), threading.current_thread().name

    def add(self, record: Record) -> None:
        lines: list[CallLine] = []
        for line in self._formatter.lines(record):
            lines += self._fold.add(line)
        self._output.put(self, lines)

    def flush(self) -> None:
        self._output.put(self, self._fold.end())

    @property
    def is_over(self) -> bool:
        """Whether the model's forward has ended, as far as the records show."""
        return isinstance(self._formatter, ModuleCallTree) and self._formatter.is_over

    def continuation_header(self) -> CallLine:
        return CallLine(f"┌── {self._formatter.title} {self._continuation_label}", is_header=True)


class ValueLog:
    """Single values that the program logs itself, independent of any open tree."""

    file = thread_name = ""

    def __init__(self, output: OutputScheduler = output_scheduler) -> None:
        self._output = output
        self._lines: dict[bool, ValueLines] = {}

    def write(
        self, prefix: str, name: str, value: Any, indent: str, lineno: int, *, stats: bool = False
    ) -> None:
        """`prefix` takes the place of a tree's input or output label; `indent` goes before the line."""
        lines = self._lines.get(stats)
        if lines is None:
            lines = self._lines[stats] = ValueLines(
                ValueFormatter(stats=stats), choose_labels(output_encoding())
            )
        head = f"{indent}├─ {prefix} " if prefix else f"{indent}├─ "
        self._output.write_now(self, lines.binding_lines(head, str(name), value, lineno, {}))

    @property
    def thread(self) -> int:
        return get_ident()

    def continuation_header(self) -> CallLine:
        return CallLine("")


def _origin_label(record: Record) -> str:
    """pid, rank and thread of the record, where they are not the main ones."""
    parts = [f"pid {os.getpid()}"] if shares_terminal() else []
    if record.rank:
        parts.append(f"rank {record.rank}")
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        parts.append(f"thread {thread.name}")
    return f"  {', '.join(parts)}" if parts else ""
