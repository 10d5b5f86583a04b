"""Values grouped by module, with equal siblings folded into one line and anomalous ones kept apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensortap.render.value_rows import ValueRow
from tensortap.render.words import (
    ValueLocation,
    describe_anomaly,
    describe_repeats,
    describe_type,
    format_range,
    format_ranges,
    is_list_index,
    locate_values,
    pluralize,
)

_MAX_ANOMALOUS_REPEATS = 5
_MIN_USUAL_SHARE = 0.75  # of siblings that must agree before another counts as anomalous


@dataclass(slots=True)
class TreeLine:
    """One line of the tree. `rows` are all the rows it covers, `ends` those between which sigma is shown.
    An anomalous line says what is wrong, and in which value below it (`where`); the children of a `brief`
    one need not be shown."""

    label: str
    arrow: str = ""
    rows: list[ValueRow] = field(default_factory=list)
    ends: tuple[ValueRow, ...] = ()
    times: int = 1
    class_name: str = ""
    anomaly: str = ""
    where: str = ""
    repeats: str = ""
    brief: bool = False
    children: list[TreeLine] = field(default_factory=list)


class FoldedTree:
    """The lines of a capture, and its usual dtype, device and repeats."""

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
        root = build_module_tree(rows)
        self.repeats = _most_common(self._describe_repeats(value.rows) for _, value in root.walk())
        self.lines = self._child_lines(root)

    def _child_lines(self, module: ModuleNode, prefix: str = "", times: int = 1) -> list[TreeLine]:
        numbered = [child for child in module.modules.values() if is_list_index(child.segment)]
        lines: list[TreeLine] = []
        for item in module.items:
            if isinstance(item, ModuleValue):
                lines.append(self._value_line(item, prefix + _value_label(item.location), times))
            elif not is_list_index(item.segment):
                lines += self._module_lines(item, prefix, times)
            elif numbered:
                lines += self._siblings(sorted(numbered, key=_list_index), prefix, times)
                numbered = []
        return lines

    def _module_lines(self, module: ModuleNode, prefix: str, times: int) -> list[TreeLine]:
        if module.is_only_a_path:
            return self._child_lines(module, f"{prefix}{module.segment}.", times)
        return [self._module_line(module, prefix, times)]

    def _module_line(self, module: ModuleNode, prefix: str, times: int) -> TreeLine:
        label, of = (prefix + module.segment) or '""', self._classes.get(module.path, "")
        outputs = [value for value in module.items if isinstance(value, ModuleValue) and _is_output(value)]
        if len(outputs) != 1:
            return TreeLine(label, times=times, class_name=of, children=self._child_lines(module))
        line = self._value_line(outputs[0], label + outputs[0].location.label, times)
        line.class_name = of
        rest = ModuleNode(
            "", "", module.values, module.modules, [i for i in module.items if i is not outputs[0]]
        )
        line.children += self._child_lines(rest)
        return line

    def _value_line(self, value: ModuleValue, label: str, times: int) -> TreeLine:
        anomalous = [row for row in value.rows if _is_anomalous(row)]
        good = [row for row in value.rows if not _is_anomalous(row)]
        line = TreeLine(label, value.location.arrow, value.rows, value.ends, times)
        line.repeats = self._note_repeats(value.rows)
        if len(value.rows) == 1 and anomalous:
            line.anomaly = self._anomaly_text(anomalous[0])
        elif anomalous and len({(row.nan, row.inf) for row in value.rows}) == 1 and not anomalous[0].nan:
            line.anomaly = f"{describe_anomaly(anomalous[0], False, False)} each"
        elif anomalous:
            line.rows, line.ends = good or value.rows, (good[0], good[-1]) if good else ()
            line.children = [
                *map(self._anomalous_repeat, anomalous[:_MAX_ANOMALOUS_REPEATS]),
                *_more_line(anomalous),
            ]
        return line

    def _anomalous_repeat(self, row: ValueRow) -> TreeLine:
        words = [f"step {row.step}"] if self._has_steps else []
        words += [f"call {row.call}"] if row.call or not words else []
        words += [f"rank {row.rank}"] if self._has_ranks else []
        return TreeLine(" ".join(words), "", [row], (row, row), anomaly=self._anomaly_text(row))

    def _siblings(self, siblings: list[ModuleNode], prefix: str, times: int) -> list[TreeLine]:
        """Equal siblings as one line; each with a NaN, an Inf or a deviating shape as its own."""
        shared = shared_infinities(siblings)
        anomalies = {id(module): self._first_anomaly(module, shared) for module in siblings}
        groups: dict[object, list[ModuleNode]] = {}
        for module in siblings:
            kind = (self._classes.get(module.path, ""), structure_signature(module))
            groups.setdefault(id(module) if anomalies[id(module)] else kind, []).append(module)
        alike_groups = [group for key, group in groups.items() if not isinstance(key, int)]
        lines: list[TreeLine] = []
        begins = next((module for module in siblings if anomalies[id(module)]), None)
        for group in groups.values():
            trouble, deviation = anomalies[id(group[0])], self._deviation(group, alike_groups)
            anomaly = trouble or deviation
            if anomaly is None:
                lines += self._folded_lines(group, prefix, times)
            else:
                unfolds = trouble is None or group[0] is begins
                lines.append(self._anomalous_module(group[0], prefix, anomaly, unfolds))
        return lines

    def _folded_lines(self, group: list[ModuleNode], prefix: str, times: int) -> list[TreeLine]:
        module = pool_siblings(group)
        module.segment = format_ranges(map(_list_index, group))
        return self._module_lines(module, prefix, times * len(group))

    def _anomalous_module(
        self, module: ModuleNode, prefix: str, anomaly: tuple[str, str], begins: bool
    ) -> TreeLine:
        """Unfolded at the first anomaly; later ones are summarised in one line."""
        where, description = anomaly
        rows = [row for _, value in module.walk() for row in value.rows]
        is_brief = not begins and not any(row is self._first_nan for row in rows)
        inside = self._child_lines(module)
        return TreeLine(
            prefix + module.segment, where=where, anomaly=description, brief=is_brief, children=inside
        )

    def _first_anomaly(self, module: ModuleNode, shared: set[str]) -> tuple[str, str] | None:
        """The first value below with a NaN or an Inf, and its description."""
        candidates = [
            (self._order[id(row)], name, row)
            for name, value in module.walk()
            if name not in shared
            for row in value.rows
            if _is_anomalous(row)
        ]
        if not candidates:
            return None
        _, name, row = min(candidates, key=lambda candidate: candidate[0])
        others = len({other_name for _, other_name, _ in candidates}) - 1
        low, high = format_range([row])
        span = f", {low} .. {high}" if high else ""
        more = f"; {pluralize(others, 'more value')}" if others else ""
        return name or "out", self._anomaly_text(row) + span + more

    def _deviation(self, group: list[ModuleNode], groups: list[list[ModuleNode]]) -> tuple[str, str] | None:
        """How one sibling deviates from nearly all of those with the same values."""
        if len(group) > 1:
            return None
        values = dict(group[0].walk())
        alike = [candidate for candidate in groups if dict(candidate[0].walk()).keys() == values.keys()]
        most = max(alike, key=len, default=[])
        total = sum(map(len, alike))
        if len(most) < 3 or len(most) < _MIN_USUAL_SHARE * total:
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

    def _anomaly_text(self, row: ValueRow) -> str:
        return describe_anomaly(row, row is self._first_nan, row is self._first_inf)

    def _note_repeats(self, rows: Sequence[ValueRow]) -> str:
        repeats = self._describe_repeats(rows)
        return "" if repeats == self.repeats else repeats or "once"

    def _describe_repeats(self, rows: Sequence[ValueRow]) -> str:
        return describe_repeats(rows, self._has_steps, self._has_ranks)


def _is_anomalous(row: ValueRow) -> bool:
    return bool(row.nan or row.inf) or row.note.startswith("cannot be read")


def _is_output(value: ModuleValue) -> bool:
    label = value.location.label
    return value.location.arrow == "->" and label[:1] in ("", "[", ".") and not label.endswith(".grad")


def _value_label(location: ValueLocation) -> str:
    if location.arrow != "->":
        return location.label or '""'
    return location.label.removeprefix(".") or "out"  # `.k` is the part `k` of an output


def _list_index(module: ModuleNode) -> int:
    return int(module.segment)


def _most_common(words: Iterable[str]) -> str:
    counted = Counter(words).most_common(1)
    return counted[0][0] if counted else ""


def _more_line(anomalous: list[ValueRow]) -> list[TreeLine]:
    hidden = len(anomalous) - _MAX_ANOMALOUS_REPEATS
    return [TreeLine(f"... {hidden} more", anomaly=f"{hidden} more")] if hidden > 0 else []


@dataclass(slots=True)
class ModuleValue:
    location: ValueLocation
    rows: list[ValueRow]
    ends: tuple[ValueRow, ...]
    is_pooled: bool = False


@dataclass(slots=True)
class ModuleNode:
    segment: str
    path: str
    values: dict[str, ModuleValue] = field(default_factory=dict)
    modules: dict[str, ModuleNode] = field(default_factory=dict)
    items: list[ModuleValue | ModuleNode] = field(default_factory=list)  # both, in execution order

    def walk(self, prefix: str = "") -> Iterator[tuple[str, ModuleValue]]:
        """Every value below, under its name relative to this module."""
        for item in self.items:
            if isinstance(item, ModuleValue):
                yield _relative_name(prefix, item), item
            else:
                yield from item.walk(f"{prefix}{item.segment}.")

    @property
    def is_only_a_path(self) -> bool:
        is_list = all(map(is_list_index, self.modules))
        return not self.values and bool(self.modules) and (is_list or len(self.modules) == 1)


def _relative_name(prefix: str, value: ModuleValue) -> str:
    label, arrow = value.location.label, value.location.arrow
    if label[:1] in ("[", "."):
        return prefix.rstrip(".") + label
    if arrow == "<-":
        return f"{prefix}in.{label}".rstrip(".")
    return f"{prefix}{label}".rstrip(".")


def build_module_tree(rows: Sequence[ValueRow]) -> ModuleNode:
    root, locations = ModuleNode("", ""), locate_values(rows)
    for row in rows:
        location = locations[row.name]
        module = root
        for segment in location.module:
            module = _get_or_add_child(module, segment)
        key = f"{location.arrow}{location.label}"
        value = module.values.get(key)
        if value is None:
            value = module.values[key] = ModuleValue(location, [], (row, row))
            module.items.append(value)
        value.rows.append(row)
        value.ends = (value.ends[0], row)
    return root


def _get_or_add_child(module: ModuleNode, segment: str) -> ModuleNode:
    child = module.modules.get(segment)
    if child is None:
        path = f"{module.path}.{segment}" if module.path else segment
        child = module.modules[segment] = ModuleNode(segment, path)
        module.items.append(child)
    return child


def pool_siblings(group: list[ModuleNode]) -> ModuleNode:
    """One module with the rows of all; each line below it covers all of them."""
    first, last = group[0], group[-1]
    if len(group) == 1:
        return ModuleNode(first.segment, first.path, first.values, first.modules, first.items)
    values = {
        key: ModuleValue(
            value.location,
            [row for module in group for row in module.values[key].rows],
            # Between siblings, the last step of each; a trend over the steps would mix both.
            (value.ends[0] if value.is_pooled else value.ends[-1], last.values[key].ends[-1]),
            is_pooled=True,
        )
        for key, value in first.values.items()
    }
    modules = {name: pool_siblings([module.modules[name] for module in group]) for name in first.modules}
    items = [
        values[f"{item.location.arrow}{item.location.label}"]
        if isinstance(item, ModuleValue)
        else modules[item.segment]
        for item in first.items
    ]
    return ModuleNode(first.segment, first.path, values, modules, items)


def structure_signature(module: ModuleNode) -> frozenset[object]:
    return frozenset(
        (name, value.location.arrow, len(value.rows), frozenset(map(_row_signature, value.rows)))
        for name, value in module.walk()
    )


def _row_signature(row: ValueRow) -> tuple[object, ...]:
    return (row.dtype, row.shape, row.device, row.kind, row.note)


def shared_infinities(siblings: list[ModuleNode]) -> set[str]:
    """Values with the same number of Inf in every sibling: a mask, not an anomaly."""
    if len(siblings) < 2:
        return set()
    counts_by_name: dict[str, set[tuple[int, int]]] = {}
    count: Counter[str] = Counter()
    for module in siblings:
        for name, value in module.walk():
            count[name] += 1
            counts_by_name.setdefault(name, set()).update((row.nan, row.inf) for row in value.rows)
    same = (
        name for name, kinds in counts_by_name.items() if len(kinds) == 1 and count[name] == len(siblings)
    )
    return {name for name in same if next(iter(counts_by_name[name]))[0] == 0}
