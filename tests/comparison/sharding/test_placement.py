"""How pieces sit in the whole can be said, in the words of the report; what the numbers say is told."""

import numpy as np
import pytest

import tensortap as tt
from tensortap.comparison.sharding.placement import parse_placement
from tensortap.core.record import Record

RANDOM = np.random.default_rng(8)
UP = RANDOM.standard_normal((4, 16)).astype(np.float32)
QUARTERS = np.split(UP, 4, 1)
# Nearly constant: whichever way pieces are put together, about the same is left.
NOISE = np.random.default_rng(0)
FLAT = 1 + 0.01 * NOISE.standard_normal(16)
HELD = [half + 0.02 * NOISE.standard_normal(8) for half in np.split(FLAT, 2)]


def ranks(pieces, name="layer.up"):
    return [Record(name, piece, "output", rank=rank) for rank, piece in enumerate(pieces)]


def one(value, name="layer.up"):
    return [Record(name, value, "output")]


WAYS = {
    "replicate": [UP, UP],
    "shard(1)": np.split(UP, 2, 1),
    "shard(-1)": np.split(UP, 2, 1),
    "shard(0)": np.split(UP, 2, 0),
    "partial(sum)": [UP * np.float32(0.25), UP * np.float32(0.75)],
    "partial(mean)": [UP * np.float32(0.5), UP * np.float32(1.5)],
    "shard(1) zigzag": [np.concatenate([QUARTERS[at], QUARTERS[3 - at]], 1) for at in (0, 1)],
    "shard(1) fused 1:1": [np.concatenate(QUARTERS[at::2], 1) for at in (0, 1)],
}


@pytest.mark.parametrize("words", WAYS)
def test_pieces_are_put_together_as_was_declared(words):
    found = tt.compare_runs(one(UP), ranks(WAYS[words]), dims={"**.up": words})
    assert (found.first, found.exit_code) == (None, 0)
    called = words.replace("-1", "1")
    told = found.explain("layer.up").splitlines()[2]
    assert told == f"  B: 2 pieces of ranks 0, 1 are {called}, as was declared"


def test_what_would_be_ambiguous_is_settled_by_a_word():
    assert tt.compare_runs(one(FLAT), ranks(HELD)).counts == {"unaligned": 1}
    found = tt.compare_runs(one(FLAT), ranks(HELD), dims={"layer.up": "shard(0)"})
    assert (found.counts, found.plans[0].summary) == ({"origin": 1}, "shard(0)")


@pytest.mark.parametrize("is_file", [True, False])
def test_a_map_says_it_too(tmp_path, is_file):
    given = {"placement": [{"of": "layer.*", "is": "shard(0)"}]}
    if is_file:
        given = tmp_path / "rules.toml"
        given.write_text('[[placement]]\nof = "layer.*"\nis = "shard(0)"\n')
    found = tt.compare_runs(one(FLAT), ranks(HELD), map=given)
    assert "are shard(0), as was declared" in found.explain("layer.up")


def test_both_sides_in_pieces_are_put_together_as_was_declared():
    found = tt.compare_runs(ranks(np.split(UP, 2, 1)), ranks(QUARTERS), dims={"**": "shard(1)"})
    assert found.counts == {"identical": 1}


def test_numbers_that_contradict_a_declaration_are_told_and_stay_a_difference():
    found = tt.compare_runs(one(UP), ranks(WAYS["shard(1) zigzag"]), dims={"**.up": "shard(1)"})
    assert found.first.seen_at == "layer.up"
    told = "the numbers contradict it, they are shard(1) zigzag (leaves 0 of the whole"
    assert told in found.explain("layer.up")


@pytest.mark.parametrize("words", ["replicate", "partial(sum)", "shard(2)", "shard(0)", "shard(1) fused 3:1"])
def test_pieces_that_make_no_whole_as_was_declared_are_not_aligned(words):
    found = tt.compare_runs(one(UP), ranks([UP[:, :5], UP[:, 5:]]), dims={"**.up": words})
    assert (found.first, found.exit_code) == (None, 3)
    (told,) = found.coverage.unaligned
    assert f"layer.up was declared as {words}, by which pieces of [4, 5], [4, 11] make no whole" in told


def test_a_declaration_that_means_no_name_is_told():
    found = tt.compare_runs(one(UP), ranks([UP, UP]), dims={"**.down": "replicate"})
    assert "the placement of '**.down' matches no name of either side" in found.notes


def test_a_reference_of_several_ranks_is_replayed_as_was_declared():
    import torch

    model, x = torch.nn.Sequential(torch.nn.Linear(8, 16)), torch.randn(4, 8)
    with torch.no_grad():
        pieces = ranks(model(x).chunk(2, 1), "0")
    found = tt.align(pieces, model, (x,), map={"placement": [{"of": "0", "is": "shard(1)"}]})
    assert "as was declared" in found.explain("0")
    assert found.counts == {"identical": 1}


WRONG = ["banana", "shard", "shard(x)", "partial(max)", "shard(1) fused 1", "", None, 1]


@pytest.mark.parametrize("words", WRONG)
def test_other_words_are_refused_with_those_that_exist(words):
    with pytest.raises(ValueError, match="says nothing of how pieces sit in a whole; say replicate, shard"):
        parse_placement(words)


def test_bad_declarations_are_refused():
    with pytest.raises(TypeError, match="dims are a dict from patterns to words"):
        tt.compare_runs(one(UP), one(UP), dims=["shard(1)"])
    for table in ({"of": "x"}, {"of": 1, "is": "shard(1)"}, "x"):
        with pytest.raises(ValueError, match=r"the map has a placement .*; write \[\[placement\]\] tables"):
            tt.compare_runs(one(UP), one(UP), map={"placement": [table]})
