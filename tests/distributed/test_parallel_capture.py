"""Models that run in parallel, captured: the names of the plain model, and its values once put together."""

import sys
from functools import lru_cache

import pytest
import torch
import torch.distributed as dist
from tests.proof import sampled
from torch import nn
from torch.distributed._local_tensor import LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

import tensortap as tt

# Whole numbers, so that every order of adding gives the same bits.
MODELS = """
    rank = join_group()
    from copy import deepcopy
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    numbers = lambda *shape: torch.randint(-2, 3, shape).float()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.act, self.down = nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)

        def forward(self, x):
            return x + self.down(self.act(self.up(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    plain = Model()
    for parameter in plain.parameters():
        parameter.data = numbers(*parameter.shape)
    batch = numbers(2 * world, 8)
    part = batch.chunk(world)[rank]
    PATTERNS = ("**", "**.in", "**.grad", "layers.*.*.weight", "layers.*.*.weight.grad")
    runs = {}

    def captured(way, model, x, loss, *patterns):
        with tt.capture(model, *patterns, to=base / way) as cap:
            loss(model(x)).backward()
        runs[way] = cap.run
        assert not cap.missing, cap.missing

    captured("plain", deepcopy(plain), batch, lambda out: out.sum() / world, *PATTERNS)
"""

DATA_PARALLEL = """
    captured("ddp", DistributedDataParallel(deepcopy(plain)), part, torch.sum, *PATTERNS)
"""

FULLY_SHARDED = """
    def sharded():
        model = deepcopy(plain)
        for layer in model.layers:
            fully_shard(layer)
        return fully_shard(model)

    captured("fsdp", sharded(), part, torch.sum, *PATTERNS)
    model, alone = sharded(), sharded()
    with tt.capture(model, *PATTERNS) as cap:
        for one in (model, alone):
            optimizer = torch.optim.SGD(one.parameters(), lr=1.0)
            for _ in range(2):
                one(part).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    assert len(cap.records) == 2 * len(tt.Run(runs["fsdp"]).filter(rank=rank))
    for parameter, truth in zip(model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(parameter.to_local(), truth.to_local())
"""

TENSOR_PARALLEL = """
    plan = {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
    parallel = parallelize_module(deepcopy(plain), mesh, plan)
    captured("tensor", parallel, batch, lambda out: out.sum() / world, *PATTERNS)
    with torch.no_grad(), tt.capture(parallel, "**", to=base / "inference") as cap:
        parallel(batch[:1])
    runs["inference"] = cap.run
    with torch.no_grad(), tt.capture(plain, "**", to=base / "plain inference") as cap:
        plain(batch[:1])
    runs["plain inference"] = cap.run

    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.view_as(x)

        @staticmethod
        def backward(context, gradient):
            total = gradient.clone()
            dist.all_reduce(total)
            return total

    class Reduced(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            total = x.clone()
            dist.all_reduce(total)
            return total

        @staticmethod
        def backward(context, gradient):
            return gradient

    class ColumnParallelLinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.gather_output, self.output_size = False, linear.out_features
            self.weight = nn.Parameter(linear.weight.detach().chunk(world, 0)[rank].clone())
            self.bias = nn.Parameter(linear.bias.detach().chunk(world, 0)[rank].clone())
            for parameter in (self.weight, self.bias):
                parameter.tensor_model_parallel, parameter.partition_dim = True, 0

        def forward(self, input):
            return nn.functional.linear(Copied.apply(input), self.weight, self.bias)

    class RowParallelLinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.input_is_parallel, self.input_size = True, linear.in_features
            self.weight = nn.Parameter(linear.weight.detach().chunk(world, 1)[rank].clone())
            self.weight.tensor_model_parallel, self.weight.partition_dim = True, 1
            self.bias = nn.Parameter(linear.bias.detach().clone())

        def forward(self, input):
            return Reduced.apply(nn.functional.linear(input, self.weight)) + self.bias

    written = deepcopy(plain)
    for layer in written.layers:
        layer.up, layer.down = ColumnParallelLinear(layer.up), RowParallelLinear(layer.down)
    captured("written", written, batch, lambda out: out.sum() / world, *PATTERNS)
"""

END = """
    tell(rank=rank, runs=runs)
    leave_group()
"""
JOB = MODELS + DATA_PARALLEL + TENSOR_PARALLEL + FULLY_SHARDED + END


@pytest.fixture(scope="session")
def jobs(run_ranks, tmp_path_factory):
    @lru_cache
    def run(world):
        reports = run_ranks(tmp_path_factory.mktemp("capture"), JOB, world)
        assert all(report["runs"] == reports[0]["runs"] for report in reports)
        return {name: tt.Run(path) for name, path in reports[0]["runs"].items()}

    return run


@pytest.fixture(params=sampled([2, 4], [2]), ids=["two ranks", "four ranks"])
def world(request):
    return request.param


def together(run, name, dim=None):
    """The whole, by what the records say of themselves, else along the dimension that the test knows."""
    found = run.filter(name)
    return tt.whole(found, dim=None if found[0].placement else dim)


def dimension(name):
    """Where the ranks of a tensor-parallel model hold different pieces; nothing says it of these."""
    if ".act" in name or name.endswith((".up.grad", ".down.in.input")):
        return -1
    return {"up.weight.grad": 0, "down.weight.grad": 1}.get(name.partition(".")[2].partition(".")[2])


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_data_parallel_ranks_together_saw_what_the_plain_model_sees(jobs, world, way):
    runs = jobs(world)
    plain, parallel = runs["plain"], runs[way]
    assert parallel.names == plain.names
    for name in plain.names:
        kind = plain.find(name).kind
        truth = tt.whole(plain.filter(name))
        truth = truth * world if kind == "grad_output" else truth  # the plain loss is divided, not theirs
        found = together(parallel, name, None if "param" in kind else 0)
        assert torch.equal(found, truth), name


def test_the_gradients_of_a_fully_sharded_model_say_where_they_belong(jobs, world):
    run = jobs(world)["fsdp"]
    for rank in range(world):
        placement = run.find("layers.0.up.weight.grad", rank=rank).placement
        assert (placement.parts, placement.shape) == (("shard(0)",), (16, 8))
        assert placement.offset == (16 // world * rank, 0)


@pytest.mark.parametrize("way", ["tensor", "written"])
def test_tensor_parallel_ranks_together_computed_what_the_plain_model_computes(jobs, world, way):
    runs = jobs(world)
    plain, parallel = runs["plain"], runs[way]
    assert parallel.names == plain.names
    for name in plain.names:
        truth, found = tt.whole(plain.filter(name)), together(parallel, name, dimension(name))
        assert torch.equal(found, truth), name


@pytest.mark.parametrize("way", ["tensor", "written"])
def test_what_goes_in_and_out_of_a_parallel_layer_says_where_it_belongs(jobs, world, way):
    run = jobs(world)[way]
    parts = {
        "layers.0.up.in.input": "replicate",
        "layers.0.up": "shard(1)",
        "layers.0.up.weight": "shard(0)",
        "layers.0.down.in.input": "shard(1)",
        "layers.0.down": "replicate",
        "layers.0.down.weight": "shard(1)",
    }
    for name, part in parts.items():
        assert [one.placement.parts for one in run.filter(name)] == [(part,)] * world, name


def test_a_batch_of_one_without_gradients_is_placed_too(jobs, world):
    runs = jobs(world)
    plain, parallel = runs["plain inference"], runs["inference"]
    assert [one.placement.parts for one in parallel.filter("layers.0.up")] == [("shard(1)",)] * world
    assert [one.placement.parts for one in parallel.filter("layers.0.down")] == [("replicate",)] * world
    for name in plain.names:
        found = together(parallel, name, dimension(name))
        assert torch.equal(found, tt.whole(plain.filter(name))), name


@pytest.fixture
def simulated(monkeypatch):
    """Four ranks in this one process."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch installs its own and leaves it
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield LocalTensorMode(4)
    dist.destroy_process_group()


def test_simulated_ranks_are_captured_one_by_one(simulated, tmp_path):
    plain = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    for parameter in plain.parameters():
        parameter.data = torch.randint(-2, 3, parameter.shape).float()
    x = torch.randint(-2, 3, (3, 8)).float()
    patterns = ("**", "**.in", "*.weight", "*.weight.grad")
    with tt.capture(plain, *patterns) as truth:
        plain(x).sum().backward()
    with simulated:
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
        model.load_state_dict(plain.state_dict())
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, init_device_mesh("cpu", (4,)), plan)
        with tt.capture(model, *patterns) as cap:
            model(x.clone()).sum().backward()
        with tt.capture(model, "0", to=tmp_path) as kept:
            model(x.clone())
    assert [stored.rank for stored in tt.Run(kept.run).filter("0")] == [0, 1, 2, 3]
    assert torch.equal(tt.whole(tt.Run(kept.run).filter("0")), truth["0"])
    assert cap.missing == []
    assert set(cap.names) == set(truth.names)
    for name in cap.names:
        dim = -1 if name.startswith("1") else None  # nothing says how an ordinary layer's pieces sit
        assert torch.equal(tt.whole(cap.find(name), dim=dim), truth[name]), name
