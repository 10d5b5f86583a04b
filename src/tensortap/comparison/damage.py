"""Bytes that are not those that were written: such a value is unreadable, and accuses nobody."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding, Origin
from tensortap.comparison.localise import localise
from tensortap.comparison.references import RunValueRef
from tensortap.core.errors import TensortapError
from tensortap.kernels.hashing import checksum


def mark_corrupt_values(findings: Iterable[Finding]) -> list[Finding]:
    """Two values that had the same bytes when they were written, and have not: one of them is damaged.
    All others are taken as they are: to look at every byte twice would take as long as to compare them."""
    return [_verify_checksums(found) if _had_equal_checksums(found) else found for found in findings]


def localise_verified(
    findings: Sequence[Finding], alone: Sequence[Entry], measured: Collection[str]
) -> tuple[list[Finding], list[Origin]]:
    """As `localise` says; but whatever is accused is looked at again, byte by byte."""
    checked: dict[int, Finding] = {}
    while True:
        table, origins = localise(findings, alone, measured)
        found = {place: _verify_checksums(findings[place]) for place in _find_suspects(table, origins) - checked.keys()}
        if all(one is findings[place] for place, one in found.items()):
            return table, origins
        checked |= found
        findings = [checked.get(place, one) for place, one in enumerate(findings)]


def _find_suspects(table: Sequence[Finding], origins: Sequence[Origin]) -> set[int]:
    """Where a value that is accused stands; of a damaged run, where any stands that is beyond noise."""
    if any(one.verdict == "unreadable" for one in table):
        return {place for place, one in enumerate(table) if one.is_beyond}
    keys = {(one.seen_at, one.step, one.rank, one.call) for one in origins}
    return {
        place
        for place, one in enumerate(table)
        if keys and one.is_beyond and (one.name, one.step, one.rank, one.call) in keys
    }


def _had_equal_checksums(found: Finding) -> bool:
    a, b = found.pair.a, found.pair.b
    if found.verdict == "identical" or not a.checksum or a.checksum != b.checksum:
        return False
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def _verify_checksums(found: Finding) -> Finding:
    """The same finding; unreadable where one of its values is not what was written."""
    told = describe_corruption(found.pair.a) or describe_corruption(found.pair.b)
    if not told:
        return found
    return replace(found, metrics=None, verdict="unreadable", ratio=0.0, axis="", note=told, source="")


def describe_corruption(entry: Entry) -> str:
    """What is wrong with the bytes of a value of a run; empty where nothing is, or nobody can tell."""
    lies = entry.reference
    if not isinstance(lies, RunValueRef) or not entry.checksum:
        return ""
    try:
        there = checksum(lies.checksummed_bytes())
    except (OSError, ValueError, TensortapError):  # it could be read a moment ago, perhaps by another machine
        return ""
    if there is None or there == entry.checksum:
        return ""
    end = lies.start + lies.length
    return (
        f"{lies.path}/{lies.file} is damaged: bytes {end - lies.nbytes:,} to {end:,} are not those that were "
        "written; the other values of the run can still be read"
    )
