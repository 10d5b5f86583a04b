"""Opening a folder from several ranks: one run for all of them."""

from pathlib import Path

import pytest

import tensortap as tt

OPEN = """
    from tensortap.sinks.open import open_sink
    begun = tt.init(base)
    runs = []
    for number in range(2):
        sink = open_sink(str(base))
        sink.write(tt.Record("x", number, rank=rank))
        sink.close()
        runs.append(sink.path)
    tell(rank=rank, begun=begun, runs=runs)
"""
IN_A_GROUP = "    rank = join_group()\n" + OPEN + "    leave_group()\n"
LAUNCHED = '    rank = int(os.environ["RANK"])\n' + OPEN


def launched(rank):
    return {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("code", "variables"),
    [(IN_A_GROUP, None), (LAUNCHED, launched)],
    ids=["process group", "launcher"],
)
def test_every_opening_makes_one_run_that_all_ranks_share(run_ranks, tmp_path, code, variables):
    first, second = run_ranks(tmp_path, code, 2, variables)
    assert first["runs"] == second["runs"]
    assert len({first["begun"], *first["runs"]}) == 3
    for number, path in enumerate(first["runs"]):
        assert [stored.load() for stored in tt.Run(path).filter("x")] == [number, number]
        assert [stored.rank for stored in tt.Run(path)] == [0, 1]
        assert (Path(path) / "git_info.json").exists()
        assert tt.Run(path).metadata["runtime_info"]["command"]["argv"]
    folders = [entry for entry in (tmp_path / "runs").iterdir() if not entry.name.startswith(".")]
    assert len(folders) == 3
