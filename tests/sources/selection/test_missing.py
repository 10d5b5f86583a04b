"""Absence: every selected site without a record has a reason, in words that can be acted on."""

import contextlib
import functools
import gc
import inspect
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensortap as tt
from tensortap.core.tap import Tap
from tensortap.sinks.memory import Memory
from tensortap.sources.hooks.modules import ModuleSource
from tensortap.sources.observation.point import StopForward
from tensortap.sources.selection.missing import Missing, find_missing
from tensortap.sources.selection.select import resolve_patterns

X = torch.ones(2, 2)
HERE = Path(__file__).name


def absent(model, *patterns, run=lambda model: model(X), **options):
    """The reasons by name, after running the model while it is captured."""
    source = ModuleSource(model, resolve_patterns(model, patterns), **options)
    with Tap(sinks=[Memory()]).attach(source), contextlib.suppress(StopForward):
        run(model)
    found = find_missing(source)
    reasons = dict(found)
    assert len(reasons) == len(found)
    return reasons


def line_of(owner, text):
    """Where in this file the forward of a class says this."""
    lines, start = inspect.getsourcelines(owner)
    (offset,) = [number for number, line in enumerate(lines) if text in line]
    return f"{HERE}:{start + offset}"


class Parts(nn.Module):
    """A module with a few parts; what its forward does with them is up to the subclass."""

    def __init__(self):
        super().__init__()
        self.head, self.tail = nn.Linear(2, 2), nn.Linear(2, 2)
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.seq = nn.Sequential(nn.Linear(2, 2))
        self.flag = False


# Nothing is missing


def test_what_gave_a_record_is_not_missing():
    assert absent(nn.Sequential(nn.Linear(2, 2)), "**", "0.in", "0.weight") == {}


def test_a_reason_is_shown_with_its_name():
    assert str(Missing("a.b", "not called")) == "a.b: not called"


# Not called


class Plain(Parts):
    def forward(self, x):
        return self.head(x)


def test_a_module_that_no_code_mentions_was_not_called():
    assert absent(Plain(), "{head,tail}", "tail.in", "tail.grad", "tail.weight") == dict.fromkeys(
        ["tail", "tail.in", "tail.grad", "tail.weight"], "not called"
    )


def test_a_model_that_did_not_run_is_the_reason():
    assert absent(Plain(), "**.head", run=lambda model: None) == {
        "head": "the model was not called while it was captured"
    }


class Branched(Parts):
    def forward(self, x):
        if self.flag:
            x = self.head(x)
        elif x is None:
            x = self.tail(x)
        else:
            x = x + 1
        y = self.seq(x) if self.flag else x
        if not self.flag:
            y = y + 1
        else:
            for layer in self.layers:
                y = layer(y)
        return y


def test_a_branch_that_was_not_taken_is_named_by_its_line():
    assert absent(Branched(), "head", "tail", "seq", "layers.1") == {
        "head": f"not called: the branch at {line_of(Branched, 'if self.flag:')} was not taken",
        "tail": f"not called: the branch at {line_of(Branched, 'elif x is None')} was not taken",
        "seq": f"not called: the branch at {line_of(Branched, 'self.seq(x)')} was not taken",
        "layers.1": f"not called: the branch at {line_of(Branched, 'for layer in')} was not taken",
    }


def test_what_lies_in_a_module_of_that_branch_has_the_same_reason():
    told = f"not called: the branch at {line_of(Branched, 'self.seq(x)')} was not taken"
    assert absent(Branched(), "seq.0") == {"seq.0": told}
    assert absent(Branched(), "seq.**", "seq.0.in") == {"seq": told, "seq.0": told, "seq.0.in": told}


class Both(Parts):
    def forward(self, x):
        if x is None:
            x = self.head(x)
        if self.flag:
            return x
        return self.tail(self.head(x))


class Holder(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part
        self.flag = False

    def forward(self, x):
        if self.flag:
            return self.part(x)
        return x


def test_a_call_outside_of_all_branches_is_not_blamed_on_one():
    told = f"not called: the branch at {line_of(Holder, 'if self.flag')} was not taken"
    assert absent(Holder(Both()), "part.head") == {"part.head": told}
    both = Both()
    both.flag = True
    assert absent(both, "head") == {"head": "not called"}


def test_a_module_that_ran_has_no_say_in_the_code_above_it():
    both = Both()
    both.flag = True
    holder = Holder(both)
    holder.flag = True
    assert absent(holder, "part", "part.head") == {"part.head": "not called"}


class Experts(Parts):
    def forward(self, x):
        return self.layers[0](x)


def test_an_item_of_a_list_that_is_used_was_just_not_called():
    assert absent(Experts(), "layers.*") == {"layers.1": "not called"}


class Functional(Parts):
    def forward(self, x):
        return nn.functional.linear(x, self.head.weight)


def test_a_module_that_is_used_without_being_called_is_named_by_its_line():
    assert absent(Functional(), "head", "head.weight") == dict.fromkeys(
        ["head", "head.weight"],
        f"not called: {line_of(Functional, 'self.head.weight')} uses it without calling it",
    )


class Inherited(Functional):
    pass


def test_the_line_is_that_of_the_class_that_wrote_the_forward():
    reason = absent(Inherited(), "head")["head"]
    assert line_of(Functional, "self.head.weight") in reason


def _decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


class Decorated(Parts):
    @_decorated
    def forward(self, x):
        return x + self.head.bias


def test_a_decorated_forward_is_read_all_the_same():
    assert line_of(Decorated, "self.head.bias") in absent(Decorated(), "head")["head"]


def test_a_forward_set_on_the_instance_is_the_one_that_is_read():
    model = Plain()

    def forward(x):
        return x + model.tail.bias

    model.forward = forward
    assert absent(model, "tail")["tail"].endswith("uses it without calling it")


def test_reading_the_code_keeps_no_model_alive():
    model = Plain()
    model.forward = functools.partial(type(model).forward, model)
    model.forward = functools.update_wrapper(model.forward, type(model).forward)
    absent(model, "tail")
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_forward_without_source_tells_nothing():
    scope = {"nn": nn}
    exec("class Odd(nn.Module):\n    def forward(self, x):\n        return x.head\n", scope)
    model = scope["Odd"]()
    model.head, model.forward = nn.Linear(2, 2), torch.relu
    assert absent(model, "head") == {"head": "not called"}
    del model.forward
    assert absent(model, "head", "out", run=lambda model: None)["head"].startswith("the model was not")


# Its forward was called directly


class Direct(Parts):
    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        last = self.tail
        x = last.forward(x)
        return self.head.forward(self.seq.forward(x))


def test_a_direct_call_of_forward_is_found_in_the_code():
    told = "its .forward() is called directly at {}, which runs no hook"
    assert absent(Direct(), "head", "tail", "seq", "layers.0") == {
        "head": told.format(line_of(Direct, "self.head.forward")),
        "seq": told.format(line_of(Direct, "self.seq.forward")),
        "tail": told.format(line_of(Direct, "last.forward")),
        "layers.0": told.format(line_of(Direct, "layer.forward")),
    }


class Mixed(Parts):
    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return super().forward(x) if self.flag else x


def test_a_direct_call_of_another_is_no_reason():
    assert absent(Mixed(), "head") == {"head": "not called"}


EVIDENCE = "not called itself: its parts were, one by one, or its .forward(), which runs no hook"


def test_a_direct_call_of_forward_shows_by_the_parts_that_ran():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    assert absent(model, "**", run=lambda model: model.forward(X)) == {"out": EVIDENCE}
    assert absent(model, "**", run=lambda model: model[0].forward(X)) == {"out": EVIDENCE, "0": EVIDENCE}


def test_a_direct_call_of_forward_is_rather_told_with_its_line():
    assert line_of(Direct, "self.seq.forward") in absent(Direct(), "seq.**")["seq"]


def test_a_part_with_another_owner_is_no_evidence():
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": nn.Sequential(shared), "b": nn.Sequential(shared)})
    assert absent(model, "**", run=lambda model: model["a"](X)) == {"b": "not called"}


# Scripted and stopped


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_what_lies_in_a_scripted_module_runs_no_hook():
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(2, 2))))
    assert absent(model, "**") == dict.fromkeys(["0", "0.0"], "it is scripted: no hook runs inside")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_traced_module_runs_its_own_hooks_and_none_inside():
    model = nn.Sequential(torch.jit.trace(nn.Sequential(nn.Linear(2, 2)), X))
    assert absent(model, "**") == {"0.0": "it is scripted: no hook runs inside"}
    model = Plain()
    model.tail = torch.jit.trace(nn.Linear(2, 2), X)
    assert absent(model, "tail", "head") == {"tail": "not called"}


def test_what_comes_after_a_stop_says_so():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Tanh())
    told = absent(model, "*", is_last=lambda port: port.path == "1")
    assert told == {"2": "the forward was left after 1 (stop=True)"}


# Gradients


def test_a_gradient_without_a_backward_pass():
    told = "no backward pass ran through it while it was captured"
    model = nn.Sequential(nn.Linear(2, 2))
    assert absent(model, "0.grad", "0.weight.grad", "0") == {"0.grad": told, "0.weight.grad": told}


def test_a_gradient_that_did_not_reach_it():
    class Two(Parts):
        def forward(self, x):
            return self.head(x), self.tail(x)

    told = "no gradient reached it: what was differentiated does not depend on it"
    assert absent(
        Two(), "{head,tail}.grad", "{head,tail}.weight.grad", run=lambda model: model(X)[0].sum().backward()
    ) == {"tail.grad": told, "tail.weight.grad": told}


def test_a_gradient_under_no_grad():
    with torch.no_grad():
        told = absent(nn.Sequential(nn.Linear(2, 2)), "0.grad")
    assert told == {"0.grad": "it was computed under no_grad, so no gradient comes to it"}


def test_a_gradient_of_whole_numbers():
    class Top(nn.Module):
        def forward(self, x):
            return x.argmax(-1)

    assert absent(nn.Sequential(Top()), "0.grad") == {"0.grad": "a tensor of int64 has no gradient"}


def test_a_gradient_that_nothing_asks_for():
    assert absent(nn.Sequential(nn.ReLU()), "0.grad") == {
        "0.grad": "nothing it was computed from requires a gradient"
    }


def test_a_frozen_parameter_and_a_buffer_have_no_gradient():
    model = nn.Sequential(nn.BatchNorm1d(2))
    model[0].weight.requires_grad_(False)
    assert absent(model, "0.weight.grad", "0.running_mean.grad") == dict.fromkeys(
        ["0.weight.grad", "0.running_mean.grad"], "it does not require a gradient"
    )


def test_the_gradient_of_a_call_that_was_not_made():
    model = nn.Sequential(nn.Linear(2, 2))
    told = absent(model, "0.grad", "0@3.grad", run=lambda model: model(X).sum().backward())
    assert told == {"0.grad@3": "it was called once in a step"}


def test_a_checkpoint_that_was_computed_again_is_not_missing():
    model = nn.Sequential(nn.Linear(2, 2))

    def run(model):
        x = X.clone().requires_grad_()
        checkpoint(model, x, use_reentrant=False).sum().backward()

    assert absent(model, "0", "0.grad", run=run) == {}


# Parts


class Nested(nn.Module):
    def forward(self, x, mask=None, masked=None, count=None):
        return {"k": [x, x], "n": 3}, x


def test_a_part_that_is_not_there_tells_those_that_are():
    assert absent(nn.Sequential(Nested()), "0[0]['v']", "0[0]['k'][0]", "0[0]['n']") == {
        "0[0]['v']": "it has no [0]['v']; it has [0]['k'][0], [0]['k'][1], [1]",
        "0[0]['n']": "it was a int, not a tensor",
    }


def test_a_plain_tensor_has_no_parts():
    assert absent(nn.Sequential(nn.ReLU()), "0[1]") == {"0[1]": "it has no [1]; it has no parts"}


def test_an_output_without_tensors_held_none():
    class Empty(nn.Module):
        def forward(self, x):
            return []

    class Text(nn.Module):
        def forward(self, x):
            return "text"

    assert absent(nn.Sequential(Empty()), "0") == {"0": "it held no tensor"}
    assert absent(nn.Sequential(Text()), "0") == {"0": "it was a str, not a tensor"}


@pytest.mark.parametrize(("calls", "told"), [(1, "once"), (2, "2 times")])
def test_a_call_that_was_not_made_tells_how_many_were(calls, told):
    class Often(Parts):
        def forward(self, x):
            for _ in range(calls):
                x = self.head(x)
            return x

    assert absent(Often(), "head@5", "head@0") == {"head@5": f"it was called {told} in a step"}


# Inputs


class Inner(Parts):
    def __init__(self):
        super().__init__()
        self.nested = Nested()

    def forward(self, x):
        return self.nested(x, masked=[x], count=3)


@pytest.mark.parametrize("options", [{"trace_interval": 5}, {"eval_only": True}], ids=str)
def test_steps_that_were_all_left_out_are_not_called_uncalled(options):
    model = Inner()
    with tt.ModelTracer(model, ["forward.x", "nested"], **options) as tracer:
        model(X)
    assert {one.reason for one in tracer.missing} == {
        "left out at every step, by when=, trace_interval=, train_only= or eval_only="
    }
    with tt.ModelTracer(model, ["forward.x"], **options) as tracer:
        model.eval()
        for _ in range(5):
            model(X)
    assert tracer.missing == []


def test_an_input_that_was_not_passed():
    assert absent(Inner(), "nested.in.{x,mask,masked,count}") == {
        "nested.in.mask": "it was not passed",
        "nested.in.count": "it was a int, not a tensor",
    }


def test_an_item_of_an_input_that_is_not_there():
    assert absent(Inner(), "nested.in.masked[3]", "nested.in.mask[0]", "nested.in.x") == {
        "nested.in.masked[3]": "it has no [3]; it has [0]",
        "nested.in.mask[0]": "it was not passed",
    }


# Parameters


def test_a_parameter_that_no_optimizer_stepped_on():
    model = Plain()
    optimizer = torch.optim.SGD([model.head.weight], lr=0.1)

    def train(model):
        model(X).sum().backward()
        optimizer.step()

    assert absent(model, "head.{weight,bias}.after_step", run=train) == {
        "head.bias.after_step": "no optimizer took a step on it while it was captured"
    }


def test_a_big_model_of_which_little_ran_is_told_at_once():
    """Each reason is found without walking the whole model again."""
    model = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(2000)])
    told = absent(model, "**", run=lambda model: model[0](X))
    assert len(told) == 3 * 1999
    assert set(told.values()) == {"not called"}
