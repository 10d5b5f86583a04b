"""The records of a model's forward as a call tree: modules instead of functions."""

from __future__ import annotations

import re
from typing import Any

from tensortap.core.record import Record
from tensortap.formats.call_tree import ValueLines
from tensortap.formats.call_tree_labels import BAR, Labels, Line
from tensortap.formats.call_tree_values import CallValues
from tensortap.formats.tree_words import escape_unprintable

# A name is the module's path, then what of it: `h.0.in.x`, `h.0[1]`, `out.logits`, `h.0.forward.scores`.
_INPUT = re.compile(r"(?:(.*?)\.)??in\.(.+)")
_OUTPUT = re.compile(r"(?:(.*?)\.)??out((?:[.\[].*)?)")
_ITEM = re.compile(r"([^\[]*)(\[.*)?")


class ModuleTree:
    """One forward; a module has a line of its own when something inside it is told before its output."""

    def __init__(
        self, values: CallValues, labels: Labels, *, max_depth: int | None = None, extra: str = ""
    ) -> None:
        self._lines = ValueLines(values, labels)
        self._labels, self._max_depth, self._extra = labels, max_depth, extra
        self._open: list[str] = []  # paths from the top down
        self._closed = ""
        self._step: Any = None
        self._known: dict[str, Any] = {}
        self.title = labels.step
        self.is_over = False  # after the output of the model itself

    def lines(self, record: Record) -> list[Line]:
        begun = self._begun(record)
        self.is_over = False
        if record.kind == "input":
            return [*begun, *self._input(record)]
        if record.kind == "output":
            return [*begun, *self._output(record)]
        is_local = record.kind == "local" and ".forward." in record.name
        path, name = record.name.split(".forward.", 1) if is_local else ("", record.name)
        return [*begun, *self._inside(path, name, record)]

    def _begun(self, record: Record) -> list[Line]:
        if record.step == self._step:
            return []
        self._step, self._open, self._closed = record.step, [], ""
        self._known = {}
        self.title = f"{self._labels.step} {record.step}"
        return [Line(f"┌── {self.title}{self._extra}", is_header=True)]

    def _input(self, record: Record) -> list[Line]:
        found = _INPUT.fullmatch(record.name)
        path, name = (found[1] or "", found[2]) if found else ("", record.name)
        above = self._entered(path)
        head = f"{BAR * len(self._open)}├─ {self._labels.input} "
        return [*above, *self._told(head, path, name, record)]

    def _output(self, record: Record) -> list[Line]:
        path, item = _output_of(record.name)
        if path in ("", *self._open) or path == self._closed:
            return self._left(path, item, record)
        above = self._entered(path.rpartition(".")[0])
        within = path.removeprefix(self._open[-1] + ".") if self._open else path
        return [*above, *self._told(f"{BAR * (len(self._open) + 1)}├─ ", path, within + item, record)]

    def _inside(self, path: str, name: str, record: Record) -> list[Line]:
        above = self._entered(path) if path else []
        head = f"{BAR * (len(self._open) + 1)}├─ "
        return [*above, *self._told(head, path, name, record)]

    def _told(self, head: str, path: str, name: str, record: Record) -> list[Line]:
        if self._is_too_deep():
            return []
        line = record.site.line if record.site is not None else 0
        known: dict[str, Any] = {}  # a name comes once in a call, and calls are not held against each other
        if record.kind == "local":
            known = self._known.setdefault(path, {})
        return self._lines.bound(head, name, record.value, line, known)

    def _entered(self, path: str) -> list[Line]:
        """The headers of the modules that must have been entered on the way there."""
        self._open = [one for one in self._open if path == one or path.startswith(one + ".")]
        lines = []
        if path and (not self._open or self._open[-1] != path):
            self._open.append(path)
            self._known.pop(path, None)
            text = f"{BAR * len(self._open)}┌── {self._labels.module} [{path}]"
            lines = [] if self._is_too_deep() else [Line(escape_unprintable(text), is_header=True)]
        return lines

    def _left(self, path: str, item: str, record: Record) -> list[Line]:
        if path != self._closed or not path:
            self._open = [one for one in self._open if path.startswith(one + ".")]
            self._closed = path
        self.is_over = not path
        bars = BAR * (len(self._open) + (2 if path else 1))
        if self._max_depth is not None and len(self._open) >= self._max_depth:
            return []
        return self._lines.given(bars, self._labels.output + item, record.value, ())

    def _is_too_deep(self) -> bool:
        return self._max_depth is not None and len(self._open) > self._max_depth


def _output_of(name: str) -> tuple[str, str]:
    found = _OUTPUT.fullmatch(name)
    if found:
        return found[1] or "", found[2] or ""
    path, item = _ITEM.fullmatch(name).groups()  # type: ignore[union-attr]
    return path, item or ""
