"""Models that run in parallel, captured: the names of the plain model, and its values once put together."""

from functools import lru_cache

import pytest
import torch

import tensortap as tt

pytestmark = pytest.mark.xdist_group("process group")

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

    sharded = deepcopy(plain)
    for layer in sharded.layers:
        fully_shard(layer)
    captured("fsdp", fully_shard(sharded), part, torch.sum, *PATTERNS)
"""

TENSOR_PARALLEL = """
    plan = {"layers.*.up": ColwiseParallel(), "layers.*.down": RowwiseParallel()}
    parallel = parallelize_module(deepcopy(plain), mesh, plan)
    captured("tensor", parallel, batch, lambda out: out.sum() / world, *PATTERNS)
    with torch.no_grad(), tt.capture(parallel, "**", to=base / "inference") as cap:
        parallel(batch[:1])
    runs["inference"] = cap.run
    with torch.no_grad(), tt.capture(deepcopy(plain), "**", to=base / "plain inference") as cap:
        deepcopy(plain)(batch[:1])

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

        def forward(self, x):
            return nn.functional.linear(Copied.apply(x), self.weight, self.bias)

    class RowParallelLinear(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.input_is_parallel, self.input_size = True, linear.in_features
            self.weight = nn.Parameter(linear.weight.detach().chunk(world, 1)[rank].clone())
            self.weight.tensor_model_parallel, self.weight.partition_dim = True, 1
            self.bias = nn.Parameter(linear.bias.detach().clone())

        def forward(self, x):
            return Reduced.apply(nn.functional.linear(x, self.weight)) + self.bias

    written = deepcopy(plain)
    for layer in written.layers:
        layer.up, layer.down = ColumnParallelLinear(layer.up), RowParallelLinear(layer.down)
    captured("written", written, batch, lambda out: out.sum() / world, *PATTERNS)
"""

END = """
    tell(rank=rank, runs=runs)
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)
"""


@pytest.fixture(scope="session")
def jobs(run_ranks, tmp_path_factory):
    @lru_cache
    def run(world):
        code = MODELS + DATA_PARALLEL + TENSOR_PARALLEL + END
        return world, run_ranks(tmp_path_factory.mktemp("capture"), code, world)

    return run


@pytest.fixture(params=[2, 4], ids=["two ranks", "four ranks"])
def job(request, jobs):
    """The world, and the run of each way to run the model in parallel."""
    world, reports = jobs(request.param)
    assert all(report["runs"] == reports[0]["runs"] for report in reports)
    return world, {way: tt.Run(path) for way, path in reports[0]["runs"].items()}
