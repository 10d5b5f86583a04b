"""tt.capture: any tensor of any model, by name."""

import copy
import dataclasses
import importlib
import logging
import pickle
import threading
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.sinks.memory import Memory

Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Answer:
    logits: torch.Tensor
    extra: dict


class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(width, 8), nn.ReLU(inplace=True), nn.Linear(8, width)

    def forward(self, x, *, scale=1.0, mask=None):
        return x + self.down(self.act(self.up(x))) * scale


class Model(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return self.head(self.norm(x))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def x():
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1))


class Returns(nn.Module):
    """A model whose only child returns what it is told to."""

    class Child(nn.Module):
        def __init__(self, make):
            super().__init__()
            self.make = make

        def forward(self, x):
            return self.make(x)

    def __init__(self, make):
        super().__init__()
        self.child = self.Child(make)

    def forward(self, x):
        self.child(x)
        return x


def reference(model, x):
    """The outputs of all modules by bare hooks that clone."""
    seen, handles = {}, []
    for name, module in model.named_modules():
        hook = lambda m, i, o, name=name: seen.__setitem__(name or "out", o.detach().clone())  # noqa: E731
        handles.append(module.register_forward_hook(hook))
    model(x)
    for handle in handles:
        handle.remove()
    return seen


def test_every_output_is_the_one_a_bare_hook_clones(model, x):
    model.eval()
    wanted = reference(model, x)
    with tt.capture(model) as cap:
        model(x)
    assert set(cap.names) == set(wanted)
    assert all(torch.equal(cap[name], value) for name, value in wanted.items())


def test_an_in_place_change_after_the_capture_does_not_reach_the_value(model, x):
    with tt.capture(model, "**.up") as cap:  # the next module is a ReLU that works in place
        model(x)
    assert all((value < 0).any() for value in cap["**.up"].values)


def test_inputs_are_named_by_the_parameter_however_they_were_passed(model, x):
    mask = torch.ones(5)
    with tt.capture(model.layers[0], "in", "up.in") as cap:
        model.layers[0](x=x, mask=mask)
        model.layers[0](x, mask=mask)
    assert cap.names == ["in.x", "in.mask", "up.in.input"]
    assert torch.equal(cap["in.mask"][0], mask)
    assert torch.equal(cap["in.x"][0], cap["in.x"][1])


def test_an_input_is_seen_before_the_module_changes_it_in_place(model, x):
    with tt.capture(model, "**.act.in") as cap:
        model(x)
    assert (cap["layers.0.act.in.input"] < 0).any()


def test_arguments_beyond_the_named_ones_are_numbered(x):
    class Sum(nn.Module):
        def forward(self, first, *rest, **named):
            return first + sum(rest) + sum(named.values())

    with tt.capture(Sum(), "in") as cap:
        cap._model(x, x, x, more=x)
    assert cap.names == ["in.first", "in.rest[0]", "in.rest[1]", "in.more"]


def test_gradients_of_outputs_and_inputs_are_exact(model, x):
    x.requires_grad_()
    kept = {}
    handle = model.layers[1].register_forward_hook(lambda m, i, o: (o.retain_grad(), kept.update(out=o))[0])
    with tt.capture(model, "layers.1.grad", "layers.0.in.x.grad") as cap:
        model(x).square().sum().backward()
    handle.remove()
    assert torch.equal(cap["layers.1.grad"], kept["out"].grad)
    assert torch.equal(cap["layers.0.in.x.grad"], x.grad)
    assert [record.kind for record in cap] == ["grad_output", "grad_input"]


def test_gradients_survive_dictionaries_and_in_place_modules(x):
    class Trap(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Returns.Child(lambda x: {"a": x * 2, "b": [x * 3]})
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            made = self.first(x)
            return self.relu(made["a"]) + made["b"][0]

    x.requires_grad_()
    with tt.capture(Trap(), "first.grad") as cap:
        cap._model(x).sum().backward()
    assert cap.names == ["first['b'][0].grad", "first['a'].grad"]
    assert cap["first['b'][0].grad"].unique().tolist() == [1.0]


def test_parameters_buffers_their_gradients_and_their_values_after_the_step(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.head.weight.detach().clone()
    with tt.capture(
        model, "head.weight", "head.weight.grad", "head.weight.after_step", "norm.running_mean"
    ) as cap:
        model(x).sum().backward()
        optimizer.step()
    assert torch.equal(cap["head.weight"], before)
    assert torch.equal(cap["head.weight.grad"], model.head.weight.grad)
    assert torch.equal(cap["head.weight.after_step"], model.head.weight)
    assert not torch.equal(before, model.head.weight)
    assert torch.equal(cap["norm.running_mean"], model.norm.running_mean)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda x: (x, x + 1), ["child[0]", "child[1]"]),
        (lambda x: {"k": [x], 2: x}, ["child['k'][0]", "child[2]"]),
        (lambda x: Answer(x, {"more": x}), ["child.out.logits", "child.out.extra['more']"]),
        (lambda x: Pair(x, None), ["child.out.left"]),
        (lambda x: x.numpy(), ["child"]),
        (lambda x: (), []),
    ],
)
def test_nested_outputs_are_walked_to_their_leaves(x, make, names):
    with tt.capture(Returns(make), "child") as cap:
        cap._model(x)
    assert cap.names == names


def test_one_part_of_a_nested_output_can_be_selected(x):
    with tt.capture(Returns(lambda x: {"k": [x, x + 1], "v": x}), "child['k'][1]") as cap:
        cap._model(x)
    assert cap.names == ["child['k'][1]"]
    assert torch.equal(cap["child['k'][1]"], x + 1)


def test_asking_for_a_nested_output_gives_its_parts(x):
    with tt.capture(Returns(lambda x: (x, x + 1))) as cap:
        cap._model(x)
    assert cap["child"].names == ["child[0]", "child[1]"]


def test_a_module_called_twice_gives_two_records(x):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x))

    with tt.capture(Twice(), "layer", "layer.grad") as cap:
        cap._model(x).sum().backward()
    assert cap["layer"].calls == [0, 1]
    assert torch.equal(cap["layer@1"], cap["layer"][1])
    assert sorted(cap["layer.grad"].calls) == [0, 1]
    with tt.capture(cap._model, "layer@1") as second:
        cap._model(x)
    assert [(record.name, record.call) for record in second] == [("layer", 1)]


def test_a_shared_module_is_found_under_each_name(x):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4)
            self.other = self.one

        def forward(self, x):
            return self.one(x)

    with tt.capture(Tied(), "one", "other") as cap:
        cap._model(x)
    assert cap.names == ["one", "other"]
    assert torch.equal(cap["one"], cap["other"])


def test_steps_are_forwards_of_the_model(model, x):
    with tt.capture(model, "head") as cap:
        for _ in range(3):
            model(x)
    assert cap["head"].steps == [0, 1, 2]
    assert cap["head"].stack().shape == (3, 5, 2)


def test_steps_are_what_the_program_says_once_it_says_so(model, x):
    with tt.capture(model, "head") as cap:
        for number in (7, None, 20):
            tt.step(number)
            model(x)
            model(x)
    assert cap["head"].steps == [7, 7, 8, 8, 20, 20]


def test_the_order_of_records_is_the_order_of_execution(model, x):
    with tt.capture(model, "layers.*", "head") as cap:
        model(x)
    orders = [record.order for record in cap]
    assert orders == sorted(orders)
    assert cap.names == ["layers.0", "layers.1", "layers.2", "head"]


def test_patterns_exclude(model, x):
    with tt.capture(model, "**", "**.in", "!layers.**", "!head") as cap:
        model(x)
    assert cap.names == ["in.x", "norm.in.input", "norm", "out"]


def test_a_function_can_select(model, x):
    with tt.capture(model, lambda site: site.kind == "output" and isinstance(site.module, nn.ReLU)) as cap:
        model(x)
    assert cap.names == [f"layers.{i}.act" for i in range(3)]


def test_a_child_called_out_does_not_take_the_models_own_name(x):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 2)

        def forward(self, x):
            return self.out(x) + 1

    with tt.capture(Attention(), "**", "**.grad") as cap:
        cap._model(x).sum().backward()
    assert cap.names == ["out", "<Attention>", "<Attention>.grad", "out.grad"]
    assert torch.equal(cap["<Attention>"], cap["out"] + 1)


# What is kept


def test_keep_decides_what_is_held(model, x):
    held = {}
    for keep in ("cow", "clone", "ref", "cpu", "stats"):
        with tt.capture(model, "layers.0.up", keep=keep) as cap:
            model(x)
        held[keep] = cap["layers.0.up"]
    assert (held["cow"] < 0).any()
    assert torch.equal(held["clone"], held["cow"])
    assert torch.equal(held["cpu"], held["cow"])
    assert not (held["ref"] < 0).any()  # a reference shows what the ReLU did to it
    assert held["stats"].shape == (5, 8)
    assert held["stats"].min == pytest.approx(held["cow"].min().item())
    assert held["stats"].norm == pytest.approx(held["cow"].norm().item())


def test_keep_may_be_a_function_of_the_value(model, x):
    with tt.capture(model, "head", keep=lambda value: value.shape) as cap:
        model(x)
    assert cap["head"] == (5, 2)


def test_statistics_count_what_is_not_finite():
    with tt.capture(nn.Identity(), keep="stats") as cap:
        cap._model(torch.tensor([1.0, float("nan"), float("inf")]))
    found = cap["out"]
    assert (found.nan, found.inf, found.is_finite) == (1, 1, False)
    assert (found.min, found.max) == (1.0, 1.0)


@pytest.mark.parametrize(("limit", "kept"), [(2, 2), ("100 B", 2), ("1KiB", 5)])
def test_a_limit_drops_the_oldest(model, x, limit, kept, caplog):
    with tt.capture(model, "head", limit=limit) as cap:  # 40 bytes each
        for _ in range(5):
            model(x)
    assert cap["head"].steps == list(range(5 - kept, 5))
    assert cap.dropped == 5 - kept
    assert (f"{5 - kept} older ones dropped" in str(cap)) is (kept < 5)


def test_every_and_first_select_steps(model, x):
    for when, steps in (
        (tt.every(2), [0, 2, 4]),
        (tt.first(2), [0, 1]),
        ([tt.every(2), tt.first(3)], [0, 2]),
    ):
        with tt.capture(model, "head", "head.grad", when=when) as cap:
            for _ in range(5):
                model(x).sum().backward()
        assert cap["head"].steps == steps
        assert cap["head.grad"].steps == steps


def test_only_what_is_not_finite(model, x):
    model.layers[1].down.weight.data[0, 0] = float("nan")
    with tt.capture(model, "layers.*", when=tt.nonfinite) as cap:
        model(x)
    assert cap.names == ["layers.1", "layers.2"]
    assert cap.first(tt.nonfinite).name == "layers.1"


def test_only_what_changed(model, x):
    model.eval()
    with tt.capture(model, "head", "head.weight", when=tt.changed) as cap:
        for _ in range(3):
            model(x)
        model(x + 1)
    assert cap["head"].steps == [0, 3]
    assert cap.find("head.weight")[0].step == 0
    assert len(cap.find("head.weight")) == 1


def test_stop_leaves_the_block_after_the_last_selected_site(model, x):
    ran = []
    model.head.register_forward_hook(lambda *_: ran.append("head"))
    for _ in range(2):
        with tt.capture(model, "layers.{0,1}", stop=True) as cap:
            model(x)
            ran.append("after the model")
        assert cap.names == ["layers.0", "layers.1"]
    assert ran == []


def test_stop_learns_from_the_forward_before_which_site_is_the_last(x):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.never, self.b = nn.Identity(), nn.Identity(), nn.Identity()

        def forward(self, x):
            return self.b(self.a(self.a(x)))

    model, ran = Twice(), []
    model.b.register_forward_hook(lambda *_: ran.append("b"))
    for _ in range(2):
        with tt.capture(model, "a", "never", stop=True) as cap:
            model(x)
        assert cap["a"].calls == [0, 1]
    assert ran == ["b"]
    assert dict(cap.missing) == {"never": "the forward was left after a (stop=True)"}


# Where it goes


def test_a_folder_becomes_a_run(model, x, tmp_path):
    with tt.capture(model, "layers.*", to=tmp_path) as cap:
        model(x)
        model(x + 1)
    run = tt.Run(cap.run)
    assert cap.run.parent == tmp_path
    assert run.names == ["layers.0", "layers.1", "layers.2"]
    assert [stored.step for stored in run.filter("layers.0")] == [0, 1]
    assert torch.equal(cap["layers.0"][1], run.load("layers.0", step=1))


def test_values_go_to_a_function_a_tap_a_sink_or_several(model, x):
    seen, sink, poured = [], Memory(), Memory()
    with tt.capture(model, "head", to=[seen.append, sink, tt.Tap(sinks=[poured])]):
        model(x)
    assert [record.name for record in seen] == ["head"]
    assert torch.equal(sink.records[0].value, poured.records[0].value)


def test_print_writes_a_line_per_value(model, x, capsys):
    with tt.capture(model, "layers.*", to=print):
        model(x)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [["0", f"layers.{i}", "f32[5,4]"] for i in range(3)]


def test_a_trace_file_is_read_back(model, x, tmp_path):
    with tt.capture(model, "layers.0", "head", to=tmp_path / "trace.h5") as cap:
        model(x)
        model(x + 1)
    assert cap["head"].steps == [0, 1]
    assert torch.equal(cap["layers.0"][0], model.layers[0](x, scale=0.5))
    assert "4 values" in str(cap)


def test_what_went_elsewhere_is_told_and_not_called_nothing(model, x):
    with tt.capture(model, "layers.*", to=lambda record: None) as cap:
        model(x)
    assert str(cap) == "3 records went where to= says, and none is held here"
    assert "3 records went" in cap._repr_html_()
    with pytest.raises(tt.UnknownNameError, match=r"no record 'layers\.0': 3 records went where to= says"):
        cap["layers.0"]


def test_a_wrong_destination_leaves_nothing_behind(model, tmp_path):
    with pytest.raises(TypeError, match="give a folder, an address, print"):
        tt.capture(model, "head", to=3.5)
    with pytest.raises(tt.UnknownFormatError, match="no sink is known for nowhere://"):
        tt.capture(model, "head", to="nowhere://x")
    with pytest.raises(tt.UnknownModuleError):
        tt.capture(model, "haed", to=tmp_path)
    assert list(tmp_path.iterdir()) == []


# Guests


def test_nothing_is_left_on_the_model(model, x):
    before = [
        dict(module.__dict__, **{k: dict(v) for k, v in module.__dict__.items() if k.endswith("hooks")})
        for module in model.modules()
    ]
    parameters = [dict(p.__dict__) for p in model.parameters()]
    with tt.capture(model, "**", "**.in", "**.grad", "**.weight.grad", "**.weight.after_step"):
        model(x).sum().backward()
    after = [
        dict(module.__dict__, **{k: dict(v) for k, v in module.__dict__.items() if k.endswith("hooks")})
        for module in model.modules()
    ]
    assert [set(one) for one in before] == [set(one) for one in after]
    assert all(not hooks for one in after for name, hooks in one.items() if name.endswith("_hooks"))
    assert [dict(p.__dict__) for p in model.parameters()] == parameters
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())
    assert not importlib.import_module("torch.optim.optimizer")._global_optimizer_post_hooks


def test_a_copy_or_a_pickle_made_meanwhile_captures_nothing(model, x):
    with tt.capture(model, "**", "**.in", "head.weight.grad") as cap:
        twin, thawed = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        twin(x), thawed(x).sum().backward()
    assert len(cap) == 0
    assert torch.equal(twin(x), model(x))


def test_an_exception_in_the_forward_keeps_what_came_before(model, x):
    model.head.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), tt.capture(model, "layers.*", "out") as cap:
        model(x)
    assert cap.names == ["layers.0", "layers.1", "layers.2"]
    assert not model.layers[0]._forward_hooks


def test_a_capture_is_used_once(model, x):
    cap = tt.capture(model, "head")
    with cap:
        with pytest.raises(RuntimeError, match="this capture is already on; make another"):
            cap.start()
        model(x)
    with pytest.raises(RuntimeError, match="this capture is over; make another"), cap:
        pass
    assert cap.names == ["head"]


def test_two_captures_of_one_model_do_not_disturb_each_other(model, x):
    with tt.capture(model, "head") as outer:
        with tt.capture(model, "head", "norm") as inner:
            model(x)
        model(x)
    assert (len(outer), inner.names) == (2, ["norm", "head"])


def test_a_failing_function_costs_the_capture_but_not_the_program(model, x, monkeypatch, caplog):
    monkeypatch.delenv("TENSORTAP_STRICT", raising=False)
    calls = []

    def fails(record):
        calls.append(record.name)
        raise OSError("the disk is full")

    wanted = model(x)
    for arguments in ({"to": fails}, {"keep": lambda value: 1 / 0}, {"when": lambda record: 1 / 0}):
        caplog.clear()
        with tt.capture(model, "layers.*", **arguments):
            assert torch.equal(model(x), wanted)
        assert len([one for one in caplog.records if one.levelno == logging.ERROR]) == 1
    assert calls == ["layers.0"]


def test_strict_makes_it_fail(model, x, monkeypatch):
    monkeypatch.setenv("TENSORTAP_STRICT", "1")
    with pytest.raises(ZeroDivisionError), tt.capture(model, "layers.*", keep=lambda value: 1 / 0):
        model(x)


def test_switched_off_it_does_nothing(model, x, monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORTAP", "0")
    with tt.capture(model, "head", to=tmp_path) as cap:
        model(x)
        assert not model.head._forward_hooks
    assert (len(cap), cap.missing, list(tmp_path.iterdir())) == (0, [], [])


def test_threads_share_one_capture(model, x):
    model.eval()
    with tt.capture(model, "head") as cap:
        threads = [threading.Thread(target=model, args=(x,)) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert len(cap) == 8


def test_random_numbers_are_not_touched(x):
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5))
    torch.manual_seed(3)
    wanted = model(x)
    torch.manual_seed(3)
    with tt.capture(model, "**", "**.in", "**.grad"):
        assert torch.equal(model(x), wanted)


def test_inference_mode_and_no_grad_work(model, x):
    model.eval()
    for mode in (torch.inference_mode, torch.no_grad):
        with tt.capture(model, "layers.0.up") as cap, mode():
            model(x)
        cap["layers.0.up"].add_(1)  # an ordinary tensor


def test_a_checkpointed_block_is_seen_once(model, x):
    from torch.utils.checkpoint import checkpoint

    x.requires_grad_()
    for reentrant in (False, True):
        with tt.capture(model.layers[0], "up", "up.grad") as cap:
            checkpoint(model.layers[0], x, use_reentrant=reentrant).sum().backward()
        assert sorted(cap.names) == ["up", "up.grad"]
        assert [record.call for record in cap] == [0, 0]


# Bad input


def test_what_is_no_model_is_refused():
    with pytest.raises(TypeError, match=r"a str is no model; give a torch\.nn\.Module"):
        tt.capture("model", "**")


def test_an_unknown_pattern_names_the_nearest(model):
    with pytest.raises(tt.UnknownModuleError) as failure:
        tt.capture(model, "layer.0")
    assert str(failure.value) == (
        "no site 'layer.0' in the model; did you mean 'layers.0' or 'layers.2' or 'layers.1'? "
        "tt.sites(model) lists all 55"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep": "copy"}, "keep is 'copy'; give 'cow', 'clone', 'ref', 'cpu', 'stats', or a function"),
        ({"limit": "much"}, "limit is 'much'; give a size such as '2GiB'"),
        ({"limit": 0}, "limit is 0; give a size"),
        ({"when": 3}, "when is 3; give a function of the record"),
        ({"compiled": "yes"}, "compiled is 'yes'; give 'eager', 'graph' or 'error'"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(model, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tt.capture(model, "head", **arguments)


def test_a_gradient_under_no_grad_is_missing_with_its_reason(model, x):
    with tt.capture(model, "head.grad") as cap, torch.no_grad():
        model(x)
    assert dict(cap.missing) == {"head.grad": "it was computed under no_grad, so no gradient comes to it"}
    with pytest.raises(tt.UnknownNameError, match="was selected but gave no record: it was computed under"):
        cap["head.grad"]


def test_a_gradient_and_stop_contradict_each_other(model):
    with pytest.raises(ValueError, match=r"stop=True leaves the forward, so 'head\.grad'"):
        tt.capture(model, "head.grad", stop=True)


def test_meta_and_fake_tensors_are_named_and_refused():
    with tt.capture(nn.Linear(3, 3, device="meta"), "out") as cap:
        cap._model(torch.empty(2, 3, device="meta"))
    (found,) = cap.missing
    assert found.name == "out"
    assert found.reason.startswith("a meta tensor of shape [2, 3] has no values")

    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode, tt.capture(nn.Identity(), "out") as cap:
        cap._model(mode.from_tensor(torch.zeros(3)))
    assert cap.missing[0].reason.startswith("a fake tensor of shape [3] has no values")


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3.0),
        torch.empty(0, 3),
        torch.full((2,), float("nan")),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.ones(3, dtype=torch.complex64),
        torch.arange(6).reshape(2, 3).t(),
        torch.ones(4).expand(3, 4),
        torch.eye(3).to_sparse(),
    ],
    ids=lambda value: f"{value.dtype}{list(value.shape)}",
)
def test_every_kind_of_tensor_is_kept_exactly(value):
    with tt.capture(nn.Identity()) as cap:
        cap._model(value)
    held = cap["out"]
    assert (held.dtype, held.shape, held.layout) == (value.dtype, value.shape, value.layout)
    dense = [one.to_dense() if one.is_sparse else one for one in (held, value)]
    assert np.array_equal(
        *(one.contiguous().view(torch.uint8).numpy() for one in map(torch.atleast_1d, dense))
    )
    assert "1 value" in str(cap)


# Looking


def test_an_unknown_name_is_answered_with_the_nearest(model, x):
    with tt.capture(model, "layers.*") as cap:
        model(x)
    with pytest.raises(tt.UnknownNameError, match=r"did you mean 'layers.2' or .* \.names lists all 3"):
        cap["layer.2"]
    assert "layers.0" in cap
    assert "nowhere" not in cap


def test_the_tree_shows_what_was_captured_and_what_is_missing(model, x):
    with tt.capture(model, "**", "head.grad") as cap:
        model(x)
    shown = str(cap)
    assert "layers.0-2  x3 Block" in shown
    assert "missing: head.grad - no backward pass ran through it while it was captured" in shown
    assert cap._repr_html_().count("<details") >= 1
    assert "<script" not in cap._repr_html_()


def test_clear_forgets(model, x):
    with tt.capture(model, "head") as cap:
        model(x)
        cap.clear()
        model(x + 1)
    assert cap.find("head")[0].step == 1
    assert len(cap) == 1
