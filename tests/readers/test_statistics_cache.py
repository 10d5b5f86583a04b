"""Statistics: computed when first asked for, then kept beside the index."""

import json

import numpy as np
import pytest
import torch

from tensortap.core.record import Record
from tensortap.readers import stored_record
from tensortap.readers.run import Run


@pytest.fixture
def path(written):
    return written(Record("x", torch.tensor([1.0, 3.0])), Record("y", np.array([2**60])), Record("d", {}))


def _cache(path):
    return path / ".tensortap" / "cache" / "statistics.jsonl"


def test_nothing_is_computed_before_it_is_asked_for(path):
    run = Run(path)
    assert [stored.name for stored in run] == ["x", "y", "d"]
    assert not _cache(path).exists()


def test_statistics_are_those_of_the_value(path):
    run = Run(path)
    assert (run.find("x").statistics.mean, run.find("y").statistics.max) == (2, 2**60)
    assert run.find("d").statistics is None


def test_a_second_run_reads_them_from_the_cache(path, monkeypatch):
    first = Run(path).find("x").statistics
    monkeypatch.setattr(stored_record, "statistics", None)  # nothing is computed again
    assert Run(path).find("x").statistics == first


def test_what_the_cache_says_is_believed(path):
    assert Run(path).find("x").statistics.max == 3
    key, row = json.loads(_cache(path).read_text())
    _cache(path).write_text(json.dumps([key, [row[0], -7, *row[2:]]]) + "\n")
    assert Run(path).find("x").statistics.min == -7


@pytest.mark.parametrize(
    "damage", [b"garbage\n", b"5\n", b"[1]\n", b'["k", [1]]\n', b"\xff\xfe\n", b'["half']
)
def test_a_damaged_line_is_computed_again(path, damage):
    assert Run(path).find("x").statistics.max == 3
    _cache(path).write_bytes(damage)
    assert Run(path).find("x").statistics.max == 3


def test_a_run_that_cannot_be_written_is_computed_each_time(path):
    (path / ".tensortap" / "cache").write_text("a file stands in the way")
    for _ in range(2):
        assert Run(path).find("x").statistics.max == 3


@pytest.mark.parametrize("value", [np.empty(0), np.array([np.nan, np.inf]), np.array([True]), np.array([1j])])
def test_odd_numbers_survive_the_cache(written, value):
    path = written(Record("x", value))
    first = Run(path).find("x").statistics
    assert Run(path).find("x").statistics == first
