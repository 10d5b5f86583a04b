"""Name the files of a patch whose added lines look secret; the patch itself is never altered."""

import os
import re
from typing import Any

from tensortap.metadata.redact import count_secrets
from tensortap.metadata.untracked import is_secret_file

MAX_SCANNED = 1 << 20
_ADDED = re.compile(rb"^\+(?!\+\+ )(.*)$", re.MULTILINE)


def flagged(patch: bytes) -> list[dict[str, Any]]:
    """Path and reason of each file that a reader should look at before sharing the patch."""
    scanned, found = 0, []
    for section in re.split(rb"^diff --git ", patch, flags=re.MULTILINE)[1:]:
        header, _, body = section.partition(b"\n")
        reason = _reason(_path(header), body if scanned < MAX_SCANNED else b"")
        scanned += len(body)
        if reason:
            found.append({"path": _path(header), "reason": reason})
    if scanned > MAX_SCANNED:
        found.append({"path": "...", "reason": "the rest of the patch was not scanned: over 1 MB"})
    return found


def _reason(path: str, body: bytes) -> str:
    if is_secret_file(path):
        return "files of this name usually hold secrets"
    if b"\nGIT binary patch\n" in body:
        return ""
    added = b"\n".join(_ADDED.findall(body[:MAX_SCANNED])).decode("utf-8", "replace")
    count = count_secrets(added)
    return f"added passages that look secret: {count}" if count else ""


def _path(header: bytes) -> str:
    """The path in `a/PATH b/PATH`: the same twice, since renames are not sought."""
    if not header.startswith(b'"'):
        return os.fsdecode(header[2 : 2 + (len(header) - 5) // 2])
    quoted = header[3 : 3 + (len(header) - 9) // 2]
    return os.fsdecode(quoted.decode("unicode_escape").encode("latin-1"))
