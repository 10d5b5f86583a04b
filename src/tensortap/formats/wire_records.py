"""What else a record tells, as the meta of a frame, and the record made of it again."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, get_args

from tensortap.core.record import Kind, Placement, Record, Site
from tensortap.formats.wire import BadFrameError
from tensortap.frameworks.base import framework_of

_SITE_SIZES = (3, 5, 6)
_KINDS = frozenset(get_args(Kind))
_PLAIN = frozenset((float, int, bool, str, type(None)))  # of which nothing is ever a piece
_Numbers = int | tuple[int, ...]


def record_meta(record: Record) -> dict[str, Any]:
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
        meta["site"] = _site_cells(record.site)
    placement = record.placement
    if placement is None and type(record.value) not in _PLAIN:
        placement = framework_of(record.value).placement(record.value)
    if placement is not None:
        meta["placement"] = placement_meta(placement)
    return meta


def placement_meta(placement: Placement) -> list[Any]:
    told = (placement.mesh, placement.coordinate, placement.parts, placement.shape, placement.offset)
    return [list(cells) for cells in told]


def record_from(meta: dict[str, Any], value: Any) -> Record:
    """The record of this meta around its value; fields of later versions are passed over."""
    name, kind = meta.get("name"), meta.get("kind", "value")
    if type(name) is not str or type(kind) is not str or kind not in _KINDS:
        raise BadFrameError(f"a record has a name and one of the kinds {', '.join(sorted(_KINDS))}")
    site, placement = meta.get("site"), meta.get("placement")
    return Record(
        name,
        value,
        kind,  # type: ignore[arg-type]
        _numbers(meta["step"]) if "step" in meta else 0,
        _numbers(meta["rank"]) if "rank" in meta else 0,
        _number(meta["call"]) if "call" in meta else 0,
        _number(meta["order"]) if "order" in meta else 0,
        _time(meta.get("time", 0.0)),
        None if site is None else _site(site),
        None if placement is None else _placement(placement),
    )


def _site_cells(site: Site) -> list[Any]:
    """Most of what is as usual is left out here too."""
    if site.depth or site.callers or site.tree:
        return [site.function, site.file, site.line, site.depth, list(site.callers), site.tree]
    return [site.function, site.file, site.line]


def _site(cells: Any) -> Site:
    if type(cells) is not list or len(cells) not in _SITE_SIZES:
        raise BadFrameError("a site has a function, file and line, and may have depth, callers and tree")
    function, file, line = cells[:3]
    if len(cells) == 3:
        return _short_site(_text(function), _text(file), _number(line))
    depth, callers, *more = cells[3:]
    tree = _number(more[0]) if more else 0
    return Site(_text(function), _text(file), _number(line), _number(depth), _texts(callers), tree)


@lru_cache(maxsize=1024)
def _short_site(function: str, file: str, line: int) -> Site:
    return Site(function, file, line)


def _placement(cells: Any) -> Placement:
    if type(cells) is not list or len(cells) < 5:
        raise BadFrameError("a placement has a mesh, coordinate, parts, shape and offset")
    mesh, coordinate, parts, shape, offset = cells[:5]
    return Placement(_sizes(mesh), _sizes(coordinate), _texts(parts), _sizes(shape), _sizes(offset))


def _numbers(cell: Any) -> _Numbers:
    return _sizes(cell) if type(cell) is list else _number(cell)


def _sizes(cell: Any) -> tuple[int, ...]:
    return tuple(_number(one) for one in _list(cell))


def _texts(cell: Any) -> tuple[str, ...]:
    return tuple([_text(one) for one in _list(cell)])


def _list(cell: Any) -> list[Any]:
    if type(cell) is not list:
        raise BadFrameError(f"a {type(cell).__name__} in a record where a list belongs")
    return cell


def _number(cell: Any) -> int:
    if type(cell) is not int:
        raise BadFrameError(f"a {type(cell).__name__} in a record where a whole number belongs")
    return cell


def _time(cell: Any) -> float:
    if type(cell) not in (int, float) or abs(cell) > 1 << 62:
        raise BadFrameError(f"a {type(cell).__name__} in a record where a time belongs")
    return float(cell)


def _text(cell: Any) -> str:
    if type(cell) is not str:
        raise BadFrameError(f"a {type(cell).__name__} in a record where text belongs")
    return cell
