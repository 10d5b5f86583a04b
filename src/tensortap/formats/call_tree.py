"""The records of followed calls as lines of a tree, in the order in which they come."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from os.path import basename
from typing import Any

from tensortap.core.record import Record, Site
from tensortap.formats.call_tree_labels import BAR, Labels, Line
from tensortap.formats.call_tree_values import CallValues, Odd, Shown, changes
from tensortap.formats.tree_words import escape_unprintable

_OWNERS = (".self", ".cls")  # the header has their class already
_POSITION = re.compile(r"\[-?\d+\]")
MOST_NAMES = 10_000  # of a call whose last values are known: a loop may store to a million items
_NOWHERE = Site("", "", 0)
ENDS = ("return", "raise")


class ValueLines:
    """Lines of values, each held against the last of its name, with the first NaN and Inf of the tree."""

    def __init__(
        self, values: CallValues, labels: Labels, is_target: Callable[[str], bool] | None = None
    ) -> None:
        self._values, self.labels, self._is_target = values, labels, is_target
        self._odd_before = [False, False]

    def bound(self, head: str, name: str, value: Any, lineno: int, known: dict[str, Any]) -> list[Line]:
        """`[Tensor] video@575 → shape=... | dtype=...`, and below a container the arrays in it."""
        shown = self._values.shown(value)
        line = self._bound(head, name, shown, lineno, known)
        lines = [_at_any_position(line, name) if name.endswith("]") and not line.is_target else line]
        if shown.is_array:
            return lines
        inside, has_more = self._values.arrays(value)
        for path, item in inside:
            shown = self._values.shown(item)
            if (
                shown.odd or known.get(name + path) != shown.facts
            ):  # else the line of the container says it all
                lines.append(self._bound(head, name + path, shown, lineno, known))
        return [*lines, Line(f"{head}… {self.labels.more}")] if has_more else lines

    def given(self, head: str, label: str, value: Any, latest: tuple[Any, ...]) -> list[Line]:
        """`output shape=...`; the type too, unless the line before has just said it."""
        shown = self._values.shown(value)
        inside, has_more = self._values.arrays(value)
        items = ((f"{head}├─ {label}{path}", self._values.shown(item)) for path, item in inside)
        lines = [self._given(start, item, ()) for start, item in items]
        if has_more:
            lines.append(Line(f"{head}├─ … {self.labels.more}"))
        return [*lines, self._given(f"{head}└─ {label}", shown, latest)]

    def _bound(self, head: str, name: str, shown: Shown, lineno: int, known: dict[str, Any]) -> Line:
        is_target = self._is_target is not None and self._is_target(name)
        before = known.pop(name, None)
        known[name] = shown.facts  # now the latest
        if len(known) > MOST_NAMES:
            del known[next(iter(known))]
        start = f"{head}[{'Tensor' if shown.is_array else 'Var'}] {name}@{lineno}"
        text = f"{start} → {shown.text}" if shown.is_array else f"{start} {shown.text}"
        if not text.isprintable():
            text = escape_unprintable(text)
        note = changes(before, shown) if before is not None else ""
        alarm = self._alarm(shown.odd) if shown.odd is not None else ""
        if shown.number is not None and not is_target:
            counts = shown.counted(name)
            return Line(text, note, alarm, f"{start} {note}", False, False, lineno, shown.number, counts)
        return Line(text, note, alarm, "", is_target, False, lineno)

    def _given(self, start: str, shown: Shown, latest: tuple[Any, ...]) -> Line:
        text = shown.short if shown.is_array and shown.facts == latest else shown.text
        alarm = self._alarm(shown.odd) if shown.odd is not None else ""
        line = Line(escape_unprintable(f"{start} {text}"), "", alarm)
        if shown.number is None:
            return line
        counts = shown.counted(start.rpartition(" ")[2].partition("@")[0])
        return line._replace(key=f"{start} {shown.facts}", number=shown.number, counts=counts)

    def _alarm(self, odd: Odd) -> str:
        words = []
        for at, (what, count) in enumerate((("NaN", odd.nan), ("Inf", odd.inf))):
            if not count:
                continue
            first = "" if self._odd_before[at] else "first "
            self._odd_before[at] = True
            words.append(f"{first}{what}: {count} of {odd.total}")
        return f"! {', '.join(words)}"


def _at_any_position(line: Line, name: str) -> Line:
    """Alike for all items of `rows[*]`: a loop stores to one after the other."""
    wherever = _POSITION.sub("[*]", name)
    key, counts = (text.replace(name, wherever, 1) for text in (line.likeness(), line.counts))
    return line._replace(key=key, counts=counts)


class CallTree:
    """One outermost call and all that it calls."""

    def __init__(
        self,
        values: CallValues,
        labels: Labels,
        *,
        is_target: Callable[[str], bool] | None = None,
        max_depth: int | None = None,
        extra: str = "",
    ) -> None:
        self._lines = ValueLines(values, labels, is_target)
        self._labels, self._extra = labels, extra
        self._is_target, self._max_depth = is_target, max_depth
        self._known: dict[tuple[str, int], dict[str, Any]] = {}  # by call: the last value of each name
        self._latest: tuple[Any, ...] = ()  # the last array that was told
        self.title = ""

    def lines(self, record: Record) -> list[Line]:
        site = record.site or _NOWHERE
        if self._max_depth is not None and site.depth > self._max_depth:
            return []
        told = _KINDS.get(record.kind)
        return told(self, record, site, BAR * site.depth) if told is not None else []

    def _called(self, record: Record, site: Site, bars: str) -> list[Line]:
        where = f"[{basename(site.file)}:{site.line}] {self._labels.function} [{site.function}]"
        if not site.depth or not self.title:
            self.title = where
        self._known[site.function, record.call] = {}
        text = f"{bars}┌── {where}{self._callers(site.callers)}"
        return [Line(escape_unprintable(text + (self._extra if not site.depth else "")), is_header=True)]

    def _callers(self, callers: Sequence[str]) -> str:
        if not callers:
            return ""
        places = [caller.rpartition("@")[2] for caller in callers]
        function, line = callers[0].rpartition("@")[0], places[0].rpartition(":")[2]
        return f" {self._labels.called_from} {function}:{line} ({' <- '.join(places)})"

    def _given_in(self, record: Record, site: Site, bars: str) -> list[Line]:
        if record.name.endswith(_OWNERS) and not (self._is_target and self._is_target("self")):
            return []
        return self._bound(record, site, f"{bars}├─ {self._labels.input} ")

    def _changed(self, record: Record, site: Site, bars: str) -> list[Line]:
        return self._bound(record, site, f"{bars}{BAR}├─ ")

    def _bound(self, record: Record, site: Site, head: str) -> list[Line]:
        name = record.name[len(site.function) + 1 :]
        known = self._known.get((site.function, record.call))
        if known is None:  # of a call that began before anyone listened
            known = self._known[site.function, record.call] = {}
        if record.kind == "input" and name in known:  # told already, with the container that it is in
            return []
        lines = self._lines.bound(head, name, record.value, site.line, known)
        facts = known.get(name, ())
        self._latest = facts if len(facts) == 4 else self._latest
        return lines

    def _returned(self, record: Record, site: Site, bars: str) -> list[Line]:
        self._known.pop((site.function, record.call), None)
        return self._lines.given(bars + BAR, self._labels.output, record.value, self._latest)

    def _yielded(self, record: Record, site: Site, bars: str) -> list[Line]:
        label = f"{self._labels.gives}@{site.line}"
        lines = self._lines.given(bars + BAR, label, record.value, self._latest)
        return [line._replace(text=line.text.replace("└─", "├─", 1)) for line in lines]

    def _raised(self, record: Record, site: Site, bars: str) -> list[Line]:
        self._known.pop((site.function, record.call), None)
        text = f"{bars}{BAR}└─ {self._labels.error}@{site.line} "
        return [Line(escape_unprintable(text.rstrip()), "", escape_unprintable(f"! {record.value}"))]


_KINDS: dict[str, Callable[[CallTree, Record, Site, str], list[Line]]] = {
    "call": CallTree._called,
    "input": CallTree._given_in,
    "local": CallTree._changed,
    "return": CallTree._returned,
    "yield": CallTree._yielded,
    "raise": CallTree._raised,
}
