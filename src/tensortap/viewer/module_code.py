"""Where the code of a module lies, for what was captured of it and has no call site of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tensortap.comparison.sides.module_names import module_of
from tensortap.viewer.provenance import nested_dict

_FORWARD_KINDS = ("output", "input", "grad_output", "grad_input")


class LineRange(NamedTuple):
    file: str
    first: int
    last: int


class ForwardCode(NamedTuple):
    """The forward of a module, and all the functions of its class."""

    function: str
    forward: LineRange
    class_range: LineRange | None


class ModuleCode:
    """As a run keeps it with the facts of its model; empty where it keeps none."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        entries = nested_dict(metadata, "model").get("code")
        self._by_module = dict(_parse_code(entries if isinstance(entries, list) else []))

    def of_module(self, path: str) -> ForwardCode | None:
        return self._by_module.get(path)

    def ancestors(self, path: str) -> Iterator[ForwardCode]:
        """Of the modules that hold it, the nearest first."""
        while path:
            path = path.rpartition(".")[0]
            if path in self._by_module:
                yield self._by_module[path]

    def site(self, name: str, kind: Any) -> dict[str, Any] | None:
        """As that of a record: the first line of the forward that gave or took it."""
        code = self.of_module(module_of(name, kind)) if kind in _FORWARD_KINDS else None
        return None if code is None else {**forward_site(code), "callers": [], "depth": 0, "tree": 0}


def forward_site(code: ForwardCode) -> dict[str, Any]:
    """`last` tells that it is a whole function, and no line of it."""
    file, first, last = code.forward
    return {"file": file, "line": first, "last": last, "function": code.function}


def _parse_code(entries: list[Any]) -> Iterator[tuple[str, ForwardCode]]:
    """What was written by a stranger may be anything."""
    for entry in entries:
        forward = _parse_range(entry.get("forward")) if isinstance(entry, dict) else None
        if forward is not None:
            code = ForwardCode(str(entry.get("function", "")), forward, _parse_range(entry.get("class")))
            yield from ((path, code) for path in entry.get("modules") or () if isinstance(path, str))


def _parse_range(value: Any) -> LineRange | None:
    match value:
        case [str(file), int(first), int(last)]:
            return LineRange(file, first, last)
    return None
