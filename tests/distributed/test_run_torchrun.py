"""`tensortap run -- torchrun ...`: the ranks of an unedited job write one run."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import tensortap as tt

BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).parents[2] / "examples" / "unedited" / "ddp.py"
TORCHRUN = [str(BIN / "torchrun"), "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
LAUNCH = [*TORCHRUN, str(SCRIPT)]


def test_an_unedited_ddp_script_is_captured_on_every_rank_and_trains_as_without(tmp_path):
    options = ["--tap", "body.*", "--tap", "head.grad", "--every", "2"]
    done, plain = (
        subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        for command in ([str(BIN / "tensortap"), "run", *options, "--", *LAUNCH], LAUNCH)
    )
    assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
    (path,) = (tmp_path / "runs").iterdir()
    run = tt.Run(path)
    # Names are those of the module within DistributedDataParallel; each rank has made four steps.
    assert set(run.names) == {"body.0", "body.1", "body.2", "body.3", "head.grad"}
    found = collections.Counter((one.name, one.step, one.rank) for one in run)
    assert found == {(name, step, rank): 1 for name in run.names for step in (0, 2) for rank in (0, 1)}
    program = json.loads((path / ".tensortap" / "program.json").read_text())
    assert program["program"] == LAUNCH
    assert sorted(one["rank"] for one in program["processes"]) == [0, 1]  # the agent has no model
    runtime = json.loads((path / "runtime_info.json").read_text())
    assert runtime["command"]["argv"] == [str(SCRIPT)]
    assert runtime["environment_variables"]["RANK"] == "0"
