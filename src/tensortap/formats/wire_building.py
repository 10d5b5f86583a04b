"""Values made again from the tree of a frame and its data; only what the closed list of nodes allows."""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import TensortapError
from tensortap.formats.wire import DEFAULT_LIMITS, BadFrameError, FrameLimits
from tensortap.formats.wire_tree import CONTAINERS, Extent, child_count, node_extents
from tensortap.frameworks.base import framework_named

TargetFramework = Literal["loaded", "own", "numpy"]
_Array = np.ndarray[Any, Any]
_OPTIONAL_FRAMEWORKS = ("torch", "jax")


def decode_from_wire(
    meta: dict[str, Any],
    data: Any = b"",
    limits: FrameLimits = DEFAULT_LIMITS,
    into: TargetFramework = "loaded",
) -> Any:
    """The value of a frame, writable, on the memory of `data`.

    An array comes back in its own framework where the program has loaded that (`into="loaded"`), or
    where it is installed (`"own"`); else, and with `"numpy"`, as a numpy array.
    """
    tree = meta.get("tree")
    places, nbytes = node_extents(tree, limits)
    held = np.frombuffer(data, np.uint8) if nbytes or len(data) else np.empty(0, np.uint8)
    if held.nbytes != nbytes:
        raise BadFrameError(f"a value of {nbytes} bytes came with {held.nbytes} bytes of data")
    try:
        return _build_value(tree, places, held, into)  # type: ignore[arg-type]
    except BadFrameError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise BadFrameError(f"a value that cannot be made: {error}") from error


def original_types(meta: dict[str, Any]) -> list[str]:
    """What containers and arrays were before they became plain ones: `"Point(x, y)"`, `"Parameter"`."""
    found = []
    for node in meta.get("tree", ()):
        if type(node) is list and node[0] in CONTAINERS and len(node) > 2:
            found.append(node[2])
        elif type(node) is list and node[0] == "array" and len(node) > 4 and "type" in node[4]:
            found.append(node[4]["type"])
    return found


def _build_value(tree: list[Any], places: list[Extent], held: _Array, into: TargetFramework) -> Any:
    """Backwards, so that a container finds its items on the stack, the first on top."""
    done: list[Any] = []
    for node, place in zip(reversed(tree), reversed(places), strict=True):
        if type(node) is not list:
            done.append(node)
        elif node[0] in CONTAINERS:
            items = [done.pop() for _ in range(child_count(node))]
            done.append(_build_container(node[0], items))
        else:
            done.append(_build_leaf(node, held[place.start : place.start + place.nbytes], into))
    return done[0]


def _build_container(tag: str, items: list[Any]) -> Any:
    if tag == "list":
        return items
    if tag == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](items)


def _build_leaf(node: list[Any], held: _Array, into: TargetFramework) -> Any:
    tag, *fields = node
    if tag == "array":
        return _build_array(held, into, *fields)
    if tag == "numbers":
        kind, dtype, _ = fields
        numbers = held.view(DTYPE_TABLE[dtype].storage).tolist()
        return tuple(numbers) if kind == "tuple" else numbers
    if tag == "str":
        return str(held.data, "utf-8", "surrogatepass")
    if tag in ("bytes", "bytearray"):
        return bytes(held.data) if tag == "bytes" else bytearray(held.data)
    if tag == "complex":
        return complex(*map(float, fields))
    return int(fields[0], 16) if tag == "int" else float(fields[0])


def _build_array(
    held: _Array,
    into: TargetFramework,
    framework: str,
    dtype: str,
    shape: list[int],
    extra: dict[str, Any] | None = None,
) -> Any:
    bits = held.view(DTYPE_TABLE[dtype].storage).reshape(shape)
    made = _to_framework(bits, framework, dtype, into)
    return made[()] if extra and extra.get("scalar") and isinstance(made, np.ndarray) else made


def _to_framework(bits: _Array, framework: str, dtype: str, into: TargetFramework) -> Any:
    is_wanted = into == "own" or (into == "loaded" and sys.modules.get(framework) is not None)
    if framework in _OPTIONAL_FRAMEWORKS and is_wanted:
        try:
            return framework_named(framework).from_bits(bits, dtype)
        except (ImportError, TensortapError):  # not installed, or without this number type
            pass
    return framework_named("numpy").from_bits(bits, dtype)
