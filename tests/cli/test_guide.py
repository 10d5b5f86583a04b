"""The page about the command line names every command."""

import re
from pathlib import Path

from tensortap.cli.main import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_table_names_each_command_once():
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGE.read_text(), re.M)
    assert sorted(re.findall(r"\w+", " ".join(rows))) == sorted(COMMANDS)
