"""Layers that say in attributes how their weights and outputs are split."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from tensortap.core.record import Placement
from tensortap.frameworks.megatron import megatron_parameter_placement, megatron_placement


@pytest.fixture
def four_ranks(monkeypatch):
    """This process is the third of four."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch installs its own and leaves it
    dist.init_process_group("fake", rank=2, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def layer(partition_dim, weight=None, **said):
    module = torch.nn.Linear(4, 4, bias=False)
    module.weight.tensor_model_parallel, module.weight.partition_dim = True, partition_dim
    for name, fact in (weight or {}).items():
        setattr(module.weight, name, fact)
    for name, fact in said.items():
        setattr(module, name, fact)
    return module


OUTPUT = torch.ones(3, 5, 4)


@pytest.mark.parametrize(
    ("module", "which", "part"),
    [
        (layer(0, gather_output=False), "output", "shard(2)"),
        (layer(0, gather_output=True), "output", "replicate"),
        (layer(0, {"partition_stride": 2}, gather_output=False), "output", "strided_shard(2, 2)"),
        (layer(0, gather_output=False), "input", "replicate"),
        (layer(0, gather_output=False, sequence_parallel=True), "input", "shard(0)"),
        (layer(1, input_is_parallel=True), "output", "replicate"),
        (layer(1, reduce_output=True), "output", "replicate"),
        (layer(1, reduce_output=False), "output", "partial(sum)"),
        (layer(1, input_is_parallel=True, sequence_parallel=True), "output", "shard(0)"),
        (
            layer(1, reduce_output=True, sequence_parallel_enabled=True, sequence_dimension=1),
            "output",
            "shard(1)",
        ),
        (layer(1, input_is_parallel=True), "input", "shard(2)"),
        (layer(1, input_is_parallel=False), "input", "replicate"),
    ],
)
def test_a_parallel_layer_tells_how_its_values_sit(four_ranks, module, which, part):
    assert megatron_placement(module, OUTPUT, which).parts == (part,)


def test_a_piece_has_its_place_among_the_ranks(four_ranks):
    found = megatron_placement(layer(0, gather_output=False, output_size=16), OUTPUT)
    assert found == Placement((4,), (2,), ("shard(2)",), (3, 5, 16), (0, 0, 8))


def test_a_group_of_the_layer_counts_instead_of_the_world(four_ranks):
    group = dist.new_group([2, 3])
    found = megatron_placement(layer(0, gather_output=False, process_group=group), OUTPUT)
    assert (found.mesh, found.coordinate, found.shape) == ((2,), (0,), (3, 5, 8))


@pytest.mark.parametrize(
    "module",
    [
        torch.nn.Linear(4, 4),
        layer(0),
        layer(1),
        layer(2, gather_output=False),
        layer(0, gather_output=False, output_size=8),
        layer(0, {"num_partitions": 2}, gather_output=False),
        layer(0, gather_output=False, process_group=[[0, 1], [2, 3]]),
        layer(1, input_is_parallel=True, explicit_expert_comm=True),
    ],
)
def test_a_layer_that_says_too_little_or_contradicts_itself_is_not_guessed_at(four_ranks, module):
    assert megatron_placement(module, OUTPUT) is None


def test_a_value_without_dimensions_has_no_piece(four_ranks):
    assert megatron_placement(layer(0, gather_output=False), torch.tensor(1.0)) is None
    assert megatron_placement(layer(0, gather_output=False), 3) is None


def test_without_a_process_group_nothing_is_split():
    module = layer(0, gather_output=False)
    assert megatron_placement(module, OUTPUT) is None
    assert megatron_parameter_placement(module, module.weight) is None


def test_a_parallel_parameter_tells_its_place(four_ranks):
    module = layer(1, input_is_parallel=True)
    assert megatron_parameter_placement(module, module.weight) == Placement(
        (4,), (2,), ("shard(1)",), (4, 16), (0, 8)
    )
    assert megatron_parameter_placement(module, torch.nn.Parameter(torch.ones(2))) is None
