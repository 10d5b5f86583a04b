"""What collecting the facts of a run costs in a repository of 8,000 files, beside one `git status` there."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from itertools import count
from pathlib import Path

from harness import Table, finish, medians, tell
from tensortap.metadata.collect import Metadata

FILES = 8_000
LIMIT = 1.0
LINES = "".join(f"value_{line} = {line} / 7\n" for line in range(60))


def make_repository(folder: Path) -> None:
    """With a thousandth of the files changed, and as many untracked."""
    for number in range(FILES):
        path = folder / f"package_{number % 80}" / f"part_{number % 7}" / f"module_{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {number}\n{LINES}")
    git(folder, "init", "-q")
    git(folder, "config", "gc.auto", "0")  # else the commit begins to pack them behind our back
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "all")
    for number, path in enumerate(sorted(folder.glob("package_1/part_1/*.py"))[:8]):
        path.write_text("changed = True\n")
        (folder / f"untracked_{number}.py").write_text("new = True\n")


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def measure(name: str, folder: Path, runs: Path, rounds: int, table: Table) -> None:
    numbers = count()

    def first() -> None:
        """No run beside it has the unpublished commits yet."""
        Metadata(runs / f"alone_{next(numbers)}" / "run").write()

    def later() -> None:
        Metadata(runs / "together" / f"run_{next(numbers)}").write()

    candidates = {"first": first, "later": later, "git status": lambda: git(folder, "status", "--short")}
    seconds = medians(candidates, rounds)
    table.add(f"{name}: the first run beside no other", seconds["first"], LIMIT, "s")
    table.add(f"{name}: a later run", seconds["later"], LIMIT, "s")
    tell(f"{name}: git status alone", seconds["git status"], "s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args().quick else 9
    table = Table("metadata")
    place = Path(tempfile.mkdtemp(prefix="tensortap-metadata-"))
    try:
        make_repository(place / "project")
        os.chdir(place / "project")
        measure(f"{FILES:,} files, loose", place / "project", place / "loose", rounds, table)
        git(place / "project", "gc", "-q")
        measure(f"{FILES:,} files, packed", place / "project", place / "packed", rounds, table)
    finally:
        os.chdir("/")
        shutil.rmtree(place, ignore_errors=True)
    return finish([table])


if __name__ == "__main__":
    sys.exit(main())
