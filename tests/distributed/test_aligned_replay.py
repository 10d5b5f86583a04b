"""A model whose ranks share the work is replayed with the whole one's values, each rank with its piece."""

import pytest

MODEL = """
    rank = join_group()
    import copy
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x):
            return x + self.down(self.up(self.norm(x)).relu())

    torch.manual_seed(0)
    whole, batch = nn.Sequential(Block(), Block(), Block()), (torch.randn(6, 8),)

    def shared(is_local):
        model = copy.deepcopy(whole)
        for block in model:
            style = {"up": ColwiseParallel(use_local_output=is_local), "down": RowwiseParallel()}
            parallelize_module(block, mesh, style)
        return model

    def told(found):
        return {
            "origins": [one.name for one in found.origins],
            "is_green": found.is_green,
            "notes": list(found.notes),
            "pairs": found.coverage.pairs,
            "gate": {one.what: one.text for one in found.gate},
        }
"""
ENDED = """
    tell(rank=rank, **answers)
    leave_group()
"""
REPLAYED = """
    answers = {}
    for is_local in (True, False):
        model = shared(is_local)
        answers[f"clean {is_local}"] = told(tt.align(whole, model, batch))
        with torch.no_grad():
            if rank == 1:
                model[1].up.bias.to_local()[3] += 0.1  # of the piece of one rank alone
            model[2].norm.weight += 0.05
        answers[f"broken {is_local}"] = told(tt.align(whole, model, batch))
"""
PARTIAL = """
    class Unreduced(Block):
        def forward(self, x):
            return x + self.down(self.up(self.norm(x)).relu()).full_tensor()

    model = shared(True)
    # The result of the first is left as a sum that the ranks have yet to make.
    model[0].__class__ = Unreduced
    style = RowwiseParallel(output_layouts=Partial(), use_local_output=False)
    model[0].down = parallelize_module(nn.Linear(32, 8, bias=False), mesh, style)
    answers["partial"] = told(tt.align(whole, model, batch))
"""


@pytest.fixture(scope="module")
def replayed(run_ranks, tmp_path_factory):
    reports = run_ranks(tmp_path_factory.mktemp("replayed"), MODEL + REPLAYED + PARTIAL + ENDED, 2)
    return {one["rank"]: one for one in reports}


@pytest.mark.parametrize("is_local", [True, False], ids=["plain", "distributed"])
def test_ranks_that_share_the_work_are_the_whole_model(replayed, is_local):
    for rank in (0, 1):
        found = replayed[rank][f"clean {is_local}"]
        assert found["is_green"]
        assert (found["pairs"], found["notes"]) == (26, [])
        assert found["gate"]["weights"] == "all 18 weights are equal"


@pytest.mark.parametrize("is_local", [True, False], ids=["plain", "distributed"])
def test_all_faults_are_found_each_on_the_ranks_that_have_it(replayed, is_local):
    assert replayed[0][f"broken {is_local}"]["origins"] == ["2.norm"]
    assert replayed[1][f"broken {is_local}"]["origins"] == ["1.up", "2.norm"]
    assert "2 of 18 weights differ: 1.up.bias" in replayed[1][f"broken {is_local}"]["gate"]["weights"]


def test_a_sum_that_is_yet_to_be_made_is_named_and_not_replaced(replayed):
    found = replayed[0]["partial"]
    told = "0.down was not replaced: it is partial(sum) here, of which only all ranks together are the whole"
    assert told in found["notes"]
    assert not found["is_green"]
