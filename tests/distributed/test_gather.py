"""Gathering in real jobs: the shapes of the README, exact values, uneven ranks, failures on one of them."""

import json
from functools import lru_cache

import pytest
from tests.proof import sampled

TOOLS = """
    import logging
    from tensortap.core.record import Record
    from tensortap.core.tap import Tap
    from tensortap.sinks.memory import Memory
    from tensortap.core.errors import GatherError
    from tensortap.stages.gather import Gather
    from tensortap.stages.reduce import stack_padded_tensors as stack

    def trace(gather, steps, make):
        memory = Memory(keep=None)
        with Tap(stages=[gather], sinks=[memory], on_error="log") as tap:
            for step in range(1, steps + 1):
                for name, value in make(step):
                    tap.emit(Record(name, value, step=step))
                tap.tick(step)
        return memory
"""

JOB = (
    TOOLS
    + """
    rank = join_group()
    world = dist.get_world_size()
    os.environ["TENSORTAP_STRICT"] = "0"
    N, G, B, C = 8, 4, 3, 5
    told = {}

    def x_of(step, rank=rank):
        return torch.arange(B * C).reshape(B, C) + 100.0 * step + 1000.0 * rank

    def plain(step):
        yield "forward.x", x_of(step)

    def after(memory, callbacks):
        series = memory.series.get("forward.x")
        if series is None:
            return None
        for callback in callbacks:
            callback("forward.x", series)
        return series

    # The first example of the README.
    found = after(trace(Gather(G, pre=[stack], post=[stack]), N, plain), [stack])
    if rank == 0:
        whole = torch.stack([
            torch.stack([torch.stack([x_of(part * G + g + 1, w) for g in range(G)]) for w in range(world)])
            for part in range(N // G)
        ])
        value = found.values[0]
        told["first"] = [value.shape, found.iterations, found.ranks, torch.equal(value, whole)]

    # The second.
    found = after(trace(Gather(2, post=[stack]), N, plain), [])
    if rank == 0:
        told["second"] = [[value.shape for value in found.values], found.iterations, found.ranks]

    # The third.
    def mean_post_gather(name, values, iterations, ranks):
        values[0] = values[0].mean(dim=(0, 1))

    found = after(trace(Gather(G, post=[stack, mean_post_gather]), N, plain), [stack])
    if rank == 0:
        told["third"] = found.values[0].shape

    # What is left over.
    kept = trace(Gather(G), 6, plain)
    dropped = trace(Gather(G, drop_last=True), 6, plain)
    told["last"] = [len(kept.records), len(dropped.records)]
    told["order"] = [(record.rank, record.step) for record in kept.records]

    # Every kind of value, exactly.
    import jax.numpy as jnp
    from collections import namedtuple
    from tensortap.frameworks.base import framework_of
    from tensortap.frameworks.pytree import leaves

    Pair = namedtuple("Pair", "a b")
    TYPES = "bool uint8 uint16 uint64 int64 float16 bfloat16 float32 float64 complex64 complex32 "
    TYPES += "float8_e4m3fn float8_e5m2"

    def kinds(rank):
        draw = torch.Generator().manual_seed(rank)
        for name in TYPES.split():
            size, below = 24 * getattr(torch, name).itemsize, 2 if name == "bool" else 256
            words = torch.randint(0, below, (size,), generator=draw, dtype=torch.uint8)
            yield name, words.view(getattr(torch, name)).reshape(4, 6)
        numbers = torch.rand(40, 30, generator=draw)
        yield "transposed", numbers.t()
        yield "strided", numbers[::3, 5:9]
        yield "expanded", numbers[0, :1].expand(7)
        yield "conjugated", torch.complex(numbers, numbers).conj()
        yield "big", torch.rand(3_000_000, generator=draw)[1:]
        yield "scalar", numbers[0, 0]
        yield "empty", numbers[:0]
        yield "parameter", torch.nn.Parameter(numbers)
        yield "sparse", numbers[0].to_sparse()
        yield "numpy", numbers.numpy().T.astype(">f8")
        yield "numpy text", np.array([f"rank {rank}", "b"])
        yield "numpy number", np.float32(rank)
        yield "jax", jnp.asarray(numbers.numpy(), jnp.bfloat16)
        yield "number", rank + 0.5
        yield "text", f"rank {rank}"
        yield "nothing", None
        yield "nested", {"a": [numbers, {"b": np.arange(rank)}], 3: Pair(numbers, "text"), "same": numbers}
        for number in range(300):
            yield f"small {number}", torch.full((number % 7, 3), rank)

    def same(a, b):
        one, other = list(leaves(a)), list(leaves(b))
        if [path for path, _ in one] != [path for path, _ in other] or type(a) is not type(b):
            return False
        return all(same_leaf(a, b) for (_, a), (_, b) in zip(one, other))

    def same_leaf(a, b):
        if isinstance(a, (str, type(None))):
            return a == b
        if torch.is_tensor(a) and a.is_sparse:
            a, b = a.to_dense(), b.to_dense()
        framework = framework_of(a)
        if framework is not framework_of(b) or framework.describe(a)[1:3] != framework.describe(b)[1:3]:
            return False
        if framework.name == "numpy" and a.dtype.kind == "U":
            return a.tolist() == b.tolist()
        return framework.bits(a).tobytes() == framework.bits(b).tobytes()

    memory = trace(Gather(1, budget=1 << 20), 1, lambda step: kinds(rank))
    if rank == 0:
        got = {(record.name, record.rank): record.value for record in memory.records}
        wanted = {(name, r): value for r in range(world) for name, value in kinds(r)}
        told["missing"] = sorted(map(str, wanted.keys() - got.keys()))
        made_plain = lambda value: value.detach() if isinstance(value, torch.nn.Parameter) else value
        told["wrong"] = [str(key) for key in got if not same(made_plain(wanted[key]), got[key])]
        told["count"] = len(got)
        nested = got["nested", world - 1]
        told["shared"] = nested["same"] is nested[3].a
        told["writable"] = [got[name, 1].add_(1) is not None for name in ("float32", "big", "small 6")]

    # Names, shapes and counts that differ; a rank with nothing.
    def uneven(step):
        if rank != world - 1:
            for number in range(rank + 1):
                yield "common", torch.full((rank + 1, number + 1), float(rank))
            yield f"only on {rank}", rank

    memory = trace(Gather(2, post=[stack]), 2, uneven)
    told["uneven"] = {name: [list(getattr(value, "shape", [])) for value in series.values]
                      for name, series in memory.series.items()}

    # Ranks that stop at different steps.
    memory = trace(Gather(2), 7 if rank == 0 else 3, plain)
    told["stopped"] = sorted((record.rank, record.step) for record in memory.records)

    # A callback that fails on one rank only, in every mode.
    def failing(name, values, iterations, ranks):
        values.clear()
        if rank == 1:
            raise ValueError("not today")

    def logged(run):
        lines, handler = [], logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logging.getLogger("tensortap").addHandler(handler)
        try:
            return run(), lines
        finally:
            logging.getLogger("tensortap").removeHandler(handler)

    memory, lines = logged(lambda: trace(Gather(1, pre=[failing]), 3, plain))
    told["failed"] = [[(record.rank, record.step) for record in memory.records], lines]
    os.environ["TENSORTAP_STRICT"] = "1"
    gather = Gather(1, pre=[failing])
    gather.push(Record("forward.x", x_of(1), step=1))
    try:
        gather.tick(1)
        told["strict"] = None
    except GatherError as error:
        told["strict"] = str(error)
    told["kept"] = [record.rank for record in gather.close()]
    os.environ["TENSORTAP_STRICT"] = "0"

    # Values that cannot be sent.
    def odd(step):
        yield "meta", torch.ones(3, device="meta")
        yield "lock", {"x": (torch.ones(2), logging.Handler().acquire)}
        yield "fine", rank

    gather = Gather(1)
    memory = trace(gather, 1, odd)
    told["refused"] = [gather.refused, gather.skipped, [(r.name, r.rank) for r in memory.records]]

    # Modes of the program do not reach what we do.
    from torch.utils._python_dispatch import TorchDispatchMode

    class Spy(TorchDispatchMode):
        seen = []
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function))
            return function(*args, **(kwargs or {}))

    gather = Gather(1)
    gather.push(Record("x", x_of(1)))
    gather.tick(1)
    gather.push(Record("x", x_of(2)))
    with Spy(), torch.inference_mode():
        found = gather.tick(2)
    told["spied"] = Spy.seen
    told["own"] = [record.value.is_inference() for record in found]
    gather.close()

    # Models of two parallel kinds.
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def train(wrap):
        torch.manual_seed(0)
        model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)))
        inner = getattr(model, "module", model)
        memory = Memory(keep=None)
        tap = Tap(stages=[Gather(2)], sinks=[memory])
        inner[0].register_forward_hook(lambda module, args, out: tap.emit(Record("out", out)) and None)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(4):
            tap.emit(Record("weight", inner[0].weight))
            loss = model(torch.full((3, 4), float(rank))).sum()
            tap.tick(step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        tap.close()
        return memory

    replicated, sharded = train(DistributedDataParallel), train(fully_shard)
    if rank == 0:
        told["replicated"] = {name: [list(value.shape) for value in series.values]
                              for name, series in replicated.series.items()}
        pieces = [record for record in sharded.records if record.name == "weight"][: 2 * world]
        told["placed"] = [(record.rank, record.value.shape, record.placement.parts, record.placement.offset)
                          for record in pieces]
        whole = torch.cat([record.value for record in pieces if record.value.numel()][::2])
        one = [record for record in replicated.records if record.name == "weight" and record.rank == 0][0]
        told["whole"] = torch.equal(whole, one.value)

    tell(**told)
    leave_group()
"""
)


@pytest.fixture(scope="session")
def gathered(run_ranks, tmp_path_factory):
    @lru_cache
    def run(world):
        return world, run_ranks(tmp_path_factory.mktemp("gather"), JOB, world)

    return run


@pytest.fixture(params=sampled([2, 4], [2]), ids=["two ranks", "four ranks"])
def job(request, gathered):
    """One job of each size serves every test below: the world, and what its ranks told."""
    return gathered(request.param)


def test_stacking_on_each_rank_then_over_ranks_then_over_time_gives_five_dimensions(job):
    world, (first, *_) = job
    shape, iterations, ranks, is_equal = first["first"]
    assert shape == [2, world, 4, 3, 5]
    assert is_equal
    assert iterations == [[[[1, 2, 3, 4]] * world, [[5, 6, 7, 8]] * world]]
    assert ranks == [[[[rank] * 4 for rank in range(world)]] * 2]


def test_stacking_after_gathering_gives_the_values_of_all_ranks_in_one(job):
    world, (first, *_) = job
    shapes, iterations, ranks = first["second"]
    assert shapes == [[2 * world, 3, 5]] * 4
    assert iterations == [[step, step + 1] * world for step in (1, 3, 5, 7)]
    assert ranks == [[rank for rank in range(world) for _ in range(2)]] * 4


def test_a_mean_after_gathering_leaves_a_row_per_interval(job):
    assert job[1][0]["third"] == [2, 5]


def test_what_is_left_over_comes_as_a_smaller_part_unless_it_is_dropped(job):
    world, reports = job
    assert [report["last"] for report in reports] == [[6 * world, 4 * world], *[[0, 0]] * (world - 1)]
    by_rank = [[rank, step] for rank in range(world) for step in (1, 2, 3, 4)]
    assert reports[0]["order"] == by_rank + [[rank, step] for rank in range(world) for step in (5, 6)]


def test_every_kind_of_value_arrives_exactly(job):
    world, (first, *_) = job
    assert first["missing"] == first["wrong"] == []
    assert first["count"] == 330 * world
    assert first["shared"]
    assert first["writable"] == [True] * 3


def test_names_shapes_and_counts_may_differ_between_ranks(job):
    world, (first, *others) = job
    count = sum(2 * (rank + 1) for rank in range(world - 1))
    assert first["uneven"] == {
        "common": [[count, world - 1, world - 1]],
        **{f"only on {rank}": [[], []] for rank in range(world - 1)},
    }
    assert all(report["uneven"] == {} for report in others)


def test_a_rank_that_stops_early_waits_for_the_others(job):
    world, (first, *_) = job
    wanted = [[0, step] for step in range(1, 8)] + [[rank, s] for rank in range(1, world) for s in (1, 2, 3)]
    assert first["stopped"] == wanted


def test_a_callback_that_fails_on_one_rank_costs_no_value_and_no_collective(job):
    world, (first, *others) = job
    records, lines = first["failed"]
    assert records == [[1, 1], [1, 2], [1, 3]]
    (line,) = lines
    assert line.startswith(
        "on rank 1: the callback failing failed for 'forward.x' (ValueError: not today); "
        "the values are kept as they were before it\nTraceback"
    )
    assert [report["failed"] for report in others] == [[[], []]] * (world - 1)


def test_in_strict_mode_the_failure_is_raised_on_rank_0_after_the_collective(job):
    world, (first, *others) = job
    assert first["strict"].startswith("on rank 1: the callback failing failed for 'forward.x'")
    assert [report["strict"] for report in others] == [None] * (world - 1)
    assert first["kept"] == [1]


def test_a_value_that_cannot_be_sent_is_named_and_counted_and_the_rest_goes_on(job):
    world, (first, second, *_) = job
    refused, skipped, records = first["refused"]
    assert refused["meta"].startswith("a meta tensor of shape [3] has no values")
    assert refused["lock"].startswith("on rank 1: a dict cannot be sent to rank 0 (cannot pickle")
    assert skipped == world + (world - 1)  # what rank 0 has itself need not be sent
    assert records == [["lock", 0], *[["fine", rank] for rank in range(world)]]
    assert second["refused"][1:] == [2, []]


def test_gathering_is_not_seen_by_the_modes_of_the_program(job):
    world, (first, *others) = job
    assert all(report["spied"] == [] for report in (first, *others))
    assert first["own"] == [False] * world


def test_replicated_models_are_gathered_under_their_plain_names(job):
    world, (first, *_) = job
    assert first["replicated"] == {"out": [[3, 8]] * 4 * world, "weight": [[8, 4]] * 4 * world}


def test_sharded_parameters_are_gathered_as_pieces_with_their_placement(job):
    world, (first, *_) = job
    rows = 8 // world
    assert first["placed"] == [
        [rank, [rows, 4], ["shard(0)"], [rank * rows, 0]] for rank in range(world) for _ in range(2)
    ]
    assert first["whole"]


DEATH = (
    TOOLS
    + """
    import time
    rank = join_group()
    os.environ["TENSORTAP_STRICT"] = "1"
    gather = Gather(1, timeout=20)
    memory = Memory(keep=None)
    tap = Tap(stages=[gather], sinks=[memory])
    try:
        for step in (1, 2, 3):
            if step == 3 and rank == 1:
                os._exit(7)
            tap.emit(Record("x", torch.full((3,), float(step)), step=step))
            begin = time.monotonic()
            tap.tick(step)
        error = None
    except GatherError as caught:
        error = str(caught)
    took = time.monotonic() - begin
    os.environ["TENSORTAP_STRICT"] = "0"
    tap.emit(Record("x", torch.zeros(3), step=4))
    tap.tick(4)
    tap.close()
    tell(error=error, took=took, kept=sorted((record.rank, record.step) for record in memory.records))
    os._exit(0)
"""
)


def test_a_rank_that_dies_is_told_on_the_others_and_costs_nothing_gathered(start_ranks, tmp_path):
    processes = start_ranks(tmp_path, DEATH, 3)
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 7, 0], answers
    first, last = (json.loads(answers[rank][0]) for rank in (0, 2))
    before = [[rank, step] for rank in range(3) for step in (1, 2)]
    assert [entry for entry in first["kept"] if entry in before] == before
    assert [0, 3] in first["kept"]
    assert [0, 4] in first["kept"]
    assert last["kept"] == []
    for rank, report in ((0, first), (2, last)):
        assert f"rank {rank}" in report["error"]
        assert "what was gathered is kept" in report["error"]
        assert report["took"] < 40
