"""Memory: one series per name, safe from what the program does next, within the room it was given."""

import logging

import numpy as np
import pytest
import torch

from tensortap.core.record import Placement, Record, Site
from tensortap.frameworks.retention import retention_policy
from tensortap.sinks.memory import Memory


def numbered(memory, count, make=lambda number: number):
    for number in range(count):
        memory.write(Record("x", make(number), step=number))
    return memory


def steps(memory):
    return [record.step for record in memory.records]


def test_records_of_one_name_become_one_series():
    memory = Memory()
    for step in range(3):
        memory.write(Record("x", step * 10, step=step, rank=1))
    series = memory.series["x"]
    assert (series.values, series.steps, series.ranks) == ([0, 10, 20], [0, 1, 2], [1, 1, 1])


def test_series_come_in_the_order_of_their_first_records():
    memory = Memory()
    for name in "bab":
        memory.write(Record(name, 0))
    assert list(memory.series) == ["b", "a"]
    assert len(memory.series["b"]) == 2


def test_a_kept_value_does_not_change_any_more():
    memory, array, tensor = Memory(), np.zeros(2), torch.zeros(2)
    memory.write(Record("x", {"array": array, "tensor": [tensor]}))
    array += 1
    tensor += 1
    (kept,) = memory.series["x"].values
    assert kept["array"].tolist() == kept["tensor"][0].tolist() == [0, 0]


def test_everything_but_the_value_stays_as_it_was():
    site, place = Site("f", "a.py", 1), Placement((2,), (0,), ("shard(0)",), (4,), (0,))
    record = Record("x", torch.ones(1), "output", 3, 1, 2, 5, 12.5, site, place)
    memory = Memory(keep=lambda value: "kept")
    memory.write(record)
    assert memory.records[0] == record.with_value("kept")
    assert record.value.item() == 1


# A ring


def test_beyond_a_number_of_records_the_oldest_go(caplog):
    memory = numbered(Memory(most=3), 10)
    assert (steps(memory), memory.dropped) == ([7, 8, 9], 7)
    assert [message for *_, message in caplog.record_tuples] == [
        "the limit of what is kept in memory is reached; from now on the oldest records go"
    ]
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize(
    "make",
    [
        lambda number: torch.zeros(25),
        lambda number: np.zeros(25, np.float32),
        lambda number: {"a": torch.zeros(20), "b": [np.zeros(5, np.float32)]},
        lambda number: torch.zeros(25, dtype=torch.float32).expand(1, 25),
    ],
)
@pytest.mark.parametrize("keep", ["cow", "clone", None])
def test_beyond_a_number_of_bytes_the_oldest_go(make, keep):
    kept = {} if keep is None else {"keep": retention_policy(keep)} if not isinstance(make(0), dict) else {}
    memory = numbered(Memory(most_bytes=350, **kept), 10, make)
    assert (steps(memory), memory.dropped) == ([7, 8, 9], 7)


def test_a_large_record_takes_the_place_of_many_small_ones():
    memory = numbered(Memory(most_bytes=100), 10, lambda number: np.zeros(10, np.uint8))
    assert len(memory.records) == 10
    memory.write(Record("x", np.zeros(95, np.uint8), step=10))
    assert (steps(memory), memory.dropped) == ([10], 10)
    memory.write(Record("x", np.zeros(5, np.uint8), step=11))
    assert steps(memory) == [10, 11]


def test_the_latest_record_stays_however_large_it_is():
    memory = numbered(Memory(most_bytes=1), 3, lambda number: np.zeros(100))
    assert steps(memory) == [2]


def test_both_limits_hold_at_once():
    memory = numbered(Memory(most=5, most_bytes=1000), 10, lambda number: np.zeros(10, np.uint8))
    assert steps(memory) == [5, 6, 7, 8, 9]
    memory.write(Record("x", np.zeros(985, np.uint8), step=10))
    assert steps(memory) == [9, 10]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_values_of_every_layout_are_counted():
    values = [
        torch.eye(3).to_sparse(),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "text",
        None,
    ]
    memory = Memory(most_bytes=1 << 20)
    for value in values:
        memory.write(Record("x", value))
    assert len(memory.records) == len(values)


def test_clearing_makes_room():
    memory = numbered(Memory(most_bytes=100), 10, lambda number: np.zeros(10, np.uint8))
    memory.clear()
    assert (len(memory.records), memory.series) == (0, {})
    numbered(memory, 10, lambda number: np.zeros(10, np.uint8))
    assert (len(memory.records), memory.dropped) == (10, 0)


def test_without_a_limit_everything_stays():
    memory = numbered(Memory(), 1000)
    assert (len(memory.records), memory.dropped) == (1000, 0)


# What cannot be kept


def test_a_value_without_numbers_is_refused_by_name_and_costs_no_other():
    memory = Memory(keep=retention_policy("cow"))
    for name, value in (("a", torch.ones(2)), ("b", torch.ones(2, device="meta")), ("c", torch.ones(2))):
        memory.write(Record(name, value))
    assert list(memory.series) == ["a", "c"]
    assert memory.refused == {
        "b": "a meta tensor of shape [2] has no values; "
        "materialise it first (e.g. model.to_empty(device='cpu'))"
    }


def test_the_first_refusal_of_a_name_is_the_one_that_is_told():
    memory = Memory(keep=retention_policy("cow"))
    for size in (2, 3):
        memory.write(Record("x", torch.ones(size, device="meta")))
    assert "of shape [2]" in memory.refused["x"]


def test_any_other_failure_is_the_taps_to_judge():
    def fail(value):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Memory(keep=fail).write(Record("x", 1))
