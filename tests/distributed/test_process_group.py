"""Ranks that have a process group: one folder, metadata once, a file per rank, errors on all."""

import errno
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.proof import sampled

import tensortap as tt

JOB = """
    rank = join_group()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    world = dist.get_world_size()
    first = tt.init(base)
    tt.dump(torch.full((2, 2), float(rank)), "layer1_output")
    tt.dump(np.full(3, rank), "loss")
    tt.dump(rank, "number")

    second = tt.init(base, background=True, layout="pack")
    whole = torch.arange(world * 6.0).reshape(world * 2, 3)
    tt.dump(distribute_tensor(whole, init_device_mesh("cpu", (world,)), [Shard(0)]), "sharded")
    tt.flush()

    third = tt.init(base)
    tt.dump(distribute_tensor(whole, init_device_mesh("cpu", (world,)), [Shard(0)]), "sharded")

    (base / "a file").write_text("") if rank == 0 else None
    dist.barrier()
    try:
        tt.init(base / "a file")
        told = number = None
    except tt.TensortapError as error:
        told, number = str(error), error.errno
    tell(first=first, second=second, third=third, told=told, number=number)
    leave_group()
"""


@pytest.fixture(scope="session")  # not module: xdist may run other modules in between
def jobs(run_ranks, tmp_path_factory):
    @lru_cache
    def run(world):
        folder = tmp_path_factory.mktemp("job")
        return world, folder / "runs", run_ranks(folder, JOB, world)

    return run


@pytest.fixture(params=sampled([2, 4], [2]), ids=["two ranks", "four ranks"])
def job(request, jobs):
    """One job of each size serves every test below: the world, the folder and the ranks' reports."""
    return jobs(request.param)


def test_every_call_of_init_makes_exactly_one_folder_that_all_ranks_share(job):
    _, base, reports = job
    for which in ("first", "second", "third"):
        assert len({report[which] for report in reports}) == 1
    folders = {str(entry) for entry in base.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    assert folders == {reports[0][which] for which in ("first", "second", "third")}


def test_the_folder_shows_a_file_per_rank_and_the_metadata_once(job):
    world, _, reports = job
    shown = {entry.name for entry in Path(reports[0]["first"]).iterdir()}
    values = {
        f"{name}_rank{rank}{suffix}"
        for rank in range(world)
        for name, suffix in (("layer1_output", ".pt"), ("loss", ".npy"), ("number", ".pkl"))
    }
    assert shown == values | {"runtime_info.json", "packages.json", "git_info.json", ".tensortap"}


def test_a_run_reads_all_ranks_and_one(job):
    world, _, reports = job
    run = tt.Run(reports[0]["first"])
    assert run.series("number").values == list(range(world))
    assert run.series("number").ranks == list(range(world))
    assert torch.equal(run.load("layer1_output", rank=1), torch.ones(2, 2))
    assert [stored.rank for stored in run.filter(rank=1)] == [1, 1, 1]
    assert run.filter("loss", rank=1).names == ["loss"]
    np.testing.assert_array_equal(run.filter(rank=1).load("loss"), np.ones(3))
    assert run.load("number") == 0


def test_the_files_of_a_rank_are_plain(job):
    _, _, reports = job
    first = Path(reports[0]["first"])
    assert torch.equal(torch.load(first / "layer1_output_rank1.pt", weights_only=True), torch.ones(2, 2))
    assert np.load(first / "loss_rank1.npy").tolist() == [1, 1, 1]
    assert json.loads((first / "runtime_info.json").read_text())["command"]["argv"]


@pytest.mark.parametrize("which", ["second", "third"])
def test_a_distributed_tensor_is_kept_as_its_local_piece_with_its_placement(job, which):
    world, _, reports = job
    run = tt.Run(reports[0][which])
    whole = torch.arange(world * 6.0).reshape(world * 2, 3)
    for rank in range(world):
        stored = run.find("sharded", rank=rank)
        assert torch.equal(stored.load(), whole[2 * rank : 2 * rank + 2])
        assert stored.placement.parts == ("shard(0)",)
        assert stored.placement.shape == (world * 2, 3)
        assert stored.placement.offset == (2 * rank, 0)
        assert (stored.placement.mesh, stored.placement.coordinate) == ((world,), (rank,))


def test_a_folder_that_rank_0_cannot_create_is_told_by_every_rank(job):
    _, base, reports = job
    assert len({report["told"] for report in reports}) == 1
    assert reports[1]["told"].startswith(f"cannot create the run folder {base}/a file/")
    assert {report["number"] for report in reports} <= {errno.EEXIST, errno.ENOTDIR}


CRASH = """
    rank = join_group()
    run = tt.init(base, background=rank == 1, layout="pack" if rank == 2 else "files")
    for number in range(5):
        tt.dump(torch.full((100,), float(number)), f"v{number}")
    tt.flush()
    dist.barrier()
    if rank == 1:
        os._exit(7)
    tell(run=run)
    sys.stdin.readline()
    for number in range(5, 10):
        tt.dump(torch.full((100,), float(number)), f"v{number}")
    tt.close()
    os._exit(0)  # the group has lost a member: nothing to say goodbye to
"""


def test_a_rank_that_crashes_leaves_the_run_and_the_others_files_readable(start_ranks, tmp_path):
    processes = start_ranks(tmp_path, CRASH, 3)
    assert processes[1].wait(60) == 7
    for rank in (0, 2):
        report = json.loads(processes[rank].stdout.readline())
        processes[rank].stdin.write("go on\n")
        processes[rank].stdin.close()
        assert processes[rank].wait(60) == 0
    for process in processes:
        process.stdout.close()
        process.stderr.close()
    processes[1].stdin.close()
    run = tt.Run(report["run"])
    assert run.problems == []
    assert [len(run.filter(rank=rank)) for rank in range(3)] == [10, 5, 10]
    for stored in run:
        assert torch.equal(stored.load(), torch.full((100,), float(stored.name[1:])))


def test_a_group_of_one_has_no_rank_in_its_file_names(run_ranks, tmp_path):
    code = "join_group(); tell(run=tt.init(base)); tt.dump(1, 'x'); tt.close(); leave_group()"
    (report,) = run_ranks(tmp_path, code, 1)
    assert (Path(report["run"]) / "x.pkl").exists()
