"""The documented examples of TensorTracer with two real ranks and a DDP model."""

import pytest

pytestmark = pytest.mark.xdist_group("process group")

PROGRAM = """
    rank = join_group()
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from tensortap import H5PYSaverCallback, ModelTracer, stack_padded_tensors

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x)

    torch.manual_seed(0)
    model = Net()
    ddp_model = DistributedDataParallel(model)

    def train(tracer):
        with tracer:
            for step in range(8):
                ddp_model(torch.full((5, 3), float(10 * rank + step))).sum().backward()

    stack, paths = [stack_padded_tensors], ["forward", "forward.x"]
    tracer = ModelTracer(
        ddp_model, paths, pre_gather_callbacks=stack, post_gather_callbacks=stack,
        post_trace_callbacks=stack, gathering_interval=4,
    )
    train(tracer)
    shapes = {name: [list(value.shape) for value in found.values] for name, found in tracer.results.items()}
    right = rank != 0 or tracer.results["forward.x"].values[0][1, 1, 2, 0, 0].item() == 16.0

    base.mkdir(parents=True, exist_ok=True)
    saver = H5PYSaverCallback(dataset_file=base / "test.h5")
    train(ModelTracer(ddp_model, paths, post_gather_callbacks=[*stack, saver], gathering_interval=2))
    stored = list(saver.datasets["forward.x"].shape) if rank == 0 else None
    saver.close()

    def mean_post_gather(name, values, iterations, ranks):
        values[0] = values[0].mean(dim=(0, 1))

    means = ModelTracer(
        model, paths, post_gather_callbacks=[*stack, mean_post_gather], post_trace_callbacks=stack,
        gathering_interval=4,
    )
    train(means)
    mean = list(means.results["forward.x"].values[0].shape) if rank == 0 else None
    tell(rank=rank, shapes=shapes, right=right, stored=stored, mean=mean)
    dist.destroy_process_group()
"""


def test_the_documented_shapes_come_out_on_rank_zero(run_ranks, tmp_path):
    first, second = run_ranks(tmp_path, PROGRAM, 2)
    assert first["shapes"] == {"forward": [[2, 2, 4, 5, 2]], "forward.x": [[2, 2, 4, 5, 3]]}
    assert first["right"]
    assert first["stored"] == [4, 4, 5, 3]
    assert first["mean"] == [2, 3]
    assert second["shapes"] == {}
