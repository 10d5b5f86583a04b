"""What a replay is given: values with names alone, rules, a limit, a floor; and what it refuses."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tensortap as tt


def names(found):
    return [origin.name for origin in found.origins]


@pytest.fixture
def pair():
    torch.manual_seed(0)
    model, batch = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), (torch.randn(4, 8),)
    wrong = copy.deepcopy(model)
    with torch.no_grad():
        wrong[0].bias += 0.1
    return model, wrong, batch


def named(model, batch):
    """The values of a model by their names alone."""
    with torch.no_grad():
        first = model[0](*batch)
        return {"in.input": batch[0], "0": first, "1": first.relu(), "2": model(*batch), "elsewhere": first}


@pytest.mark.parametrize("written", ["dict", "npz", "dump"])
def test_values_that_have_names_alone_are_the_outputs_of_these_modules(pair, written, tmp_path, monkeypatch):
    model, wrong, batch = pair
    reference = values = named(model, batch)
    if written == "npz":
        reference = str(tmp_path / "values.npz")
        np.savez(reference, **{name: value.numpy() for name, value in values.items()})
    elif written == "dump":
        monkeypatch.chdir(tmp_path)
        tt.init("runs")
        for name, value in values.items():
            tt.dump(value, name)
        tt.close()
        (reference,) = Path("runs").iterdir()
    assert names(tt.align(reference, copy.deepcopy(model), batch)) == []
    found = tt.align(reference, wrong, batch)
    assert [(one.name, one.kind) for one in found.origins] == [("0", "output")]
    assert [one.name for one in found.coverage.only_a] == ["elsewhere"]
    assert {one.name: one.kind for one in found.table}["in.input"] == "input"


def test_what_is_tapped_on_both_sides_is_compared():
    class Tapped(nn.Linear):
        def forward(self, x):
            return tt.tap(super().forward(x), "seen") * 2

    model = Tapped(8, 8)
    found = tt.align(model, copy.deepcopy(model), (torch.randn(4, 8),))
    assert found.is_green
    assert "seen" in {one.name for one in found.table}


def test_what_a_rule_leaves_out_is_counted_and_not_called_idle(pair):
    model, _, batch = pair
    other = nn.Sequential(model[0], nn.Sequential(nn.ReLU()), model[2])
    found = tt.align(model, other, batch, map={"ignore": ["1**"]})
    assert (found.notes, found.coverage.ignored, found.is_green) == ((), 6, True)
    (idle,) = tt.align(model, model, batch, map={"ignore": ["7**"]}).notes
    assert idle == "ignore '7**' matches no name of either side"


def test_weights_that_a_rule_leaves_out_are_no_news(pair):
    model, wrong, batch = pair
    assert "weights" in {one.what for one in tt.align(model, wrong, batch).gate if one.differs}
    found = tt.align(model, wrong, batch, map={"ignore": ["0**"]})
    assert "weights" not in {one.what for one in found.gate if one.differs}


@pytest.mark.parametrize("limit", [float("nan"), -1, 0, float("inf"), "4"])
def test_a_limit_that_measures_nothing_is_refused(pair, limit):
    model, wrong, batch = pair
    with pytest.raises(ValueError, match=r"limit is a number above 0: .*; not "):
        tt.align(model, wrong, batch, limit=limit)


def test_a_floor_is_whatever_two_runs_take(pair, tmp_path):
    model, wrong, batch = pair
    tt.floor(model, batch).save(tmp_path / "floor.json")
    assert names(tt.align(model, wrong, batch, floor=str(tmp_path / "floor.json"))) == ["0"]
    with pytest.raises(FileNotFoundError, match=r"does not exist; make one with tt\.floor"):
        tt.align(model, wrong, batch, floor="f.json")


BAD = {
    "a module that is not there": (
        {"fused": {"zzz": ["0"]}}, ValueError, "no module of the candidate is called 'zzz'; fused says what",
    ),
    "a text": ({"fused": {"2": "01"}}, TypeError, "fused says what one module does of several: "),
    "a list": ({"fused": ["2"]}, TypeError, "fused says what one module does of several: "),
    "a map to nothing": ({"map": lambda name: None}, TypeError, "the map gives None for "),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_what_to_write(pair, case):
    given, error, told = BAD[case]
    model, wrong, batch = pair
    with pytest.raises(error) as raised:
        tt.align(model, wrong, batch, **given)
    assert str(raised.value).startswith(told)


def test_parts_that_the_reference_has_not_beside_each_other_are_a_gap(pair):
    model, _, batch = pair
    found = tt.align(model, model, batch, fused={"2": ["q", "k"]})
    assert found.coverage.problems == ("fused: no module of the reference has q, k beside each other, for 2",)


def test_explain_wants_a_name(pair):
    model, _, batch = pair
    with pytest.raises(TypeError, match=r"explain takes the name of a value, not None; \.table lists all"):
        tt.align(model, model, batch).explain(None)


def test_a_smaller_batch_of_other_numbers_is_not_called_a_piece(pair):
    model, _, batch = pair
    with tt.capture(model, "**", "**.in") as whole, torch.no_grad():
        model(*batch)
    piece = tt.align(whole, model, (batch[0][:2],))
    assert "the candidate's step is a piece of the reference's one" in piece.notes
    other = tt.align(whole, model, (torch.randn(2, 8),))
    assert not any("piece of the reference" in note for note in other.notes)
    assert "inputs" in {one.what for one in other.gate if one.differs}
