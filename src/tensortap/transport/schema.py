"""The closed list of nodes that describe a value on the wire, validated before any of its bytes are read.

A tree is a flat list in which each container is followed by its items, so that nested values do not nest the
JSON. The bytes of nodes follow in the data in node order, each 64-byte aligned.

The other fields of a record travel in the frame's meta.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.record import Kind, Placement, Record, Site
from tensortap.frameworks.base import framework_of
from tensortap.transport.frames import DEFAULT_LIMITS, BadFrameError, FrameLimits

ALIGNMENT = 64
CONTAINERS = {"list": 1, "tuple": 1, "set": 1, "frozenset": 1, "dict": 2}  # nodes per item
LIST_DTYPES = {bool: "bool", int: "int64", float: "float64"}
_MAX_SIZE = 1 << 62
_SCALAR_TYPES = frozenset((float, int, bool, str, type(None)))  # nodes that are values themselves


class Extent(NamedTuple):
    """The range of a node's bytes in the data."""

    start: int
    nbytes: int


_NO_EXTENT = Extent(0, 0)


def align_up(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def node_extents(tree: Any, limits: FrameLimits = DEFAULT_LIMITS) -> tuple[list[Extent], int]:
    """The extent of each node and the total number of bytes; raises for an invalid tree."""
    if type(tree) is not list or not 0 < len(tree) <= limits.parts:
        raise BadFrameError(f"the tree of a value is a list of 1 to {limits.parts} nodes")
    if len(tree) == 1 and type(tree[0]) in _SCALAR_TYPES:
        return [_NO_EXTENT], 0
    placed, end = [], 0
    for node in tree:
        if type(node) is not list:
            placed.append(_NO_EXTENT)
            _require_no_object(node)
            continue
        start, nbytes = align_up(end), _node_nbytes(node, limits)
        if nbytes:
            end = start + nbytes
            if end > limits.data:
                raise BadFrameError(f"a value of more than {limits.data} bytes")
        placed.append(Extent(start, nbytes) if nbytes else _NO_EXTENT)
    _require_single_value(tree, limits)
    return placed, end


def data_nbytes(tree: Any, limits: FrameLimits = DEFAULT_LIMITS) -> int:
    """The number of data bytes that belong to this tree."""
    return node_extents(tree, limits)[1]


def child_count(node: list[Any]) -> int:
    """The number of following nodes that a container holds; 0 for a leaf."""
    return int(node[1]) * CONTAINERS.get(node[0], 0) if node[0] in CONTAINERS else 0


def _require_single_value(tree: list[Any], limits: FrameLimits) -> None:
    """Check that the nodes form one value; in reverse, so that a container finds its items parsed."""
    depths: list[int] = []
    for node in reversed(tree):
        if type(node) is not list:
            depths.append(0)
            continue
        count = child_count(node)
        if count > len(depths):
            raise BadFrameError(f"a {node[0]} of {count} nodes, and {len(depths)} follow")
        depth = 0
        if count:
            depth = 1 + max(depths[-count:])
            del depths[-count:]
        if depth > limits.depth:
            raise BadFrameError(f"a value nested deeper than {limits.depth}")
        depths.append(depth)
    if len(depths) != 1:
        raise BadFrameError(f"the nodes of a tree are {len(depths)} values; they have to be one")


def _require_no_object(node: Any) -> None:
    if type(node) is dict:
        raise BadFrameError("a node of a tree is an object; nodes are scalars and arrays")


def _node_nbytes(node: list[Any], limits: FrameLimits) -> int:
    tag = node[0] if node else None
    check = _CHECKS.get(tag) if type(tag) is str else None
    if check is None:
        raise BadFrameError(f"a node {str(tag)[:40]!r}; known are {', '.join(_CHECKS)}")
    try:
        return check(limits, *node[1:])
    except TypeError as error:  # too few or too many fields
        raise BadFrameError(f"a node {tag!r} with other fields than it has: {error}") from error


def _check_container(limits: FrameLimits, count: Any, note: Any = "") -> int:
    if not _is_count(count) or type(note) is not str:
        raise BadFrameError("a container tells its number of items, and a note as text")
    return 0


def _check_integer(limits: FrameLimits, text: Any) -> int:
    if type(text) is not str:
        raise BadFrameError("a large integer is text")
    return 0


def _check_float(limits: FrameLimits, text: Any) -> int:
    if text not in ("nan", "inf", "-inf"):
        raise BadFrameError("a float that JSON lacks is 'nan', 'inf' or '-inf'")
    return 0


def _check_complex(limits: FrameLimits, real: Any, imaginary: Any) -> int:
    for part in (real, imaginary):
        if type(part) is str:
            _check_float(limits, part)
        elif type(part) not in (int, float):
            raise BadFrameError("a complex number has two numbers")
    return 0


def _check_block(limits: FrameLimits, nbytes: Any) -> int:
    if not _is_count(nbytes):
        raise BadFrameError("a text or bytes tells its length")
    return int(nbytes)


def _check_numbers(limits: FrameLimits, kind: Any, dtype: Any, count: Any) -> int:
    if kind not in ("list", "tuple") or dtype not in LIST_DTYPES.values() or not _is_count(count):
        raise BadFrameError("numbers in one block are a list or tuple of bool, int64 or float64")
    if count > limits.numbers:
        raise BadFrameError(f"a list of {count} numbers in one block; allowed are {limits.numbers}")
    return int(count) * DTYPE_TABLE[dtype].itemsize


def _check_array(limits: FrameLimits, framework: Any, dtype: Any, shape: Any, extra: Any = None) -> int:
    if type(framework) is not str or type(dtype) is not str or dtype not in DTYPE_TABLE:
        raise BadFrameError(f"an array of type {str(dtype)[:40]!r}; known are {', '.join(DTYPE_TABLE)}")
    if type(shape) is not list or len(shape) > limits.dims or not all(map(_is_count, shape)):
        raise BadFrameError(f"the shape of an array is a list of at most {limits.dims} sizes")
    if extra is not None and type(extra) is not dict:
        raise BadFrameError("what else is known of an array is an object")
    nbytes = DTYPE_TABLE[dtype].itemsize
    for size in shape:
        nbytes *= size
    return nbytes


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < _MAX_SIZE


_CHECKS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(CONTAINERS, _check_container),
    "int": _check_integer,
    "float": _check_float,
    "complex": _check_complex,
    "str": _check_block,
    "bytes": _check_block,
    "bytearray": _check_block,
    "numbers": _check_numbers,
    "array": _check_array,
}


_SITE_SIZES = (3, 5, 6)
_KINDS = frozenset(get_args(Kind))
_UNPLACED_TYPES = frozenset((float, int, bool, str, type(None)))  # never sharded
_Numbers = int | tuple[int, ...]


def encode_record_meta(record: Record) -> dict[str, Any]:
    """All fields but the value; defaults are omitted."""
    meta: dict[str, Any] = {"name": record.name, "time": float(record.time)}
    if record.kind != "value":
        meta["kind"] = record.kind
    for key, number in (("step", record.step), ("rank", record.rank)):
        if number != 0:
            meta[key] = [int(part) for part in number] if isinstance(number, tuple) else int(number)
    if record.call:
        meta["call"] = int(record.call)
    if record.order:
        meta["order"] = int(record.order)
    if record.site is not None:
        meta["site"] = _encode_site(record.site)
    placement = record.placement
    if placement is None and type(record.value) not in _UNPLACED_TYPES:
        placement = framework_of(record.value).placement(record.value)
    if placement is not None:
        meta["placement"] = encode_placement(placement)
    return meta


def encode_placement(placement: Placement) -> list[Any]:
    fields = (placement.mesh, placement.coordinate, placement.parts, placement.shape, placement.offset)
    return [list(cells) for cells in fields]


def decode_record(meta: dict[str, Any], value: Any) -> Record:
    """The record from its meta and value; unknown fields of later versions are ignored."""
    name, kind = meta.get("name"), meta.get("kind", "value")
    if type(name) is not str or type(kind) is not str or kind not in _KINDS:
        raise BadFrameError(f"a record has a name and one of the kinds {', '.join(sorted(_KINDS))}")
    site, placement = meta.get("site"), meta.get("placement")
    return Record(
        name,
        value,
        kind,  # type: ignore[arg-type]
        _decode_numbers(meta["step"]) if "step" in meta else 0,
        _decode_numbers(meta["rank"]) if "rank" in meta else 0,
        _require_int(meta["call"]) if "call" in meta else 0,
        _require_int(meta["order"]) if "order" in meta else 0,
        _decode_time(meta.get("time", 0.0)),
        None if site is None else _decode_site(site),
        None if placement is None else _decode_placement(placement),
    )


def _encode_site(site: Site) -> list[Any]:
    """Defaults are omitted here too."""
    if site.depth or site.callers or site.tree:
        return [site.function, site.file, site.line, site.depth, list(site.callers), site.tree]
    return [site.function, site.file, site.line]


def _decode_site(cells: Any) -> Site:
    if type(cells) is not list or len(cells) not in _SITE_SIZES:
        raise BadFrameError("a site has a function, file and line, and may have depth, callers and tree")
    function, file, line = cells[:3]
    if len(cells) == 3:
        return _short_site(_require_str(function), _require_str(file), _require_int(line))
    depth, callers, *more = cells[3:]
    tree = _require_int(more[0]) if more else 0
    return Site(
        _require_str(function),
        _require_str(file),
        _require_int(line),
        _require_int(depth),
        _decode_strings(callers),
        tree,
    )


@lru_cache(maxsize=1024)
def _short_site(function: str, file: str, line: int) -> Site:
    return Site(function, file, line)


def _decode_placement(cells: Any) -> Placement:
    if type(cells) is not list or len(cells) < 5:
        raise BadFrameError("a placement has a mesh, coordinate, parts, shape and offset")
    mesh, coordinate, parts, shape, offset = cells[:5]
    return Placement(
        _decode_ints(mesh),
        _decode_ints(coordinate),
        _decode_strings(parts),
        _decode_ints(shape),
        _decode_ints(offset),
    )


def _decode_numbers(cell: Any) -> _Numbers:
    return _decode_ints(cell) if type(cell) is list else _require_int(cell)


def _decode_ints(cell: Any) -> tuple[int, ...]:
    return tuple(_require_int(number) for number in _require_list(cell))


def _decode_strings(cell: Any) -> tuple[str, ...]:
    return tuple([_require_str(text) for text in _require_list(cell)])


def _require_list(cell: Any) -> list[Any]:
    if type(cell) is not list:
        raise BadFrameError(f"a {type(cell).__name__} in a record where a list belongs")
    return cell


def _require_int(cell: Any) -> int:
    if type(cell) is not int:
        raise BadFrameError(f"a {type(cell).__name__} in a record where a whole number belongs")
    return cell


def _decode_time(cell: Any) -> float:
    if type(cell) not in (int, float) or abs(cell) > 1 << 62:
        raise BadFrameError(f"a {type(cell).__name__} in a record where a time belongs")
    return float(cell)


def _require_str(cell: Any) -> str:
    if type(cell) is not str:
        raise BadFrameError(f"a {type(cell).__name__} in a record where text belongs")
    return cell
