"""How noisy each value is by itself."""

import copy
import json
import random

import numpy as np
import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.comparison.noise.floor import Floor
from tensortap.comparison.sides.entry import InMemoryRef
from tensortap.comparison.sides.load import Entry
from tensortap.comparison.values.noise import UNIT_ROUNDOFF, Noise, analytic_noise
from tensortap.core.steps import declared_step
from tensortap.frameworks.torch_precision import perturb_by_one_ulp


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.up = nn.Linear(8, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.5)
        self.down = nn.Linear(width, 8)

    def forward(self, x):
        return x + self.down(self.drop(torch.relu(self.norm(self.up(x)))))


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net()


def batch(count=16):
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(1))


def entry(name, **known):
    return Entry(name, InMemoryRef(None), **known)


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_every_value_has_noise_of_its_own():
    floor = tt.floor(net().eval(), batch())
    assert floor.is_measured
    assert floor.twins == ("repeat", "ulp", "float64")
    up, out = floor.of(entry("up")), floor.of(entry("out"))
    assert up.is_measured
    assert 2.0**-25 < up.relative_l2 < 1e-6
    assert out.row >= out.relative_l2


def test_a_name_that_was_not_measured_has_the_usual_noise_of_its_type():
    noise = tt.floor(net().eval(), batch()).of(entry("elsewhere", dtype="bfloat16"))
    assert noise == analytic_noise("bfloat16")
    assert not noise.is_measured


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float64", 1e-12),
        ("float32", 1e-5),
        ("float16", 5e-3),
        ("complex32", 5e-3),
        ("bfloat16", 2e-2),
        ("float8_e4m3fn", 1.5e-1),
        ("float8_e8m0fnu", 5e-1),
        ("float128", 1e-12),
        ("complex256", 1e-12),
    ],
)
def test_the_usual_noise_is_that_of_the_type_and_grows_with_the_depth(dtype, size):
    assert analytic_noise(dtype).relative_l2 == size
    assert analytic_noise(dtype, 9).relative_l2 == pytest.approx(3 * size)
    assert analytic_noise(dtype).limit == 1.0


def test_a_scale_beside_numbers_makes_them_no_noisier():
    a = {"scale": torch.tensor([2.0, 4.0]).to(torch.float8_e8m0fnu), "x": torch.linspace(1, 2, 32)}
    b = {"scale": torch.tensor([2.0, 8.0]).to(torch.float8_e8m0fnu), "x": a["x"] * 1.001}
    found = tt.compare_runs(a, b)
    assert [one.noise.relative_l2 for one in found.table] == [5e-1, 1e-5]
    assert [one.name for one in found.origins] == ["x"]


def test_long_floats_are_as_exact_as_what_they_are_measured_in():
    a, b = (np.array([1, last], np.longdouble) for last in (2, 2.000001))
    assert tt.compare_runs({"x": a}, {"x": b}).exit_code == 1


def test_the_model_is_untouched_bit_for_bit():
    model = net().train()
    model(batch()).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    copies = [gradient.clone() for gradient in gradients]
    before, buffers = state(model), {name: id(one) for name, one in model.named_buffers()}
    versions = {name: one._version for name, one in model.named_parameters()}
    tt.floor(model, batch(), "**", "**.in", "**.grad")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {name: id(one) for name, one in model.named_buffers()} == buffers
    assert {name: one._version for name, one in model.named_parameters()} == versions
    assert all(one.grad is kept for one, kept in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(one, kept) for one, kept in zip(gradients, copies, strict=True))
    assert not model._forward_hooks
    assert not model.up._forward_hooks


def test_random_numbers_go_on_as_if_nothing_had_been():
    model = net().train()
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(5)
    expected = torch.rand(3), random.random(), np.random.rand()
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(5)
    tt.floor(model, batch())
    assert torch.equal(torch.rand(3), expected[0])
    assert (random.random(), np.random.rand()) == expected[1:]


def test_dropout_falls_alike_in_every_twin():
    floor = tt.floor(net().train(), batch(), twins=("repeat", "ulp", "float64"))
    assert floor.of(entry("drop")).relative_l2 < 1e-5


def test_gradients_are_measured_where_patterns_ask_for_them():
    floor = tt.floor(net().eval(), batch(), "**.grad")
    assert 0 < floor.of(entry("up.grad")).relative_l2 < 1e-5


def test_the_loss_of_the_model_is_what_goes_backwards(llama, tokens):
    floor = tt.floor(llama(layers=1), {**tokens, "labels": tokens["input_ids"]}, "**.grad")
    assert floor.of(entry("model.layers.0.mlp.grad")).is_measured


def test_tokens_are_moved_where_they_become_floating(llama, tokens):
    floor = tt.floor(llama(layers=1), tokens, twins=("ulp",))
    embedded = floor.of(entry("model.embed_tokens"))
    assert embedded.relative_l2 == pytest.approx(2.0**-24, rel=0.9)
    assert floor.of(entry("lm_head")).relative_l2 > 0
    assert floor.skipped == ()


def test_a_repeated_forward_alone_shows_only_rounding(llama, tokens):
    floor = tt.floor(llama(layers=1), tokens, twins=("repeat",))
    noise = floor.of(entry("model.layers.0.mlp"))
    assert 0 < noise.relative_l2 < UNIT_ROUNDOFF["float32"]
    assert noise.intrinsic is None


def test_what_a_module_rounds_itself_is_less_than_what_it_inherits(llama, tokens):
    floor = tt.floor(llama(), tokens)
    noise = floor.of(entry("model.layers.2.mlp.down_proj"))
    assert noise.intrinsic[0] < 0.7 * noise.relative_l2
    assert noise.intrinsic_only().relative_l2 == noise.intrinsic[0]
    assert floor.twins == ("repeat", "ulp", "float64")


def test_where_other_things_are_harmless_too_rounding_is_no_measure(llama, tokens):
    for twins in (("ulp", "float64", "bfloat16"), ("ulp", "float64", llama("sdpa", layers=1))):
        floor = tt.floor(llama(layers=1), tokens, twins=twins)
        assert floor.of(entry("model.layers.0.mlp")).intrinsic is None


def test_a_half_precision_model_that_does_not_run_in_double_has_a_single_precision_twin():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(8, 8)

        def forward(self, x):
            if x.dtype == torch.float64:
                raise RuntimeError("no such kernel")
            return self.part(x)

    floor = tt.floor(Picky().bfloat16(), batch(64).bfloat16())
    assert floor.twins == ("repeat", "ulp", "float32")
    assert "no such kernel" in floor.skipped[0]
    assert floor.of(entry("part")).intrinsic is not None


def test_another_precision_can_be_a_twin(llama, tokens):
    model = llama(layers=1)
    plain, low = (tt.floor(model, tokens, twins=twins) for twins in (("ulp",), ("bfloat16",)))
    name = "model.layers.0.mlp"
    assert low.of(entry(name)).relative_l2 > 100 * plain.of(entry(name)).relative_l2


def test_a_harmless_model_calibrates_the_limit(llama, tokens):
    floor = tt.floor(llama(), tokens, twins=("repeat", llama("sdpa")))
    # Against repeats alone, which are bit for bit the same here, another attention is far off.
    assert floor.limit > 4
    assert floor.twins == ("repeat",)
    assert tt.floor(llama(), tokens, twins=("repeat", "ulp", "float64", llama("sdpa"))).limit == 4


def test_a_function_runs_the_model_as_it_likes_step_by_step():
    def run(model):
        with torch.no_grad():
            for scale in (1.0, 2.0):
                model(batch() * scale)

    floor = tt.floor(net().eval(), run, "**", twins=("float64",))
    assert "float64" not in floor.twins  # the batch is the function's own, and stays float32
    assert floor.skipped
    floor = tt.floor(net().eval(), run, "**", twins=("repeat",))
    assert {step for name, step, *_ in floor.noise if name == "up"} == {0, 1}


def test_inputs_are_moved_three_times_where_an_optimizer_does_steps():
    seen = []

    def run(model):
        seen.append(model)
        model(batch()).square().sum().backward()

    def trained(model):
        run(model)
        torch.optim.SGD(model.parameters(), lr=0.0).step()

    for way, runs in ((run, 2), (trained, 4)):
        seen.clear()
        tt.floor(net().eval(), way, "**", "**.grad", twins=("ulp",))
        assert len(seen) == runs  # the first is what they are compared with


@pytest.mark.parametrize("twins", [("repeat",), ("ulp",)])
def test_a_function_that_says_its_steps_late_is_paired_step_by_step(twins):
    """The first call in a program says step 0: where steps are said at their end, the first has two."""

    def run(model):
        with torch.no_grad():
            for scale in (1.0, 2.0, 3.0):
                model(batch() * scale)
                tt.step()

    floor = tt.floor(net().eval(), run, "up", twins=twins)
    assert max(noise.relative_l2 for noise in floor.noise.values()) < 1e-6
    assert declared_step() is None


def test_calls_of_one_module_have_noise_each():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(8, 8)

        def forward(self, x):
            return self.part(self.part(x))

    floor = tt.floor(Twice(), batch(64), "part")
    assert {(name, call) for name, _, call, _ in floor.noise} == {("part", 0), ("part", 1)}


def test_it_is_the_same_after_a_file(tmp_path):
    floor = tt.floor(net().eval(), batch())
    floor.save(tmp_path / "floor.json")
    assert tt.Floor.load(tmp_path / "floor.json") == floor


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": "other"}', json.dumps({"schema": "tensortap.floor/1"})]
)
def test_a_file_that_is_no_floor_is_named(tmp_path, text):
    path = tmp_path / "floor.json"
    path.write_text(text)
    with pytest.raises(tt.CorruptRunError, match=r"floor\.json is not a floor"):
        tt.Floor.load(path)


def test_a_floor_that_is_not_there_tells_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.json does not exist; make one with tt\.floor"):
        tt.compare_runs({"x": 1.0}, {"x": 1.0}, floor=tmp_path / "no.json")


def test_a_saved_floor_is_no_run_among_others(tmp_path):
    tt.Floor().save(tmp_path / "floor.json")
    with pytest.raises(ValueError, match=r"floor\.json is a saved floor, which is given alone"):
        tt.compare_runs({"x": 1.0}, {"x": 1.0}, floor=[{"x": 1.0}, tmp_path / "floor.json"])


def test_repeated_runs_on_disk_make_a_floor(tmp_path, captured):
    runs = [
        captured(net().eval(), {"x": batch() * (1 + 1e-6 * i)}, to=tmp_path / str(i)).run for i in range(2)
    ]
    floor = tt.Floor.from_runs(runs)
    assert floor.twins == ("repeat",)
    assert floor.of(entry("up")).relative_l2 == pytest.approx(1e-6, rel=0.6)


def test_three_runs_calibrate_the_limit(captured):
    runs = [captured(net().eval(), {"x": batch() * scale}) for scale in (1.0, 1 + 1e-4, 1 + 2e-4)]
    floor = Floor.from_runs(runs)
    assert floor.twins == ("repeat", "repeat 2")
    assert 2.5 < floor.limit < 3.5  # the second twin is twice as far away as the first


def test_one_run_makes_no_floor():
    with pytest.raises(ValueError, match="at least 2 runs"):
        Floor.from_runs([{"a": 1.0}])


def test_a_few_numbers_are_not_without_noise_by_luck():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net().eval()

        def forward(self, x):
            return self.net(x).abs().sum()

    floor = tt.floor(Last(), batch(64), "**", twins=("ulp", "float64"))
    assert floor.of(entry("out")).relative_l2 >= floor.of(entry("net")).relative_l2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("twins", [("repeat",), ("repeat", "ulp", "float64")])
def test_a_lone_number_that_is_rounded_otherwise_is_noise(dtype, twins):
    class Loss(nn.Module):
        def forward(self, x):
            return x.square().mean()

    x = torch.ones(64, dtype=dtype)  # next to one, neighbours are farthest apart
    floor = tt.floor(Loss(), x, twins=twins)
    a = {"out": torch.ones((), dtype=dtype)}
    neighbour = {"out": torch.nextafter(a["out"], torch.tensor(2.0, dtype=dtype))}
    assert tt.compare_runs(a, neighbour, floor=floor).is_green
    wrong = {"out": a["out"] * (1 + 8 * torch.finfo(dtype).eps)}
    assert tt.compare_runs(a, wrong, floor=floor).is_different


def test_an_activation_in_parts_is_noise_in_columns_of_few_rows():
    class Activation(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.gain = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
            self.function = function

        def forward(self, x):
            return self.function(x) * self.gain

    fused, in_parts = map(Activation, (nn.functional.gelu, lambda x: x / 2 * (1 + torch.erf(x * 0.5**0.5))))
    x = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)).bfloat16()
    sides = []
    for model in (fused, in_parts):
        with tt.capture(model, "**", "**.in") as cap, torch.no_grad():
            model(x)
        sides.append(cap)
    assert tt.compare_runs(*sides, floor=tt.floor(fused, x)).is_green


@pytest.mark.parametrize("twins", [("nosuch",), (), "ulp"])
def test_an_unknown_twin_is_refused(twins):
    with pytest.raises(ValueError, match="repeat, ulp, float64"):
        tt.floor(net(), batch(), twins=twins)


def test_a_model_that_cannot_be_copied_has_no_such_twin():
    model = net().eval()
    model.up.leftover = model(batch())  # not a leaf: deepcopy refuses it
    floor = tt.floor(model, batch())
    assert floor.twins == ("repeat", "ulp")
    assert "float64: the model cannot be copied" in floor.skipped[0]


def test_a_failing_forward_is_the_callers_to_see():
    model = net().train()
    before = state(model)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        tt.floor(model, torch.zeros(4, 5))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_when_tensortap_is_off_the_floor_is_empty(monkeypatch):
    monkeypatch.setenv("TENSORTAP", "0")
    assert tt.floor(net(), batch()) == Floor()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_move_is_one_number_up_or_down_and_leaves_masks_alone(dtype):
    dtype = getattr(torch, dtype)
    lowest = torch.finfo(dtype).min
    value = torch.tensor([1.5, -2.25, 0.0, float("inf"), float("-inf"), lowest, float("nan")], dtype=dtype)
    after = perturb_by_one_ulp(value)
    assert torch.equal(after[2:6], value[2:6])
    assert after[6].isnan()
    assert ((after[:2] - value[:2]).abs() <= torch.finfo(dtype).eps * 2).all()
    assert (after[:2] != value[:2]).all()


def test_a_moved_value_keeps_its_gradient():
    x = torch.ones(4, requires_grad=True)
    perturb_by_one_ulp(x * 1.5).sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 1.5))


def test_nothing_of_the_run_stays_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tt.floor(net().eval(), batch())
    assert list(tmp_path.iterdir()) == []


def test_integers_have_their_flips_for_noise():
    class Router(nn.Module):
        def forward(self, x):
            return x.argmax(-1)

    x = torch.ones(8, 8)  # all ties: the smallest move decides
    noise = tt.floor(Router(), x, "**", twins=("ulp",)).of(entry("out"))
    assert noise.flips > 0
    assert isinstance(noise, Noise)
    assert copy.copy(noise) == noise
