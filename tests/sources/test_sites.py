"""Sites: what can be selected of each module, under which names."""

import functools

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tensortap.sources.sites import (
    ForwardSignature,
    ModuleSite,
    SelectedSite,
    class_name,
    class_names,
    forward_signature,
    gradient_of,
    has_forward,
    require_module,
    site_names,
    sites_of,
    supports_hooks,
    unwrap,
    walk_modules,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.register_buffer("mask", torch.ones(2))
        self.register_buffer("none", None)

    def forward(self, x, /, cache=None, *, scale=1):
        return self.lin(x)


def paths(model):
    return [".".join(names) for names, _ in walk_modules(model)]


# Names


def test_every_site_of_a_module_has_a_name():
    block = Block()
    assert [site.name for site in sites_of("a.b", block)] == [
        "a.b", "a.b.in.x", "a.b.in.cache", "a.b.in.scale", "a.b.mask",
        "a.b.grad", "a.b.in.x.grad", "a.b.in.cache.grad", "a.b.in.scale.grad",
    ]  # fmt: skip


def test_the_model_itself_is_called_out():
    linear = nn.Linear(2, 2)
    names = [site.name for site in sites_of("", linear, gradients=False)]
    assert names == ["out", "in.input", "weight", "bias"]
    assert gradient_of(ModuleSite("", "output", linear)).name == "out.grad"


def test_a_parameter_after_the_step_has_a_name_of_its_own():
    assert ModuleSite("a", "param", nn.Linear(1, 1), "weight", True).name == "a.weight.after_step"


def test_a_gradient_knows_what_it_is_of():
    site = ModuleSite("a", "param", nn.Linear(1, 1), "weight")
    assert (site.is_gradient, site.of) == (False, "param")
    assert (gradient_of(site).is_gradient, gradient_of(site).of) == (True, "param")
    assert gradient_of(site).module_class == "Linear"


def test_site_names_leave_gradients_out():
    assert site_names(nn.Sequential(nn.ReLU())) == ["out", "in.input", "0", "0.in.input"]


# Walking


def test_a_shared_module_is_met_under_each_name():
    shared = nn.Linear(1, 1)
    assert paths(nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, shared)})) == [
        "", "a", "b", "b.0", "b.1",
    ]  # fmt: skip


def test_a_module_that_holds_its_owner_is_walked_once():
    owner = Block()
    owner.lin.owner = owner
    owner.own = owner
    assert paths(owner) == ["", "lin"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_scripted_and_a_traced_model_are_walked():
    for model in (torch.jit.script(nn.Linear(2, 2)), torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))):
        assert require_module(model) is model
        assert has_forward(model)
        assert site_names(model)[0] == "out"
        assert supports_hooks(model) is (type(model).__name__ == "TopLevelTracedModule")


@pytest.mark.compile
@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, functools.partial(torch.compile, backend="eager"), checkpoint_wrapper]
)
def test_a_wrapper_is_in_no_name(wrap):
    plain = Block()
    assert unwrap(wrap(plain)) is plain
    assert paths(wrap(plain)) == ["", "lin"]
    assert paths(nn.Sequential(wrap(nn.DataParallel(Block())))) == ["", "0", "0.lin"]


def test_a_class_called_like_a_wrapper_that_wraps_nothing_is_itself():
    class DataParallel(nn.Module):
        pass

    model = DataParallel()
    assert unwrap(model) is model


def test_what_is_no_model_is_refused():
    for wrong in (nn.Linear, 3, {"a": nn.Linear(1, 1)}):
        with pytest.raises(TypeError) as caught:
            require_module(wrong)
        assert str(caught.value) == (
            f"a {type(wrong).__name__} is no model; give a torch.nn.Module, or None for tt.tap and for "
            "variables of functions ('pkg.mod:func.var')"
        )


# Forwards


@pytest.mark.parametrize("container", [nn.ModuleList(), nn.ModuleDict(), nn.ParameterList(), nn.Module()])
def test_a_container_without_a_forward_has_no_output(container):
    assert not has_forward(container)
    assert [site.kind for site in sites_of("a", container)] == []


def test_a_forward_set_on_the_instance_makes_it_callable():
    container = nn.ModuleList()
    container.forward = lambda x, *more: x
    assert has_forward(container)
    assert forward_signature(container) == ForwardSignature(("x",), (), "more", True)


def _plain(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def _wrapped(function):
    return functools.wraps(function)(_plain(function))


def _module(forward):
    return type("Odd", (nn.Module,), {"forward": forward})()


def _forward(self, x, *, mask=None, **rest):
    return x


@pytest.mark.parametrize(
    ("forward", "inputs"),
    [
        (_forward, ForwardSignature(("x",), ("mask",), "", True)),
        (_wrapped(_forward), ForwardSignature(("x",), ("mask",), "", True)),
        (_plain(_forward), ForwardSignature((), (), "args", True)),
        (staticmethod(lambda x, y: x), ForwardSignature(("x", "y"), (), "", False)),
        (functools.partial(lambda x, y: x, y=1), ForwardSignature(("x",), ("y",), "", False)),
        (torch.relu, ForwardSignature((), (), "", True)),
        (lambda *everything: everything, ForwardSignature((), (), "everything", True)),
    ],
)
def test_inputs_are_read_from_any_forward(forward, inputs):
    module = _module(forward)
    assert has_forward(module)
    assert forward_signature(module) == inputs


def test_a_bound_forward_set_on_the_instance_has_no_self():
    module = Block()
    module.forward = _wrapped(module.forward)
    assert forward_signature(module).names == ("x", "cache", "scale")


# Classes


def test_a_class_has_the_names_of_all_its_bases():
    class Mine(nn.Linear):
        pass

    assert class_names(Mine(1, 1))[:3] == ("Mine", "Linear", "Module")
    assert class_name(Mine(1, 1)) == "Mine"


# What is wanted of a site


def test_a_wanted_site_says_what_it_accepts():
    site = ModuleSite("a", "input", Block())
    part = SelectedSite(ModuleSite("a", "input", Block(), "cache"), "['k']")
    assert SelectedSite(site).takes_all
    assert SelectedSite(site).accepts("x", "[0]", 7)
    assert not SelectedSite(site, call=2).takes_all
    assert [SelectedSite(site, call=2).accepts("x", "", call) for call in (1, 2)] == [False, True]
    assert part.accepts("cache", "['k'][1]", 0)
    assert not part.accepts("cache", "['v']", 0)
    assert not part.accepts("x", "['k']", 0)
    without = SelectedSite(site, excluded=(part,))
    assert not without.takes_all
    assert not without.accepts("cache", "['k']", 0)
    assert without.accepts("cache", "['v']", 0)
