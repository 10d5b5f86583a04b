"""Runs to look at, and the command as it is typed."""

import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tensortap.cli.main import main
from tensortap.core.record import Record
from tensortap.sinks.run_directory import RunDirectory


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def tensortap(capsys):
    """Call the command in this process."""

    def call(*arguments: Any) -> Said:
        code = main(list(map(str, arguments)))
        return Said(code, *capsys.readouterr())

    return call


@pytest.fixture
def runtime(monkeypatch):
    """A folder for sockets alone; short, for the system allows no long name for one."""
    with tempfile.TemporaryDirectory(prefix="tt", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture
def make_run(tmp_path):
    """Write a run of some values, each a name and its array for one step after another."""

    def make(where: str = "run", layout: str = "pack", stats: bool = False, **series: Any) -> Path:
        sink = RunDirectory(tmp_path / where, layout=layout, stats=stats)
        for order, (name, values) in enumerate((series or {"x": [np.eye(4, dtype="f4")]}).items()):
            for step, value in enumerate(values):
                sink.write(Record(name, value, "output", step=step, order=order, time=1.7e9 + step))
        sink.close()
        return tmp_path / where

    return make


@pytest.fixture
def tell(tmp_path):
    """Write the facts beside a run."""

    def write(run: Path, command: str = "train.py", commit: str = "a" * 40, **more: Any) -> Path:
        facts = {
            "runtime_info": {
                "command": {"full_command": command},
                "environment_variables": more.get("variables", {"OMP_NUM_THREADS": "1", "HOME": "/home/me"}),
                "working_directory": "/home/me",
                "timestamp": more.get("timestamp", "2025-10-28T14:30:41+08:00"),
            },
            "packages": {"python_version": "3.11.7", "all_packages": more.get("packages", {"torch": "2.9"})},
            "git_info": {
                "project_git_info": {
                    "commit_id": commit,
                    "branch": "main",
                    "status": more.get("status", "clean"),
                }
            },
        }
        for name, content in facts.items():
            (run / f"{name}.json").write_text(json.dumps(content))
        if "patch" in more:
            (run / "project.patch").write_bytes(more["patch"])
        return run

    return write
