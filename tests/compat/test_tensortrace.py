"""TensorTracer under its own names: paths, callbacks, iterations, and the documented shapes."""

import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.compat.tensortrace import H5PYSaverCallback, ModelTracer, stack_padded_tensors, stack_tensors


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = nn.Linear(3, 2)
        self.constant = torch.ones(2)

    def forward(self, x):
        kept = self.constant
        hs = [self.sub(x)]
        hs.append(hs[0] * 2)
        d = {1: hs[0], "k": kept}
        return {"out": hs[1], "d": d}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


def run(model, count=8):
    batches = [torch.randn(5, 3) for _ in range(count)]
    for batch in batches:
        model(batch)
    return batches


def test_results_hold_values_iterations_and_ranks_by_path(model):
    with ModelTracer(model, ["forward.x", "forward.hs.0", "forward.d.1", "sub"]) as tracer:
        batches = run(model, 3)
    found = tracer.results["forward.x"]
    assert (found.iterations, found.ranks) == ([1, 2, 3], [0, 0, 0])
    assert all(map(torch.equal, found.values, batches))
    assert torch.equal(tracer.results["forward.hs.0"].values[2], tracer.results["sub"].values[2])
    assert torch.equal(tracer.results["forward.d.1"].values[0], tracer.results["sub"].values[0])


def test_a_returned_structure_is_one_value_of_snapshots(model):
    with ModelTracer(model, ["forward"]) as tracer:
        (batch,) = run(model, 1)
    (value,) = tracer.results["forward"].values
    assert list(value) == ["out", "d"]
    assert torch.equal(value["out"], model(batch)["out"])


def test_only_what_changed_is_kept_with_its_iteration(model):
    with ModelTracer(model, ["forward.kept"]) as tracer:
        run(model, 3)
        model.constant.add_(1)
        run(model, 2)
    found = tracer.results["forward.kept"]
    assert found.iterations == [1, 4]
    assert [value[0].item() for value in found.values] == [1.0, 2.0]


def test_an_attribute_of_the_module_is_seen_as_it_is_when_the_function_returns(model):
    with ModelTracer(model, ["forward.self.constant"]) as tracer:
        run(model, 2)
        model.constant.mul_(3)
        run(model, 1)
    assert tracer.results["forward.self.constant"].iterations == [1, 3]
    assert tracer.results["forward.self.constant"].values[1].tolist() == [3, 3]


def test_stacking_before_after_and_at_the_end_gives_the_documented_shape(model):
    stacked = [stack_padded_tensors]
    with ModelTracer(
        model,
        ["forward.x"],
        pre_gather_callbacks=stacked,
        post_gather_callbacks=stacked,
        post_trace_callbacks=stacked,
        gathering_interval=4,
    ) as tracer:
        run(model, 8)
    assert tracer.results["forward.x"].values[0].shape == (2, 1, 4, 5, 3)


def test_a_mean_over_each_interval(model):
    def mean_post_gather(name, values, iterations, ranks):
        values[0] = values[0].mean(dim=(0, 1))

    with ModelTracer(
        model,
        ["forward.x"],
        post_gather_callbacks=[stack_padded_tensors, mean_post_gather],
        post_trace_callbacks=[stack_padded_tensors],
        gathering_interval=4,
    ) as tracer:
        batches = run(model, 8)
    found = tracer.results["forward.x"].values[0]
    assert found.shape == (2, 3)
    assert torch.allclose(found[0], torch.stack(batches[:4]).mean(dim=(0, 1)))


def test_values_move_into_a_file_as_they_are_gathered(model, tmp_path):
    saver = H5PYSaverCallback(dataset_file=tmp_path / "test.h5")
    with ModelTracer(
        model, ["forward.x"], post_gather_callbacks=[stack_padded_tensors, saver], gathering_interval=2
    ) as tracer:
        batches = run(model, 8)
    assert saver.datasets["forward.x"].shape == (4, 2, 5, 3)
    assert (saver.datasets["forward.x"][0, 1] == batches[1].numpy()).all()
    assert tracer.results == {}
    saver.close()


def test_the_leftover_is_gathered_unless_it_is_dropped(model):
    for drop_last, parts in ((False, [4, 4, 1]), (True, [4, 4])):
        with ModelTracer(
            model,
            ["forward.x"],
            post_gather_callbacks=[stack_tensors],
            gathering_interval=4,
            drop_last=drop_last,
        ) as tracer:
            run(model, 9)
        assert [len(value) for value in tracer.results["forward.x"].values] == parts


def test_training_and_evaluation_can_be_told_apart(model):
    for arguments, iterations in (({"train_only": True}, [1, 2]), ({"eval_only": True}, [3, 4])):
        with ModelTracer(model.train(), ["forward.x"], **arguments) as tracer:
            run(model, 2)
            model.eval()
            run(model, 2)
        assert tracer.results["forward.x"].iterations == iterations


def test_values_can_be_changed_as_they_are_saved_and_iterations_left_out(model):
    with ModelTracer(
        model,
        ["forward.x"],
        pre_save_callbacks=[lambda name, value, iteration: value.sum() * 0 + iteration],
        trace_interval=2,
    ) as tracer:
        run(model, 5)
    assert tracer.results["forward.x"].iterations == [2, 4]
    assert [value.item() for value in tracer.results["forward.x"].values] == [2.0, 4.0]


def test_records_also_flow_into_a_tap_of_the_users(model):
    memory = tt.Memory()
    with ModelTracer(model, ["forward.x"], tap=tt.Tap(sinks=[memory])):
        run(model, 2)
    assert memory.series["forward.x"].steps == [1, 2]


def test_bad_paths_and_contradictions_get_a_sentence(model):
    with pytest.raises(tt.UnknownModuleError, match=r"Net\.forward has no variable 'y'"):
        ModelTracer(model, ["forward.y"])
    with pytest.raises(ValueError, match="train_only and eval_only leave nothing to trace"):
        ModelTracer(model, ["forward"], train_only=True, eval_only=True)


def test_an_exception_in_the_block_leaves_the_model_as_it_was(model):
    code = Net.forward.__code__

    def fail(*_):
        raise ZeroDivisionError

    model.sub.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError), ModelTracer(model, ["forward.x"]) as tracer:
        run(model, 1)
    assert Net.forward.__code__ is code
    assert tracer.results["forward.x"].iterations == [1]
