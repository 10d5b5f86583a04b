"""Where things lie: safe file names, new folders, and one folder for all ranks."""

import os
import subprocess
import sys
import time
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensortap.core.errors import NoRunError, WriteFailedError
from tensortap.core.ranks import RankInfo
from tensortap.formats import run_layout
from tensortap.formats.run_layout import (
    LAUNCHES_FOLDER,
    agree_on_run,
    create_run,
    file_stem,
    is_own_run,
    ranked_stem,
)
from tensortap.readers.run import Run

any_text = st.text(st.characters(codec=None, categories=None))


@settings(deadline=None)
@given(any_text, any_text)
def test_different_short_names_give_different_files(one, other):
    if one != other and max(len(one), len(other)) <= 40:
        assert file_stem(one) != file_stem(other)


@settings(deadline=None)
@given(any_text | st.text("./\\%\0", max_size=400) | st.text("ä", min_size=50, max_size=400))
def test_a_file_name_is_safe(name):
    stem = ranked_stem(name, RankInfo(12345, 100_000))
    encoded = f"{stem}.1234567.pickle".encode()
    assert len(encoded) <= 255
    assert stem
    assert not stem.startswith(".")
    assert not set(stem) & set('/\\:*?"<>|\0\n\r\t')


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("layer1.out", "layer1.out"),
        ("a/b", "a%2Fb"),
        ("../x", "%2E.%2Fx"),
        ("", "%empty"),
        ("%empty", "%25empty"),
        ("x_rank3", "x_rank3"),
        ("größe", "größe"),
        ("\ud800", "%D800"),
    ],
)
def test_a_name_stays_readable(name, stem):
    assert file_stem(name) == stem


def test_long_names_that_begin_alike_differ():
    assert file_stem("a" * 300) != file_stem("a" * 299 + "b")


def test_two_runs_of_one_second_get_two_folders(tmp_path):
    runs = {create_run(tmp_path / "new" / "deep", UTC) for _ in range(5)}
    assert len(runs) == 5
    assert all((run / ".tensortap").is_dir() for run in runs)


def test_a_base_that_is_a_file_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    for base in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(WriteFailedError, match=r"^cannot create the run folder .*; init\(\) with a"):
            create_run(base, UTC)


@pytest.mark.skipif(not Path("/proc/sys").is_dir(), reason="needs a folder that refuses even root")
def test_a_base_that_cannot_be_written_is_refused_in_one_sentence():
    with pytest.raises(WriteFailedError, match=r"^cannot create the run folder /proc/sys/x") as caught:
        create_run(Path("/proc/sys/x"), UTC)
    assert caught.value.errno


def test_only_a_run_of_ones_own_is_trusted(tmp_path):
    run = create_run(tmp_path, UTC)
    (run / "x.pkl").touch()
    (tmp_path / "y.pkl").touch()
    assert is_own_run(run / "x.pkl")
    assert not is_own_run(tmp_path / "y.pkl")
    assert not is_own_run(run / "missing.pkl")
    if os.getuid() == 0:
        os.chown(run, 12345, -1)
        assert not is_own_run(run / "x.pkl")


# One folder for all ranks

RANK = """
import sys, time
from datetime import timezone
from pathlib import Path
from tensortap.core.ranks import rank_info
from tensortap.formats.run_layout import agree_on_run
time.sleep(float(sys.argv[2]))
for attempt in (1, 2):
    print(agree_on_run(Path(sys.argv[1]), timezone.utc, rank_info(), attempt))
"""


def _launch(base, world=2, late=0, **environment):
    """The folders that each of these processes came to, launched the same way."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(base), str(0.3 if rank == late else 0)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), **environment},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    return [process.communicate(timeout=60)[0].split() for process in processes]


@pytest.mark.process
@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("agent", [{}, {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}])
def test_ranks_without_a_process_group_meet_in_one_folder(tmp_path, late, agent):
    first, second = _launch(tmp_path, late=late, MASTER_ADDR="localhost", MASTER_PORT="29500", **agent)
    assert first == second
    assert len(set(first)) == 2
    assert all(Path(run, ".tensortap").is_dir() for run in first)


@pytest.mark.process
def test_a_later_launch_of_the_same_kind_meets_elsewhere(tmp_path):
    launch = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    first, _ = _launch(tmp_path, **launch, TORCHELASTIC_RESTART_COUNT="0")
    one, other = _launch(tmp_path, **launch, TORCHELASTIC_RESTART_COUNT="1")
    assert one == other
    assert not set(one) & set(first)


def test_a_meeting_place_left_by_an_old_launch_is_ignored(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(run_layout, "_WAIT_SECONDS", 0.1)
    stale = agree_on_run(tmp_path, UTC, RankInfo(0, 2), 1)
    (meeting,) = (tmp_path / LAUNCHES_FOLDER).iterdir()
    assert agree_on_run(tmp_path, UTC, RankInfo(1, 2), 1) == stale
    os.utime(meeting, (time.time() - 10**6,) * 2)
    assert agree_on_run(tmp_path, UTC, RankInfo(1, 2), 1) != stale
    assert "rank 1 waited 0 s for rank 0 to create a run" in caplog.text


def test_a_rank_that_comes_ten_minutes_later_still_finds_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(run_layout, "_process_start", lambda: time.time() - 700)
    run = agree_on_run(tmp_path, UTC, RankInfo(0, 2), 1)
    (meeting,) = (tmp_path / LAUNCHES_FOLDER).iterdir()
    os.utime(meeting, (time.time() - 600,) * 2)
    assert agree_on_run(tmp_path, UTC, RankInfo(1, 2), 1) == run


def test_a_rank_that_can_never_find_the_folder_does_not_wait(tmp_path):
    (tmp_path / "file").touch()
    began = time.monotonic()
    with pytest.raises(WriteFailedError, match="cannot create the run folder"):
        agree_on_run(tmp_path / "file", UTC, RankInfo(1, 2), 1)
    assert time.monotonic() - began < 5


def test_a_process_knows_when_it_began():
    assert 0 <= time.time() - run_layout._process_start() < 24 * 3600


def test_the_folder_of_the_runs_is_not_a_run_itself(tmp_path):
    run = agree_on_run(tmp_path, UTC, RankInfo(0, 2), 1)
    with pytest.raises(NoRunError, match=f"is not a run but holds 1: {run.name}; give one of them"):
        Run(tmp_path)
    (tmp_path / "x.pkl").touch()
    assert not is_own_run(tmp_path / "x.pkl")
