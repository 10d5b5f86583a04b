"""TensorTracer with real ranks: its documented examples, sharded models, ranks that differ, fail or die."""

import json

import pytest

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
    leave_group()
"""


def test_the_documented_shapes_come_out_on_rank_zero(run_ranks, tmp_path):
    first, second = run_ranks(tmp_path, PROGRAM, 2)
    assert first["shapes"] == {"forward": [[2, 2, 4, 5, 2]], "forward.x": [[2, 2, 4, 5, 3]]}
    assert first["right"]
    assert first["stored"] == [4, 4, 5, 3]
    assert first["mean"] == [2, 3]
    assert second["shapes"] == {}


NET = """
    import logging, time
    from torch import nn
    from tensortap import ModelTracer, stack_padded_tensors

    rank = join_group()
    world = dist.get_world_size()
    os.environ["TENSORTAP_STRICT"] = "0"
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage().splitlines()[0])
    logging.getLogger("tensortap").addHandler(handler)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x):
            hidden = self.first(x)
            if rank % 2:
                rare = hidden * 2
            return self.second(hidden)

    def batch(step):
        return torch.full((rank + 1, 4), float(10 * rank + step))
"""

MANY = (
    NET
    + """
    told = {}

    # A sharded model: names, order and values are those of each rank; weights are its pieces.
    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(0)
    whole = Net()
    torch.manual_seed(0)
    model = Net()
    fully_shard(model.first)
    fully_shard(model)
    pads = [stack_padded_tensors]
    with ModelTracer(
        model, ["forward.x", "forward.hidden", "first.weight", "second"], gathering_interval=2,
        post_gather_callbacks=pads,
    ) as tracer:
        for step in range(4):
            model(batch(step)).sum().backward()
    told["sharded"] = {
        name: [[list(value.shape) for value in one.values], one.ranks[:1]]
        for name, one in tracer.results.items()
    }
    if rank == 0:
        inputs, hidden = (tracer.results[name].values[0] for name in ("forward.x", "forward.hidden"))
        told["exact"] = all(
            torch.allclose(hidden[2 * r][: r + 1], whole.first(inputs[2 * r][: r + 1])) for r in range(world)
        )

    # Variables that only some ranks bind, forwards that only some ranks take, and one that takes none.
    plain = Net()
    with ModelTracer(plain, ["forward.rare", "forward.x"], gathering_interval=2) as tracer:
        for step in range(0 if rank == 2 else 2 * rank + 1):
            plain(batch(step))
    told["uneven"] = {
        name: sorted(zip(one.ranks, one.iterations)) for name, one in tracer.results.items()
    }
    told["missing"] = [one.name for one in tracer.missing]

    # Rank 0 evaluates alone, and the others wait for it elsewhere.
    with ModelTracer(plain, ["forward.x"], train_only=True, gathering_interval=2) as tracer:
        for step in range(4):
            plain.train()
            plain(batch(step))
            if rank == 0:
                plain.eval()
                for _ in range(3):
                    plain(batch(step))
            dist.barrier()
    found = tracer.results.get("forward.x")
    told["evaluated"] = found and sorted(zip(found.ranks, found.iterations))
    del lines[:]

    # A callback fails on one rank.
    def failing(name, values, iterations):
        if rank == 3:
            raise ValueError("not today")

    with ModelTracer(plain, ["forward.x"], pre_gather_callbacks=[failing]) as tracer:
        for step in range(2):
            plain(batch(step))
    told["failed"] = [len(tracer.results["forward.x"].values) if rank == 0 else 0, lines[:]]
    del lines[:]

    # A block is left by an exception on one rank; the others are told at once, and go on.
    begin = time.monotonic()
    try:
        with ModelTracer(plain, ["forward.x"], gathering_interval=2) as tracer:
            for step in range(6):
                plain(batch(step))
                if rank == 1 and step == 2:
                    raise KeyError("mine")
    except KeyError:
        pass
    found = tracer.results.get("forward.x")
    told["left"] = [found and [found.iterations[at] for at, r in enumerate(found.ranks) if r == 0], lines]
    told["took"] = time.monotonic() - begin
    tell(rank=rank, **told)
    leave_group()
"""
)


@pytest.fixture(scope="module")
def ranks(run_ranks, tmp_path_factory):
    """One job of four ranks serves the tests below: what each told."""
    return run_ranks(tmp_path_factory.mktemp("tracer"), MANY, 4)


def test_a_sharded_model_is_traced_under_its_plain_names(ranks):
    sharded, order = ranks[0]["sharded"], [[0, 0, 1, 1, 2, 2, 3, 3]]
    assert sharded == {
        "forward.x": [[[8, 4, 4]] * 2, order],
        "forward.hidden": [[[8, 4, 8]] * 2, order],
        "first.weight": [[[4, 2, 4]], [[0, 1, 2, 3]]],  # it never changed
        "second": [[[8, 4, 2]] * 2, order],
    }
    assert ranks[0]["exact"]
    assert [report["sharded"] for report in ranks[1:]] == [{}] * 3


def test_ranks_may_differ_in_what_they_bind_and_how_often_they_run(ranks):
    assert ranks[0]["uneven"] == {
        "forward.x": [[rank, step] for rank in (0, 1, 3) for step in range(1, 2 * rank + 2)],
        "forward.rare": [[rank, step] for rank in (1, 3) for step in range(1, 2 * rank + 2)],
    }
    assert [report["missing"] for report in ranks] == [[], [], ["forward.rare", "forward.x"], []]


def test_a_rank_may_evaluate_alone_where_only_training_is_traced(ranks):
    own = [[0, step] for step in (1, 5, 9, 13)]
    assert ranks[0]["evaluated"] == own + [[rank, step] for rank in (1, 2, 3) for step in range(1, 5)]


def test_a_callback_that_fails_on_one_rank_is_told_on_rank_0_and_costs_no_value(ranks):
    count, lines = ranks[0]["failed"]
    assert count == 8
    assert lines == [
        "on rank 3: the callback failing failed for 'forward.x' (ValueError: not today); "
        "the values are kept as they were before it"
    ]
    assert [report["failed"] for report in ranks[1:]] == [[0, []]] * 3


def test_a_rank_that_leaves_by_an_exception_is_told_at_once_and_the_others_go_on(ranks):
    kept, lines = ranks[0]["left"]
    assert kept == [1, 2, 3, 4, 5, 6]
    assert any("what was gathered is kept, and rank 0 goes on with its own records" in line for line in lines)
    assert all(report["took"] < 20 for report in ranks)


DEATH = (
    NET
    + """
    model = Net()
    begin = time.monotonic()
    with ModelTracer(model, ["forward.x"], gathering_interval=2) as tracer:
        for step in range(6):
            if rank == 1 and step == 3:
                os.kill(os.getpid(), 9)
            model(batch(step))
    found = tracer.results.get("forward.x")
    tell(
        kept=found and sorted(zip(found.ranks, found.iterations)), took=time.monotonic() - begin, lines=lines,
        missing=dict(tracer.missing),
    )
    os._exit(0)
"""
)


def test_a_rank_that_is_killed_costs_nothing_that_was_gathered(start_ranks, tmp_path):
    processes = start_ranks(tmp_path, DEATH, 3)
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, -9, 0], answers
    first, last = (json.loads(answers[rank][0]) for rank in (0, 2))
    gathered = [[rank, step] for rank in range(3) for step in (1, 2)]
    assert [entry for entry in first["kept"] if entry in gathered] == gathered
    assert [entry for entry in first["kept"] if entry[0] == 0] == [[0, step] for step in range(1, 7)]
    assert last["kept"] is None
    assert last["missing"] == {"forward.x": "rank 0 cannot be reached any more"}
    for rank, report in ((0, first), (2, last)):
        assert any(f"rank {rank}" in line and "what was gathered is kept" in line for line in report["lines"])
        assert report["took"] < 40
