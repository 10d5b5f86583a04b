"""Call trees as text: traced function calls, and a model's forward as modules; repeated lines are folded."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from os.path import basename
from typing import Any

from tensortap.core.record import Record, Site
from tensortap.render.call_tree_values import (
    BAR,
    CallLine,
    Labels,
    NonfiniteCounts,
    ValueFormatter,
    ValueText,
    describe_change,
)
from tensortap.render.words import escape_unprintable, format_number

_OWNER_SUFFIXES = (".self", ".cls")  # their class is in the header
_POSITION = re.compile(r"\[-?\d+\]")
MAX_KNOWN_NAMES = 10_000  # per call: a loop may store to a million items
_UNKNOWN_SITE = Site("", "", 0)
CALL_END_KINDS = ("return", "raise")


class ValueLines:
    """Lines of values, each compared with the last one of its name; marks the first NaN and Inf of the
    tree."""

    def __init__(
        self, values: ValueFormatter, labels: Labels, is_target: Callable[[str], bool] | None = None
    ) -> None:
        self._values, self.labels, self._is_target = values, labels, is_target
        self._nonfinite_seen = [False, False]

    def binding_lines(
        self, head: str, name: str, value: Any, lineno: int, known: dict[str, Any]
    ) -> list[CallLine]:
        """`[Tensor] video@575 → shape=... | dtype=...`, and below a container the arrays in it."""
        value_text = self._values.format(value)
        line = self._bound(head, name, value_text, lineno, known)
        lines = [_with_wildcard_position(line, name) if name.endswith("]") and not line.is_target else line]
        if value_text.is_array:
            return lines
        inside, has_more = self._values.arrays(value)
        for path, item in inside:
            value_text = self._values.format(item)
            if (
                value_text.nonfinite or known.get(name + path) != value_text.facts
            ):  # otherwise the line of the container is enough
                lines.append(self._bound(head, name + path, value_text, lineno, known))
        return [*lines, CallLine(f"{head}… {self.labels.more}")] if has_more else lines

    def output_lines(self, head: str, label: str, value: Any, latest: tuple[Any, ...]) -> list[CallLine]:
        """`output shape=...`; with the dtype, unless the previous line has just shown it."""
        value_text = self._values.format(value)
        inside, has_more = self._values.arrays(value)
        items = ((f"{head}├─ {label}{path}", self._values.format(item)) for path, item in inside)
        lines = [self._output_line(start, item, ()) for start, item in items]
        if has_more:
            lines.append(CallLine(f"{head}├─ … {self.labels.more}"))
        return [*lines, self._output_line(f"{head}└─ {label}", value_text, latest)]

    def _bound(
        self, head: str, name: str, value_text: ValueText, lineno: int, known: dict[str, Any]
    ) -> CallLine:
        is_target = self._is_target is not None and self._is_target(name)
        before = known.pop(name, None)
        known[name] = value_text.facts  # now the latest
        if len(known) > MAX_KNOWN_NAMES:
            del known[next(iter(known))]
        start = f"{head}[{'Tensor' if value_text.is_array else 'Var'}] {name}@{lineno}"
        text = f"{start} → {value_text.text}" if value_text.is_array else f"{start} {value_text.text}"
        if not text.isprintable():
            text = escape_unprintable(text)
        note = describe_change(before, value_text) if before is not None else ""
        alarm = self._alarm(value_text.nonfinite) if value_text.nonfinite is not None else ""
        if value_text.number is not None and not is_target:
            counts = value_text.number_label(name)
            return CallLine(
                text, note, alarm, f"{start} {note}", False, False, lineno, value_text.number, counts
            )
        return CallLine(text, note, alarm, "", is_target, False, lineno)

    def _output_line(self, start: str, value_text: ValueText, latest: tuple[Any, ...]) -> CallLine:
        text = value_text.short if value_text.is_array and value_text.facts == latest else value_text.text
        alarm = self._alarm(value_text.nonfinite) if value_text.nonfinite is not None else ""
        line = CallLine(escape_unprintable(f"{start} {text}"), "", alarm)
        if value_text.number is None:
            return line
        counts = value_text.number_label(start.rpartition(" ")[2].partition("@")[0])
        return line._replace(key=f"{start} {value_text.facts}", number=value_text.number, counts=counts)

    def _alarm(self, counts: NonfiniteCounts) -> str:
        words = []
        for at, (what, count) in enumerate((("NaN", counts.nan), ("Inf", counts.inf))):
            if not count:
                continue
            first = "" if self._nonfinite_seen[at] else "first "
            self._nonfinite_seen[at] = True
            words.append(f"{first}{what}: {count} of {counts.total}")
        return f"! {', '.join(words)}"


def _with_wildcard_position(line: CallLine, name: str) -> CallLine:
    """The same key for all items of `rows[*]`, since a loop stores to one after the other."""
    wherever = _POSITION.sub("[*]", name)
    key, counts = (text.replace(name, wherever, 1) for text in (line.similarity_key(), line.counts))
    return line._replace(key=key, counts=counts)


class CallTree:
    """One outermost call and everything it calls."""

    def __init__(
        self,
        values: ValueFormatter,
        labels: Labels,
        *,
        is_target: Callable[[str], bool] | None = None,
        max_depth: int | None = None,
        extra: str = "",
    ) -> None:
        self._lines = ValueLines(values, labels, is_target)
        self._labels, self._extra = labels, extra
        self._is_target, self._max_depth = is_target, max_depth
        self._known: dict[tuple[str, int], dict[str, Any]] = {}  # per call: the last value of each name
        self._latest: tuple[Any, ...] = ()  # the last array shown
        self.title = ""

    def lines(self, record: Record) -> list[CallLine]:
        site = record.site or _UNKNOWN_SITE
        if self._max_depth is not None and site.depth > self._max_depth:
            return []
        handler = _HANDLERS.get(record.kind)
        return handler(self, record, site, BAR * site.depth) if handler is not None else []

    def _call_lines(self, record: Record, site: Site, bars: str) -> list[CallLine]:
        where = f"[{basename(site.file)}:{site.line}] {self._labels.function} [{site.function}]"
        if not site.depth or not self.title:
            self.title = where
        self._known[site.function, record.call] = {}
        text = f"{bars}┌── {where}{self._callers(site.callers)}"
        return [CallLine(escape_unprintable(text + (self._extra if not site.depth else "")), is_header=True)]

    def _callers(self, callers: Sequence[str]) -> str:
        if not callers:
            return ""
        locations = [caller.rpartition("@")[2] for caller in callers]
        function, line = callers[0].rpartition("@")[0], locations[0].rpartition(":")[2]
        return f" {self._labels.called_from} {function}:{line} ({' <- '.join(locations)})"

    def _input_lines(self, record: Record, site: Site, bars: str) -> list[CallLine]:
        if record.name.endswith(_OWNER_SUFFIXES) and not (self._is_target and self._is_target("self")):
            return []
        return self._bound(record, site, f"{bars}├─ {self._labels.input} ")

    def _local_lines(self, record: Record, site: Site, bars: str) -> list[CallLine]:
        return self._bound(record, site, f"{bars}{BAR}├─ ")

    def _bound(self, record: Record, site: Site, head: str) -> list[CallLine]:
        name = record.name[len(site.function) + 1 :]
        known = self._known.get((site.function, record.call))
        if known is None:  # a call that started before the capture
            known = self._known[site.function, record.call] = {}
        if record.kind == "input" and name in known:  # shown already, with its container
            return []
        lines = self._lines.binding_lines(head, name, record.value, site.line, known)
        facts = known.get(name, ())
        self._latest = facts if len(facts) == 4 else self._latest
        return lines

    def _return_lines(self, record: Record, site: Site, bars: str) -> list[CallLine]:
        self._known.pop((site.function, record.call), None)
        return self._lines.output_lines(bars + BAR, self._labels.output, record.value, self._latest)

    def _yield_lines(self, record: Record, site: Site, bars: str) -> list[CallLine]:
        label = f"{self._labels.gives}@{site.line}"
        lines = self._lines.output_lines(bars + BAR, label, record.value, self._latest)
        return [line._replace(text=line.text.replace("└─", "├─", 1)) for line in lines]

    def _raise_lines(self, record: Record, site: Site, bars: str) -> list[CallLine]:
        self._known.pop((site.function, record.call), None)
        text = f"{bars}{BAR}└─ {self._labels.error}@{site.line} "
        return [CallLine(escape_unprintable(text.rstrip()), "", escape_unprintable(f"! {record.value}"))]


_HANDLERS: dict[str, Callable[[CallTree, Record, Site, str], list[CallLine]]] = {
    "call": CallTree._call_lines,
    "input": CallTree._input_lines,
    "local": CallTree._local_lines,
    "return": CallTree._return_lines,
    "yield": CallTree._yield_lines,
    "raise": CallTree._raise_lines,
}


# A name is the module's path and a part of it: `h.0.in.x`, `h.0[1]`, `out.logits`, `h.0.forward.scores`.
_INPUT = re.compile(r"(?:(.*?)\.)??in\.(.+)")
_OUTPUT = re.compile(r"(?:(.*?)\.)??out((?:[.\[].*)?)")
_ITEM = re.compile(r"([^\[]*)(\[.*)?")


class ModuleCallTree:
    """One forward; a module gets a header if something inside it is shown before its output."""

    def __init__(
        self, values: ValueFormatter, labels: Labels, *, max_depth: int | None = None, extra: str = ""
    ) -> None:
        self._lines = ValueLines(values, labels)
        self._labels, self._max_depth, self._extra = labels, max_depth, extra
        self._open: list[str] = []  # module paths, outermost first
        self._closed = ""
        self._step: Any = None
        self._known: dict[str, Any] = {}
        self.title = labels.step
        self.is_over = False  # after the output of the model itself

    def lines(self, record: Record) -> list[CallLine]:
        begun = self._step_header(record)
        self.is_over = False
        if record.kind == "input":
            return [*begun, *self._module_input_lines(record)]
        if record.kind == "output":
            return [*begun, *self._module_output_lines(record)]
        is_local = record.kind == "local" and ".forward." in record.name
        path, name = record.name.split(".forward.", 1) if is_local else ("", record.name)
        return [*begun, *self._inner_lines(path, name, record)]

    def _step_header(self, record: Record) -> list[CallLine]:
        if record.step == self._step:
            return []
        self._step, self._open, self._closed = record.step, [], ""
        self._known = {}
        self.title = f"{self._labels.step} {record.step}"
        return [CallLine(f"┌── {self.title}{self._extra}", is_header=True)]

    def _module_input_lines(self, record: Record) -> list[CallLine]:
        match = _INPUT.fullmatch(record.name)
        path, name = (match[1] or "", match[2]) if match else ("", record.name)
        above = self._enter_module(path)
        head = f"{BAR * len(self._open)}├─ {self._labels.input} "
        return [*above, *self._value_lines(head, path, name, record)]

    def _module_output_lines(self, record: Record) -> list[CallLine]:
        path, item = _parse_output_name(record.name)
        if path in ("", *self._open) or path == self._closed:
            return self._leave_module(path, item, record)
        above = self._enter_module(path.rpartition(".")[0])
        within = path.removeprefix(self._open[-1] + ".") if self._open else path
        return [*above, *self._value_lines(f"{BAR * (len(self._open) + 1)}├─ ", path, within + item, record)]

    def _inner_lines(self, path: str, name: str, record: Record) -> list[CallLine]:
        above = self._enter_module(path) if path else []
        head = f"{BAR * (len(self._open) + 1)}├─ "
        return [*above, *self._value_lines(head, path, name, record)]

    def _value_lines(self, head: str, path: str, name: str, record: Record) -> list[CallLine]:
        if self._is_too_deep():
            return []
        line = record.site.line if record.site is not None else 0
        known: dict[str, Any] = {}  # names are unique within a call, and calls are not compared
        if record.kind == "local":
            known = self._known.setdefault(path, {})
        return self._lines.binding_lines(head, name, record.value, line, known)

    def _enter_module(self, path: str) -> list[CallLine]:
        """The headers of the modules entered on the way to this path."""
        self._open = [
            open_path for open_path in self._open if path == open_path or path.startswith(open_path + ".")
        ]
        lines = []
        if path and (not self._open or self._open[-1] != path):
            self._open.append(path)
            self._known.pop(path, None)
            text = f"{BAR * len(self._open)}┌── {self._labels.module} [{path}]"
            lines = [] if self._is_too_deep() else [CallLine(escape_unprintable(text), is_header=True)]
        return lines

    def _leave_module(self, path: str, item: str, record: Record) -> list[CallLine]:
        if path != self._closed or not path:
            self._open = [open_path for open_path in self._open if path.startswith(open_path + ".")]
            self._closed = path
        self.is_over = not path
        bars = BAR * (len(self._open) + (2 if path else 1))
        if self._max_depth is not None and len(self._open) >= self._max_depth:
            return []
        return self._lines.output_lines(bars, self._labels.output + item, record.value, ())

    def _is_too_deep(self) -> bool:
        return self._max_depth is not None and len(self._open) > self._max_depth


def _parse_output_name(name: str) -> tuple[str, str]:
    match = _OUTPUT.fullmatch(name)
    if match:
        return match[1] or "", match[2] or ""
    path, item = _ITEM.fullmatch(name).groups()  # type: ignore[union-attr]
    return path, item or ""


MAX_BLOCK_LENGTH = 64
_INDENT_CHARACTERS = "│├└┌─ "


class RepeatFolder:
    """Passes lines on; a block that repeats the one before it, line by line, is counted instead. A block of
    one line folds at its first repetition, a longer one at its second. A single repetition is written out:
    the count would take as much room.

    Single numbers may differ, else a loop counter would prevent folding; their range is shown with the count.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._last: dict[str, int] = {}  # position of the last line per similarity key
        self._now = 0
        self._period = self._repeated_count = 0
        self._block: deque[CallLine] = deque(
            maxlen=2 * MAX_BLOCK_LENGTH
        )  # the latest lines, written or held back
        self._held_count = 0
        self._before: dict[str, float | None] = {}  # the numbers at the start of the repetition

    def add(self, line: CallLine) -> list[CallLine]:
        """The lines to write now."""
        likeness = line.similarity_key()
        period = self._now - self._last.get(likeness, -(1 << 60))
        self._last[likeness] = self._now
        self._now += 1
        if period == self._period:
            self._repeated_count += 1
        else:
            released, self._period, self._repeated_count = self._release(), period, 1
            self._block.append(line)
            return [*released, *self._first(line)]
        if self._repeated_count <= self._period or self._period > MAX_BLOCK_LENGTH:
            self._block.append(line)
            return [line]
        return self._hold(line)

    def end(self) -> list[CallLine]:
        """The lines still held back."""
        released = self._release()
        self._period = self._repeated_count = 0
        self._last.clear()
        return released

    def _first(self, line: CallLine) -> list[CallLine]:
        if len(self._last) > 4 * MAX_BLOCK_LENGTH:
            oldest = self._now - 2 * MAX_BLOCK_LENGTH
            self._last = {known: at for known, at in self._last.items() if at >= oldest}
        if self._period != 1:
            return [line]
        self._block.pop()
        return self._hold(line)

    def _hold(self, line: CallLine) -> list[CallLine]:
        if not self._held_count:
            self._before = {
                line_before.similarity_key(): line_before.number
                for line_before in list(self._block)[-self._period :]
            }
        self._held_count += 1
        self._block.append(line)
        return []

    def _release(self) -> list[CallLine]:
        if not self._held_count:
            return []
        times, left = divmod(self._held_count, self._period)
        latest, held_count, self._held_count = list(self._block), self._held_count, 0
        if times < 2:
            return latest[-held_count:]
        block = latest[-self._period - left : len(latest) - left]
        return [self._count_line(block, times), *latest[len(latest) - left :]]

    def _count_line(self, block: list[CallLine], times: int) -> CallLine:
        first = min((line.text for line in block), key=_indentation)
        start = first[: _indentation(first)].rstrip("├└┌─ ")
        form = self._labels.again if len(block) == 1 else self._labels.above
        counted = ", ".join(self._format_counter(line) for line in block if self._counter_moved(line))
        words = form.format(lines=len(block), times=times) + (f" ({counted})" if counted else "")
        return CallLine(f"{start}   ⋮ {words}" if start else f"⋮ {words}")

    def _counter_moved(self, line: CallLine) -> bool:
        return line.number is not None and self._before.get(line.similarity_key()) != line.number

    def _format_counter(self, line: CallLine) -> str:
        ends = self._before.get(line.similarity_key()), line.number
        return f"{line.counts} {' … '.join(format_number(end) for end in ends if end is not None)}"


def _indentation(text: str) -> int:
    return len(text) - len(text.lstrip(_INDENT_CHARACTERS))
