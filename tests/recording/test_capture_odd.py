"""Captures that end out of order, lose their modules, or meet functions and values that misbehave."""

import gc
import io
import re
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

import tensortap as tt


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.relu, self.b = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(self.relu(self.a(x)))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Two()


@pytest.fixture
def x():
    return torch.randn(3, 4)


@pytest.fixture
def unstrict(monkeypatch):
    monkeypatch.delenv("TENSORTAP_STRICT", raising=False)


def stance():
    from torch._dynamo import eval_frame

    return eval_frame._stance.stance


def test_captures_that_end_in_another_order_than_they_began_leave_the_compiler_as_it_was(model):
    before = stance()
    first, second = tt.capture(model, "a"), tt.capture(model, "b")
    first.start()
    second.start()
    first.stop()
    assert stance() == "force_eager"
    second.stop()
    assert stance() == before


@pytest.mark.compile
def test_a_compiled_model_is_still_seen_by_the_capture_that_began_second(model, x):
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    first, second = tt.capture(compiled, "a"), tt.capture(compiled, "b")
    first.start()
    second.start()
    first.stop()
    compiled(x)
    second.stop()
    assert (first.names, second.names) == ([], ["b"])


def test_captures_of_many_threads_leave_the_compiler_as_it_was(model, x):
    before = stance()

    def run():
        for _ in range(20):
            with tt.capture(model, "a"):
                model(x)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stance() == before


@pytest.mark.process
def test_a_capture_that_is_never_stopped_leaves_the_interpreter_in_silence():
    code = (
        "import torch, torch._dynamo, tensortap as tt; model = torch.nn.Linear(2, 2)\n"
        "tt.capture(model).start(); model(torch.ones(1, 2))"
    )
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_capture_that_is_on_goes_on_when_nobody_has_kept_it(model, x):
    seen = []
    capture = tt.capture(model, "a", to=seen.append)
    kept = weakref.ref(capture)
    capture.start()
    del capture
    gc.collect()
    model(x)
    kept().stop()
    assert [record.name for record in seen] == ["a"]


def test_a_stop_leaves_the_block_of_its_own_capture(model, x):
    reached = []
    with tt.capture(model, "a", stop=True) as outer:
        with tt.capture(model, "b"):
            model(x)
        reached.append("between")
    assert (reached, outer.names) == ([], ["a"])


def test_a_stop_waits_for_the_call_that_was_asked_for(x):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            return self.a(self.a(x)) / 0

    model = Twice()
    with tt.capture(model, "a@1", stop=True) as cap:
        model(x)
    assert torch.equal(cap["a@1"], model.a(model.a(x)))


def test_a_stop_and_what_comes_after_the_forward_contradict_each_other(model):
    with pytest.raises(ValueError, match=r"'a\.weight\.after_step' could never come"):
        tt.capture(model, "a.weight.after_step", stop=True)


def test_what_a_capture_once_learned_counts_forwards_one_by_one(model, x):
    model.forward = lambda x, short=True: model.a(x) if short else model.b(model.a(x))
    with tt.capture(model, "a", "b", stop=True):
        for _ in range(3):
            model(x)
    with tt.capture(model, "a", "b", stop=True) as cap:
        model(x, short=False)
    assert cap.names == ["a"]


def test_a_backward_pass_after_the_block_gives_no_record(model, x):
    with tt.capture(model, "a", "a.grad", "b.in.grad") as cap:
        losses = [model(x).sum() for _ in range(2)]
    sum(losses).backward()
    assert cap.names == ["a"]
    assert {one.name: one.reason for one in cap.missing} == {
        "a.grad": "no backward pass ran through it while it was captured",
        "b.in.grad": "no backward pass ran through it while it was captured",
    }


def test_a_module_that_was_taken_away_is_missing_with_its_reason(model, x):
    model.forward = lambda x: model.a(x)
    with tt.capture(model, "a", "b") as cap:
        del model.b
        model(x)
    reason = "not called: the model holds it no longer, it was replaced or removed"
    assert [(one.name, one.reason) for one in cap.missing] == [("b", reason)]
    assert "holds it no longer" in str(cap)


def test_a_module_that_was_replaced_is_missing_with_its_reason(model, x):
    with tt.capture(model, "b") as cap:
        model.b = nn.Linear(4, 2)
        model(x)
    assert "replaced" in cap.missing[0].reason


def test_a_module_that_was_wrapped_goes_on_giving_records(model, x):
    with tt.capture(model, "a") as cap:
        model(x)
        model.a = nn.Sequential(model.a, nn.Tanh())
        model(x)
    assert cap["a"].steps == [0, 1]


def test_a_function_that_fails_on_a_tapped_value_costs_the_program_nothing(unstrict, x, caplog):
    with tt.capture(keep=lambda value: 1 / 0) as cap:
        for _ in range(3):
            assert tt.tap(x, "x") is x
    assert len(cap) == 0
    assert [one.levelname for one in caplog.records] == ["ERROR"]


def test_a_tapped_value_without_numbers_is_named_and_costs_no_other(x):
    with tt.capture() as cap:
        tt.tap([torch.empty(3, device="meta"), x], "pair")
    assert cap.names == ["pair[1]"]
    assert [one.name for one in cap.missing] == ["pair[0]"]


def test_calls_of_a_tapped_name_are_forgotten_with_their_step(model, x):
    with tt.capture(model, "a", limit=3) as cap:
        for _ in range(50):
            tt.tap(model(x), "loss")
            tt.tap(x, "loss")
    assert len(cap._tap_source._calls) == 1
    assert {record.call for record in cap if record.name == "loss"} <= {0, 1}


def test_after_a_failure_what_is_missing_tells_of_it(unstrict, model, x, caplog):
    with tt.capture(model, keep=lambda value: 1 / 0) as cap:
        model(x)
    assert {one.reason for one in cap.missing} == {
        "the capture was given up: ZeroDivisionError: division by zero"
    }


def test_a_function_gets_the_value_and_leaves_its_result_without_a_graph(model, x):
    with tt.capture(model, "b", keep=lambda value: value.mean()) as cap:
        loss = model(x).sum()
    loss.backward()
    assert not cap["b"].requires_grad
    assert model.a.weight.grad is not None


def test_a_reference_to_what_is_no_tensor_is_the_very_thing():
    stream = io.TextIOWrapper(io.BytesIO())  # it can be detached too, which would be its end
    with tt.capture(keep="ref") as cap:
        tt.tap(stream, "stream")
    assert cap["stream"] is stream
    stream.write("still open")


def test_a_kept_class_has_no_size(model, x):
    with tt.capture(model, "a", keep=type) as cap:
        model(x)
    assert cap["a"] is torch.Tensor


def test_a_tensor_whose_gradient_is_awaited_can_be_saved_without_a_warning(model, x):
    x.requires_grad_()
    with tt.capture(model, "in.x.grad"), warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x)
        torch.save(x, io.BytesIO())


def test_modules_that_are_called_by_themselves_leave_no_growing_list(model, x):
    with tt.capture(model, "a.grad", limit=1) as cap:
        source = cap._source
        for _ in range(source._gradient_handles.maxlen + 5):
            source.keep_handle(model.a(x).register_hook(lambda gradient: None))
        assert len(source._gradient_handles) == source._gradient_handles.maxlen


@pytest.mark.parametrize("when", [tt.every, [tt.changed, tt.first]])
def test_a_rhythm_without_its_number_is_refused(model, when):
    with pytest.raises(TypeError, match="needs a number; give tt"):
        tt.capture(model, when=when)


def test_an_edit_that_was_never_made_is_named_with_its_call(model, x):
    with tt.edit(model, {"a@5": lambda value: value}) as edit:
        model(x)
    assert edit.unused == ["a@5"]


def test_an_edit_that_is_on_is_not_begun_again(model, x):
    edit = tt.edit(model, {"a": lambda value: value * 0})
    with edit:
        with pytest.raises(RuntimeError, match="already on"), edit:
            pass
        assert torch.equal(model(x), model.b.bias.expand(3, 2))
    assert not model.a._forward_hooks
    with edit:
        model(x)


def test_a_value_after_the_step_stands_beside_its_parameter(model, x):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tt.capture(model, "a.weight", "a.weight.after_step") as cap:
        model(x).sum().backward()
        optimizer.step()
    assert re.findall(r"─ (\S*weight\S*)", str(cap)) == ["weight", "weight.after_step"]


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("keep", ["cow", "clone", "stats", "ref"])
def test_a_model_that_is_traced_meanwhile_becomes_the_same_program(model, x, keep):
    def operators(traced):
        return re.findall(r"aten::\w+", str(traced.inlined_graph))

    wanted = operators(torch.jit.trace(model, x))
    with tt.capture(model, "**", "**.in", "a.weight", keep=keep) as cap:
        found = operators(torch.jit.trace(model, x))
    assert found == wanted
    assert "a.weight" in cap.names
