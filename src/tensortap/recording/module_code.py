"""Where the code of a model's modules lies: of each class its forward, and all of its own functions."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from tensortap.sources.sites import class_name, walk

Lines = list[Any]  # file, first line, last line


def module_code(model: Any) -> list[dict[str, Any]]:
    """One entry for each class, with the modules of it. No source is read: functions know their lines."""
    found: dict[type, dict[str, Any]] = {}
    for names, module in walk(model):
        kind: type = type(module)
        if kind not in found:
            found[kind] = {**_code_of(kind, class_name(module)), "modules": []}
        found[kind]["modules"].append(".".join(names))
    return [told for told in found.values() if "forward" in told]


def _code_of(kind: type, name: str) -> dict[str, Any]:
    forward = _function(getattr(kind, "forward", None))
    if forward is None:
        return {}
    written = next((base for base in kind.__mro__ if base.__name__ == name), kind)
    own = [_lines(function.__code__) for told in vars(written).values() if (function := _function(told))]
    return {
        "function": forward.__qualname__,
        "forward": _lines(forward.__code__),
        "class": _together([lines for lines in own if lines[0] == own[0][0]]),
    }


def _function(told: Any) -> FunctionType | None:
    """What was decorated, where it says so."""
    try:
        found = inspect.unwrap(getattr(told, "__func__", told))
    except ValueError:  # it wraps itself
        return None
    return found if isinstance(found, FunctionType) else None


def _lines(code: CodeType) -> Lines:
    file = code.co_filename
    last = max((line for part in _codes(code) for *_, line in part.co_lines() if line), default=0)
    return [
        file if file.startswith("<") else os.path.abspath(file),
        code.co_firstlineno,
        max(last, code.co_firstlineno),
    ]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Functions within a function have lines of their own."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _together(parts: list[Lines]) -> Lines | None:
    if not parts:
        return None
    return [parts[0][0], min(part[1] for part in parts), max(part[2] for part in parts)]
