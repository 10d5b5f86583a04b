"""Split a record's name into the path of its module and the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from tensortap.core.record import Kind

OUTPUTS: tuple[Kind, ...] = ("output", "grad_output")
_INPUTS: tuple[Kind, ...] = ("input", "grad_input")
_ANY, _IN, _FORWARD = (
    re.compile(rf"(?:^|\.)(?:{words})(?=\.|\[|$)") for words in ("in|out|forward", "in", "forward")
)
_FIELD = re.compile(r"\.out(?=\.[^\W\d])")  # before a field name; a module may be called `out` too
_MODEL_OUTPUT = re.compile(r"(?:out|<[^<>]*>)(?=\.|\[|$)")  # the output of the model itself
_ITEMS = re.compile(r"\[.*$", re.DOTALL)


@lru_cache(maxsize=1 << 16)
def module_of(name: str, kind: Kind = "value") -> str:
    """The path of the module that this output, input, variable or parameter belongs to; `""` is the model.

    >>> module_of("layers.0.attn.in.x", "input")
    'layers.0.attn'
    """
    return split_name(name, kind)[0]


@lru_cache(maxsize=1 << 16)
def split_name(name: str, kind: Kind = "value") -> tuple[str, str]:
    """The module of a name, and the rest of it: `("layers.0", ".in.x")`."""
    plain = _without_grad_suffix(name, kind)
    if kind in ("param", "grad_param"):
        module = plain.rpartition(".")[0]
        return module, name[len(module) :]
    marker = _MODEL_OUTPUT.match(plain) if kind in OUTPUTS else None
    marker = marker or _last_io_marker(plain, _io_marker(kind))
    module = plain[: marker.start()] if marker is not None else _ITEMS.sub("", plain)
    return module, name[len(module) :]


def class_of(name: str, classes: Mapping[str, str], kind: Kind = "value") -> str:
    """The class of the module that a name belongs to; empty if unknown."""
    if not classes:
        return ""
    class_name = classes.get(stem_of(name, kind)) if kind in OUTPUTS else None
    return class_name or classes.get(module_of(name, kind), "")


def stem_of(name: str, kind: Kind) -> str:
    """A name without its item indices and `.grad` suffix."""
    return _ITEMS.sub("", _without_grad_suffix(name, kind))


def _without_grad_suffix(name: str, kind: Kind) -> str:
    """Strip `.grad`, unless the kind rules it out: a module may be called `grad`."""
    return name.removesuffix(".grad") if kind == "value" or kind.startswith("grad") else name


def _io_marker(kind: Kind) -> re.Pattern[str]:
    if kind == "value":
        return _ANY
    return _FIELD if kind in OUTPUTS else _IN if kind in _INPUTS else _FORWARD


def _last_io_marker(name: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Find the last marker before any item index: a module may itself be called `in`."""
    last = None
    for match in pattern.finditer(name):
        if "[" in name[: match.start()]:
            break
        last = match
    return last
