"""tt.tap: values shown by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import tensortap as tt


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        hidden = tt.tap(x * 2, "doubled")
        tt.tap(hidden)
        return self.inner(hidden)


def test_tap_returns_the_very_value_when_nobody_listens():
    x = object()
    assert tt.tap(x, "x") is x


def test_a_capture_takes_what_is_tapped_between_its_own_sites():
    x = torch.ones(2, 3)
    with tt.capture(Model(), "inner") as cap:
        cap._model(x)
    assert cap.names == ["doubled", "hidden", "inner"]
    assert torch.equal(cap["doubled"], x * 2)
    record = cap.find("doubled")[0]
    assert (record.kind, record.site.function) == ("value", "Model.forward")


def test_a_capture_without_a_model_takes_taps_alone():
    array = np.zeros(2)
    with tt.capture() as cap:
        tt.tap(array, "array")
        array += 1
        tt.tap({"k": [array, 3]}, "nested")
    assert cap.names == ["array", "nested['k'][0]", "nested['k'][1]"]
    assert cap["array"].tolist() == [0, 0]
    assert cap["nested['k'][1]"] == 3


def test_taps_are_counted_per_step():
    x = torch.ones(2, 3)
    with tt.capture(Model(), "inner") as cap:
        cap._model(x)
        cap._model(x)
        tt.tap(x, "doubled")
    assert [(record.step, record.call) for record in cap.find("doubled")] == [(0, 0), (1, 0), (1, 1)]


def test_an_exclusion_also_holds_for_taps():
    with tt.capture(Model(), "inner", "!inner.in") as cap:
        tt.tap(torch.ones(1), "inner.in.input")
        tt.tap(torch.ones(1), "other")
    assert cap.names == ["other"]


def test_after_the_capture_nothing_listens():
    with tt.capture() as cap:
        pass
    tt.tap(torch.ones(1), "late")
    assert len(cap) == 0


def test_a_name_is_a_text():
    with tt.capture(), pytest.raises(TypeError, match=r"tap\(value, name\) takes the value first"):
        tt.tap("name", torch.ones(1))
