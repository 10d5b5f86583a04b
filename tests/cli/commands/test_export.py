"""`tensortap export`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensortap as tt
from tensortap.cli.main import main


@pytest.fixture
def run(tmp_path: Path) -> str:
    with tt.Tap(sinks=[tt.RunDirectory(tmp_path / "run")]) as tap:
        for step in range(3):
            tap.emit(tt.Record("layers.0", np.full((2, 2), float(step)), step=step))
        tap.emit(tt.Record("settings", {"a": 1}))
    return str(tmp_path / "run")


def test_it_writes_the_file_and_says_what_is_left_out(run: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["export", run, str(tmp_path / "a.npz")]) == 0
    said = capsys.readouterr()
    assert "a.npz: 3 values" in said.out
    assert "'settings' is left out" in said.err
    assert np.load(tmp_path / "a.npz").files == [f"layers.0@step={step}" for step in range(3)]


def test_a_trace_is_told_by_its_datasets(run: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["export", run, str(tmp_path / "a.h5"), "layers.*"]) == 0
    assert "a.h5: 1 dataset, " in capsys.readouterr().out


def test_a_pattern_and_a_step_choose(run: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["export", run, str(tmp_path / "a.npz"), "layers.*", "--step", "last", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["schema"] == "tensortap.export/1"
    assert told["keys"] == ["layers.0"]
    assert np.load(tmp_path / "a.npz")["layers.0"][0, 0] == 2.0


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nowhere", "a.npz"], 3, "does not exist"),
        (["{run}", "a.txt"], 2, "says no format"),
        (["{run}", "no/folder/a.npz"], 3, "does not exist"),
        (["{run}", "a.npz", "layer.0"], 3, "did you mean 'layers.0'?"),
        (["{run}", "taken.npz"], 4, "--force"),
        (["{run}", "a.npz", "--format", "gif"], 2, "gif"),
    ],
)
def test_bad_input_gets_a_sentence_and_its_code(
    run: str, tmp_path: Path, capsys: Any, monkeypatch: Any, arguments: list[str], code: int, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.npz").touch()
    assert main(["export", *(word.format(run=run) for word in arguments)]) == code
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.out == ""


def test_numbers_of_python_are_arrays_without_axes(tmp_path: Path) -> None:
    with tt.Tap(sinks=[tt.RunDirectory(tmp_path / "run")]) as tap:
        for name, number in {"loss": 0.25, "count": 3, "flag": True}.items():
            tap.emit(tt.Record(name, number))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "a.npz")]) == 0
    with np.load(tmp_path / "a.npz") as found:
        assert {name: found[name].item() for name in found} == {"loss": 0.25, "count": 3, "flag": True}


@pytest.mark.parametrize(
    "odd",
    [{1, 2}, np.array([None], object)],
    ids=["set", "objects"],
)
def test_what_has_no_place_in_a_trace_is_told_once_and_the_rest_is_written(
    odd: Any, tmp_path: Path, capsys: Any, caplog: Any
) -> None:
    with tt.Tap(sinks=[tt.RunDirectory(tmp_path / "run")]) as tap:
        tap.emit(tt.Record("odd", odd))
        tap.emit(tt.Record("x", np.ones(3)))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out.h5")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{tmp_path / 'out.h5'}: 1 dataset")
    assert (said.err + caplog.text).count("'odd' is left out: ") == 1
    assert ".part" not in said.err + caplog.text
    assert "'odd' is not in" not in caplog.text


def test_arrays_of_fields_come_back_from_a_trace(tmp_path: Path) -> None:
    rows = np.array([(1, 0.5), (2, -1.5)], [("a", "i4"), ("b", "f8")])
    with tt.Tap(sinks=[tt.RunDirectory(tmp_path / "run")]) as tap:
        tap.emit(tt.Record("rows", rows))
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out.h5")]) == 0
    (back,) = tt.TraceFile(tmp_path / "out.h5").load("rows").values
    assert (back.dtype, back.tolist()) == (rows.dtype, rows.tolist())


@pytest.mark.process
@pytest.mark.parametrize("suffix", ["npz", "safetensors", "h5"])
def test_a_file_that_cannot_be_written_whole_is_told_and_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    with tt.Tap(sinks=[tt.RunDirectory(tmp_path / "run")]) as tap:
        tap.emit(tt.Record("x", np.random.default_rng(0).random(100_000)))
    limited = (
        "import resource, signal, sys; from tensortap.cli.main import main;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)); sys.exit(main())"
    )
    folder = tmp_path / "out"
    folder.mkdir()
    words = [sys.executable, "-c", limited, "export", str(tmp_path / "run"), str(folder / f"a.{suffix}")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("tensortap export: cannot ")
    assert done.stderr.endswith(": file too large\n")
    assert ".part" not in done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "h5", "html"])
def test_values_that_the_run_has_lost_are_missing_data(tmp_path: Path, capsys: Any, suffix: str) -> None:
    with tt.Tap(sinks=[tt.RunDirectory(tmp_path / "run", layout="files")]) as tap:
        for name in ("kept", "lost"):
            tap.emit(tt.Record(name, np.ones(3)))
    (tmp_path / "run" / "lost.npy").unlink()
    assert main(["export", str(tmp_path / "run"), str(tmp_path / f"a.{suffix}"), "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["keys"], list(told["skipped"])) == (["kept"], ["lost"])


def test_a_run_without_records_is_missing_data_and_leaves_no_file(tmp_path: Path, capsys: Any) -> None:
    tt.RunDirectory(tmp_path / "run").close()
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "a.npz")]) == 3
    assert "holds no record" in capsys.readouterr().err
    assert not (tmp_path / "a.npz").exists()
