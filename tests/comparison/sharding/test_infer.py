"""How pieces sit in the whole is found from the numbers, and what is not certain is said."""

from collections import Counter

import numpy as np
import pytest
from tests.comparison.shardings import sharding

import tensortap as tt
from tensortap.comparison.sharding.infer import infer_both_placements, infer_placement
from tensortap.comparison.sharding.placement import REPLICATE, ShardPlacement, assemble, candidate_placements
from tensortap.core.record import Record

RANDOM = np.random.default_rng(5)
WHOLE = RANDOM.standard_normal((8, 12, 24))
OTHER = RANDOM.standard_normal(WHOLE.shape)


def test_random_shardings_are_found_and_none_is_wrong_and_certain():
    # The margins were set on seeds below 1500.
    counts = Counter(_outcome(seed) for seed in range(20_000, 20_500))
    assert counts["wrong and certain"] == 0
    assert counts["right"] >= 495


def _outcome(seed):
    whole, pieces, words = sharding(seed)
    found = infer_placement(whole, pieces)
    if found.state != "certain":
        return "open"
    truth = [
        way for way in candidate_placements([one.shape for one in pieces], whole.shape) if str(way) == words
    ]
    made = assemble(found.placement, pieces)[0]
    # Ways that give the same whole are the same: of few rows, a zigzag may be no other order.
    is_same = any(np.allclose(made, assemble(way, pieces)[0], rtol=0, atol=1e-9) for way in truth)
    return "right" if is_same else "wrong and certain"


def test_averaging_copies_is_no_explanation():
    copies = [WHOLE + 0.03 * np.random.default_rng(n).standard_normal(WHOLE.shape) for n in range(4)]
    assert (infer_placement(WHOLE, copies).state, infer_placement(WHOLE, copies).placement) == (
        "certain",
        REPLICATE,
    )


def test_a_piece_that_is_wrong_does_not_change_the_placement():
    pieces = np.split(WHOLE, 4, 2)
    pieces[2] = np.split(OTHER, 4, 2)[2]
    found = infer_placement(WHOLE, pieces)
    assert (found.state, str(found.placement), found.misfits) == ("certain", "shard(2)", (2,))


def test_equal_copies_of_something_else_are_copies():
    assert infer_placement(WHOLE, [OTHER, OTHER]).placement == REPLICATE


def test_equal_copies_are_no_sum_though_that_is_nearer():
    doubled = 1.9 * WHOLE + 0.1 * OTHER
    assert infer_placement(doubled, [WHOLE, WHOLE]).placement == REPLICATE
    assert str(infer_placement(2 * WHOLE, [WHOLE, WHOLE]).placement) == "partial(sum)"


def test_where_nothing_explains_the_numbers_only_the_shapes_speak():
    found = infer_placement(WHOLE, np.split(OTHER, 4, 1))
    assert (found.state, str(found.placement)) == ("assumed", "shard(1)")
    assert infer_placement(WHOLE, [OTHER, WHOLE[::-1]]).state == "assumed"
    assert infer_placement(WHOLE, [OTHER[:3, :3], OTHER[:2]]).state == "unexplained"


def test_two_ways_that_explain_it_equally_well_are_both_named():
    # Its halves are alike up to a hundredth, so that the order of ranks and a zigzag leave about the same.
    row = 1 + 0.01 * RANDOM.standard_normal(16)
    found = infer_placement(
        row, [row[:8] + 0.02 * RANDOM.standard_normal(8), row[8:] + 0.02 * RANDOM.standard_normal(8)]
    )
    assert found.state == "ambiguous"
    assert not found.is_usable
    assert str(found).startswith("ambiguous: shard(0) leaves")
    assert "zigzag" in str(found)


def test_ways_that_give_the_same_whole_are_no_conflict():
    assert str(infer_placement(np.ones(8), [np.ones(4)] * 2).placement) == "shard(0)"
    assert infer_placement(np.zeros((4, 4)), [np.zeros((4, 4))] * 2).state == "certain"


def test_what_is_not_finite_counts_like_any_number():
    holed = np.where(RANDOM.random(WHOLE.shape) < 0.3, -np.inf, WHOLE)
    assert str(infer_placement(holed, np.split(holed, 4, 1)).placement) == "shard(1)"


def test_padding_behind_the_last_shard_is_cut_off():
    padded = np.concatenate([WHOLE, np.zeros((8, 12, 4))], 2)
    found = infer_placement(WHOLE, np.split(padded, 4, 2))
    assert str(found.placement) == "shard(2) with 4 of padding"
    assert np.array_equal(assemble(found.placement, np.split(padded, 4, 2))[0], WHOLE)


def test_numbers_behind_the_last_shard_are_no_padding():
    more = np.concatenate([WHOLE, np.random.default_rng(1).standard_normal((8, 12, 4))], 2)
    found = infer_placement(WHOLE, np.split(more, 4, 2))
    assert (found.state, found.is_usable) == ("unexplained", False)


def test_two_sides_that_are_both_cut_find_each_other():
    way, placing = infer_both_placements(np.split(WHOLE, 2, 1), np.split(WHOLE, 4, 2))
    assert (str(way), str(placing.placement)) == ("shard(1)", "shard(2)")
    assert infer_both_placements(np.split(WHOLE, 2, 1), np.split(OTHER, 4, 2)) == "no way explains both"


def test_pieces_that_do_not_fit_a_way_are_refused():
    with pytest.raises(ValueError, match="do not make a whole by"):
        assemble(ShardPlacement("zigzag"), [np.ones(3), np.ones(9)])


@pytest.mark.parametrize("first", [0, 2**31, 2**60, -(2**62)])
def test_large_integers_are_told_apart(first):
    whole = np.arange(24).reshape(2, 12) + first
    quarters = np.split(whole, 4, 1)
    pieces = [np.concatenate([quarters[i], quarters[3 - i]], 1) for i in (0, 1)]
    found = infer_placement(whole, pieces)
    assert (str(found.placement), found.state) == ("shard(1) zigzag", "certain")
    assert str(infer_placement(whole, np.split(whole, 2, 1)).placement) == "shard(1)"
    both = [[Record("ids", whole)], [Record("ids", piece, rank=rank) for rank, piece in enumerate(pieces)]]
    assert tt.compare_runs(*both).exit_code == 0
