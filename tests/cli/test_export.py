"""`tensortap export`."""

import json
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
