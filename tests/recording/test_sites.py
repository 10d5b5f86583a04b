"""tt.sites: what can be selected, without running anything."""

import pytest
from torch import nn

import tensortap as tt


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 4), nn.ModuleList([nn.BatchNorm1d(4)]))


def test_all_sites_are_listed_in_the_models_order(model):
    assert tt.sites(model).names[:5] == ["out", "in.input", "0", "0.in.input", "0.weight"]
    assert "1" not in tt.sites(model).names  # a list of modules is never called
    assert "1.0.running_mean" in tt.sites(model).names


def test_patterns_show_what_they_select(model):
    assert tt.sites(model, "<Linear>", "**.weight.grad").names == ["0", "0.weight.grad", "1.0.weight.grad"]


def test_the_table_tells_what_a_module_takes_and_holds(model):
    shown = repr(tt.sites(model, "*"))
    assert shown.splitlines()[0] == "1 site of 1 module"
    assert "Linear" in shown
    assert "weight[4,3], bias[4]" in shown
    assert "<td>Linear</td>" in tt.sites(model, "*")._repr_html_()


def test_bad_input_gets_a_sentence(model):
    with pytest.raises(tt.UnknownModuleError, match="no site 'layers'"):
        tt.sites(model, "layers")
    with pytest.raises(TypeError, match="a list is no model"):
        tt.sites([model])
