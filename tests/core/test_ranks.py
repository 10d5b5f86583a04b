"""Who this process is, under every launcher."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

LAUNCHER_NAMES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_",
    "SLURM_",
    "OMPI_",
    "PMIX_",
    "TORCHELASTIC_",
)
ASK = "from tensortap.core.ranks import rank_info; r = rank_info(); print(r.rank, r.world_size)"
TWO_IN_A_GROUP = """
import sys, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)
from tensortap.core.ranks import rank_info
print(rank_info().rank, rank_info().world_size)
dist.barrier(); dist.destroy_process_group()
"""


def environment(**extra):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_NAMES)}
    return clean | extra


def run(code, *arguments, **extra):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment(**extra),
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({}, "0 1"),
        ({"RANK": "3", "WORLD_SIZE": "8"}, "3 8"),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "16"}, "2 4"),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, "2 4"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "1 2"),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "5", "SLURM_NTASKS": "9"}, "0 2"),
        ({"RANK": "gpu", "WORLD_SIZE": "8"}, "0 1"),
        ({"RANK": "3"}, "0 1"),
        ({"RANK": "", "WORLD_SIZE": ""}, "0 1"),
    ],
    ids=[
        "alone",
        "torchrun",
        "slurm step",
        "slurm job",
        "mpi",
        "torchrun in slurm",
        "words",
        "half",
        "empty",
    ],
)
def test_each_launcher_is_understood(extra, told):
    assert run(ASK, **extra) == told


def test_asking_imports_no_library():
    names = run(f"{ASK}; import sys; print([n for n in ('torch', 'jax', 'numpy') if n in sys.modules])")
    assert names.endswith("[]")


def test_importing_jax_alone_starts_no_backend():
    code = "import jax; from jax._src import xla_bridge\n" + ASK + "\nprint(xla_bridge._backends)"
    assert run(code).split("\n") == ["0 1", "{}"]


def test_a_process_group_is_asked_before_the_launcher(tmp_path):
    command = [sys.executable, "-c", TWO_IN_A_GROUP]
    jobs = [
        subprocess.Popen([*command, rank, str(tmp_path / "meeting")], stdout=subprocess.PIPE, text=True,
                         env=environment(RANK="7", WORLD_SIZE="9"))
        for rank in "01"
    ]  # fmt: skip
    assert [job.communicate(timeout=60)[0].strip() for job in jobs] == ["0 2", "1 2"]


IDENTITY = "import json; from tensortap.core.ranks import launch_id as i; print(json.dumps(i()))"


def test_processes_of_one_launch_share_an_identity_and_launches_differ():
    one = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    first = json.loads(run(IDENTITY, **one, RANK="0", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8"))
    second = json.loads(run(IDENTITY, **one, RANK="1", WORLD_SIZE="16", LOCAL_WORLD_SIZE="8"))
    restarted = json.loads(run(IDENTITY, **one, TORCHELASTIC_RESTART_COUNT="1"))
    assert first == second
    assert first != restarted


def test_under_one_agent_the_agent_is_part_of_the_identity():
    identity = json.loads(run(IDENTITY, LOCAL_WORLD_SIZE="2", WORLD_SIZE="2", MASTER_PORT="29500"))
    assert f"agent={os.getpid()}@" in identity


def test_without_a_launcher_there_is_no_identity():
    assert json.loads(run(IDENTITY)) == ""
