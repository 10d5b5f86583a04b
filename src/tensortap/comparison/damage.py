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
    return [_verify_checksums(finding) if _had_equal_checksums(finding) else finding for finding in findings]


def localise_verified(
    findings: Sequence[Finding], unmatched: Sequence[Entry], measured_names: Collection[str]
) -> tuple[list[Finding], list[Origin]]:
    """As `localise` says; but whatever is accused is looked at again, byte by byte."""
    checked: dict[int, Finding] = {}
    while True:
        table, origins = localise(findings, unmatched, measured_names)
        rechecked = {
            index: _verify_checksums(findings[index])
            for index in _find_suspects(table, origins) - checked.keys()
        }
        if all(finding is findings[index] for index, finding in rechecked.items()):
            return table, origins
        checked |= rechecked
        findings = [checked.get(index, finding) for index, finding in enumerate(findings)]


def _find_suspects(table: Sequence[Finding], origins: Sequence[Origin]) -> set[int]:
    """Where a value that is accused stands; of a damaged run, where any stands that is beyond noise."""
    if any(finding.verdict == "unreadable" for finding in table):
        return {index for index, finding in enumerate(table) if finding.is_beyond}
    keys = {(origin.seen_at, origin.step, origin.rank, origin.call) for origin in origins}
    return {
        index
        for index, finding in enumerate(table)
        if keys and finding.is_beyond and (finding.name, finding.step, finding.rank, finding.call) in keys
    }


def _had_equal_checksums(finding: Finding) -> bool:
    a, b = finding.pair.a, finding.pair.b
    if finding.verdict == "identical" or not a.checksum or a.checksum != b.checksum:
        return False
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def _verify_checksums(finding: Finding) -> Finding:
    """The same finding; unreadable where one of its values is not what was written."""
    reason = describe_corruption(finding.pair.a) or describe_corruption(finding.pair.b)
    if not reason:
        return finding
    return replace(finding, metrics=None, verdict="unreadable", ratio=0.0, axis="", note=reason, source="")


def describe_corruption(entry: Entry) -> str:
    """What is wrong with the bytes of a value of a run; empty where nothing is, or nobody can tell."""
    reference = entry.reference
    if not isinstance(reference, RunValueRef) or not entry.checksum:
        return ""
    try:
        actual = checksum(reference.checksummed_bytes())
    except (OSError, ValueError, TensortapError):  # it could be read a moment ago, perhaps by another machine
        return ""
    if actual is None or actual == entry.checksum:
        return ""
    end = reference.start + reference.length
    return (
        f"{reference.path}/{reference.file} is damaged: bytes {end - reference.nbytes:,} to {end:,} are not those that were "
        "written; the other values of the run can still be read"
    )
