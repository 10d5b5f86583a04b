"""Statistics: computed when first asked for, then kept beside the index."""

import json

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.core.record import Record
from tensortap.readers import stored_record
from tensortap.readers.query.tables import IndexTable
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
    for stored in ({**row, "min": -7}, [row["count"], -7, *list(row.values())[2:]]):  # the list is of 0.1
        _cache(path).write_text(json.dumps([key, stored]) + "\n")
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


def test_statistics_of_an_old_index_and_of_a_newer_one_are_read(tmp_path):
    """Lists are those of version 0.1; a name that nobody knows yet is skipped."""
    for number, change in enumerate([lambda row: list(row.values()), lambda row: {**row, "median": 2.0}]):
        path = tmp_path / str(number)
        with tt.Tap(sinks=[tt.RunDirectory(path, stats=True)]) as tap:
            tap.emit(tt.Record("x", np.arange(5.0)))
        (index,) = (path / ".tensortap").glob("index*.jsonl")
        lines = [json.loads(line) for line in index.read_text().splitlines()]
        for line in lines:
            for at, cell in enumerate(line) if isinstance(line, list) else ():
                if isinstance(cell, dict) and "norm" in cell:
                    line[at] = change(cell)
        index.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert Run(path).find("x").statistics.max == 4
        assert IndexTable(Run(path)._columns).numbers("absmax").tolist() == [4]
