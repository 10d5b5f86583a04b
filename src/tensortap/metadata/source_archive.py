"""Archive the program's files where no repository has them: what it imported from its folder, as a tar."""

import hashlib
import io
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensortap.metadata.git import is_secret_file
from tensortap.metadata.process import ProgramStart, is_below, is_installed_file, resolve_file

CODE_FOLDER = "code"  # below the internal folder of a run
SOURCES_FILE = "sources.tar"
MAX_SOURCES = 20 << 20
MAX_ARGUMENT = 1 << 20
_MAX_TAR, _MAX_ENTRIES = 4 * MAX_SOURCES, 20_000


def archive_sources(start: ProgramStart) -> tuple[dict[str, Any], bytes]:
    """Facts and the tar of the script, of imported files below the program's folder, and of files there that
    its command names."""
    root, script = _source_root(start), start.script
    if root is None:
        return {"reason": "the program has no file of its own"}, b""
    archived, skipped, total = [], [], 0
    scripts = [script] if script is not None and os.path.isfile(script) else []
    for path in sorted({*scripts, *_imported_files(root), *_files_in_command(root, start.folder)}):
        size = os.path.getsize(path)
        if is_secret_file(path) or total + size > MAX_SOURCES:
            skipped.append({"path": os.path.relpath(path, root), "size": size})
        else:
            archived.append(path)
            total += size
    content = _make_tar(root, archived)
    names = [os.path.relpath(path, root) for path in archived]
    facts = {"root": root, "files": names, "skipped": skipped, "digest": content_digest(content)}
    return (facts, content) if archived else ({"reason": "no file of the program lies in its folder"}, b"")


def read_archive(tar: Path) -> dict[str, bytes]:
    """The files of the archive by name; empty if there is none."""
    if not tar.is_file():
        return {}
    return {entry.name: content for entry, content in archive_entries(tar) if content is not None}


def archive_entries(tar: Path) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Each entry with its content, None if not a file. Raises a TarError if damaged or not written by us: an
    untrusted archive may be crafted so that reading it never ends."""
    if tar.stat().st_size > _MAX_TAR:
        raise tarfile.ReadError(f"it is larger than {_MAX_TAR:,} bytes")
    try:
        with tarfile.open(tar, "r:") as archive:
            yield from _checked_entries(archive)
    except (EOFError, ValueError, OverflowError, RecursionError) as error:
        raise tarfile.ReadError(str(error)) from error


def _checked_entries(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    bytes_left, entries_left, last_offset = MAX_SOURCES, _MAX_ENTRIES, -1
    while (entry := archive.next()) is not None:
        bytes_left, entries_left = bytes_left - entry.size, entries_left - 1
        is_suspicious = entry.size < 0 or entry.offset <= last_offset or entry.issparse()
        if is_suspicious or min(bytes_left, entries_left) < 0:
            raise tarfile.ReadError(f"{entry.name[:80]!r} in it is no file that a run keeps")
        last_offset = entry.offset
        file = archive.extractfile(entry) if entry.isfile() else None
        yield entry, None if file is None else file.read()


def content_digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _source_root(start: ProgramStart) -> str | None:
    """The working directory when the script lies below it, else the script's folder."""
    if start.script is None:
        return start.folder if start.folder not in ("", os.path.sep) else None
    script_folder = os.path.dirname(start.script)
    start_folder = os.path.realpath(start.folder) if start.folder else script_folder
    return (
        start_folder
        if start_folder != os.path.sep and is_below(script_folder, start_folder)
        else script_folder
    )


def _imported_files(root: str) -> Iterator[str]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        path = resolve_file(file) if isinstance(file, str) else ""
        if is_below(path, root) and not is_installed_file(path) and os.path.isfile(path):
            yield path


def _files_in_command(root: str, folder: str) -> Iterator[str]:
    """Files that the command line names, such as `--config small.yaml`."""
    for argument in sys.argv[1:]:
        path = os.path.realpath(os.path.join(folder or root, argument.rpartition("=")[2]))
        is_program_file = is_below(path, root) and os.path.isfile(path)
        if is_program_file and os.path.getsize(path) <= MAX_ARGUMENT:
            yield path


def _make_tar(root: str, paths: list[str]) -> bytes:
    stream = io.BytesIO()
    # Without times and owners, so that equal files give equal bytes.
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in paths:
            entry = tarfile.TarInfo(os.path.relpath(path, root))
            with open(path, "rb") as file:
                content = file.read()
            entry.size, entry.mode = len(content), os.stat(path).st_mode & 0o777
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()
