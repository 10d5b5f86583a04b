"""Sockets are found by their own user, kept from others, and cleared away when their job is dead."""

import json
import os
import stat
from dataclasses import replace

import pytest

import tensortap as tt
from tensortap.core.errors import RefusedError
from tensortap.core.ranks import RankInfo
from tensortap.live.discovery import JobFile, describe_process, jobs, parse_job, private_folder


@pytest.fixture
def note():
    made = []

    def make(name="x", rank=0, **facts):
        job = replace(describe_process(name, RankInfo(rank, 4 if rank else 1), private_folder()), **facts)
        made.append(JobFile(job))
        return job

    yield make
    for one in made:
        one.remove()


def test_the_folder_is_for_this_user_alone(runtime):
    folder = private_folder()
    assert folder == runtime / "tensortap"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_others_may_enter_is_refused(runtime):
    private_folder().chmod(0o755)
    with pytest.raises(RefusedError, match="mode 755"):
        private_folder()


def test_a_link_in_place_of_the_folder_is_refused(runtime, tmp_path):
    (runtime / "tensortap").symlink_to(tmp_path)
    with pytest.raises(RefusedError, match="no folder of its own"):
        private_folder()


def test_jobs_are_listed_newest_first_and_only_while_they_are_held(note):
    first, second = note("a", started=1.0), note("b", rank=1, started=2.0)
    assert jobs() == [second, first]


def test_what_a_dead_job_left_is_removed_by_whoever_finds_it(note, runtime):
    job = note("dead")
    (runtime / "tensortap" / (os.path.basename(job.socket))).touch()
    other = JobFile(replace(job, name="dead"))
    other.abandon()  # the lock goes, as it does when a process is killed
    assert jobs() == []
    assert list((runtime / "tensortap").iterdir()) == []


def test_a_link_among_the_notes_is_passed_over(note, runtime, tmp_path):
    job = note("real")
    (tmp_path / "other.json").write_text(json.dumps({"name": "planted"}))
    (runtime / "tensortap" / "planted.json").symlink_to(tmp_path / "other.json")
    assert jobs() == [job]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"name": 3}', "nonsense", "null"])
def test_a_note_that_is_none_is_passed_over(text):
    assert parse_job(text) is None


def test_a_name_with_any_letters_gives_a_short_plain_socket(note):
    job = note("../evil name/" + "ö" * 300)
    assert os.path.dirname(job.socket) == str(private_folder())
    assert len(job.socket) < 100
    assert jobs()[0].name == job.name


def test_no_job_says_how_to_open_one():
    assert "tt.listen()" in repr(jobs())
    with pytest.raises(tt.NotServingError, match=r"no job listens; tt.listen\(\)"):
        tt.attach()


def test_an_unknown_name_is_answered_with_the_nearest(note):
    note("pretraining")
    with pytest.raises(tt.NotServingError, match="no job is called 'pretrain'; there is 'pretraining'"):
        tt.attach("pretrain")


def test_a_runtime_folder_with_too_long_a_path_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 90)))
    assert private_folder().name == f"tensortap-{os.geteuid()}"
