"""Distributed tensors: the local piece, and how it sits in the whole."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proof import examples
from torch.distributed._functional_collectives import all_reduce
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tensortap.core.record import Placement
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.dtensor import (
    global_indices,
    local_shape,
    placement_at,
    placement_of_former_dtensor,
    simulated_ranks,
)
from tensortap.frameworks.torch import FRAMEWORK

TWO_PROCESSES = """
import json, os, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from tensortap.frameworks.base import framework_of

rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(10.0).reshape(5, 2)
values = {
    "uneven": distribute_tensor(whole, mesh, [Shard(0)]),
    "partial": DTensor.from_local(torch.ones(2), mesh, [Partial()]),
    "strided": distribute_tensor(whole[:4], mesh, [_StridedShard(0, split_factor=2)]),
    "few": distribute_tensor(whole[:1], mesh, [Shard(0)]),
}
def told(value):
    framework = framework_of(value)
    placement = framework.placement(value)
    assert framework.describe(value).shape == framework.bits(value).shape
    assert framework.placement(framework.snapshot(value)) == placement
    return [framework.bits(value).tolist(), placement.parts, placement.shape, placement.offset,
            placement.mesh, placement.coordinate]
print(json.dumps({name: told(value) for name, value in values.items()}), flush=True)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # the mesh still holds the group, whose threads may ask for an interpreter that ends
"""


@pytest.fixture
def mesh(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch installs its own and leaves it
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_a_distributed_tensor_is_its_local_piece_and_a_placement(mesh):
    value = distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
    description = FRAMEWORK.describe(value)
    assert (description.type, description.shape, description.nbytes) == ("DTensor", (4, 3), 48)
    assert FRAMEWORK.bits(value).ctypes.data == value._local_tensor.data_ptr()
    assert FRAMEWORK.placement(value) == Placement((1,), (0,), ("shard(0)",), (4, 3), (0, 0))
    assert framework_of(value) is FRAMEWORK


@pytest.mark.parametrize(
    ("part", "word"),
    [(Replicate(), "replicate"), (Partial(), "partial(sum)"), (Partial("avg"), "partial(avg)")],
)
def test_each_way_to_place_has_its_word(mesh, part, word):
    value = DTensor.from_local(torch.ones(2), mesh, [part])
    assert FRAMEWORK.placement(value).parts == (word,)


def test_a_change_of_the_local_piece_is_seen(mesh):
    value = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    is_same = FRAMEWORK.mark(value)
    copy = FRAMEWORK.snapshot(value)
    assert is_same(value)
    value.to_local().data.add_(1)
    assert not is_same(value)
    assert copy.to_local().tolist() == [1, 1, 1, 1]


def test_a_collective_under_way_is_waited_for(mesh):
    value = all_reduce(torch.ones(3), "sum", mesh)
    assert FRAMEWORK.bits(value).tolist() == [1, 1, 1]
    assert FRAMEWORK.describe(value).shape == (3,)
    assert type(FRAMEWORK.snapshot(value)) is torch.Tensor


def test_an_ordinary_tensor_has_no_placement(mesh):
    assert FRAMEWORK.placement(torch.ones(2)) is None
    assert FRAMEWORK.placement(torch.nn.Parameter(torch.ones(2))) is None


@pytest.mark.process
@pytest.mark.distributed
def test_two_processes_tell_their_own_pieces(tmp_path):
    command = [sys.executable, "-c", TWO_PROCESSES]
    jobs = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "meeting")], stdout=subprocess.PIPE, env=os.environ
        )
        for rank in range(2)
    ]
    first, second = (json.loads(job.communicate(timeout=60)[0]) for job in jobs)
    assert first["uneven"][0] == [[0, 1], [2, 3], [4, 5]]
    assert second["uneven"] == [[[6, 7], [8, 9]], ["shard(0)"], [5, 2], [3, 0], [2], [1]]
    assert first["partial"][:4] == [[1, 1], ["partial(sum)"], [2], [0]]
    assert second["strided"][:4] == [[[2, 3], [6, 7]], ["strided_shard(0, 2)"], [4, 2], [1, 0]]
    assert second["few"][0] == []


def word(part):
    if isinstance(part, Replicate):
        return "replicate"
    groups = getattr(part, "split_factor", None)
    return f"shard({part.dim})" if groups is None else f"strided_shard({part.dim}, {groups})"


@pytest.mark.law
@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_a_piece_lies_where_torch_puts_it(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=2)))
    mesh = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    coordinate = tuple(data.draw(st.integers(0, size - 1)) for size in mesh)
    dimension = st.integers(0, len(shape) - 1)
    part = st.one_of(
        st.just(Replicate()),
        dimension.map(Shard),
        st.builds(lambda dim, groups: _StridedShard(dim, split_factor=groups), dimension, st.integers(1, 3)),
    )
    parts = [data.draw(part) for _ in mesh]
    sizes, offset = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), parts)
    found = placement_at(mesh, coordinate, tuple(word(one) for one in parts), shape)
    assert local_shape(found) == tuple(sizes)
    if 0 not in sizes:
        assert found.offset == tuple(offset)


def test_the_rows_of_a_strided_shard_are_those_that_torch_gives():
    found = placement_at((2,), (1,), ("strided_shard(0, 3)",), (8,))
    shards, _ = _StridedShard(0, split_factor=3)._split_tensor(torch.arange(8), 2, with_padding=False)
    assert global_indices(found)[0].tolist() == shards[1].tolist()


def test_a_partial_result_that_hides_rows_is_not_called_a_sum(mesh):
    embedding = torch.nn.Embedding.from_pretrained(torch.ones(4, 2))
    distributed = distribute_tensor(embedding.weight, mesh, [Shard(0)])
    value = torch.nn.functional.embedding(DTensor.from_local(torch.tensor([1]), mesh), distributed)
    assert FRAMEWORK.placement(value).parts == ("maskpartial",)


def test_a_tensor_made_local_keeps_its_placement_in_the_graph(mesh):
    value = distribute_tensor(torch.ones(4, 3, requires_grad=True), mesh, [Shard(0)]) * 2
    expected = Placement((1,), (0,), ("shard(0)",), (4, 3), (0, 0))
    assert placement_of_former_dtensor(None, value.to_local()) == expected
    assert placement_of_former_dtensor(value, value.to_local()) == expected
    assert placement_of_former_dtensor(None, value.to_local() * 2) is None
    assert placement_of_former_dtensor(value, value) is None


def test_without_a_graph_the_memory_tells(mesh):
    value = DTensor.from_local(torch.ones(4, 3), mesh, [Partial()])
    assert placement_of_former_dtensor(value, value.to_local()).parts == ("partial(sum)",)
    assert placement_of_former_dtensor(value, value.to_local().clone()) is None


def test_a_mesh_of_one_allows_every_placement_and_none_is_guessed(mesh):
    value = DTensor.from_local(torch.ones(4, 3), mesh, [Shard(0)])
    assert placement_of_former_dtensor(value, value.to_local().clone()) is None


@pytest.fixture
def simulated_mesh(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    with LocalTensorMode(4):
        yield init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.destroy_process_group()


def test_simulated_ranks_each_have_their_piece_and_place(simulated_mesh):
    value = distribute_tensor(torch.arange(15.0).reshape(5, 3), simulated_mesh, [Shard(0), Shard(1)])
    found = simulated_ranks(value)
    assert [rank for rank, _, _ in found] == [0, 1, 2, 3]
    assert [placement.coordinate for _, _, placement in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [placement.offset for _, _, placement in found] == [(0, 0), (0, 2), (3, 0), (3, 2)]
    assert all(type(piece) is torch.Tensor for _, piece, _ in found)
    assert all(tuple(piece.shape) == local_shape(placement) for _, piece, placement in found)
    assert FRAMEWORK.placement(value) == found[0][2]


def test_simulated_ranks_know_their_place_in_part_of_a_mesh(simulated_mesh):
    value = distribute_tensor(torch.arange(4.0), simulated_mesh["tp"], [Shard(0)])
    assert [placement.coordinate for _, _, placement in simulated_ranks(value)] == [(0,), (1,), (0,), (1,)]


def test_simulated_pieces_of_a_plain_tensor_follow_a_known_placement(simulated_mesh):
    value = distribute_tensor(torch.arange(8.0), simulated_mesh, [Replicate(), Shard(0)])
    plain = value.to_local()
    known = FRAMEWORK.placement(value)
    assert [placement for _, _, placement in simulated_ranks(plain, known)] == [
        placement for _, _, placement in simulated_ranks(value)
    ]
    assert [placement for _, _, placement in simulated_ranks(plain)] == [None] * 4


def test_an_ordinary_tensor_has_no_simulated_ranks(mesh):
    assert simulated_ranks(torch.ones(2)) is None
    assert simulated_ranks(distribute_tensor(torch.ones(2), mesh, [Shard(0)])) is None
    assert simulated_ranks(3) is None
