"""Ranks without a process group agree on one folder through what their launcher tells them."""

import errno
import socket
from pathlib import Path

import pytest

import tensortap as tt

DUMPS = """
    run = tt.init(base)
    rank = int(os.environ.get("RANK", os.environ["TEST_RANK"]))
    tt.dump(np.full(2, rank), "x")
    tell(rank=rank, run=run)
"""

BEFORE_AND_AFTER = """
    import torch, torch.distributed as dist
    run = tt.init(base)
    tt.dump(torch.zeros(2), "before")
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tt.dump(torch.full((2,), float(rank)), "after")
    tell(rank=rank, run=run)
    dist.barrier()
    dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def slurm(rank: int) -> dict[str, str]:
    job = {"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NTASKS": "9"}
    return {**job, "SLURM_PROCID": str(rank)}


def open_mpi(rank: int) -> dict[str, str]:
    job = {"OMPI_COMM_WORLD_SIZE": "3", "PMIX_NAMESPACE": "prterun-host-123@1"}
    return {**job, "OMPI_COMM_WORLD_RANK": str(rank)}


def torch_variables(rank: int) -> dict[str, str]:
    job = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return {**job, "RANK": str(rank), "LOCAL_RANK": str(rank)}


@pytest.mark.parametrize("variables", [slurm, open_mpi, torch_variables])
def test_the_ranks_of_a_launch_share_one_folder(run_ranks, tmp_path, variables):
    reports = run_ranks(tmp_path, DUMPS, 3, variables)
    assert len({report["run"] for report in reports}) == 1
    run = tt.Run(reports[0]["run"])
    assert [int(value[0]) for value in run.series("x").values] == [0, 1, 2]
    assert {file.name for file in run.path.glob("x*")} == {"x_rank0.npy", "x_rank1.npy", "x_rank2.npy"}
    assert runs_in(tmp_path) == [run.path]


def test_a_world_of_one_has_no_rank_in_its_file_names(run_ranks, tmp_path):
    (report,) = run_ranks(tmp_path, DUMPS, 1, lambda rank: {"RANK": "0", "WORLD_SIZE": "1"})
    assert (Path(report["run"]) / "x.npy").exists()


def test_a_launch_that_calls_init_twice_has_two_complete_runs(run_ranks, tmp_path):
    code = DUMPS + "    again = tt.init(base)\n    tt.dump(rank, 'y')\n"
    run_ranks(tmp_path, code, 3, torch_variables)
    first, second = sorted(map(tt.Run, runs_in(tmp_path)), key=lambda run: run.names)
    assert (first.series("x").ranks, second.series("y").ranks) == ([0, 1, 2], [0, 1, 2])


def test_a_folder_that_cannot_be_created_before_the_group_exists_is_told_by_every_rank(run_ranks, tmp_path):
    (tmp_path / "runs").write_text("a file")
    code = """
        from tensortap.formats import run_layout
        run_layout._WAIT_SECONDS = 0.5  # of the half minute that a late rank 0 is given
        try:
            tt.init(base)
        except tt.TensortapError as error:
            tell(told=str(error), number=error.errno)
    """
    reports = run_ranks(tmp_path, code, 2, torch_variables)
    assert all(report["told"].startswith("cannot create the run folder") for report in reports)
    assert {report["number"] for report in reports} <= {errno.EEXIST, errno.ENOTDIR}


def test_under_torchrun_init_before_the_group_gives_one_folder_also_with_the_same_port_again(
    torchrun, tmp_path
):
    options = ["--nnodes=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    launches = [torchrun(DUMPS, 2, *options) for _ in range(2)]
    for reports in launches:
        assert reports[0]["run"] == reports[1]["run"]
        assert tt.Run(reports[0]["run"]).series("x").ranks == [0, 1]
    assert len(runs_in(tmp_path)) == 2


def test_under_torchrun_the_folder_is_as_the_readme_draws_it(torchrun, tmp_path):
    reports = torchrun(BEFORE_AND_AFTER, 2, "--standalone", "--local-addr=127.0.0.1")
    (run,) = runs_in(tmp_path)
    assert {report["run"] for report in reports} == {str(run)}
    shown = sorted(entry.name for entry in run.iterdir() if not entry.name.startswith("."))
    print(f"\n{run.parent.name}/\n└── {run.name}/", *(f"    ├── {name}" for name in shown), sep="\n")
    assert shown == [
        "after_rank0.pt",
        "after_rank1.pt",
        "before_rank0.pt",
        "before_rank1.pt",
        "git_info.json",
        "packages.json",
        "runtime_info.json",
    ]
    assert [float(value[0]) for value in tt.Run(run).series("after").values] == [0.0, 1.0]


def runs_in(folder: Path) -> list[Path]:
    return sorted(entry for entry in (folder / "runs").iterdir() if not entry.name.startswith("."))
