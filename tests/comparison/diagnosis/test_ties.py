"""A decision on a near tie falls otherwise by noise alone: nobody is to blame for that, but for all else."""

import math

import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.comparison.noise.floor import Floor
from tensortap.comparison.values.noise import Noise
from tensortap.core.record import Record

TIED = 3  # the token whose two best experts have the same score, but for the last digits


class Router(nn.Module):
    shift = 0

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 8))

    def forward(self, x):
        scores = x @ self.weight.T
        return scores, (scores.argmax(-1, keepdim=True) + self.shift) % 3


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(3, 8, 8))
        self.act = nn.Tanh()

    def forward(self, x, chosen):
        made = torch.zeros_like(x)
        for expert, weight in enumerate(self.weights):
            rows = (chosen[:, 0] == expert).nonzero()[:, 0]
            made[rows] = self.act(x[rows] @ weight)
        return made


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts, self.head = Router(), Experts(), nn.Linear(8, 8)

    def forward(self, x):
        _, chosen = self.router(x)
        return self.head(x + self.experts(x, chosen))


def build():
    torch.manual_seed(0)
    model = Mixture().double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
        # The first two experts differ in one feature alone, which the tied token does not have.
        model.router.weight[1] = model.router.weight[0]
        model.router.weight[1, 7] += 1
        model.router.weight[2] = 0
    return model


def tokens(model, nudge=0.0):
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.where((x @ model.router.weight[0].detach() > 0)[:, None], x, -x)  # away from the third expert
    x[TIED, 7] = 1e-9
    x[TIED, 7] -= nudge
    return x


def captured(model, x):
    with tt.capture(model, "**", "**.in") as found, torch.no_grad():
        model(x)
    return found


def captured_backward(model, x):
    with tt.capture(model, "**", "**.in", "**.grad") as found:
        (model(x.requires_grad_()) * torch.arange(96.0).view(12, 8)).sum().backward()
    return found


def compared(change=lambda model: None, nudge=2e-9, captured=captured):
    model, other = build(), build()
    change(other)
    right = captured(model, tokens(model))
    keys = {(one.name, 0, call, 0) for one in right for call in range(3)}
    floor = Floor(dict.fromkeys(keys, Noise(1e-8, 1e-8, 1e-8, "ulp")), 4.0, ("ulp",))
    return tt.compare_runs(right, captured(other, tokens(model, nudge)), floor=floor)


def test_a_near_tie_that_falls_otherwise_accuses_nobody():
    found = compared()
    decisions = next(one for one in found.table if one.name == "router[1]")
    assert (decisions.verdict, decisions.metrics.mismatches) == ("within noise", 1)
    assert "near ties: router[0] decides by margins" in decisions.note
    assert (found.first, found.is_different) == (None, False)


def test_what_lies_behind_a_tie_is_a_gap_and_never_green():
    found = compared()
    assert (found.is_green, found.exit_code) == (False, 3)
    assert "INCOMPLETE: within noise in what could be compared" in str(found)
    assert f"gap: {found.coverage.behind_ties} differ more, behind near ties" in str(found)
    assert found.to_json()["coverage"]["behind_ties"] == found.coverage.behind_ties > 0


def test_what_only_its_row_changed_is_inherited_from_the_tie():
    found = compared()
    experts = next(one for one in found.table if one.name == "experts")
    assert (experts.verdict, experts.source) == ("drift", "experts.in.chosen")
    assert "only where experts.in.chosen falls otherwise" in experts.note


def test_what_is_sorted_by_the_decisions_is_not_compared_row_by_row():
    found = compared()
    sorted_rows = [one for one in found.table if one.name == "experts.act"]
    assert {one.verdict for one in sorted_rows} == {"within noise", "identical"}
    assert any(one.metrics.reason.startswith("shapes differ") for one in sorted_rows)


def test_gradients_of_what_is_sorted_by_the_decisions_are_not_compared_row_by_row_either():
    found = compared(captured=captured_backward)
    gradients = [one for one in found.table if one.name == "experts.act.grad"]
    assert any(one.metrics.reason.startswith("shapes differ") for one in gradients)
    assert {one.verdict for one in gradients} <= {"within noise", "identical"}
    assert (found.first, found.is_different) == (None, False)


def test_a_decision_that_no_tie_explains_is_an_origin():
    found = compared(lambda model: setattr(model.router, "shift", 1), nudge=0.0)
    assert (found.first.name, found.first.verdict, found.exit_code) == ("router", "flip", 1)


def test_a_wrong_expert_is_found_beside_a_tie():
    def change(model):
        with torch.no_grad():
            model.experts.weights[0] *= 1.01

    found = compared(change)
    assert (found.first.name, found.first.seen_at) == ("experts", "experts")


def test_a_nan_inside_is_found_beside_a_tie():
    def change(model):
        plain = model.experts.act.forward
        model.experts.act.forward = lambda x: plain(x) * math.nan

    found = compared(change)
    assert (found.first.verdict, found.exit_code) == ("nonfinite", 1)
    assert found.first.name.startswith("experts")


@pytest.mark.parametrize("rows", [4, 5])
def test_what_changes_its_shape_in_a_twin_has_at_least_the_noise_of_what_came_before(rows):
    def run(noise, rows):
        x = torch.linspace(1, 2, 512, dtype=torch.float64).reshape(8, 64)
        inner = torch.ones(rows, 64, dtype=torch.float64)
        return [Record("x", x * (1 + noise), "output"), Record("inner", inner, "output", order=1)]

    floor = Floor.from_runs([run(0.0, 4), run(0.0, 4), run(1e-6, rows)])
    noise = {key[0]: one for key, one in floor.noise.items()}
    assert noise["x"].relative_l2 == pytest.approx(1e-6, rel=1e-3)
    assert (noise["inner"].relative_l2 == noise["x"].relative_l2) is (rows == 5)


def test_what_was_given_is_not_decided_by_what_was_made_of_it():
    def run(chosen, moved):
        scores = torch.tensor([[1.0 + moved, 1.0, 0.0]] * 4, dtype=torch.float64)
        ids = torch.tensor([chosen] * 4)
        return [Record("in.ids", ids, "input"), Record("out.scores", scores, "output", order=1)]

    found = tt.compare_runs(run(0, 1e-13), run(1, -1e-13))
    assert (found.first.name, found.first.kind, found.first.verdict) == ("in.ids", "data", "flip")
    assert "out.scores" not in found.first.note
