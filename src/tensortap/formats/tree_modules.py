"""The modules of a capture with their values, before anything is folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tensortap.formats.rows import ValueRow
from tensortap.formats.tree_names import Place, is_number, places


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
