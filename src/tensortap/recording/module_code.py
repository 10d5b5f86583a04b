"""Where the code of a model's modules lies: of each class its forward, and all of its own functions."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from tensortap.sources.sites import class_name, walk

LineRange = list[Any]  # file, first line, last line


def collect_module_code(model: Any) -> list[dict[str, Any]]:
    """One entry for each class, with the modules of it. No source is read: functions know their lines."""
    by_class: dict[type, dict[str, Any]] = {}
    for names, module in walk(model):
        kind: type = type(module)
        if kind not in by_class:
            by_class[kind] = {**_code_of(kind, class_name(module)), "modules": []}
        by_class[kind]["modules"].append(".".join(names))
    return [entry for entry in by_class.values() if "forward" in entry]


def _code_of(kind: type, name: str) -> dict[str, Any]:
    forward = _plain_function(getattr(kind, "forward", None))
    if forward is None:
        return {}
    defining = next((base for base in kind.__mro__ if base.__name__ == name), kind)
    own = [
        _line_range(function.__code__)
        for attribute in vars(defining).values()
        if (function := _plain_function(attribute))
    ]
    return {
        "function": forward.__qualname__,
        "forward": _line_range(forward.__code__),
        "class": _span([lines for lines in own if lines[0] == own[0][0]]),
    }


def _plain_function(attribute: Any) -> FunctionType | None:
    """What was decorated, where it says so."""
    try:
        unwrapped = inspect.unwrap(getattr(attribute, "__func__", attribute))
    except ValueError:  # it wraps itself
        return None
    return unwrapped if isinstance(unwrapped, FunctionType) else None


def _line_range(code: CodeType) -> LineRange:
    file = code.co_filename
    last = max((line for part in _nested_codes(code) for *_, line in part.co_lines() if line), default=0)
    return [
        file if file.startswith("<") else os.path.abspath(file),
        code.co_firstlineno,
        max(last, code.co_firstlineno),
    ]


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Functions within a function have lines of their own."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def _span(ranges: list[LineRange]) -> LineRange | None:
    if not ranges:
        return None
    return [ranges[0][0], min(lines[1] for lines in ranges), max(lines[2] for lines in ranges)]
