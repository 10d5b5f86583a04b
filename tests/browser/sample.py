"""Runs to look at: two trainings that part at one head of one layer, and one of many captures."""

from pathlib import Path

import numpy as np
from tests.viewer.sample import keep_command

from tensortap.core.record import Record, Site
from tensortap.sinks.run_directory import RunDirectory

STEPS, LAYERS, PARTS_AT = 12, 4, 5
FIRST = "blocks.1.attn"
EVIL = "<img src=x onerror=alert(1)><b>bold</b>"
_SITE = Site("forward", "/code/model.py", 212)


def names() -> list[str]:
    blocks = [f"blocks.{layer}.{part}" for layer in range(LAYERS) for part in ("norm", "attn", "mlp")]
    return ["embed", *blocks, "head"]


def write(path: Path, *, is_changed: bool = False) -> Path:
    """From a step on, rows from 16 on of head 2 differ; everything after it drifts."""
    sink = RunDirectory(path)
    first = names().index(FIRST)
    for step in range(STEPS):
        for order, name in enumerate(names()):
            value = (
                np.random.default_rng(step * 100 + order).standard_normal((2, 4, 24, 32)).astype(np.float32)
            )
            if is_changed and step >= PARTS_AT and order >= first:
                part = value[:, 2, 16:] if order == first else value
                part *= np.float32(1.01)
            sink.write(Record(name, value, "output", step, order=order, time=1e9 + step, site=_SITE))
        sink.write(Record("loss", np.float32(1 / (step + 1)), "value", step, order=90, time=1e9 + step))
    broken = np.array([[1.0, np.nan], [np.inf, 4.0]], np.float32)
    sink.write(Record(EVIL, broken, "value", 0, order=91, time=1e9))
    sink.close()
    return keep_command(path)


def write_one(path: Path, name: str, *shape: int) -> Path:
    sink = RunDirectory(path)
    sink.write(Record(name, np.ones(shape, np.float32), "output", 0, time=1e9))
    sink.close()
    return path


def write_many(path: Path, count: int) -> Path:
    sink = RunDirectory(path)
    value = np.arange(8, dtype=np.float32)
    for number in range(count):
        step, order = divmod(number, 500)
        sink.write(
            Record(f"layers.{order // 10}.part{order % 10}", value, "output", step, order=order, time=1e9)
        )
    sink.close()
    return keep_command(path)
