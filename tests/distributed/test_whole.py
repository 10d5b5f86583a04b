"""Distributed tensors and parallel layers of real processes, put together again."""

from functools import lru_cache

import pytest
import torch
from tests.proof import sampled

import tensortap as tt
from tensortap.readers.full_tensor import NotWholeError, whole

# Whole numbers, so that every order of adding gives the same bits.
PARTS = """
    rank = join_group()
    from copy import deepcopy
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module,
    )
    from torch.distributed.tensor.placement_types import _StridedShard
    from tensortap.frameworks.megatron import megatron_placement, megatron_parameter_placement
    from tensortap.frameworks.dtensor import wait_local, placement_of_former_dtensor

    torch.manual_seed(0)
    world = dist.get_world_size()
    line, square = init_device_mesh("cpu", (world,)), init_device_mesh("cpu", (2, world // 2))
    numbers = lambda *shape: torch.randint(-4, 5, shape).float()
    run = tt.init(base, layout="pack")

    def keep(name, truth, value):
        tt.dump(value, name, update_metadata=False)
        tt.dump(truth, f"{name}, truth", update_metadata=False)

    big = numbers(7, 5, 6).to(torch.bfloat16)
    for word, mesh, parts in (
        ("rows", line, [Shard(0)]),
        ("last", line, [Shard(2)]),
        ("copies", line, [Replicate()]),
        ("rows twice", square, [Shard(0), Shard(0)]),
        ("rows and columns", square, [Shard(1), Shard(0)]),
        ("copies of rows", square, [Replicate(), Shard(0)]),
    ):
        keep(word, big, distribute_tensor(big, mesh, parts))
    even = numbers(4 * world, 3)
    keep("strided", even, distribute_tensor(even, line, [_StridedShard(0, split_factor=2)]))
    keep("right to left", even,
         distribute_tensor(even, square, [_StridedShard(0, split_factor=world // 2), Shard(0)]))
    keep("few rows", big[:1], distribute_tensor(big[:1], line, [Shard(0)]))
    piece = numbers(3, 2)
    keep("sum", piece * world, DTensor.from_local(piece, line, [Partial()]))
    keep("mean of rows", piece.repeat(world // 2, 1),
         DTensor.from_local(piece, square, [Partial("avg"), Shard(0)]))
    tt.dump(torch.full((2,), float(rank)), "different")
    if rank == 0:
        tt.dump(distribute_tensor(big, line, [Shard(0)], src_data_rank=None), "lonely")
    told = {}
"""

STYLES = """
    taken = tt.Tap(sinks=[tt.RunDirectory(run)])

    def filled(module):
        for parameter in module.parameters():
            parameter.data = numbers(*parameter.shape)
        return module

    def run_style(style, module, plain_input, given, has_gradient, name):
        plain = nn.Sequential(filled(module))
        parallel = parallelize_module(deepcopy(plain), line, {"0": style})
        raw = []
        parallel[0].register_forward_hook(lambda module, inputs, output: raw.append(output), prepend=True)
        with torch.set_grad_enabled(has_gradient):
            output = parallel(given)
        placement = placement_of_former_dtensor(raw[0], output, parallel[0])
        taken.emit(tt.Record(name, wait_local(output), rank=rank, placement=placement))
        taken.emit(tt.Record(name + ", truth", plain(plain_input).detach(), rank=rank))
        told[name] = placement and placement.parts

    for batch in (world, 1):
        tokens, ids = numbers(batch, 2 * world, 2 * world), torch.randint(0, 4 * world - 1, (batch, 3))
        columns, rows = tokens.chunk(world, 2)[rank], tokens.chunk(world, 1)[rank]
        for has_gradient in (True, False):
            for layout in (None, Replicate(), Shard(0), Shard(1)):
                end = f", {layout!r}, batch {batch}, {has_gradient}"
                linear = lambda: nn.Linear(2 * world, 3 * world)
                up, down = ColwiseParallel(output_layouts=layout), RowwiseParallel(output_layouts=layout)
                run_style(up, linear(), tokens, tokens, has_gradient, "column" + end)
                run_style(down, linear(), tokens, columns, has_gradient, "row" + end)
            end = f", batch {batch}, {has_gradient}"
            sequence = SequenceParallel(use_local_output=True)
            norm = nn.LayerNorm(2 * world, elementwise_affine=False)
            run_style(sequence, norm, tokens, rows, has_gradient, "sequence" + end)
            rowwise, table = RowwiseParallel(input_layouts=Replicate()), nn.Embedding(4 * world - 1, 4)
            run_style(rowwise, table, ids, ids, has_gradient, "embedding" + end)
"""

LAYERS = """
    class Column(nn.Module):
        def __init__(self, full, gather_output, stride=1):
            super().__init__()
            parts = full.chunk(world * stride, 0)[rank::world]
            self.weight = nn.Parameter(torch.cat(parts))
            self.weight.tensor_model_parallel, self.weight.partition_dim = True, 0
            self.weight.partition_stride = stride
            self.gather_output, self.output_size = gather_output, full.shape[0]

        def forward(self, x):
            return x @ self.weight.T

    class Row(nn.Module):
        def __init__(self, full, reduce_output=True):
            super().__init__()
            self.weight = nn.Parameter(full.chunk(world, 1)[rank])
            self.weight.tensor_model_parallel, self.weight.partition_dim = True, 1
            self.input_is_parallel, self.reduce_output = True, reduce_output
            self.process_group = dist.group.WORLD

        def forward(self, x):
            output = (x @ self.weight.T).detach()
            if self.reduce_output:
                dist.all_reduce(output)
            return output

    full, other, x = numbers(4 * world, 6), numbers(3, 4 * world), numbers(5, 6)
    hidden = x @ full.T
    column, fused, row = Column(full, False), Column(full, False, stride=2), Row(other)
    partial = Row(other, reduce_output=False)

    def keep_layer(name, truth, value, placement):
        taken.emit(tt.Record(name, value.detach(), rank=rank, placement=placement))
        taken.emit(tt.Record(name + ", truth", truth, rank=rank))
        told[name] = placement and placement.parts

    for name, layer in (("column layer", column), ("fused layer", fused)):
        keep_layer(name, hidden, layer(x), megatron_placement(layer, layer(x)))
        keep_layer(name + " weight", full, layer.weight, megatron_parameter_placement(layer, layer.weight))
    keep_layer("column layer input", x, x, megatron_placement(column, x, "input"))
    piece = column(x)
    keep_layer("row layer input", hidden, piece, megatron_placement(row, piece, "input"))
    for name, layer in (("row layer", row), ("partial layer", partial)):
        keep_layer(name, hidden @ other.T, layer(piece), megatron_placement(layer, layer(piece)))
    keep_layer("row layer weight", other, row.weight, megatron_parameter_placement(row, row.weight))
    column.output_size = 3
    told["contradiction"] = megatron_placement(column, piece)
    told["ordinary layer"] = megatron_placement(nn.Linear(2, 2), piece)

    taken.close()
    tt.close()
    tell(run=run, told=told)
    leave_group()
"""


@pytest.fixture(scope="session")
def jobs(run_ranks, tmp_path_factory):
    @lru_cache
    def run(world):
        reports = run_ranks(tmp_path_factory.mktemp("whole"), PARTS + STYLES + LAYERS, world)
        return world, tt.Run(reports[0]["run"]), reports

    return run


@pytest.fixture(params=sampled([2, 4], [4]), ids=["two ranks", "four ranks"])
def job(request, jobs):
    return jobs(request.param)


def test_every_value_that_was_spread_over_ranks_comes_back_bit_for_bit(job):
    _, run, _ = job
    names = [name for name in run.names if f"{name}, truth" in run]
    assert len(names) == 60
    for name in names:
        found, truth = whole(run.filter(name)), whole(run.filter(f"{name}, truth"))
        assert found.dtype == truth.dtype, name
        assert torch.equal(found, truth), name


def test_the_layout_that_a_parallel_style_was_given_is_found_on_every_rank(job):
    _, _, reports = job
    expected = {
        "column, None": ["shard(2)"],
        "row, None": ["replicate"],
        "column, Replicate()": ["replicate"],
        "row, Replicate()": ["replicate"],
        "column, Shard(dim=0)": ["shard(0)"],
        "row, Shard(dim=0)": ["shard(0)"],
        "column, Shard(dim=1)": ["shard(1)"],
        "row, Shard(dim=1)": ["shard(1)"],
        "sequence": ["shard(1)"],
        "embedding": ["replicate"],
    }
    for report in reports:
        told = {name: parts for name, parts in report["told"].items() if "batch" in name}
        assert len(told) == 4 * len(expected)
        for name, parts in told.items():
            assert parts == expected[name.partition(", batch")[0]], name


def test_hand_written_layers_are_placed_by_what_they_say_of_themselves(job):
    _, _, reports = job
    for report in reports:
        told = report["told"]
        assert told["column layer"] == ["shard(1)"]
        assert told["column layer weight"] == ["shard(0)"]
        assert told["column layer input"] == ["replicate"]
        assert told["fused layer"] == ["strided_shard(1, 2)"]
        assert told["row layer"] == ["replicate"]
        assert told["row layer input"] == ["shard(1)"]
        assert told["row layer weight"] == ["shard(1)"]
        assert told["partial layer"] == ["partial(sum)"]
        assert told["contradiction"] is None
        assert told["ordinary layer"] is None


def test_values_that_differ_between_ranks_are_never_picked_from(job):
    world, run, _ = job
    with pytest.raises(
        NotWholeError, match="'different' differs between rank 0 and rank 1 in 2 of 2 elements"
    ):
        whole(run.filter("different"))
    expected = torch.arange(float(world)).repeat_interleave(2)
    assert torch.equal(whole(run.filter("different"), dim=0), expected)


def test_a_rank_that_has_not_captured_is_missed(job):
    world, run, _ = job
    with pytest.raises(NotWholeError, match=f"{world - 1} of {world} pieces of 'lonely' are missing"):
        whole(run.filter("lonely"))
