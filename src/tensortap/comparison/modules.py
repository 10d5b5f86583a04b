"""Which module a record's name belongs to, and what of the module it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from tensortap.core.record import Kind

_PORT = re.compile(r"(?:^|\.)(in|out|forward)(?=\.|\[|$)")
_ITEMS = re.compile(r"\[.*$", re.DOTALL)


@lru_cache(maxsize=1 << 16)
def module_of(name: str, kind: Kind = "value") -> str:
    """The path of the module whose output, input, variable or parameter this is; `""` is the model itself.

    >>> module_of("layers.0.attn.in.x", "input")
    'layers.0.attn'
    """
    return split(name, kind)[0]


@lru_cache(maxsize=1 << 16)
def split(name: str, kind: Kind = "value") -> tuple[str, str]:
    """The module of a name, and the rest of it: `("layers.0", ".in.x")`."""
    plain = name.removesuffix(".grad")
    if kind in ("param", "grad_param"):
        module = plain.rpartition(".")[0]
        return module, name[len(module) :]
    found = _last_port(plain)
    module = plain[: found.start()] if found is not None else _ITEMS.sub("", plain)
    return module, name[len(module) :]


def class_of(name: str, classes: Mapping[str, str], kind: Kind = "value") -> str:
    """The class of the module that a name belongs to; empty where it is not known."""
    return classes.get(module_of(name, kind), "") if classes else ""


def _last_port(name: str) -> re.Match[str] | None:
    """Where a name leaves the module: a module may itself be called `in`, so the last place counts, but not
    one inside the brackets of an item."""
    found = None
    for hit in _PORT.finditer(name):
        if "[" in name[: hit.start()]:
            break
        found = hit
    return found
