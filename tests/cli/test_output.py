"""What every command writes with: tables, JSON, colours, progress."""

import fcntl
import io
import json
import math
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest

from tensortap.cli import output


def on_terminal(*arguments, columns=100, **settings):
    """What a command writes when stdout is a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", "COLORTERM": "", **settings}
    code = "import sys; from tensortap.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    subprocess.run(command, stdout=theirs, env=environment, check=True)
    os.close(theirs)
    with os.fdopen(ours, "rb") as stream:
        return os.read(stream.fileno(), 1 << 16).decode()


def test_json_says_its_schema_first_and_holds_what_json_cannot(capsys):
    facts = {"a": math.nan, "b": [math.inf, -math.inf], "c": Path("x"), "d": (1, {2: None}), "e": 2**70}
    output.write_json("test", facts)
    text = capsys.readouterr().out
    assert text.startswith('{"schema": "tensortap.test/1", ')
    assert json.loads(text) == {
        "schema": "tensortap.test/1",
        **{"a": "NaN", "b": ["Infinity", "-Infinity"], "c": "x", "d": [1, {"2": None}], "e": 2**70},
    }


def test_a_piped_table_is_aligned_and_never_cut(capsys):
    output.write_table(["name", "n"], [["x" * 200, "5"], ["y", "12,345"]], right={"n"}, shortened="name")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("x" * 200)
    assert lines[0].endswith("     n")
    assert lines[2].endswith("12,345")
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    "nbytes", [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1234567, "1.23 MB"), (5e12, "5 TB")]
)
def test_sizes_are_told_in_three_digits(nbytes):
    assert output.size(nbytes[0]) == nbytes[1]


def test_what_the_stream_cannot_say_is_escaped(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    output.write("層 \udcff")
    stream.flush()
    assert stream.buffer.getvalue() == b"\\u5c64 \\udcff\n"


def test_progress_gives_every_item_and_says_nothing_into_a_pipe(capsys):
    assert list(output.progress(iter("abc"), "reading", 3)) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_shows_a_bar_only_while_it_takes_long_and_wipes_it(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert len(list(output.progress(range(5), "reading", 5))) == 5
    assert terminal.getvalue() == ""
    clock = iter(range(100))
    monkeypatch.setattr(output, "monotonic", lambda: next(clock))
    assert len(list(output.progress(range(5), "reading", 5))) == 5
    assert "reading ####" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[2K")


@pytest.mark.process
def test_a_terminal_gets_a_table_with_colours_that_fits_it(make_run, tell):
    run = tell(make_run(), "train.py " + "--flag " * 40)
    shown = on_terminal("ls", run, columns=len(str(run)) + 100)
    assert "\x1b[1mname" in shown
    assert "…" in shown
    assert "finished" in shown
    assert max(map(len, shown.splitlines()[1:])) <= len(str(run)) + 100
    plain = on_terminal("ls", run, NO_COLOR="1")
    assert "\x1b" not in plain
    assert "--flag " * 39 in plain


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "mark"),
    [
        ({"COLORTERM": "truecolor"}, "\x1b[38;2;"),
        ({"TERM": "xterm-256color"}, "\x1b[38;5;"),
        ({"TERM": "xterm"}, "█"),
        ({"NO_COLOR": "1"}, "█"),
        ({"TERM": "dumb"}, "█"),
    ],
)
def test_a_heat_map_has_as_many_colours_as_the_terminal(make_run, settings, mark):
    run = make_run(x=[np.eye(4)])
    shown = on_terminal("show", f"{run}:x", **settings)
    assert mark in shown
    assert ("\x1b[" in shown) == mark.startswith("\x1b")
