"""The same numbers in another arrangement are told as equal up to what, and tokens meet their own."""

from html import escape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensortap as tt
from tensortap.comparison.alignment.tokens import match_tokens
from tensortap.comparison.layout.heads import find_head_order
from tensortap.comparison.layout.layouts import apply_ops, find_layout, known_orders
from tensortap.comparison.layout.sampling import SampledFit
from tensortap.core.record import Record

RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((2, 5, 24)).astype(np.float32)
HEADS = X.reshape(2, 5, 3, 8)
QKV = RANDOM.standard_normal((3, 4, 2, 6)).astype(np.float32)
CASES = {
    "axes": (X, X.transpose(1, 0, 2), "the order of axes [1, 0, 2]"),
    "shape": (X, X.reshape(10, 24), "its shape"),
    "heads": (X, HEADS.transpose(0, 2, 1, 3), "the order of axes [0, 2, 1, 3] and its shape"),
    "behind": (X, np.pad(X, ((0, 0), (0, 3), (0, 0))), "padding in B: 3 of axis 1 at its end"),
    "before": (np.pad(X, ((0, 0), (3, 0), (0, 0))), X, "padding in A: 3 of axis 1 at its beginning"),
    "rotary": (
        X,
        HEADS.reshape(2, 5, 3, 2, 4).swapaxes(3, 4).reshape(X.shape),
        "halves (A) against turns (B) in rotary heads of 8, along axis 2",
    ),
    "fused": (
        QKV.reshape(24, 6),
        QKV.transpose(1, 0, 2, 3).reshape(24, 6),
        "query, key and value fused in sections (A) against 4 groups (B), along axis 0",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_another_layout_is_found(case, noise):
    a, b, words = CASES[case]
    found = find_layout(a, b + noise * RANDOM.standard_normal(b.shape))
    assert str(found) == f"equal up to {words}"
    assert apply_ops(found.layout.a, a).shape == apply_ops(found.layout.b, b).shape


@pytest.mark.parametrize("case", CASES)
def test_it_is_compared_in_one_layout_and_said(case):
    a, b, words = CASES[case]
    found = tt.compare_runs({"x": a}, {"x": np.ascontiguousarray(b)})
    assert (found.first, found.exit_code) == (None, 0)
    assert "IDENTICAL, up to layouts" in str(found)
    assert f"equal up to {words}: x" in str(found)
    assert f"equal up to {escape(words)}: x" in found.to_html()
    assert f"  equal up to {words}" in found.explain("x").splitlines()
    assert found.to_json()["pairs"][0]["plan"] == [f"equal up to {words}"]


def test_a_difference_within_another_layout_is_a_difference():
    wrong = X.transpose(1, 0, 2).copy()
    wrong[3] *= 1.01
    found = tt.compare_runs({"x": X}, {"x": wrong})
    assert found.first.verdict == "origin"


def test_other_numbers_have_no_layout():
    other = RANDOM.standard_normal(X.shape)
    assert (
        str(find_layout(X, other)) == str(find_layout(X, other.transpose(1, 0, 2))) == "no layout explains it"
    )
    assert find_layout(X, X).layouts == find_layout(np.ones((3, 4)), np.ones((4, 3))).layouts == ()


def test_a_transposed_square_stays_a_difference():
    square = RANDOM.standard_normal((8, 8)).astype(np.float32)
    found = tt.compare_runs({"x": square}, {"x": square.T.copy()})
    assert found.first.verdict == "origin"
    assert "the difference: B is A up to a transposition" in found.explain("x")


def test_two_heads_that_changed_places_stay_a_difference():
    mixed = HEADS[:, :, [1, 0, 2]].reshape(X.shape)
    assert tt.compare_runs({"x": X}, {"x": mixed}).first.verdict == "origin"
    four = X[..., :16].reshape(2, 5, 4, 4)
    assert tt.compare_runs(
        {"x": four.reshape(2, 5, 16)}, {"x": four[:, :, [0, 2, 1, 3]].reshape(2, 5, 16)}
    ).first


def test_rows_that_may_be_at_either_end_are_not_guessed():
    rows = RANDOM.standard_normal((4, 8))
    twice = np.concatenate([rows, rows]) + 0.02 * RANDOM.standard_normal((8, 8))
    words = [f"what only B has: 4 of 8 along axis 0 at its {end}" for end in ("end", "beginning")]
    assert str(find_layout(rows, twice)) == f"ambiguous: equal up to {words[0]} or {words[1]}"
    found = tt.compare_runs({"x": rows}, {"x": twice})
    assert (found.counts, found.exit_code) == ({"unaligned": 1}, 3)
    assert found.coverage.unaligned == (f"x: ambiguous: equal up to {words[0]} or {words[1]}",)
    assert f"  ambiguous: equal up to {words[0]} or {words[1]}" in found.explain("x").splitlines()


ONLY = {
    "sequences": (X[:1], "1 of 2 along axis 0 at its end"),
    "tokens": (X[:, 2:], "2 of 5 along axis 1 at its beginning"),
    "width": (X[..., :8], "16 of 24 along axis 2 at its end"),
    "both": (X[:1, :3], "1 of 2 along axis 0 at its end, 2 of 5 along axis 1 at its end"),
}


@pytest.mark.parametrize("case", ONLY)
@pytest.mark.parametrize("kind", ["value", "output"])
def test_what_one_side_dropped_is_no_padding_and_never_green(case, kind):
    rest, words = ONLY[case]
    sides = [[Record("x", value, kind)] for value in (X, np.ascontiguousarray(rest))]
    for (a, b), where in ((sides, "A"), (sides[::-1], "B")):
        found = tt.compare_runs(a, b)
        assert (found.first, found.exit_code, found.counts) == (None, 3, {"identical": 1})
        assert found.coverage.problems == (f"only {where} has: {words}, of x; the rest was compared",)
        assert "INCOMPLETE: identical in what could be compared" in str(found)
        assert f"  equal but for what only {where} has: {words}" in found.explain("x").splitlines()


def test_a_fault_in_what_both_have_is_found_beside_what_one_dropped():
    assert tt.compare_runs({"x": X}, {"x": X[:1] * np.float32(1.01)}).first.seen_at == "x"


PADDING = {
    "nan": np.full((2, 3, 24), np.nan, np.float32),
    "lowest": np.full((2, 3, 24), np.finfo(np.float32).min),
    "one value": np.full((2, 3, 24), 7, np.float32),
    "a bias in every row": np.broadcast_to(np.arange(24, dtype=np.float32), (2, 3, 24)),
}


@pytest.mark.parametrize("case", PADDING)
def test_what_holds_nothing_is_padding(case):
    longer = np.concatenate([X, PADDING[case]], 1)
    assert str(find_layout(longer, X)) == "equal up to padding in A: 3 of axis 1 at its end"


def test_what_the_rest_has_too_is_no_padding():
    row = RANDOM.standard_normal((1, 12)).astype(np.float32)
    again = np.repeat(row, 4, 0)
    assert find_layout(again, again[:1]).layout.gap
    found = tt.compare_runs({"x": np.concatenate([X[0], X[0][-1:]])}, {"x": X[0]})
    assert found.exit_code == 3
    losses = np.arange(9, dtype=np.float32)
    assert tt.compare_runs({"x": losses}, {"x": losses[:8]}).exit_code == 3


def test_numbers_that_are_nearly_all_of_the_whole_do_not_hide_the_others():
    spiked = X.copy()
    spiked[0, 0, 0], spiked[1, 3, 7] = 1e4, -3e4
    turned = np.ascontiguousarray(spiked.transpose(1, 0, 2))
    assert str(find_layout(spiked, turned)) == "equal up to the order of axes [1, 0, 2]"
    assert find_layout(spiked, np.ascontiguousarray(turned[::-1])).layouts == ()


@given(st.integers(0, 2**32 - 1))
def test_a_glimpse_never_rules_out_the_truth(seed):
    random = np.random.default_rng(seed)
    a = random.standard_normal(random.integers(1, 9, 4)) ** 3
    axes = tuple(int(axis) for axis in random.permutation(4))
    b = np.ascontiguousarray(a.transpose(np.argsort(axes)))
    steps = (("transpose", axes), ("reshape", (-1, a.shape[-1])))
    flat = a.reshape(-1, a.shape[-1])
    assert np.array_equal(apply_ops(steps, b), flat)
    assert SampledFit(flat, b + 0.05 * np.linalg.norm(b) / np.sqrt(b.size)).could_match((), steps, 0.1)


def test_a_glimpse_rules_out_what_does_not_fit():
    seen = SampledFit(X, X[::-1])
    assert not seen.could_match((), (), 0.1)
    assert not seen.could_match((), (("transpose", (1, 0, 2)),), 0.1)


def test_a_vocabulary_has_no_heads():
    assert known_orders(128_256) == ()
    assert len(known_orders(4096)) > 50


def test_heads_in_another_order_are_found_as_blocks_of_one_axis():
    mixed = np.ascontiguousarray(HEADS[:, :, [2, 0, 1]]).reshape(X.shape)
    found = find_head_order(X, mixed + 0.01 * RANDOM.standard_normal(X.shape))
    assert found.description == "heads of 8 in another order, along axis 2"
    assert np.array_equal(apply_ops(found.b, mixed), X)
    four = HEADS.transpose(0, 2, 1, 3)
    assert find_head_order(four, four[:, [1, 2, 0]]).description == "heads in another order, along axis 1"


def test_rows_that_are_no_heads_have_no_order_of_heads():
    assert find_head_order(X, X[..., RANDOM.permutation(24)]) is None
    assert find_head_order(X, RANDOM.standard_normal(X.shape)) is None
    assert find_head_order(np.ones((4, 8)), np.ones((4, 8))) is None


def parts(*names, values, **facts):
    return [
        Record(name, value, "output", order=n)
        for n, (name, value) in enumerate(zip(names, values, strict=True))
    ]


Q, K, V = (RANDOM.standard_normal((2, 5, 8)).astype(np.float32) for _ in range(3))
SPLIT = parts("l.q_proj", "l.k_proj", "l.v_proj", values=(Q, K, V))
FUSED = parts("l.qkv_proj", values=[np.concatenate([Q, K, V], -1)])
GROUPED = parts(
    "l.qkv_proj", values=[np.stack([x.reshape(2, 5, 4, 2) for x in (Q, K, V)], 3).reshape(2, 5, 24)]
)


@pytest.mark.parametrize(
    ("a", "b", "pairs"),
    [(SPLIT, FUSED, 3), (FUSED, SPLIT, 1), (SPLIT, GROUPED, 3), (GROUPED, SPLIT, 1)],
    ids=["split", "fused", "split-grouped", "grouped"],
)
def test_a_fused_projection_meets_its_parts(a, b, pairs):
    found = tt.compare_runs(a, b)
    assert (found.exit_code, found.counts) == (0, {"identical": pairs})
    assert "equal up to fused along axis 2" in found.explain(a[0].name)


def test_a_fused_projection_with_another_part_has_no_partner():
    found = tt.compare_runs(SPLIT, parts("l.qkv_proj", values=[np.concatenate([Q, K, K[::-1]], -1)]))
    assert found.exit_code == 3


def test_a_residual_beside_is_added():
    found = tt.compare_runs(parts("l", values=[Q + K]), parts("l[0]", "l[1]", values=(Q, K)))
    assert (found.exit_code, found.counts) == (0, {"within noise": 1})
    assert "equal up to a residual beside: l is l[0], l[1]" in found.explain("l")


def batch(ids, mask, hidden):
    names = {"in.input_ids": "input", "in.attention_mask": "input", "emb": "output"}
    values = (ids, mask, hidden)
    return [Record(n, v, k, order=i) for i, ((n, k), v) in enumerate(zip(names.items(), values, strict=True))]


IDS = RANDOM.integers(3, 90, (2, 6))
MASK = np.array([[1] * 6, [1] * 4 + [0] * 2])
HIDDEN = RANDOM.standard_normal((2, 6, 8)).astype(np.float32)


def padded_left(order=(1, 0)):
    ids, mask, hidden = np.zeros((2, 8), int), np.zeros((2, 8), int), np.ones((2, 8, 8), np.float32)
    for row, other in enumerate(order):
        length = MASK[row].sum()
        for value, known in ((ids, IDS), (mask, MASK), (hidden, HIDDEN)):
            value[other, 8 - length :] = known[row, :length]
    return batch(ids, mask, hidden)


def test_tokens_meet_their_own_under_another_padding_and_order():
    found = tt.compare_runs(batch(IDS, MASK, HIDDEN), padded_left())
    assert (found.exit_code, found.counts) == (0, {"identical": 3})
    assert "10 tokens of 2 sequences by their ids" in found.explain("emb")
    assert "equal: inputs" in str(found)


def test_a_wrong_token_is_found_under_another_padding():
    wrong = padded_left()
    wrong[2].value[1, 4] *= 1.5
    assert tt.compare_runs(batch(IDS, MASK, HIDDEN), wrong).first.seen_at == "emb"


def test_other_tokens_are_other_data():
    other = batch(IDS + 1, MASK, HIDDEN)
    assert tt.compare_runs(batch(IDS, MASK, HIDDEN), other).first.kind == "data"


def test_one_other_sequence_is_not_left_out():
    ids = IDS.copy()
    ids[1, 2] += 1
    found = tt.compare_runs(batch(IDS, MASK, HIDDEN), batch(ids, MASK, HIDDEN))
    assert (found.first.kind, found.first.seen_at) == ("data", "in.input_ids")


def test_a_batch_of_one_meets_its_sequence_in_a_larger_one():
    found = tt.compare_runs(batch(IDS, MASK, HIDDEN), batch(IDS[:1], MASK[:1], HIDDEN[:1]))
    assert found.counts == {"identical": 3}
    assert found.coverage.problems == ("1 of the 2 sequences of step 0 is only in A; 1 was compared",)
    assert "6 tokens of 1 sequences by their ids" in str(found)


def test_attention_over_tokens_that_stand_elsewhere_is_not_guessed():
    scores = [Record("scores", RANDOM.standard_normal((2, 3, n, n)), "output", order=9) for n in (6, 8)]
    found = tt.compare_runs([*batch(IDS, MASK, HIDDEN), scores[0]], [*padded_left(), scores[1]])
    assert (found.exit_code, found.counts) == (3, {"identical": 3, "unaligned": 1})


def beside(name, value, order=9):
    return Record(name, value, "output", order=order)


@pytest.mark.parametrize("rows", [3, 4])
def test_rows_that_a_router_has_sorted_are_not_blamed_where_tokens_stand_elsewhere(rows):
    inner = RANDOM.standard_normal((3, 8))
    other = np.concatenate([inner[::-1], np.ones((1, 8))])[:rows]
    right, wrong = [*batch(IDS, MASK, HIDDEN), beside("act", inner)], padded_left()
    found = tt.compare_runs(right, [*wrong, beside("act", other)])
    assert (found.first, found.exit_code, found.counts) == (None, 3, {"identical": 3, "unaligned": 1})
    assert "the tokens stand elsewhere in B" in str(found)
    wrong[2].value[1, 4] *= 1.5
    assert tt.compare_runs(right, [*wrong, beside("act", other)]).first.seen_at == "emb"


def test_what_each_sequence_has_once_meets_its_own_in_another_order():
    pooled = RANDOM.standard_normal((2, 5))
    right, other = batch(IDS, MASK, HIDDEN), padded_left()
    found = tt.compare_runs([*right, beside("pool", pooled)], [*other, beside("pool", pooled[::-1].copy())])
    assert (found.exit_code, found.counts) == (0, {"identical": 4})
    wrong = tt.compare_runs([*right, beside("pool", pooled)], [*other, beside("pool", pooled * 1.1)])
    assert wrong.first.seen_at == "pool"


def test_what_all_sequences_share_by_position_is_compared_as_far_as_both_go():
    def positions(count):
        table = np.arange(count)[None]
        return Record("positions", table, "output", order=7), beside(
            "sines", np.sin(table[..., None] * [1, 2, 3])
        )

    short = batch(IDS[1:, :4], MASK[1:, :4], HIDDEN[1:, :4])
    right = [*batch(IDS, MASK, HIDDEN), *positions(6)]
    found = tt.compare_runs(right, [*short, *positions(4)])
    assert (found.first, found.counts) == (None, {"identical": 5})
    wrong = [Record(one.name, one.value + 1, *one[2:]) for one in positions(4)]
    assert tt.compare_runs(right, [*short, *wrong]).first.seen_at == "positions"


def test_sequences_that_repeat_and_are_not_all_there_are_ambiguous():
    again = np.stack([IDS[0], IDS[0]])
    assert match_tokens(again, again[:1]).is_sure is False
    mask, hidden = np.ones_like(again), HIDDEN[[0, 0]]
    found = tt.compare_runs(batch(again, mask, hidden), batch(again[:1], mask[:1], hidden[:1]))
    assert (found.first, found.exit_code, found.counts) == (None, 3, {"unaligned": 3})
    assert "the tokens of step 0 are ambiguous: sequences repeat" in str(found)
    assert "may be any of them" in found.explain("emb")
    assert match_tokens(again, again).is_sure is True
    assert match_tokens(IDS, IDS + 1) is None
