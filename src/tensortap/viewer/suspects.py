"""Changed lines of code that the first difference of two runs may come from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tensortap.comparison.findings import Finding, Origin
from tensortap.comparison.modules import module_of
from tensortap.comparison.provenance import provenance
from tensortap.core.record import Site
from tensortap.viewer.books import RunDataset
from tensortap.viewer.changed_lines import ChangedBlock, blocks_of_changes, blocks_only_in
from tensortap.viewer.module_code import ModuleCode
from tensortap.viewer.provenance import nested_dict

_MAX_SUSPECTS = 20
_CODE_KINDS = ("output", "own code", "local", "backward", "value")  # data and parameters are made elsewhere


class _CodeRange(NamedTuple):
    """Lines of a file; `told` is what a change within them is."""

    file: str
    first: int
    last: int
    told: str


def find_suspects(origin: Origin, seen: Finding | None, books: Sequence[RunDataset]) -> list[dict[str, Any]]:
    """Changes where the difference was made, then those on the path to it; those of B before those of A."""
    if origin.kind not in _CODE_KINDS or seen is None or len(books) < 2:
        return []
    found: dict[str, tuple[int, str]] = {}
    paths = origin.name, _path_in_b(origin, seen)
    sites = seen.pair.a.site, seen.pair.b.site
    for path, site, book, blocks in reversed(list(zip(paths, sites, books, _changed_blocks(*books), strict=True))):
        places = list(_candidate_ranges(path, site, book.code))
        for block in blocks:
            level = next((at for at, place in enumerate(places) if _overlaps(place, block)), None)
            if level is not None:
                found.setdefault(str(block), (level, places[level].told))
    ranked = sorted(found.items(), key=lambda one: one[1][0])[:_MAX_SUSPECTS]
    return [_suspect_facts(where, words) for where, (_, words) in ranked]


def _suspect_facts(where: str, words: str) -> dict[str, Any]:
    file, _, lines = where.rpartition(":")
    return {"text": f"{where} {words}", "file": file, "line": int(lines.partition("-")[0])}


def _path_in_b(origin: Origin, seen: Finding) -> str:
    """Of what has another name in B, the module of that name."""
    a, b = seen.pair.a, seen.pair.b
    return origin.name if a.name == b.name else module_of(b.name, b.kind)


def _candidate_ranges(path: str, site: Site | None, code: ModuleCode) -> Iterator[_CodeRange]:
    """The nearest first."""
    if site is not None:
        yield _CodeRange(site.file, site.line, site.line, "holds the line that made it")
    own = code.of(path)
    if own is not None:
        yield _CodeRange(*own.forward, f"is in {own.function}, which made it")
        if own.kind is not None:
            yield _CodeRange(*own.kind, "is in the class that made it")
    for above in code.above(path):
        yield _CodeRange(*above.forward, f"is in {above.function}, on the path to it")
        if above.kind is not None:
            yield _CodeRange(*above.kind, "is in a class on the path to it")
    if site is not None:
        callers = (caller.partition("@")[2].rpartition(":")[0] for caller in site.callers)
        files = dict.fromkeys(filter(None, [site.file, *callers]))
        yield from (_CodeRange(file, 0, 1 << 31, "is in a file on the path to it") for file in files)


def _overlaps(place: _CodeRange, block: ChangedBlock) -> bool:
    one, other = f"/{place.file}", f"/{block.file}"  # a caller is known by the last part of its path
    return (
        (one.endswith(other) or other.endswith(one))
        and block.first <= place.last
        and block.last >= place.first
    )


def _changed_blocks(a: RunDataset, b: RunDataset) -> tuple[Iterable[ChangedBlock], Iterable[ChangedBlock]]:
    mine, others = _patch(a), _patch(b)
    if _commit(a) != _commit(b):  # one may have committed what the other has as a change
        return (), ()
    if mine or others:
        return blocks_only_in(mine, others), blocks_only_in(others, mine)
    changes = [change for topic in provenance(a.run, b.run).topics for change in topic.changes]
    return blocks_of_changes(changes, is_new=False), blocks_of_changes(changes, is_new=True)


def _commit(book: RunDataset) -> str:
    return str(nested_dict(book.metadata(), "git_info", "project_git_info").get("commit_id", ""))


def _patch(book: RunDataset) -> bytes:
    told = book.metadata().get("patch")
    return told if isinstance(told, bytes) else b""
