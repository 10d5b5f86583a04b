"""Patterns select sites: resolved against the model that is there."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tensortap.core.errors import UnknownModuleError
from tensortap.sources.selection.select import resolve_pattern, resolve_patterns


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.out = nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mask", torch.ones(2))

    def forward(self, hidden, mask=None, **rest):
        return self.out(self.q_proj(hidden) + self.k_proj(hidden)), hidden


class Model(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.layers = nn.ModuleList([Attention() for _ in range(depth)])
        self.norm = nn.LayerNorm(2)
        self.act = nn.ReLU()

    def forward(self, x, *, flag=None):
        for layer in self.layers:
            x, _ = layer(x)
        return self.act(self.norm(x))


@pytest.fixture
def model():
    return Model()


def names(model, *patterns):
    return [wanted.site.name for wanted in resolve_patterns(model, patterns)]


def only(model, pattern):
    (wanted,) = resolve_patterns(model, [pattern])
    return wanted


# Resolution


@pytest.mark.parametrize(
    ("pattern", "kind", "name"),
    [
        ("norm", "output", "norm"),
        ("norm.out", "output", "norm"),
        ("norm.in", "input", "norm.in"),
        ("norm.in.input", "input", "norm.in.input"),
        ("norm.weight", "param", "norm.weight"),
        ("norm.weight.grad", "grad_param", "norm.weight.grad"),
        ("norm.weight.after_step", "param", "norm.weight.after_step"),
        ("norm.grad", "grad_output", "norm.grad"),
        ("norm.in.grad", "grad_input", "norm.in.grad"),
        ("norm.in.input.grad", "grad_input", "norm.in.input.grad"),
        ("layers.0.scale", "param", "layers.0.scale"),
        ("layers.0.mask", "param", "layers.0.mask"),
        ("layers.0.out", "output", "layers.0.out"),
        ("layers.0.out.out", "output", "layers.0.out"),
        ("layers.0.out.weight", "param", "layers.0.out.weight"),
        ("layers.0.in.mask", "input", "layers.0.in.mask"),
        ("layers.0.in.unheard_of", "input", "layers.0.in.unheard_of"),
        ("out", "output", "out"),
        ("", "output", "out"),
        ("grad", "grad_output", "out.grad"),
        ("in.flag", "input", "in.flag"),
        ("out[0].grad", "grad_output", "out.grad"),
    ],
)
def test_a_path_is_a_child_first_then_a_keyword_then_a_parameter(model, pattern, kind, name):
    site = only(model, pattern).site
    assert (site.kind, site.name) == (kind, name)


def test_a_child_called_like_a_keyword_comes_first():
    model = nn.ModuleDict({"in": nn.ReLU(), "grad": nn.ReLU(), "a": nn.Sequential()})
    model.a.add_module("out", nn.Tanh())
    for pattern, kind in {"in": nn.ReLU, "grad": nn.ReLU, "a.out": nn.Tanh}.items():
        site = only(model, pattern).site
        assert (site.kind, type(site.module)) == ("output", kind)


def test_the_empty_path_is_the_model_itself_even_with_a_child_called_out():
    model = nn.Sequential()
    model.add_module("out", nn.Tanh())
    assert only(model, "").site.module is model
    assert only(model, "out").site.module is model.out


@pytest.mark.parametrize(
    ("pattern", "items", "call"),
    [
        ("layers.0[1]", "[1]", None),
        ("layers.0@2[1]", "[1]", 2),
        ("layers.0[1]@2", "[1]", 2),
        ("norm.out.logits[0]", ".logits[0]", None),
        ("norm.in.input.keys[0].grad", ".keys[0]", None),
        ('norm["k"]', "['k']", None),
        ("norm@0.in.input", "", 0),
    ],
)
def test_items_and_calls_go_with_what_is_wanted(model, pattern, items, call):
    wanted = only(model, pattern)
    assert (wanted.items, wanted.call) == (items, call)


def test_an_input_beyond_a_closed_signature_is_unknown(model):
    with pytest.raises(UnknownModuleError):
        names(model, "norm.in.flag")


def test_keyword_only_inputs_are_found(model):
    assert names(model, "in.f*") == ["in.flag"]
    assert names(model, "layers.1.in.{hidden,mask}") == ["layers.1.in.hidden", "layers.1.in.mask"]


def test_a_gradient_after_the_step_does_not_exist(model):
    with pytest.raises(UnknownModuleError):
        names(model, "norm.weight.after_step.grad")


# Wildcards


def test_without_a_pattern_all_outputs_are_meant(model):
    outputs = [
        "out",
        *(f"layers.{i}{part}" for i in range(3) for part in ("", ".q_proj", ".k_proj", ".out")),
        "norm",
        "act",
    ]
    assert names(model) == names(model, "**") == outputs


def test_wildcards_match_no_input_and_no_parameter(model):
    for pattern in ("**", "*", "layers.**", "layers.*", "layers.*.*", "norm.**"):
        assert {wanted.site.kind for wanted in resolve_patterns(model, [pattern])} == {"output"}
    for pattern in ("norm.*", "norm.w*", "layers.0.sc*", "**.weigh*"):
        with pytest.raises(UnknownModuleError):
            names(model, pattern)


def test_a_container_that_cannot_be_called_is_no_output(model):
    assert names(model, "*") == ["norm", "act"]
    assert "layers" not in names(model, "**")
    with pytest.raises(UnknownModuleError):
        names(model, "layers")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("layers.*", ["layers.0", "layers.1", "layers.2"]),
        ("layers.1-2", ["layers.1", "layers.2"]),
        ("layers.1-99.q_proj", ["layers.1.q_proj", "layers.2.q_proj"]),
        ("layers.{0,2}", ["layers.0", "layers.2"]),
        ("layers.{0-1,2}.q_proj", ["layers.0.q_proj", "layers.1.q_proj", "layers.2.q_proj"]),
        ("layers.0.{q,k}_proj", ["layers.0.q_proj", "layers.0.k_proj"]),
        ("layers.0.*_proj", ["layers.0.q_proj", "layers.0.k_proj"]),
        ("layers.0.**", ["layers.0", "layers.0.q_proj", "layers.0.k_proj", "layers.0.out"]),
        ("**.q_proj", ["layers.0.q_proj", "layers.1.q_proj", "layers.2.q_proj"]),
        ("**.**.norm", ["norm"]),
        ("**.q_proj.bias", ["layers.0.q_proj.bias", "layers.1.q_proj.bias", "layers.2.q_proj.bias"]),
        ("**.k_proj.{weight,bias}", [f"layers.{i}.k_proj.weight" for i in range(3)]),
        ("**.q_proj.in", [f"layers.{i}.q_proj.in" for i in range(3)]),
        ("*.grad", ["norm.grad", "act.grad"]),
        ("layers.*.in.*", [f"layers.{i}.in" for i in range(3)]),
    ],
)
def test_a_pattern_selects_in_the_order_of_the_model(model, pattern, found):
    assert names(model, pattern) == found


def test_a_range_selects_parameters_of_a_list():
    model = nn.Module()
    model.table = nn.ParameterList([torch.ones(1) for _ in range(4)])
    assert names(model, "table.1-2") == ["table.1", "table.2"]


def test_what_two_patterns_select_is_selected_once(model):
    assert names(model, "norm", "*", "{norm,act}") == ["norm", "act"]


# Classes


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("<LayerNorm>", ["norm"]),
        ("<Layer*>", ["norm"]),
        ("<Attention>", ["layers.0", "layers.1", "layers.2"]),
        ("<Attention>.q_proj", [f"layers.{i}.q_proj" for i in range(3)]),
        ("layers.1.<Linear>", ["layers.1.q_proj", "layers.1.k_proj", "layers.1.out"]),
        ("<Attention>.in.mask", [f"layers.{i}.in.mask" for i in range(3)]),
        ("<{ReLU,LayerNorm}>", ["act", "norm"]),
        ("<LayerNorm>.weight.grad", ["norm.weight.grad"]),
        ("<Model>", ["out"]),
        ("<Model>.norm", ["norm"]),
        ("<Model>.in", ["in"]),
    ],
)
def test_a_class_is_found_at_any_depth(model, pattern, found):
    assert names(model, pattern) == found


def test_a_class_is_found_by_the_name_of_any_base(model):
    class Mine(nn.Linear):
        pass

    model.norm = Mine(2, 2)
    assert names(model, "<Mine>") == ["norm"]
    assert "norm" in names(model, "<Linear>")
    assert names(model, "<Module>") == names(model, "**")


# Exclusion


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["!layers.**"], ["out", "norm", "act"]),
        (["*", "!norm"], ["act"]),
        (["!norm", "*"], ["act"]),
        (["*", "norm.in", "norm.weight", "norm.grad", "!norm"], ["act"]),
        (["norm", "norm.in", "!norm.in"], ["norm"]),
        (["norm", "norm.in.input", "!norm.in"], ["norm"]),
        (["norm", "norm.grad", "!norm.grad"], ["norm"]),
        (["norm.weight", "norm.weight.grad", "!norm.weight"], ["norm.weight.grad"]),
        (["norm.weight", "!norm.weight.after_step"], ["norm.weight"]),
        (["norm.weight.after_step", "!norm.weight"], ["norm.weight.after_step"]),
        (["norm.{weight,bias}", "!norm.bias"], ["norm.weight"]),
        (["<Linear>", "!<Attention>.{q_proj,k_proj}"], [f"layers.{i}.out" for i in range(3)]),
        (["layers.0.**", "!layers.0"], ["layers.0.q_proj", "layers.0.k_proj", "layers.0.out"]),
    ],
)
def test_an_exclusion_takes_away(model, patterns, found):
    assert names(model, *patterns) == found


def test_excluding_a_part_leaves_the_others(model):
    (wanted,) = resolve_patterns(model, ["layers.0", "!layers.0[1]"])
    assert wanted.accepts("", "[0]", 0)
    assert not wanted.accepts("", "[1]", 0)


def test_excluding_a_call_leaves_the_others(model):
    (wanted,) = resolve_patterns(model, ["norm", "!norm@1"])
    assert [wanted.accepts("", "", call) for call in range(3)] == [True, False, True]


def test_excluding_one_input_leaves_the_others(model):
    (wanted,) = resolve_patterns(model, ["layers.0.in", "!layers.0.in.mask"])
    assert wanted.accepts("hidden", "", 0)
    assert not wanted.accepts("mask", "", 0)


def test_excluding_the_part_of_an_output_leaves_the_inputs(model):
    assert len(resolve_patterns(model, ["layers.0.in", "!layers.0[1]"])[0].excluded) == 0


# Functions


def test_a_function_of_a_site_selects(model):
    assert names(model, lambda site: site.kind == "param" and site.path == "norm") == [
        "norm.weight",
        "norm.bias",
    ]
    assert names(model, lambda site: site.module_class == "ReLU", "norm", "!act.grad") == [
        "act", "act.in.input", "act.in.input.grad", "norm",
    ]  # fmt: skip


def test_what_is_neither_text_nor_function_is_refused(model):
    with pytest.raises(TypeError) as caught:
        resolve_patterns(model, ["norm", 3])
    assert str(caught.value) == "3 is no pattern; give a text such as 'layers.*', or a function of a site"


# Odd models


def test_a_shared_module_is_selected_under_each_name():
    shared = nn.Linear(1, 1)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert names(model, "<Linear>") == ["0", "2"]
    assert names(model, "<Linear>", "!2") == ["0"]


def test_a_module_that_holds_its_owner_ends_the_search():
    model = Model(1)
    model.norm.owner = model
    assert names(model, "**.norm") == ["norm"]
    assert names(model, "**.weight")[-1] == "norm.weight"


@pytest.mark.compile
def test_wrappers_are_in_no_name():
    model = Model(2)
    model.layers[0] = checkpoint_wrapper(model.layers[0])
    model.layers[1] = torch.compile(model.layers[1], backend="eager")
    model.norm = nn.DataParallel(model.norm)
    assert names(nn.DataParallel(model), "**") == names(Model(2), "**")
    assert names(model, "**.mask", "norm.weight", "layers.0.in.hidden") == [
        "layers.0.mask", "layers.1.mask", "norm.weight", "layers.0.in.hidden",
    ]  # fmt: skip
    assert names(model, "<Attention>") == ["layers.0", "layers.1"]


@pytest.mark.parametrize(
    "name",
    [
        "é",
        "層",
        "a b",
        "a@2",
        "a@",
        "@3",
        "x[0]",
        "{a}",
        "{a,b}",
        "0-5",
        "*",
        "a*",
        "<Linear>",
        "in",
        "x" * 300,
        "'",
    ],
)
def test_a_module_is_found_by_its_own_name_whatever_it_is(name):
    model = nn.ModuleDict({"a": nn.ReLU(), "b": nn.ReLU(), "3": nn.ReLU()})
    model.add_module(name, nn.Linear(1, 1))
    inner = nn.Sequential(nn.Linear(1, 1))
    inner.add_module(name, nn.Linear(1, 1))
    model.add_module("inner", inner)
    assert name in names(model, name)
    assert f"inner.{name}.weight" in names(model, f"inner.{name}.weight")
    assert f"inner.{name}.in.input" in names(model, f"inner.{name}.in.input")
    if not set("*<-") & set(name):
        assert names(model, name) == [name]
        assert only(model, name).call is None


def test_the_call_of_a_module_with_an_at_in_its_name(model):
    model.add_module("a@2", nn.ReLU())
    wanted = only(model, "a@2@1")
    assert (wanted.site.name, wanted.call) == ("a@2", 1)


def test_items_of_an_output_are_no_names(model):
    wanted = only(model, "norm.out.logits[0]")
    assert (wanted.site.name, wanted.items) == ("norm", ".logits[0]")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_child_is_selected():
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(1, 1))))
    assert names(model, "**", "0.0.weight") == ["out", "0", "0.0", "0.0.weight"]


def test_names_in_a_big_model_are_all_found():
    block = {"q_proj": nn.Linear(1, 1), "k_proj": nn.Linear(1, 1)}
    model = nn.ModuleList([nn.ModuleDict(block) for _ in range(1000)])
    assert len(names(model, "**.q_proj")) == 1000


# What does not exist


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "layer.0.q_prj",
            "no site 'layer.0.q_prj' in the model; did you mean 'layers.0.q_proj' or 'layers.2.q_proj' or "
            "'layers.1.q_proj'? tt.sites(model) lists all 57",
        ),
        (
            "!nrm",
            "no site '!nrm' in the model; did you mean 'norm' or 'norm.bias'? tt.sites(model) lists all 57",
        ),
        (
            "zzzzz",
            "no site 'zzzzz' in the model; did you mean 'out' or 'in.x' or 'in.flag'? "
            "tt.sites(model) lists all 57",
        ),
    ],
)
def test_a_pattern_that_matches_nothing_tells_the_nearest(model, pattern, message):
    with pytest.raises(UnknownModuleError) as caught:
        resolve_patterns(model, ["norm", pattern])
    assert str(caught.value) == message


def test_a_function_that_selects_nothing_says_so(model):
    def never(site):
        return False

    with pytest.raises(UnknownModuleError) as caught:
        resolve_patterns(model, [never])
    assert str(caught.value) == (
        f"the function {never!r} selects none of the 57 sites; tt.sites(model) lists them"
    )


def test_a_model_with_nothing_in_it_says_so():
    with pytest.raises(UnknownModuleError) as caught:
        resolve_patterns(nn.ModuleList(), [])
    assert str(caught.value) == (
        "no site '**' in the model: it has no module that can be called, and no parameter"
    )


def test_selecting_alone_raises_nothing(model):
    from tensortap.core.patterns import parse_pattern

    assert resolve_pattern(model, parse_pattern("zzz")) == []
    assert len(resolve_pattern(model, parse_pattern("norm"))) == 1
