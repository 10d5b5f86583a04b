"""The page for contributors is true: its rooms exist, and each typical change lands in files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CHANGES = {
    change: re.findall(r"`([^`]+\.\w+)`", files)
    for change, files in re.findall(
        r"^\| ((?:a|an) [^|]+) \| (.+) \|$", PAGE.partition("## Where a change goes")[2], re.M
    )
}


def find(file: str) -> list[Path]:
    """The file below the package or the project; for a new one, those of its folder."""
    file = file.replace("NAME", "*")
    return [*(ROOT / "src" / "tensortap").glob(file), *ROOT.glob(file)]


def test_the_page_tells_of_twelve_typical_changes():
    assert len(CHANGES) == 12
    assert all(CHANGES.values())


@pytest.mark.parametrize("change", CHANGES)
def test_each_file_that_a_change_touches_exists(change):
    assert [file for file in CHANGES[change] if not find(file)] == []


def test_a_file_that_is_gone_would_be_found():
    assert find("sinks/nowhere.py") == []


def test_every_room_is_on_the_page(source):
    rooms = {path.name for path in source.iterdir() if path.is_dir() and path.name != "__pycache__"}
    table = "\n".join(line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `"))
    assert set(re.findall(r"`(\w+)`", table)) == rooms
