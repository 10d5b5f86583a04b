"""Runs are found below folders, and summarised whatever lies beside them."""

import json

import numpy as np

import tensortap as tt
from tensortap.readers.listing import RunFinder, RunSummary, mark_being_written, summarize_run
from tensortap.readers.run_query import matching_runs
from tensortap.sinks.run_directory import RunDirectory


def write(path):
    sink = RunDirectory(path)
    sink.write(tt.Record("x", np.ones(3)))
    sink.close()
    return path


def test_files_of_the_given_suffixes_are_runs_too(tmp_path):
    run = write(tmp_path / "deep" / "run")
    trace = tmp_path / "deep" / "Trace.H5"
    trace.write_bytes(b"")
    (tmp_path / "folder.h5").mkdir()
    assert list(RunFinder([tmp_path])) == [run]
    assert list(RunFinder([tmp_path, trace], suffixes=(".h5",))) == [trace, run]


def test_a_finder_can_look_again_and_tells_only_its_latest_problems(tmp_path):
    write(tmp_path / "a" / "b" / "run")
    finder = RunFinder([tmp_path], max_depth=1)
    assert [list(finder), list(finder)] == [[], []]
    assert finder.problems == [f"{tmp_path / 'a' / 'b'} lies deeper than 1 folders and was not looked at"]


def test_tags_and_the_latest_write_are_part_of_the_summary(tmp_path):
    run = write(tmp_path / "run")
    (run / ".tensortap" / "environment.json").write_text(json.dumps({"tags": {"lr": "3e-4"}}))
    summary = summarize_run(run)
    assert summary.tags == {"lr": "3e-4"}
    assert summary.modified == max(file.stat().st_mtime for file in (run / ".tensortap").rglob("*-*"))
    assert matching_runs([summary, RunSummary(tmp_path)], "tag:lr=3e-4") == [0]


def test_metadata_nested_too_deeply_is_damage_and_no_error(tmp_path):
    run = write(tmp_path / "run")
    (run / "git_info.json").write_text("[" * 100_000)
    summary = summarize_run(run)
    assert (summary.state, summary.records) == ("damaged", 1)


def test_a_summary_made_before_is_marked_while_the_run_is_written(tmp_path):
    summary = RunSummary(tmp_path, "cut off")
    assert mark_being_written(summary, {tmp_path.resolve()}).state == "writing"
    assert mark_being_written(summary, set()).state == "cut off"
    assert mark_being_written(RunSummary(tmp_path, "damaged"), {tmp_path.resolve()}).state == "damaged"
