"""Paths of another time and place: refuse those that lead out of the new folder, translate the others."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensortap.core.errors import RefusedError
from tensortap.readers.reproduce_recorded import SCRIPT, Part, Recorded

_HEADERS = re.compile(rb"^(?:--- |\+\+\+ |rename (?:from|to) |copy (?:from|to) )(.*?)\t?\r?$", re.MULTILINE)
_LINK = re.compile(rb"^(?:new file mode|new mode) 120000$|^index [0-9a-f.]+ 120000$", re.MULTILINE)
_TARGET = re.compile(rb"^\+(?!\+\+ )(.*)$", re.MULTILINE)


def check_paths(recorded: Recorded, *, trust: bool) -> None:
    """Refuse a run whose files would land outside the folder they are restored to."""
    for part in recorded.parts:
        if leads_out(part.target) or part.target.split(os.sep)[0] not in ("code", "packages", SCRIPT):
            raise RefusedError(f"{part.label} would be restored outside the new folder; it is not touched")
        if part.patch is not None:
            check_patch(part.patch.read_bytes(), part.patch, trust=trust)


def check_patch(patch: bytes, where: Path, *, trust: bool) -> None:
    for section in re.split(rb"^(?=diff --git )", patch, flags=re.MULTILINE):
        for path in _paths(section):
            if leads_out(path) or ".git" in path.lower().split("/"):
                raise RefusedError(
                    f"{where} writes to {path!r}, outside the code; such a patch is not applied"
                )
            if not trust:
                _check_link(section, path, where)


def leads_out(path: str) -> bool:
    """Whether a path that should be relative and inside is not."""
    normal = os.path.normpath(path)
    return os.path.isabs(path) or normal == ".." or normal.startswith("../") or "\0" in path


def _check_link(section: bytes, path: str, where: Path) -> None:
    if not _LINK.search(section.partition(b"\n@@")[0]):
        return
    for target in map(os.fsdecode, _TARGET.findall(section.partition(b"\n@@")[2])):
        if os.path.isabs(target) or leads_out(os.path.join(os.path.dirname(path), target)):
            raise RefusedError(
                f"{where} makes a link {path!r} that points out of the code, to {target!r}; "
                "--trust restores it"
            )


def _paths(section: bytes) -> Iterator[str]:
    """Every path that a section of a patch names."""
    header = section.partition(b"\n@@")[0]
    for written in _HEADERS.findall(header.partition(b"\nGIT binary patch")[0]):
        name = _unquoted(written)
        if name != "/dev/null":
            yield name[2:] if name[:2] in ("a/", "b/") else name
    first = header.partition(b"\n")[0].removeprefix(b"diff --git ")
    if header.startswith(b"diff --git "):
        yield from (name[2:] for name in _both(first))


def _both(first: bytes) -> Iterator[str]:
    """The two paths of `a/PATH b/PATH`; they are the same, since renames are not sought."""
    if first.startswith(b'"'):
        middle = (len(first) - 1) // 2
        yield from (_unquoted(first[:middle]), _unquoted(first[middle + 1 :]))
    else:
        middle = len(first) // 2
        yield from (os.fsdecode(first[:middle]), os.fsdecode(first[middle + 1 :]))


def _unquoted(name: bytes) -> str:
    if not name.startswith(b'"'):
        return os.fsdecode(name)
    return os.fsdecode(name.strip(b'"').decode("unicode_escape").encode("latin-1", "replace"))


@dataclass(frozen=True, slots=True)
class Moves:
    """Where each recorded folder is now."""

    pairs: tuple[tuple[str, str], ...]

    def path(self, path: str) -> str:
        """The new place of an absolute path; itself when it has none."""
        for old, new in self.pairs:
            if path == old:
                return new
            if path.startswith(os.path.join(old, "")):
                return os.path.join(new, os.path.relpath(path, old))
        return path

    def has(self, path: str) -> bool:
        return self.path(path) != path

    def list_of_paths(self, text: str) -> str:
        """A variable such as PYTHONPATH, or one path."""
        return os.pathsep.join(map(self.path, text.split(os.pathsep)))

    def argument(self, word: str, old_folder: str) -> str:
        """An argument of the command: `/abs`, `--data=/abs`, or relative to the recorded folder."""
        option, equals, value = word.partition("=")
        if equals and option.startswith("-") and "/" not in option:
            return f"{option}={self._value(value, old_folder)}"
        return word if word.startswith("-") else self._value(word, old_folder)

    def _value(self, value: str, old_folder: str) -> str:
        if os.path.isabs(value):
            return self.list_of_paths(value)
        place = os.path.normpath(os.path.join(old_folder, value)) if value and old_folder else ""
        if not place or not os.path.exists(place):
            return self.path(place) if value.startswith("..") and self.has(place) else value
        # Below the working directory it is found again; from there upwards only by its full path.
        is_below = place.startswith(os.path.join(old_folder, ""))
        return value if is_below and self.has(old_folder) else self.path(place)


def moves(parts: list[Part], recorded: Recorded, into: Path) -> Moves:
    pairs = [(part.root, str(into / part.target)) for part in parts if part.root]
    if recorded.sources.get("root"):
        pairs.append((str(recorded.sources["root"]), str(into / recorded.sources_target)))
    return Moves(tuple(sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)))
