"""Suspects: changed lines of code near the first difference of two runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tensortap.comparison.diagnosis.verdict import Finding, Origin
from tensortap.comparison.sides.entry import module_of
from tensortap.comparison.sides.provenance import Change, compare_provenance
from tensortap.core.record import Site
from tensortap.formats.run_layout import nested_dict
from tensortap.viewer.data.dataset import ModuleCode, RunDataset

_MAX_SUSPECTS = 20
_CODE_KINDS = ("output", "own code", "local", "backward", "value")  # data and parameters come from elsewhere
_HUNK_HEADER = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")


class _CodeRange(NamedTuple):
    """Lines of a file; `description` says how a change there relates to the difference."""

    file: str
    first: int
    last: int
    description: str


def find_suspects(
    origin: Origin, finding: Finding | None, datasets: Sequence[RunDataset]
) -> list[dict[str, Any]]:
    """Changed blocks at the origin, then those on the call path to it; B's before A's."""
    if origin.kind not in _CODE_KINDS or finding is None or len(datasets) < 2:
        return []
    level_of_block: dict[str, tuple[int, str]] = {}
    paths = origin.name, _path_in_b(origin, finding)
    sites = finding.pair.a.site, finding.pair.b.site
    for path, site, dataset, blocks in reversed(
        list(zip(paths, sites, datasets, _changed_blocks(*datasets), strict=True))
    ):
        ranges = list(_candidate_ranges(path, site, dataset.code))
        for block in blocks:
            level = next((at for at, code_range in enumerate(ranges) if _overlaps(code_range, block)), None)
            if level is not None:
                level_of_block.setdefault(str(block), (level, ranges[level].description))
    ranked = sorted(level_of_block.items(), key=lambda ranked_block: ranked_block[1][0])[:_MAX_SUSPECTS]
    return [_suspect_facts(location, description) for location, (_, description) in ranked]


def _suspect_facts(location: str, description: str) -> dict[str, Any]:
    file, _, lines = location.rpartition(":")
    return {"text": f"{location} {description}", "file": file, "line": int(lines.partition("-")[0])}


def _path_in_b(origin: Origin, finding: Finding) -> str:
    """The module path in B, which may differ from A's."""
    a, b = finding.pair.a, finding.pair.b
    return origin.name if a.name == b.name else module_of(b.name, b.kind)


def _candidate_ranges(path: str, site: Site | None, code: ModuleCode) -> Iterator[_CodeRange]:
    """Code ranges that could cause the difference, nearest first."""
    if site is not None:
        yield _CodeRange(site.file, site.line, site.line, "holds the line that made it")
    own = code.of_module(path)
    if own is not None:
        yield _CodeRange(*own.forward, f"is in {own.function}, which made it")
        if own.class_range is not None:
            yield _CodeRange(*own.class_range, "is in the class that made it")
    for ancestor in code.ancestors(path):
        yield _CodeRange(*ancestor.forward, f"is in {ancestor.function}, on the path to it")
        if ancestor.class_range is not None:
            yield _CodeRange(*ancestor.class_range, "is in a class on the path to it")
    if site is not None:
        callers = (caller.partition("@")[2].rpartition(":")[0] for caller in site.callers)
        files = dict.fromkeys(filter(None, [site.file, *callers]))
        yield from (_CodeRange(file, 0, 1 << 31, "is in a file on the path to it") for file in files)


def _overlaps(code_range: _CodeRange, block: ChangedBlock) -> bool:
    # Callers are stored with shortened paths.
    range_file, block_file = f"/{code_range.file}", f"/{block.file}"
    return (
        (range_file.endswith(block_file) or block_file.endswith(range_file))
        and block.first <= code_range.last
        and block.last >= code_range.first
    )


def _changed_blocks(a: RunDataset, b: RunDataset) -> tuple[Iterable[ChangedBlock], Iterable[ChangedBlock]]:
    patch_a, patch_b = _patch(a), _patch(b)
    if _commit(a) != _commit(b):  # one may have committed what is uncommitted in the other
        return (), ()
    if patch_a or patch_b:
        return blocks_only_in(patch_a, patch_b), blocks_only_in(patch_b, patch_a)
    changes = [change for topic in compare_provenance(a.run, b.run).topics for change in topic.changes]
    return blocks_of_changes(changes, is_new=False), blocks_of_changes(changes, is_new=True)


def _commit(dataset: RunDataset) -> str:
    return str(nested_dict(dataset.metadata(), "git_info", "project_git_info").get("commit_id", ""))


def _patch(dataset: RunDataset) -> bytes:
    patch = dataset.metadata().get("patch")
    return patch if isinstance(patch, bytes) else b""


class ChangedBlock(NamedTuple):
    """Consecutive changed lines, numbered as in the file that ran; `text` has the removed and added lines.
    Where lines were only removed, the range is the line before them."""

    file: str
    first: int
    last: int
    text: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.first}" + (f"-{self.last}" if self.last > self.first else "")


def blocks_only_in(patch: bytes, other_patch: bytes) -> list[ChangedBlock]:
    """Blocks of a patch that the other patch does not contain."""
    in_other = {(block.file, block.text) for block in _parse_patch(other_patch)}
    return [block for block in _parse_patch(patch) if (block.file, block.text) not in in_other]


def blocks_of_changes(changes: Iterable[Change], *, is_new: bool) -> list[ChangedBlock]:
    """Blocks of file diffs, numbered as in B (`is_new`) or as in A."""
    side = "+" if is_new else "-"
    with_hunks = [change for change in changes if change.hunks and change.hunks[0].startswith("@@")]
    return [block for change in with_hunks for block in _parse_hunks(change.file, change.hunks, side)]


def _parse_patch(patch: bytes) -> list[ChangedBlock]:
    blocks: list[ChangedBlock] = []
    file, lines = "", list[str]()
    for line in [*patch.decode("utf-8", "replace").splitlines(), "diff --git "]:
        if line.startswith("diff --git "):
            blocks += _parse_hunks(file, lines, "+") if file else []
            file, lines = "", []
        elif line.startswith("+++ ") and not lines:
            file = _file_name(line)
        elif line.startswith("@@") or lines:
            lines.append(line)
    return blocks


def _file_name(line: str) -> str:
    name = line[4:].partition("\t")[0].strip('"')
    return "" if name == "/dev/null" else name.removeprefix("b/")


def _parse_hunks(file: str, lines: Iterable[str], side: str) -> Iterator[ChangedBlock]:
    """Changed lines of the hunks, without their context lines."""
    at, first, text = 0, 0, list[str]()
    for line in [*lines, "@@"]:
        if line[:1] in ("+", "-"):
            first = first if text else at
            text.append(line)
            at += line[0] == side
            continue
        if text:
            yield ChangedBlock(file, min(first, max(at - 1, 1)), max(at - 1, 1), tuple(text))
            text = []
        header = _HUNK_HEADER.match(line)
        if header:
            at = int(header[2 if side == "+" else 1])
        else:
            at += not line.startswith("\\")
