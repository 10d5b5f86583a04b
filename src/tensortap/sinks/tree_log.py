"""A sink that writes records as a tree of calls, each line as it happens."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from threading import get_ident
from typing import Any

from tensortap.core.record import Record
from tensortap.formats.call_tree import ENDS, CallTree, ValueLines
from tensortap.formats.call_tree_fold import Fold
from tensortap.formats.call_tree_labels import Line, labels_for
from tensortap.formats.call_tree_modules import ModuleTree
from tensortap.formats.call_tree_values import CallValues
from tensortap.sinks.tree_output import Desk, desk, encoding, is_child

_PAUSES = (*ENDS, "yield")
_CALLS = ("call", "input", "local", "return", "yield", "raise")


class TreeLog:
    """Followed calls as trees, one per outermost call; records of a model's modules as a tree per step.

    Lines go to the logger `tensortap.tree`. `max_items`: of a container, how many of its arrays are shown;
    `stats`: lowest, highest, mean and norm of every array; `is_target`: which names stand out.
    """

    # A tree belongs to the thread that runs its call, and the desk has a lock of its own. A repr of the
    # program's that waits for another thread must not find that one waiting for us.
    needs_no_lock = True

    def __init__(
        self,
        *,
        max_depth: int | None = None,
        max_items: int = 8,
        stats: bool = False,
        is_target: Callable[[str], bool] | None = None,
        at: Desk = desk,
    ) -> None:
        self._values = CallValues(stats=stats, max_items=max_items)
        self._max_depth, self._is_target, self._desk = max_depth, is_target, at
        self._trees: dict[tuple[int, int], OpenTree] = {}  # by number of the tree, or by thread

    def write(self, record: Record) -> None:
        site = record.site
        is_call = site is not None and site.tree != 0 and record.kind in _CALLS
        key = (site.tree, 0) if site is not None and is_call else (0, get_ident())
        tree = self._trees.get(key)
        if tree is None:
            tree = self._trees[key] = self._opened(record, is_call)
        tree.add(record)
        if not is_call:
            if tree.is_over:
                self._leave(key, tree, for_now=True)
        elif site is not None and not site.depth and record.kind in _PAUSES:
            self._leave(key, tree, for_now=record.kind == "yield")

    def flush(self) -> None:
        for key, tree in list(self._trees.items()):
            if not key[0]:
                tree.flush()

    def close(self) -> None:
        """What is open is written as far as it came."""
        for key, tree in list(self._trees.items()):
            self._leave(key, tree)

    def _opened(self, record: Record, is_call: bool) -> OpenTree:
        labels = labels_for(encoding())
        extra = _origin(record)
        if not is_call:
            form: CallTree | ModuleTree = ModuleTree(
                self._values, labels, max_depth=self._max_depth, extra=extra
            )
        else:
            form = CallTree(
                self._values, labels, max_depth=self._max_depth, is_target=self._is_target, extra=extra
            )
        file = record.site.file if record.site is not None else ""
        return OpenTree(form, Fold(labels), self._desk, file, labels.goes_on)

    def _leave(self, key: tuple[int, int], tree: OpenTree, *, for_now: bool = False) -> None:
        tree.flush()
        if not for_now:
            self._trees.pop(key, None)
        self._desk.end(tree, for_now=for_now)


class OpenTree:
    """One tree from its first line to its last."""

    def __init__(self, form: CallTree | ModuleTree, fold: Fold, at: Desk, file: str, goes_on: str) -> None:
        self._form, self._fold, self._desk = form, fold, at
        self._goes_on = goes_on
        self.file = file
        self.thread, self.thread_name = get_ident(), threading.current_thread().name

    def add(self, record: Record) -> None:
        lines: list[Line] = []
        for line in self._form.lines(record):
            lines += self._fold.add(line)
        self._desk.put(self, lines)

    def flush(self) -> None:
        self._desk.put(self, self._fold.end())

    @property
    def is_over(self) -> bool:
        """Whether a model's forward has come to its end, as far as can be seen."""
        return isinstance(self._form, ModuleTree) and self._form.is_over

    def go_on(self) -> Line:
        return Line(f"┌── {self._form.title} {self._goes_on}", is_header=True)


class LooseLines:
    """Values that the program logs itself, line by line, whatever trees there are."""

    file = thread_name = ""

    def __init__(self, at: Desk = desk) -> None:
        self._desk = at
        self._lines: dict[bool, ValueLines] = {}

    def write(
        self, prefix: str, name: str, value: Any, indent: str, lineno: int, *, stats: bool = False
    ) -> None:
        """`prefix` stands where a tree says input or output; `indent` goes before the line."""
        lines = self._lines.get(stats)
        if lines is None:
            lines = self._lines[stats] = ValueLines(CallValues(stats=stats), labels_for(encoding()))
        head = f"{indent}├─ {prefix} " if prefix else f"{indent}├─ "
        self._desk.say(self, lines.bound(head, str(name), value, lineno, {}))

    @property
    def thread(self) -> int:
        return get_ident()

    def go_on(self) -> Line:
        return Line("")


def _origin(record: Record) -> str:
    """Who speaks, where it is not the only process and thread."""
    words = [f"pid {os.getpid()}"] if is_child() else []
    if record.rank:
        words.append(f"rank {record.rank}")
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        words.append(f"thread {thread.name}")
    return f"  {', '.join(words)}" if words else ""
