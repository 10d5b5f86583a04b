"""What else a record tells, as the meta of a frame, and the record made of it again."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_args

from tensortap.core.record import Kind, Placement, Record, Site
from tensortap.formats.wire import BadFrameError
from tensortap.frameworks.base import framework_of

_SITE_SIZES = (3, 5, 6)
_KINDS = frozenset(get_args(Kind))
_UNPLACED_TYPES = frozenset((float, int, bool, str, type(None)))  # of which nothing is ever a piece
_Numbers = int | tuple[int, ...]


def encode_record_meta(record: Record) -> dict[str, Any]:
    """All but the value; what is as usual is left out."""
    meta: dict[str, Any] = {"name": record.name, "time": float(record.time)}
    if record.kind != "value":
        meta["kind"] = record.kind
    for key, number in (("step", record.step), ("rank", record.rank)):
        if number != 0:
            meta[key] = [int(one) for one in number] if isinstance(number, tuple) else int(number)
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
    told = (placement.mesh, placement.coordinate, placement.parts, placement.shape, placement.offset)
    return [list(cells) for cells in told]


def decode_record(meta: dict[str, Any], value: Any) -> Record:
    """The record of this meta around its value; fields of later versions are passed over."""
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
    """Most of what is as usual is left out here too."""
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
    return tuple(_require_int(one) for one in _require_list(cell))


def _decode_strings(cell: Any) -> tuple[str, ...]:
    return tuple([_require_str(one) for one in _require_list(cell)])


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
