"""Recorded paths: refuse those that lead out of the new folder, translate the others."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensortap.core.errors import RefusedError
from tensortap.readers.reproduce_recorded import SCRIPT, RecordedRepository, RecordedRun

_PATH_HEADER = re.compile(
    rb"^(?:--- |\+\+\+ |rename (?:from|to) |copy (?:from|to) )(.*?)\t?\r?$", re.MULTILINE
)
_SYMLINK_MODE = re.compile(rb"^(?:new file mode|new mode) 120000$|^index [0-9a-f.]+ 120000$", re.MULTILINE)
_ADDED_LINE = re.compile(rb"^\+(?!\+\+ )(.*)$", re.MULTILINE)


def check_paths(recorded: RecordedRun, *, trust: bool) -> None:
    """Refuse a run whose files would land outside the folder they are restored to."""
    for repository in recorded.repositories:
        if leads_out(repository.target) or repository.target.split(os.sep)[0] not in (
            "code",
            "packages",
            SCRIPT,
        ):
            raise RefusedError(
                f"{repository.label} would be restored outside the new folder; it is not touched"
            )
        if repository.patch is not None:
            check_patch(repository.patch.read_bytes(), repository.patch, trust=trust)


def check_patch(patch: bytes, patch_file: Path, *, trust: bool) -> None:
    for section in re.split(rb"^(?=diff --git )", patch, flags=re.MULTILINE):
        for path in _patched_paths(section):
            if leads_out(path) or ".git" in path.lower().split("/"):
                raise RefusedError(
                    f"{patch_file} writes to {path!r}, outside the code; such a patch is not applied"
                )
            if not trust:
                _check_link(section, path, patch_file)


def leads_out(path: str) -> bool:
    """Whether a path is absolute or escapes its folder by `..`."""
    normal = os.path.normpath(path)
    return os.path.isabs(path) or normal == ".." or normal.startswith("../") or "\0" in path


def _check_link(section: bytes, path: str, patch_file: Path) -> None:
    if not _SYMLINK_MODE.search(section.partition(b"\n@@")[0]):
        return
    for target in map(os.fsdecode, _ADDED_LINE.findall(section.partition(b"\n@@")[2])):
        if os.path.isabs(target) or leads_out(os.path.join(os.path.dirname(path), target)):
            raise RefusedError(
                f"{patch_file} makes a link {path!r} that points out of the code, to {target!r}; "
                "--trust restores it"
            )


def _patched_paths(section: bytes) -> Iterator[str]:
    """Every path named in the headers of a section of a patch."""
    header = section.partition(b"\n@@")[0]
    for quoted in _PATH_HEADER.findall(header.partition(b"\nGIT binary patch")[0]):
        name = _unquote(quoted)
        if name != "/dev/null":
            yield name[2:] if name[:2] in ("a/", "b/") else name
    diff_line = header.partition(b"\n")[0].removeprefix(b"diff --git ")
    if header.startswith(b"diff --git "):
        yield from (name[2:] for name in _paths_of_diff_line(diff_line))


def _paths_of_diff_line(paths: bytes) -> Iterator[str]:
    """The two paths of `a/PATH b/PATH`; they are the same, since renames are not detected."""
    if paths.startswith(b'"'):
        middle = (len(paths) - 1) // 2
        yield from (_unquote(paths[:middle]), _unquote(paths[middle + 1 :]))
    else:
        middle = len(paths) // 2
        yield from (os.fsdecode(paths[:middle]), os.fsdecode(paths[middle + 1 :]))


def _unquote(name: bytes) -> str:
    if not name.startswith(b'"'):
        return os.fsdecode(name)
    return os.fsdecode(name.strip(b'"').decode("unicode_escape").encode("latin-1", "replace"))


@dataclass(frozen=True, slots=True)
class PathMapping:
    """Maps recorded folders to where they are restored."""

    pairs: tuple[tuple[str, str], ...]

    def translate(self, path: str) -> str:
        """The new path of an absolute path; unchanged outside the recorded folders."""
        for old, new in self.pairs:
            if path == old:
                return new
            if path.startswith(os.path.join(old, "")):
                return os.path.join(new, os.path.relpath(path, old))
        return path

    def contains(self, path: str) -> bool:
        return self.translate(path) != path

    def translate_list(self, text: str) -> str:
        """Translate each path of a variable such as PYTHONPATH."""
        return os.pathsep.join(map(self.translate, text.split(os.pathsep)))

    def translate_argument(self, word: str, old_folder: str) -> str:
        """Translate an argument of the command: `/abs`, `--data=/abs`, or relative to the recorded folder."""
        option, equals, value = word.partition("=")
        if equals and option.startswith("-") and "/" not in option:
            return f"{option}={self._translate_value(value, old_folder)}"
        return word if word.startswith("-") else self._translate_value(word, old_folder)

    def _translate_value(self, value: str, old_folder: str) -> str:
        if os.path.isabs(value):
            return self.translate_list(value)
        absolute = os.path.normpath(os.path.join(old_folder, value)) if value and old_folder else ""
        if not absolute or not os.path.exists(absolute):
            return self.translate(absolute) if value.startswith("..") and self.contains(absolute) else value
        # Below the working directory a relative path still resolves; above it only an absolute one does.
        is_below = absolute.startswith(os.path.join(old_folder, ""))
        return value if is_below and self.contains(old_folder) else self.translate(absolute)


def map_paths(repositories: list[RecordedRepository], recorded: RecordedRun, into: Path) -> PathMapping:
    pairs = [
        (repository.root, str(into / repository.target)) for repository in repositories if repository.root
    ]
    if recorded.sources.get("root"):
        pairs.append((str(recorded.sources["root"]), str(into / recorded.sources_target)))
    return PathMapping(tuple(sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)))
