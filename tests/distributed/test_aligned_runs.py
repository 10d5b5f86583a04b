"""Runs of two real ranks against the run of one process: noise is noise, and a lost reduction is located."""

from pathlib import Path

import pytest
import torch
from torch import nn

import tensortap as tt

# Nothing here says how a piece sits in the whole: plain tensors of plain modules.
SLICED = """
    rank = join_group()
    from torch import nn

    class Down(nn.Linear):
        broken = False

        def forward(self, input):
            made = nn.functional.linear(input, self.weight)
            if not self.broken:
                dist.all_reduce(made)
            return made + self.bias

    def sliced(model):
        for block in model.layers:
            up, down = block.up, block.down
            rows = slice(16 * rank, 16 * rank + 16)
            block.up, block.down = nn.Linear(8, 16), Down(16, 8)
            block.up.weight.data, block.up.bias.data = up.weight.data[rows], up.bias.data[rows]
            block.down.weight.data, block.down.bias.data = down.weight.data[:, rows], down.bias.data
        return model
"""
MODEL = """
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x):
            return x + self.down(self.up(self.norm(x)).relu())

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Block(), Block(), Block()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    def built():
        torch.manual_seed(0)
        return Model(), torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
"""
CAPTURED = """
    for way, is_broken in (("right", False), ("broken", True)):
        model, batch = built()
        model = sliced(model)
        model.layers[1].down.broken = is_broken
        with torch.no_grad(), tt.capture(model, "**", "**.in", to=base / way):
            model(batch)
    tell(rank=rank)
    leave_group()
"""


@pytest.fixture(scope="module")
def runs(run_ranks, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sliced")
    run_ranks(folder, SLICED + MODEL + CAPTURED, 2)
    return folder / "runs"


@pytest.fixture(scope="module")
def whole():
    known = {"nn": nn, "torch": torch}
    exec("if True:\n" + MODEL, known)
    model, batch = known["built"]()
    model.batch = batch
    with torch.no_grad(), tt.capture(model, "**", "**.in") as captured:
        model(batch)
    return captured


def test_a_tensor_parallel_run_is_noise_against_the_whole_model(runs, whole):
    found = tt.compare_runs(whole, runs / "right")
    assert (found.first, found.exit_code) == (None, 0)
    words = {plan.name: plan.summary for plan in found.plans}
    assert words["layers.0.up"] == "shard(1)"
    assert words["layers.0.down.in.input"] == "shard(1)"
    assert words["layers.0.down"] == words["layers.2.norm"] == "replicate"


def test_a_reduction_that_was_forgotten_is_located(runs, whole):
    found = tt.compare_runs(whole, runs / "broken")
    assert found.first.name == "layers.1.down"
    assert "its 2 copies are not equal" in found.explain("layers.1.down")
    assert all(one.verdict in ("identical", "within noise") for one in found.table if "layers.0" in one.name)


def test_weights_of_which_a_rank_has_a_piece_are_not_said_to_differ(runs, whole, tmp_path):
    with torch.no_grad(), tt.capture(whole.model, "**", "**.in", to=tmp_path) as captured:
        whole.model(whole.model.batch)
    (weights,) = (one for one in tt.compare_runs(captured, runs / "right").gate if one.what == "weights")
    assert weights.state == "unknown"
    assert weights.text == "9 of 18 weights are in pieces on one side, and were not compared"
