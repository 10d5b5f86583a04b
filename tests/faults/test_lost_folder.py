"""A folder that cannot be written or is gone: one clear message, and the program goes on."""

import errno
import shutil
import subprocess

import numpy as np
import pytest

import tensortap as tt
from tensortap.core.errors import WriteFailedError

LAYOUTS = ("files", "pack")


def test_init_in_a_read_only_folder_says_so(small_disk, remount):
    remount(small_disk, "ro")
    with pytest.raises(WriteFailedError) as caught:
        tt.init(small_disk / "runs")
    assert caught.value.errno == errno.EROFS
    assert str(caught.value).startswith(f"cannot create the run folder {small_disk}/runs/")
    assert str(caught.value).endswith(": read-only file system; init() with a folder you can write to")
    with pytest.raises(tt.TensortapError, match="needs a run"):
        tt.dump(1, "x")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_that_becomes_read_only_is_told_by_dump_and_may_become_writable_again(
    small_disk, remount, layout
):
    run = tt.init(small_disk, layout=layout)
    remount(small_disk, "ro")
    with pytest.raises(WriteFailedError) as caught:
        tt.dump(np.ones(3), "x")
    assert str(caught.value) == (
        f"cannot write 'x' to {run}: read-only file system; check the folder, what was written before is safe"
    )
    assert caught.value.errno == errno.EROFS
    remount(small_disk, "rw")
    tt.dump(np.ones(3), "y")
    assert tt.Run(run).names == ["y"]


def test_init_where_a_file_stands_says_so(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(WriteFailedError, match=r"cannot create the run folder .*: "):
        tt.init(tmp_path / "runs")
    with pytest.raises(WriteFailedError, match=r"cannot create the run folder .*: not a directory"):
        tt.init(tmp_path / "runs" / "below")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("background", [False, True], ids=["at once", "background"])
def test_a_folder_deleted_in_mid_run_is_told_and_a_new_init_works(tmp_path, layout, background):
    run = tt.init(tmp_path, layout=layout, background=background)
    tt.dump(np.ones(3), "before")
    tt.flush()
    shutil.rmtree(run)
    with pytest.raises(WriteFailedError) as caught:
        dump_and_flush()
    assert str(caught.value) == (f"cannot write 'x' to {run}: the run folder is gone; call init() again")
    assert caught.value.errno == errno.ENOENT
    assert not run.exists()
    again = tt.init(tmp_path, layout=layout, background=background)
    tt.dump(np.ones(3), "y")
    tt.close()
    assert tt.Run(again).names == ["y"]


def dump_and_flush():
    tt.dump(np.ones(3), "x")
    tt.flush()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_deleted_and_made_again_is_told_because_its_index_is_gone(tmp_path, layout):
    run = tt.init(tmp_path, layout=layout)
    tt.dump(1, "before")
    shutil.rmtree(run)
    (run / ".tensortap" / "packs").mkdir(parents=True)
    with pytest.raises(WriteFailedError, match="the run folder is gone; call init\\(\\) again"):
        tt.dump(2, "x")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_that_changes_its_working_directory_goes_on_writing_to_its_run(
    tmp_path, monkeypatch, layout
):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / tt.init("runs", layout=layout)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    tt.dump(1, "x")
    tt.close()
    assert tt.Run(run).load("x") == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_metadata_of_a_deleted_run_is_told_and_does_not_bring_the_folder_back(tmp_path):
    run = tt.init(tmp_path)
    shutil.rmtree(run)
    with pytest.raises(WriteFailedError) as caught:
        tt.update_metadata()
    assert str(caught.value) == (
        f"cannot write the metadata to {run}: the run folder is gone; call init() again"
    )
    assert not run.exists()


def test_a_repository_that_moves_after_the_folder_is_gone_does_not_bring_it_back(tmp_path, monkeypatch):
    for command in ("init -q", "-c user.name=a -c user.email=a@b commit -q --allow-empty -m one"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    run = tt.init(tmp_path / "runs")
    shutil.rmtree(run)
    move = "-c user.name=a -c user.email=a@b commit -q --allow-empty -m two"
    subprocess.run(["git", *move.split()], cwd=tmp_path, check=True)
    with pytest.raises(WriteFailedError, match="the run folder is gone; call init\\(\\) again"):
        tt.dump(1, "x")
    assert not run.exists()
