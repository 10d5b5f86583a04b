"""Grouping and folding of repeated layers.

Rows as a tree of lines: values under their modules, equal siblings as one, the unusual ones apart.

The modules of a capture with their values, before anything is folded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensortap.render.value_rows import ValueRow
from tensortap.render.words import (
    Place,
    describe_anomaly,
    describe_repeats,
    describe_type,
    format_range,
    is_number,
    places,
    pluralize,
    ranges,
)

_MOST_ODD_REPEATS = 5
_PATTERN = 0.75  # the share of siblings that must agree before another one counts as unusual


@dataclass(slots=True)
class Line:
    """One line of the tree. `rows` are all the rows it speaks of, `ends` those between which sigma is told.
    An unusual line says what is odd, and in which value below it (`where`); a `brief` one has children that
    need not be seen."""

    label: str
    arrow: str = ""
    rows: list[ValueRow] = field(default_factory=list)
    ends: tuple[ValueRow, ...] = ()
    times: int = 1
    of: str = ""
    odd: str = ""
    where: str = ""
    repeated: str = ""
    brief: bool = False
    children: list[Line] = field(default_factory=list)


class Fold:
    """The lines of a capture, and what is usual in it."""

    def __init__(self, rows: Sequence[ValueRow], classes: Mapping[str, str] | None = None) -> None:
        self._classes = classes or {}
        self._order = {id(row): at for at, row in enumerate(rows)}
        arrays = [row for row in rows if row.shape is not None]
        self.dtype = _most_common(row.dtype for row in arrays)
        self.device = _most_common(row.device for row in arrays)
        self.nonfinite = [row for row in rows if row.nan or row.inf]
        self._first_nan = next((row for row in rows if row.nan), None)
        self._first_inf = next((row for row in rows if row.inf), None)
        self._has_steps = len({row.step for row in rows}) > 1
        self._has_ranks = len({row.rank for row in rows}) > 1
        root = grown(rows)
        self.repeated = _most_common(self._repeated(value.rows) for _, value in root.walk())
        self.lines = self._inside(root)

    def _inside(self, module: Module, prefix: str = "", times: int = 1) -> list[Line]:
        numbered = [child for child in module.modules.values() if is_number(child.segment)]
        lines: list[Line] = []
        for item in module.items:
            if isinstance(item, Value):
                lines.append(self._value_line(item, prefix + _own_label(item.place), times))
            elif not is_number(item.segment):
                lines += self._module_lines(item, prefix, times)
            elif numbered:
                lines += self._siblings(sorted(numbered, key=_number), prefix, times)
                numbered = []
        return lines

    def _module_lines(self, module: Module, prefix: str, times: int) -> list[Line]:
        if module.is_only_a_path:
            return self._inside(module, f"{prefix}{module.segment}.", times)
        return [self._module_line(module, prefix, times)]

    def _module_line(self, module: Module, prefix: str, times: int) -> Line:
        label, of = (prefix + module.segment) or '""', self._classes.get(module.path, "")
        outputs = [value for value in module.items if isinstance(value, Value) and _is_output(value)]
        if len(outputs) != 1:
            return Line(label, times=times, of=of, children=self._inside(module))
        line = self._value_line(outputs[0], label + outputs[0].place.label, times)
        line.of = of
        rest = Module("", "", module.values, module.modules, [i for i in module.items if i is not outputs[0]])
        line.children += self._inside(rest)
        return line

    def _value_line(self, value: Value, label: str, times: int) -> Line:
        odd = [row for row in value.rows if _is_odd(row)]
        good = [row for row in value.rows if not _is_odd(row)]
        line = Line(label, value.place.arrow, value.rows, value.ends, times)
        line.repeated = self._told(value.rows)
        if len(value.rows) == 1 and odd:
            line.odd = self._oddity(odd[0])
        elif odd and len({(row.nan, row.inf) for row in value.rows}) == 1 and not odd[0].nan:
            line.odd = f"{describe_anomaly(odd[0], False, False)} each"
        elif odd:
            line.rows, line.ends = good or value.rows, (good[0], good[-1]) if good else ()
            line.children = [*map(self._odd_repeat, odd[:_MOST_ODD_REPEATS]), *_more(odd)]
        return line

    def _odd_repeat(self, row: ValueRow) -> Line:
        said = [f"step {row.step}"] if self._has_steps else []
        said += [f"call {row.call}"] if row.call or not said else []
        said += [f"rank {row.rank}"] if self._has_ranks else []
        return Line(" ".join(said), "", [row], (row, row), odd=self._oddity(row))

    def _siblings(self, siblings: list[Module], prefix: str, times: int) -> list[Line]:
        """Equal ones as one line; each with a NaN, an Inf or a shape unlike the others' as its own."""
        shared = shared_infinities(siblings)
        odd = {id(module): self._first_odd(module, shared) for module in siblings}
        groups: dict[object, list[Module]] = {}
        for module in siblings:
            kind = (self._classes.get(module.path, ""), signature(module))
            groups.setdefault(id(module) if odd[id(module)] else kind, []).append(module)
        whole = [group for key, group in groups.items() if not isinstance(key, int)]
        lines: list[Line] = []
        begins = next((module for module in siblings if odd[id(module)]), None)
        for group in groups.values():
            trouble, deviation = odd[id(group[0])], self._deviation(group, whole)
            found = trouble or deviation
            if found is None:
                lines += self._folded(group, prefix, times)
            else:
                unfolds = trouble is None or group[0] is begins
                lines.append(self._odd_module(group[0], prefix, found, unfolds))
        return lines

    def _folded(self, group: list[Module], prefix: str, times: int) -> list[Line]:
        module = pooled(group)
        module.segment = ranges(map(_number, group))
        return self._module_lines(module, prefix, times * len(group))

    def _odd_module(self, module: Module, prefix: str, found: tuple[str, str], begins: bool) -> Line:
        """Unfolded where the trouble begins; further on the line says enough."""
        where, odd = found
        rows = [row for _, value in module.walk() for row in value.rows]
        is_brief = not begins and not any(row is self._first_nan for row in rows)
        inside = self._inside(module)
        return Line(prefix + module.segment, where=where, odd=odd, brief=is_brief, children=inside)

    def _first_odd(self, module: Module, shared: set[str]) -> tuple[str, str] | None:
        """Which value below is the first with a NaN or an Inf, and what is to be said of it."""
        found = [
            (self._order[id(row)], name, row)
            for name, value in module.walk()
            if name not in shared
            for row in value.rows
            if _is_odd(row)
        ]
        if not found:
            return None
        _, name, row = min(found, key=lambda each: each[0])
        others = len({other for _, other, _ in found}) - 1
        low, high = format_range([row])
        span = f", {low} .. {high}" if high else ""
        more = f"; {pluralize(others, 'more value')}" if others else ""
        return name or "out", self._oddity(row) + span + more

    def _deviation(self, group: list[Module], groups: list[list[Module]]) -> tuple[str, str] | None:
        """What one sibling has unlike nearly all of those with the same values."""
        if len(group) > 1:
            return None
        values = dict(group[0].walk())
        alike = [other for other in groups if dict(other[0].walk()).keys() == values.keys()]
        most = max(alike, key=len, default=[])
        total = sum(map(len, alike))
        if len(most) < 3 or len(most) < _PATTERN * total:
            return None
        usuals = dict(most[0].walk())
        for name, value in values.items():
            usual = usuals[name]
            devices = {row.device for row in (*value.rows, *usual.rows)}
            quiet = devices.pop() if len(devices) == 1 else ""
            here, there = describe_type(value.rows, "", quiet), describe_type(usual.rows, "", quiet)
            if here != there:
                return name or "out", f"{here}, others {there}"
        return None

    def _oddity(self, row: ValueRow) -> str:
        return describe_anomaly(row, row is self._first_nan, row is self._first_inf)

    def _told(self, rows: Sequence[ValueRow]) -> str:
        told = self._repeated(rows)
        return "" if told == self.repeated else told or "once"

    def _repeated(self, rows: Sequence[ValueRow]) -> str:
        return describe_repeats(rows, self._has_steps, self._has_ranks)


def _is_odd(row: ValueRow) -> bool:
    return bool(row.nan or row.inf) or row.note.startswith("cannot be read")


def _is_output(value: Value) -> bool:
    label = value.place.label
    return value.place.arrow == "->" and label[:1] in ("", "[", ".") and not label.endswith(".grad")


def _own_label(place: Place) -> str:
    if place.arrow != "->":
        return place.label or '""'
    return place.label.removeprefix(".") or "out"  # `.k` is the part `k` of an output


def _number(module: Module) -> int:
    return int(module.segment)


def _most_common(words: Iterable[str]) -> str:
    counted = Counter(words).most_common(1)
    return counted[0][0] if counted else ""


def _more(odd: list[ValueRow]) -> list[Line]:
    hidden = len(odd) - _MOST_ODD_REPEATS
    return [Line(f"... {hidden} more", odd=f"{hidden} more")] if hidden > 0 else []


@dataclass(slots=True)
class Value:
    place: Place
    rows: list[ValueRow]
    ends: tuple[ValueRow, ...]
    is_pooled: bool = False


@dataclass(slots=True)
class Module:
    segment: str
    path: str
    values: dict[str, Value] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)
    items: list[Value | Module] = field(default_factory=list)  # both, in the order of the run

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Value]]:
        """Every value below, under its name relative to this module."""
        for item in self.items:
            if isinstance(item, Value):
                yield _joined(prefix, item), item
            else:
                yield from item.walk(f"{prefix}{item.segment}.")

    @property
    def is_only_a_path(self) -> bool:
        is_list = all(map(is_number, self.modules))
        return not self.values and bool(self.modules) and (is_list or len(self.modules) == 1)


def _joined(prefix: str, value: Value) -> str:
    label, arrow = value.place.label, value.place.arrow
    if label[:1] in ("[", "."):
        return prefix.rstrip(".") + label
    if arrow == "<-":
        return f"{prefix}in.{label}".rstrip(".")
    return f"{prefix}{label}".rstrip(".")


def grown(rows: Sequence[ValueRow]) -> Module:
    root, placed = Module("", ""), places(rows)
    for row in rows:
        place = placed[row.name]
        module = root
        for segment in place.module:
            module = _child(module, segment)
        key = f"{place.arrow}{place.label}"
        value = module.values.get(key)
        if value is None:
            value = module.values[key] = Value(place, [], (row, row))
            module.items.append(value)
        value.rows.append(row)
        value.ends = (value.ends[0], row)
    return root


def _child(module: Module, segment: str) -> Module:
    child = module.modules.get(segment)
    if child is None:
        path = f"{module.path}.{segment}" if module.path else segment
        child = module.modules[segment] = Module(segment, path)
        module.items.append(child)
    return child


def pooled(group: list[Module]) -> Module:
    """One module with the rows of all; each line below it speaks of all of them."""
    first, last = group[0], group[-1]
    if len(group) == 1:
        return Module(first.segment, first.path, first.values, first.modules, first.items)
    values = {
        key: Value(
            value.place,
            [row for module in group for row in module.values[key].rows],
            # Between siblings of one moment, the last; a trend over the steps would mix both.
            (value.ends[0] if value.is_pooled else value.ends[-1], last.values[key].ends[-1]),
            is_pooled=True,
        )
        for key, value in first.values.items()
    }
    modules = {name: pooled([module.modules[name] for module in group]) for name in first.modules}
    items = [
        values[f"{item.place.arrow}{item.place.label}"] if isinstance(item, Value) else modules[item.segment]
        for item in first.items
    ]
    return Module(first.segment, first.path, values, modules, items)


def signature(module: Module) -> frozenset[object]:
    return frozenset(
        (name, value.place.arrow, len(value.rows), frozenset(map(_shaped, value.rows)))
        for name, value in module.walk()
    )


def _shaped(row: ValueRow) -> tuple[object, ...]:
    return (row.dtype, row.shape, row.device, row.kind, row.note)


def shared_infinities(siblings: list[Module]) -> set[str]:
    """Values with the same number of Inf in every sibling: a mask, which sets none of them apart."""
    if len(siblings) < 2:
        return set()
    found: dict[str, set[tuple[int, int]]] = {}
    count: Counter[str] = Counter()
    for module in siblings:
        for name, value in module.walk():
            count[name] += 1
            found.setdefault(name, set()).update((row.nan, row.inf) for row in value.rows)
    same = (name for name, kinds in found.items() if len(kinds) == 1 and count[name] == len(siblings))
    return {name for name in same if next(iter(found[name]))[0] == 0}
