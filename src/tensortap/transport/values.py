"""Values to frames and back: a tree of nodes for the meta, and the elements as they lie in memory."""

from __future__ import annotations

import math
import sys
from collections import UserList, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE, OPTIONAL_ARRAY_LIBRARIES
from tensortap.core.errors import TensortapError, UnsupportedValueError
from tensortap.core.record import Record
from tensortap.frameworks import pytree
from tensortap.frameworks.base import Framework, framework_named, framework_of
from tensortap.frameworks.retention import COPY_WITH_GIL, Buffer, BufferPool
from tensortap.transport.frames import DEFAULT_LIMITS, BadFrameError, FrameLimits
from tensortap.transport.schema import (
    ALIGNMENT,
    CONTAINERS,
    LIST_DTYPES,
    Extent,
    align_up,
    child_count,
    encode_placement,
    encode_record_meta,
    node_extents,
)

_Array = np.ndarray[Any, Any]
_INT64 = range(-(2**63), 2**63)
_MAX_INLINE_TEXT = 512  # characters; longer strings go into the data
_MAX_INLINE_NUMBERS = 16
_PADDING = memoryview(bytes(ALIGNMENT))
_SEQUENCES = (list, tuple, deque, UserList)


@dataclass(slots=True)
class WireValue:
    """`meta` holds the tree; `buffers` are views of the value's own memory where that is contiguous."""

    meta: dict[str, Any]
    buffers: list[memoryview]
    nbytes: int


def encode_for_wire(value: Any, limits: FrameLimits = DEFAULT_LIMITS) -> WireValue:
    """The value, ready to be sent; raises with the path of a part that cannot be."""
    packing = _Encoder(limits)
    write = _WRITERS.get(type(value))
    if write is not None:
        write(packing, value)
    else:
        packing.run(value)
    return WireValue({"tree": packing.tree}, packing.buffers, packing.nbytes)


@dataclass(slots=True)
class _ValueNode:
    """A part of a value; its path is spelled out only for an error."""

    value: Any
    depth: int = 0
    key: Any = None
    parent: _ValueNode | None = None

    @property
    def path(self) -> str:
        steps, node = [], self
        while node.parent is not None:
            steps.append(f"[{node.key!r}]")
            node = node.parent
        return "".join(reversed(steps))


@dataclass(slots=True)
class _Encoder:
    limits: FrameLimits
    tree: list[Any] = field(default_factory=list)
    buffers: list[memoryview] = field(default_factory=list)
    nbytes: int = 0
    _stack: list[_ValueNode] = field(default_factory=list)

    def run(self, value: Any) -> None:
        self._stack.append(_ValueNode(value))
        while self._stack:
            node = self._stack.pop()
            try:
                self._add(node)
            except UnsupportedValueError as error:
                if node.parent is None:
                    raise
                raise UnsupportedValueError(f"{node.path}: {error}") from error

    def _add(self, node: _ValueNode) -> None:
        value = node.value
        write = _WRITERS.get(type(value))
        if write is not None:
            write(self, value)
            return
        if type(value) in (list, tuple):
            self._add_sequence(node)
            return
        framework = framework_of(value)
        if framework.name != "python":
            self._add_array(value, framework)
            return
        if type(value) is dict:
            self._add_mapping(node)
        elif isinstance(value, (set, frozenset)):
            self._add_set(node)
        else:
            self._add_subclass(node)

    def add_leaf(self, node: Any) -> None:
        self.tree.append(node)

    def add_block(self, node: list[Any], data: Any) -> None:
        """A node with its bytes, 64-byte aligned."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.tree.append(node)
        if not view.nbytes:
            return
        start = align_up(self.nbytes)
        if start > self.nbytes:
            self.buffers.append(_PADDING[: start - self.nbytes])
        self.buffers.append(view)
        self.nbytes = start + view.nbytes

    def _add_array(self, value: Any, framework: Framework) -> None:
        description = framework.describe(value)
        if description.dtype not in DTYPE_TABLE and description.layout == "strided":
            _refuse(
                f"an array of {description.dtype} cannot be sent; known types are {', '.join(DTYPE_TABLE)}"
            )
        bits = framework.bits(value)
        if description.dtype not in DTYPE_TABLE:
            _refuse(
                f"a {description.layout} array of {description.dtype} cannot be sent; "
                "send the arrays it is made of"
            )
        node: list[Any] = ["array", framework.name, description.dtype, list(bits.shape)]
        extra = _array_extra(value, framework, description.type)
        self.add_block([*node, extra] if extra else node, _contiguous_bytes(bits))

    def _add_sequence(self, node: _ValueNode) -> None:
        """A plain list or tuple, which may be long: no per-item overhead that is not needed."""
        value = node.value
        if not self._add_number_list(value):
            self.tree.append([type(value).__name__, len(value)])
            self._push_children(node, value, range(len(value)))

    def _add_mapping(self, node: _ValueNode) -> None:
        value = node.value
        self.tree.append(["dict", len(value)])
        self._push_children(node, list(value.values()), list(value), has_keys=True)

    def _add_container(self, node: _ValueNode, parts: list[pytree.Child]) -> None:
        value, items = node.value, [part.value for part in parts]
        if isinstance(value, _SEQUENCES):
            self.tree.append(
                ["tuple" if isinstance(value, tuple) else "list", len(parts), _container_note(value)]
            )
            self._push_children(node, items, range(len(items)))
        else:
            self.tree.append(["dict", len(parts), _container_note(value)])
            self._push_children(node, items, [part.key for part in parts], has_keys=True)

    def _add_set(self, node: _ValueNode) -> None:
        items = list(node.value)
        self.tree.append(["frozenset" if isinstance(node.value, frozenset) else "set", len(items)])
        self._push_children(node, items, range(len(items)))

    def _push_children(
        self, node: _ValueNode, items: Sequence[Any], keys: Sequence[Any], *, has_keys: bool = False
    ) -> None:
        """Push the items of a container, the first on top."""
        depth, count = node.depth + 1, len(self.tree) + len(self._stack) + len(items) * (1 + has_keys)
        if depth > self.limits.depth:
            _refuse(f"the value contains itself or is nested deeper than {self.limits.depth}")
        if count > self.limits.parts:
            _refuse(f"a value of more than {self.limits.parts} parts; send numbers as arrays")
        for item, key in zip(reversed(items), reversed(keys), strict=True):
            self._stack.append(_ValueNode(item, depth, key, node))
            if has_keys:
                self._stack.append(_ValueNode(key, depth, key, node))

    def _add_number_list(self, items: list[Any] | tuple[Any, ...]) -> bool:
        """Whether the items were added as one block: a list of numbers of one type."""
        if not _MAX_INLINE_NUMBERS < len(items) <= self.limits.numbers:
            return False
        kinds = set(map(type, items))
        dtype = LIST_DTYPES.get(kinds.pop()) if len(kinds) == 1 else None
        if dtype is None or (dtype == "int64" and not (min(items) in _INT64 and max(items) in _INT64)):
            return False
        self.add_block(["numbers", type(items).__name__, dtype, len(items)], np.array(items, dtype))
        return True

    def _add_subclass(self, node: _ValueNode) -> None:
        """A user's subclass is sent as the container or Python value that it derives from."""
        value = node.value
        parts = pytree.children(value)
        if parts is not None:
            self._add_container(node, parts)
            return
        for kind, plain in _TO_BASE_TYPE.items():
            if isinstance(value, kind):
                _WRITERS[kind](self, plain(value))
                return
        value_type = type(value)
        _refuse(
            f"a {value_type.__module__}.{value_type.__qualname__} cannot be sent; "
            "arrays, numbers, text, None and "
            "lists, tuples, dicts and sets of them can"
        )


def _contiguous_bytes(bits: _Array) -> _Array:
    """Its bytes in C order: its own memory if contiguous, else a copy."""
    return np.ascontiguousarray(bits).reshape(-1).view(np.uint8)


def _array_extra(value: Any, framework: Framework, kind: str) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if isinstance(value, np.generic):
        extra["scalar"] = True
    elif kind not in ("Tensor", "ndarray", "ArrayImpl"):
        extra["type"] = kind
    placement = framework.placement(value)
    if placement is not None:
        extra["placement"] = encode_placement(placement)
    return extra


def _container_note(value: Any) -> str:
    """The original type of a container that arrives as a plain one."""
    kind = type(value)
    fields = getattr(kind, "_fields", None) if issubclass(kind, tuple) else None
    return f"{kind.__qualname__}({', '.join(fields)})" if fields else kind.__qualname__


def _refuse(why: str) -> NoReturn:
    raise UnsupportedValueError(why)


def _write_int(packing: _Encoder, value: int) -> None:
    packing.add_leaf(value if value in _INT64 else ["int", hex(value)])


def _write_float(packing: _Encoder, value: float) -> None:
    packing.add_leaf(value if math.isfinite(value) else ["float", repr(value)])


def _write_complex(packing: _Encoder, value: complex) -> None:
    parts = (value.real, value.imag)
    packing.add_leaf(["complex", *(part if math.isfinite(part) else repr(part) for part in parts)])


def _write_str(packing: _Encoder, value: str) -> None:
    if len(value) <= _MAX_INLINE_TEXT:
        packing.add_leaf(value)
        return
    data = value.encode("utf-8", "surrogatepass")
    packing.add_block(["str", len(data)], data)


def _write_bytes(packing: _Encoder, value: bytes | bytearray) -> None:
    packing.add_block([type(value).__name__, len(value)], value)


# By the base type's own methods: a subclass may override them.
_TO_BASE_TYPE: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    bytearray: bytearray,
}
_WRITERS: dict[type, Any] = {
    type(None): _Encoder.add_leaf,
    bool: _Encoder.add_leaf,
    int: _write_int,
    float: _write_float,
    complex: _write_complex,
    str: _write_str,
    bytes: _write_bytes,
    bytearray: _write_bytes,
}


TargetFramework = Literal["loaded", "own", "numpy"]


def decode_from_wire(
    meta: dict[str, Any],
    data: Any = b"",
    limits: FrameLimits = DEFAULT_LIMITS,
    into: TargetFramework = "loaded",
) -> Any:
    """The value of a frame, writable, on the memory of `data`.

    An array comes back in its own framework if the program has loaded it (`into="loaded"`), or if it is
    installed (`"own"`); otherwise, and with `"numpy"`, as a numpy array.
    """
    tree = meta.get("tree")
    extents, nbytes = node_extents(tree, limits)
    buffer = np.frombuffer(data, np.uint8) if nbytes or len(data) else np.empty(0, np.uint8)
    if buffer.nbytes != nbytes:
        raise BadFrameError(f"a value of {nbytes} bytes came with {buffer.nbytes} bytes of data")
    try:
        return _build_value(tree, extents, buffer, into)  # type: ignore[arg-type]
    except BadFrameError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise BadFrameError(f"a value that cannot be made: {error}") from error


def original_types(meta: dict[str, Any]) -> list[str]:
    """The original types of containers and arrays that arrived as plain ones: `"Point(x, y)"`,
    `"Parameter"`."""
    types = []
    for node in meta.get("tree", ()):
        if type(node) is list and node[0] in CONTAINERS and len(node) > 2:
            types.append(node[2])
        elif type(node) is list and node[0] == "array" and len(node) > 4 and "type" in node[4]:
            types.append(node[4]["type"])
    return types


def _build_value(tree: list[Any], extents: list[Extent], buffer: _Array, into: TargetFramework) -> Any:
    """In reverse, so that a container finds its items on the stack, the first on top."""
    stack: list[Any] = []
    for node, extent in zip(reversed(tree), reversed(extents), strict=True):
        if type(node) is not list:
            stack.append(node)
        elif node[0] in CONTAINERS:
            items = [stack.pop() for _ in range(child_count(node))]
            stack.append(_build_container(node[0], items))
        else:
            stack.append(_build_leaf(node, buffer[extent.start : extent.start + extent.nbytes], into))
    return stack[0]


def _build_container(tag: str, items: list[Any]) -> Any:
    if tag == "list":
        return items
    if tag == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[tag](items)


def _build_leaf(node: list[Any], buffer: _Array, into: TargetFramework) -> Any:
    tag, *fields = node
    if tag == "array":
        return _build_array(buffer, into, *fields)
    if tag == "numbers":
        kind, dtype, _ = fields
        numbers = buffer.view(DTYPE_TABLE[dtype].storage).tolist()
        return tuple(numbers) if kind == "tuple" else numbers
    if tag == "str":
        return str(buffer.data, "utf-8", "surrogatepass")
    if tag in ("bytes", "bytearray"):
        return bytes(buffer.data) if tag == "bytes" else bytearray(buffer.data)
    if tag == "complex":
        return complex(*map(float, fields))
    return int(fields[0], 16) if tag == "int" else float(fields[0])


def _build_array(
    buffer: _Array,
    into: TargetFramework,
    framework: str,
    dtype: str,
    shape: list[int],
    extra: dict[str, Any] | None = None,
) -> Any:
    bits = buffer.view(DTYPE_TABLE[dtype].storage).reshape(shape)
    array = _to_framework(bits, framework, dtype, into)
    return array[()] if extra and extra.get("scalar") and isinstance(array, np.ndarray) else array


def _to_framework(bits: _Array, framework: str, dtype: str, into: TargetFramework) -> Any:
    is_wanted = into == "own" or (into == "loaded" and sys.modules.get(framework) is not None)
    if framework in OPTIONAL_ARRAY_LIBRARIES and is_wanted:
        try:
            return framework_named(framework).from_bits(bits, dtype)
        except (ImportError, TensortapError):  # not installed, or without this dtype
            pass
    return framework_named("numpy").from_bits(bits, dtype)


_JOIN_NBYTES = 4096  # below that a pooled buffer would be mostly empty


def encode_record(record: Record, limits: FrameLimits = DEFAULT_LIMITS) -> WireValue:
    """The frame meta of this record, and views of its bytes; raises if it cannot be sent."""
    sent = encode_for_wire(record.value, limits)
    sent.meta = {**encode_record_meta(record), **sent.meta}
    return sent


def copy_buffers(sent: WireValue, pool: BufferPool) -> Buffer | bytes:
    """A snapshot of the bytes in one contiguous buffer."""
    if sent.nbytes <= _JOIN_NBYTES:
        return b"".join(sent.buffers) if sent.nbytes else b""
    buffer, at = pool.acquire(sent.nbytes), 0
    for view in sent.buffers:
        _copy(buffer.array[at : at + view.nbytes], view)
        at += view.nbytes
    return buffer


def _copy(target: np.ndarray[Any, Any], view: memoryview) -> None:
    if view.nbytes <= COPY_WITH_GIL:
        # numpy would release the GIL for this, and the sending thread would take it.
        target.data[:] = view
    else:
        np.copyto(target, np.frombuffer(view, np.uint8))
