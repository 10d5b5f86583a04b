"""Memory: one series per name, safe from what the program does next."""

import numpy as np
import torch

from tensortap.core.record import Record
from tensortap.sinks.memory import Memory


def test_records_of_one_name_become_one_series():
    memory = Memory()
    for step in range(3):
        memory.write(Record("x", step * 10, step=step, rank=1))
    series = memory.series["x"]
    assert (series.values, series.steps, series.ranks) == ([0, 10, 20], [0, 1, 2], [1, 1, 1])


def test_a_kept_value_does_not_change_any_more():
    memory, array, tensor = Memory(), np.zeros(2), torch.zeros(2)
    memory.write(Record("x", {"array": array, "tensor": [tensor]}))
    array += 1
    tensor += 1
    (kept,) = memory.series["x"].values
    assert kept["array"].tolist() == kept["tensor"][0].tolist() == [0, 0]
