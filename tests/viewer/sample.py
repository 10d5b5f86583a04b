"""A small run: four names of two layers over six steps, and a loss."""

import io
import tarfile
from pathlib import Path

import numpy as np

from tensortap.core.record import Record, Site
from tensortap.sinks.run_directory import RunDirectory

STEPS, NAMES = 6, ("layers.0.attn", "layers.0.mlp", "layers.1.attn", "layers.1.mlp")
EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def write(path: Path, *, parts_at: int | None = None, steps: int = STEPS) -> Path:
    """Values that are the same in every run, but for one name from a step on."""
    sink = RunDirectory(path)
    site = Site("forward", "/code/model.py", 212)
    for step in range(steps):
        for order, name in enumerate(NAMES):
            value = np.random.default_rng(step * 10 + order).standard_normal((2, 8, 16)).astype(np.float32)
            if parts_at is not None and step >= parts_at and order >= 2:
                value[0, 3] *= 1.25
            sink.write(Record(name, value, "output", step, order=order, time=1e9 + step, site=site))
        sink.write(Record("loss", np.float32(1 / (step + 1)), "value", step, order=9, time=1e9 + step))
    sink.close()
    return path


def keep_command(run: Path) -> Path:
    """As a run keeps the command that made it."""
    (run / "runtime_info.json").write_text('{"command": {"full_command": "python train.py"}}')
    return run


def keep_program(run: Path, name: str, text: str) -> None:
    """As a run keeps a program that no repository has."""
    code = run / ".tensortap" / "code"
    code.mkdir(parents=True, exist_ok=True)
    with tarfile.open(code / "sources.tar", "w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text.encode()))
