"""Keep the program's own files where no repository does: what it imported from its folder, as a tar."""

import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensortap.metadata.git import is_secret_file
from tensortap.metadata.process import Start, is_below, is_of_environment

CODE = "code"  # the folder, in our own, of what keeps code
SOURCES = "sources.tar"
MAX_SOURCES = 20 << 20
MAX_ARGUMENT = 1 << 20
_MAX_TAR, _MAX_ENTRIES = 4 * MAX_SOURCES, 20_000


def sources(start: Start) -> tuple[dict[str, Any], bytes]:
    """The facts and the tar of the script, of the imported files under the program's folder, and of files
    that its command names there."""
    root, script = _root(start), start.script
    if root is None:
        return {"reason": "the program has no file of its own"}, b""
    kept, skipped, total = [], [], 0
    own = [script] if script is not None and os.path.isfile(script) else []
    for path in sorted({*own, *_imported(root), *_named(root, start.folder)}):
        size = os.path.getsize(path)
        if is_secret_file(path) or total + size > MAX_SOURCES:
            skipped.append({"path": os.path.relpath(path, root), "size": size})
        else:
            kept.append(path)
            total += size
    content = _tar(root, kept)
    names = [os.path.relpath(path, root) for path in kept]
    facts = {"root": root, "files": names, "skipped": skipped, "digest": digest(content)}
    return (facts, content) if kept else ({"reason": "no file of the program lies in its folder"}, b"")


def kept_files(tar: Path) -> dict[str, bytes]:
    """What such a tar holds, by name; nothing where there is none."""
    if not tar.is_file():
        return {}
    return {entry.name: content for entry, content in entries(tar) if content is not None}


def entries(tar: Path) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Each entry with its content, which only files have. What is not whole, or none of ours, raises a
    TarError: a stranger may have made it, so that reading it never ends."""
    if tar.stat().st_size > _MAX_TAR:
        raise tarfile.ReadError(f"it is larger than {_MAX_TAR:,} bytes")
    try:
        with tarfile.open(tar, "r:") as opened:
            yield from _read(opened)
    except (EOFError, ValueError, OverflowError, RecursionError) as error:
        raise tarfile.ReadError(str(error)) from error


def _read(opened: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    room, left, at = MAX_SOURCES, _MAX_ENTRIES, -1
    while (entry := opened.next()) is not None:
        room, left = room - entry.size, left - 1
        is_odd = entry.size < 0 or entry.offset <= at or entry.issparse()
        if is_odd or min(room, left) < 0:
            raise tarfile.ReadError(f"{entry.name[:80]!r} in it is no file that a run keeps")
        at = entry.offset
        file = opened.extractfile(entry) if entry.isfile() else None
        yield entry, None if file is None else file.read()


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _root(start: Start) -> str | None:
    """The working directory when the script lies below it, else the script's folder."""
    if start.script is None:
        return start.folder if start.folder not in ("", os.path.sep) else None
    home = os.path.dirname(start.script)
    first = os.path.realpath(start.folder) if start.folder else home
    return first if first != os.path.sep and is_below(home, first) else home


def _imported(root: str) -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        path = os.path.realpath(file) if isinstance(file, str) else ""
        if is_below(path, root) and not is_of_environment(path) and os.path.isfile(path):
            yield path


def _named(root: str, folder: str) -> Iterator[str]:
    """Files that the command line names, such as `--config small.yaml`."""
    for argument in sys.argv[1:]:
        path = os.path.realpath(os.path.join(folder or root, argument.rpartition("=")[2]))
        is_own = is_below(path, root) and os.path.isfile(path)
        if is_own and os.path.getsize(path) <= MAX_ARGUMENT:
            yield path


def _tar(root: str, paths: list[str]) -> bytes:
    stream = io.BytesIO()
    # Without times and owners, so that equal files make equal bytes.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in paths:
            entry = tarfile.TarInfo(os.path.relpath(path, root))
            with open(path, "rb") as file:
                content = file.read()
            entry.size, entry.mode = len(content), os.stat(path).st_mode & 0o777
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()
