"""How a traced model may be called: within itself and others, from threads, compiled, by several tracers."""

import threading

import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.compat.tensortrace import ModelTracer, stack_tensors, trace_model
from tensortap.stages.reduce import cast, histogram, mean, norm, slice_of


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        hidden = self.linear(x)
        return hidden.relu()


class Deep(nn.Module):
    """Calls itself."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x, depth=2):
        hidden = self.linear(x)
        return self(hidden, depth - 1) if depth else hidden


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def batches(count, first=0):
    return [torch.full((2, 3), float(first + number)) for number in range(count)]


def run(model, count):
    for batch in batches(count):
        model(batch)


# Arguments


def test_the_output_of_the_whole_model_is_traced_on_demand(model):
    with ModelTracer(model, ["linear"], trace_model=True) as tracer:
        run(model, 2)
    assert list(tracer.results) == ["linear", "forward"]
    with ModelTracer(model, ["forward"], trace_model=True) as tracer:
        run(model, 2)
    assert tracer.results["forward"].iterations == [1, 2]


def test_values_of_an_interval_are_stacked_on_demand_before_other_callbacks_get_them(model):
    seen = []

    def look(name, values, iterations, ranks):
        seen.append([tuple(value.shape) for value in values])

    with ModelTracer(
        model, ["forward.x"], stack_tensors=True, post_gather_callbacks=[look], gathering_interval=2
    ) as tracer:
        run(model, 4)
    assert seen == [[(2, 2, 3)], [(2, 2, 3)]]
    assert tracer.results["forward.x"].iterations == [(1, 2), (3, 4)]


def test_a_model_is_called_and_traced_in_one_line(model):
    x = torch.ones(2, 3)
    output, tracer = trace_model(model, ["forward.hidden"], x=x)
    assert torch.equal(output, model(x))
    assert torch.equal(tracer.results["forward.hidden"].values[0], model.linear(x))
    assert tt.trace_model is trace_model


def test_callbacks_may_assign_the_columns_of_results(model):
    def keep_last(name, results):
        results.values = results.values[-1:]
        results.iterations = tuple(results.iterations[-1:])
        results.ranks = [7]

    for where in ("pre_gather_callbacks", "post_gather_callbacks", "post_trace_callbacks"):
        with ModelTracer(model, ["forward.x"], gathering_interval=4, **{where: [keep_last]}) as tracer:
            run(model, 4)
        found = tracer.results["forward.x"]
        assert (len(found.values), found.iterations, found.ranks) == (1, [4], [7])


REDUCTIONS = [mean(0), norm(), histogram(4, (0, 8)), slice_of(0), cast("float16")]


@pytest.mark.parametrize("where", ["pre_save", "pre_gather", "post_gather", "post_trace"])
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=repr)
def test_a_reduction_is_a_callback_anywhere(model, where, reduction):
    with ModelTracer(
        model, ["forward.x"], **{f"{where}_callbacks": [reduction]}, gathering_interval=2
    ) as tracer:
        run(model, 4)
    found = tracer.results["forward.x"]
    assert found.iterations == [1, 2, 3, 4]
    assert all(map(torch.equal, found.values, map(reduction, batches(4))))


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=repr)
def test_a_reduction_says_what_a_capture_keeps(model, reduction):
    x = torch.ones(2, 3)
    with tt.capture(model, "linear", keep=reduction) as cap:
        model(x)
    assert torch.equal(cap["linear"], reduction(model.linear(x)))


# Calls


def test_a_call_within_a_call_belongs_to_the_same_iteration():
    model = Deep()
    with ModelTracer(model, ["forward.x", "linear"]) as tracer:
        run(model, 2)
    for name in ("forward.x", "linear"):
        assert tracer.results[name].iterations == [1, 1, 1, 2, 2, 2]
    first, second, *_ = tracer.results["forward.x"].values
    assert torch.equal(model.linear(first), second)


def test_a_forward_that_was_interrupted_within_itself_does_not_stop_the_count():
    model = Deep()

    def interrupt(module, arguments, output):
        raise KeyboardInterrupt

    with ModelTracer(model, ["forward.x"]) as tracer:
        handle = model.linear.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(model, 1)
        handle.remove()
        run(model, 1)
    assert tracer.results["forward.x"].iterations == [1, 2, 2, 2]


def test_a_model_inside_another_is_counted_by_its_own_tracer(model):
    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) + self.inner(x + 1)

    outer = Outer(model)
    with (
        ModelTracer(outer, ["forward", "inner.forward.x"]) as around,
        ModelTracer(model, ["forward.x"]) as own,
    ):
        run(outer, 2)
    assert around.results["forward"].iterations == [1, 2]
    assert around.results["inner.forward.x"].iterations == [1, 1, 2, 2]
    assert own.results["forward.x"].iterations == [1, 2, 3, 4]


def test_tracers_of_one_model_and_of_two_do_not_disturb_each_other(model):
    other = Net()
    code = Net.forward.__code__
    first, second = ModelTracer(model, ["forward.x"]), ModelTracer(model, ["forward.hidden", "forward.x"])
    with first:
        run(model, 1)
        with second, ModelTracer(other, ["forward.hidden"]) as third:
            run(model, 1)
            run(other, 3)
    assert first.results["forward.x"].iterations == [1, 2]
    assert [second.results[name].iterations for name in ("forward.x", "forward.hidden")] == [[1], [1]]
    assert third.results["forward.hidden"].iterations == [1, 2, 3]
    assert Net.forward.__code__ is code


def test_each_thread_keeps_its_values_under_its_own_iteration(model):
    inside = threading.Barrier(2)

    def meet(module, arguments, output):
        inside.wait(10)  # both are in the middle of a forward now

    def work(first):
        for batch in batches(20, first):
            model(batch)

    model.linear.register_forward_hook(meet)
    with ModelTracer(model, ["forward.x", "forward.hidden"], trace_interval=2) as tracer:
        threads = [threading.Thread(target=work, args=[1000 * number]) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    inputs, hidden = tracer.results["forward.x"], tracer.results["forward.hidden"]
    assert sorted(inputs.iterations) == sorted(hidden.iterations) == list(range(2, 41, 2))
    expected = {
        step: model.linear.forward(x) for step, x in zip(inputs.iterations, inputs.values, strict=True)
    }
    for step, value in zip(hidden.iterations, hidden.values, strict=True):
        assert torch.equal(value, expected[step])


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_any_mode_of_gradients_gives_the_same_values(model, mode):
    with mode(), ModelTracer(model, ["forward", "forward.hidden"]) as tracer:
        output = model(torch.ones(2, 3))
    assert torch.equal(tracer.results["forward"].values[0], output)
    assert not tracer.results["forward"].values[0].requires_grad


@pytest.mark.compile
def test_a_compiled_model_runs_as_plain_python_and_is_compiled_again_afterwards(model):
    compiled = torch.compile(model, backend="eager")
    x = torch.ones(2, 3)
    wanted = compiled(x)
    with ModelTracer(compiled, ["forward", "forward.hidden", "linear"]) as tracer:
        assert torch.equal(compiled(x), wanted)
    assert torch.equal(tracer.results["forward"].values[0], wanted)
    assert torch.equal(tracer.results["forward.hidden"].values[0], tracer.results["linear"].values[0])
    assert torch.equal(compiled(x), wanted)


def test_forwards_of_the_other_mode_do_not_count_towards_gathering(model):
    gathered = []

    def note(name, values, iterations, ranks):
        gathered.append(list(iterations))

    with ModelTracer(
        model, ["forward.x"], train_only=True, gathering_interval=2, post_gather_callbacks=[note]
    ):
        for mode in (True, False, False, True, True):
            model.train(mode)
            run(model, 1)
    assert gathered == [[1, 4], [5]]


def test_every_second_forward_is_traced_and_every_fourth_gathered(model):
    with ModelTracer(
        model, ["forward.x"], trace_interval=2, gathering_interval=4, post_gather_callbacks=[stack_tensors]
    ) as tracer:
        run(model, 8)
    assert tracer.results["forward.x"].iterations == [(2, 4), (6, 8)]


def test_results_can_be_read_while_the_block_runs(model):
    with ModelTracer(model, ["forward.x"]) as tracer:
        run(model, 2)
        assert tracer.results["forward.x"].iterations == [1, 2]
        run(model, 1)
    assert tracer.results["forward.x"].iterations == [1, 2, 3]


def test_the_last_values_before_an_exception_are_kept(model):
    def fail_at_the_end():
        run(model, 6)
        raise ZeroDivisionError

    tracer = ModelTracer(model, ["forward.x"], stack_tensors=True, gathering_interval=4)
    with pytest.raises(ZeroDivisionError), tracer:
        fail_at_the_end()
    assert tracer.results["forward.x"].iterations == [(1, 2, 3, 4), (5, 6)]
