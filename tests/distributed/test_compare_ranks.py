"""Runs of two ranks against each other: which rank went wrong, and where."""

import pytest

import tensortap as tt

CODE = """
rank = join_group()
torch.manual_seed(0)
nn = torch.nn

class Row(nn.Module):
    # A linear layer cut along its inputs: each rank has a part of the sum.
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(8, 16, bias=False)
        self.bias = nn.Parameter(torch.ones(16))
        self.fault = None

    def forward(self, x):
        part = self.part(x.chunk(2, -1)[rank])
        if self.fault == "scaled on rank 1" and rank == 1:
            part = part * 1.01
        if self.fault == "bias on every rank":
            part = part + self.bias
        dist.all_reduce(part)
        return part if self.fault == "bias on every rank" else part + self.bias

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.row, self.last = nn.Linear(16, 16), Row(), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.relu(self.row(self.first(x))))

model, x = Net(), torch.randn(6, 16)
with torch.no_grad():
    model.row.part.weight.mul_(1 + rank)
runs = {}
for fault in (None, "again", "scaled on rank 1", "bias on every rank"):
    model.row.fault = fault
    folder = base / str(fault).replace(" ", "_")
    with tt.capture(model, "**", "**.in", to=folder) as cap, torch.no_grad():
        model(x)
    runs[str(fault)] = str(cap.run)
tell(**runs)
leave_group()
"""


@pytest.fixture(scope="module")
def runs(run_ranks, tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("ranks"), CODE, 2)[0]


def test_the_same_twice_is_identical_on_both_ranks(runs):
    found = tt.compare_runs(runs["None"], runs["again"])
    assert found.is_green
    assert {one.rank for one in found.table} == {0, 1}


@pytest.mark.parametrize("fault", ["scaled on rank 1", "bias on every rank"])
def test_a_fault_before_a_collective_is_the_modules_that_calls_it(runs, fault):
    found = tt.compare_runs(runs["None"], runs[fault], floor=[runs["again"]])
    assert found.first.name == "row"
    assert {one.name for one in found.origins} == {"row"}
    assert {one.rank for one in found.origins} == {0, 1}


def test_one_rank_can_be_looked_at_alone(runs):
    found = tt.compare_runs(runs["None"], runs["scaled on rank 1"], rank=1)
    assert {one.rank for one in found.table} == {1}
    assert (found.first.name, found.first.rank) == ("row", 1)
