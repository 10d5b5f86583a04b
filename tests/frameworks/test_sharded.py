"""Distributed tensors: the local piece, and how it sits in the whole."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from tensortap.core.record import Placement
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.torch import FRAMEWORK

TWO_PROCESSES = """
import json, sys
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
print(json.dumps({name: told(value) for name, value in values.items()}))
dist.barrier()
dist.destroy_process_group()
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
