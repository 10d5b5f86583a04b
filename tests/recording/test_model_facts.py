"""A run of a model remembers what the model was when the capture began."""

import inspect
import json
import logging
from functools import partial

import pytest
import torch

import tensortap as tt
from tensortap.recording.model_facts import describe_model


def facts_of(cap):
    return json.loads((cap.run / ".tensortap" / "model.json").read_text())


def test_a_run_knows_the_classes_and_a_digest_of_every_weight(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    with tt.capture(model, to=tmp_path) as cap:
        model(torch.ones(2, 2))
    facts = facts_of(cap)
    assert facts["modules"] == {"": "Sequential", "0": "Linear", "1": "BatchNorm1d"}
    assert set(facts["weights"]) == {*dict(model.named_parameters()), *dict(model.named_buffers())}
    assert facts["weights"]["0.weight"][:2] == ["float32", [3, 2]]
    assert facts["weights"]["0.weight"][2].startswith("xxh3:")


def test_the_weights_are_those_before_the_first_step(tmp_path):
    model = torch.nn.Linear(2, 2)
    before = describe_model(model)["weights"]
    with tt.capture(model, to=tmp_path) as cap:
        model(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            model.weight += 1
    assert facts_of(cap)["weights"] == before
    assert describe_model(model)["weights"] != before


def test_a_shared_weight_stands_under_each_of_its_names():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    weights = describe_model(model)["weights"]
    assert weights["a.weight"] == weights["b.weight"]


@pytest.mark.compile
@pytest.mark.parametrize(
    "wrap", [torch.nn.DataParallel, partial(torch.compile, backend="eager")], ids=["parallel", "compiled"]
)
def test_a_wrapper_leaves_no_trace_in_the_names(wrap):
    inner = torch.nn.Sequential(torch.nn.Linear(2, 2))
    assert describe_model(wrap(inner)) == describe_model(inner)


def test_a_weight_without_values_has_no_digest():
    model = torch.nn.Linear(2, 2, device="meta")
    assert describe_model(model)["weights"]["weight"] == ["float32", [2, 2], None]


def test_a_weight_that_is_made_by_the_first_forward_has_no_digest_yet(tmp_path):
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    with tt.capture(model, "0", to=tmp_path) as cap:
        model(torch.ones(1, 2))
    assert facts_of(cap)["weights"]["0.weight"][2] is None


def test_what_a_module_prints_of_itself_is_kept():
    model = torch.nn.Sequential(torch.nn.LayerNorm(2, eps=0.5), torch.nn.ReLU())
    assert "eps=0.5" in describe_model(model)["settings"]["0"]
    assert "1" not in describe_model(model)["settings"]


def test_a_model_that_cannot_be_described_does_not_stop_the_capture(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("TENSORTAP_STRICT", "0")
    model = torch.nn.Linear(2, 2)

    class Config:
        def to_dict(self):
            raise RuntimeError("no")

    model.config = Config()
    with caplog.at_level(logging.WARNING, "tensortap"), tt.capture(model, to=tmp_path) as cap:
        model(torch.ones(1, 2))
    assert not (cap.run / ".tensortap" / "model.json").exists()
    assert "the facts of the model were not written" in caplog.text
    assert tt.Run(cap.run).names == ["out"]


class Own(torch.nn.Module):
    def helped(self, x):
        return x

    def forward(self, x):
        return self.helped(
            x,
        )


def test_a_run_knows_where_the_code_of_each_class_lies():
    model = torch.nn.Sequential(Own(), torch.nn.ReLU(), Own())
    (code,) = (one for one in describe_model(model)["code"] if one["function"] == "Own.forward")
    lines, first = inspect.getsourcelines(Own)
    assert code["forward"] == [__file__, first + 4, first + len(lines) - 2]
    assert code["class"][1] == first + 1
    assert code["modules"] == ["0", "2"]


def test_a_forward_without_python_has_no_lines():
    class Odd(torch.nn.Module):
        forward = abs

    assert describe_model(Odd())["code"] == []
