"""Turn a working tree into a content id and a patch, in a private index beside the repository."""

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tensortap.metadata.git import Repository, head
from tensortap.metadata.untracked import Untracked

_DIFF = (
    "diff-tree", "-r", "-p", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff",
    "--no-textconv", "--src-prefix=a/", "--dst-prefix=b/", "--no-relative", "--submodule=short",
    "--ignore-submodules=none", "-U3", "--inter-hunk-context=0", "--diff-algorithm=myers",
)  # fmt: skip
# The objects are gone a moment later: no need to press them, nor to wait until the disk has them.
_THROWAWAY = ("core.fsync=none", "core.compression=0")
# Every blob counts as big, so that they all go into one pack: a file each would take a millisecond each.
_ONE_PACK = "core.bigFileThreshold=1"


@dataclass
class Worktree:
    """The uncommitted state of a repository, ready to be written beside a run."""

    tree: str
    patch: bytes
    is_dirty: bool
    skipped: list[dict[str, Any]] = field(default_factory=list)
    unmerged: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        return "dirty" if self.is_dirty else "clean"


def read_worktree(repository: Repository, run_folder: str) -> Worktree:
    """The tree and patch of what is on disk now: staged or not, deleted, untracked, binary."""
    with tempfile.TemporaryDirectory(prefix="tensortap-") as temporary:
        private = PrivateIndex(repository, temporary)
        unmerged = private.unmerged()
        private.ask("add", "--update", config=(_ONE_PACK,))
        untracked = Untracked(repository.root, run_folder)
        private.add(untracked.choose(private.names("ls-files", "--others", "--exclude-standard")))
        tree = os.fsdecode(private.ask("write-tree")).strip()
        patch = private.ask(*_DIFF, base_tree(repository), tree)
    return Worktree(tree, patch, bool(patch) or untracked.left_out, untracked.skipped, unmerged)


def base_tree(repository: Repository) -> str:
    """The commit a patch starts from; the empty tree before the first."""
    return head(repository) or repository.text("hash-object", "-t", "tree", "--stdin")


class PrivateIndex:
    """A copy of the index; new objects go beside it, and the repository is only read."""

    def __init__(self, repository: Repository, folder: str) -> None:
        self._repository = repository
        index, objects = os.path.join(folder, "index"), os.path.join(folder, "objects")
        os.mkdir(objects)
        if os.path.exists(repository.index):
            # With its time: git compares it with the files' to find changes made in the same instant.
            shutil.copy2(repository.index, index)
        self._variables = {
            "GIT_INDEX_FILE": index,
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(repository.objects),
        }
        # The filter of git-lfs would otherwise store the new contents in the repository.
        self._config = [f"lfs.storage={os.path.join(folder, 'lfs')}", *_THROWAWAY]

    def ask(self, *arguments: str, stdin: bytes = b"", config: tuple[str, ...] = ()) -> bytes:
        settings = (*self._config, *config)
        return self._repository.ask(*arguments, variables=self._variables, stdin=stdin, config=settings)

    def names(self, *arguments: str) -> list[str]:
        return [os.fsdecode(name) for name in self.ask(*arguments, "-z").split(b"\0") if name]

    def unmerged(self) -> list[str]:
        return sorted({entry.partition("\t")[2] for entry in self.names("ls-files", "--unmerged")})

    def add(self, paths: Iterable[str]) -> None:
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        if names:
            arguments = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
            self.ask(*arguments, stdin=names, config=(_ONE_PACK,))


def _quoted(path: str) -> str:
    # The variable is a list: a path with its separator must be quoted, in C's manner.
    if os.pathsep not in path and not path.startswith('"'):
        return path
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
