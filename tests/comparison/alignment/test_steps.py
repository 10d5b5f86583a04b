"""What one side does in several steps is set against the one step of the other, by the model's own inputs."""

import numpy as np
import pytest

import tensortap as tt
from tensortap.core.record import Record

RANDOM = np.random.default_rng(11)
IDS = RANDOM.integers(3, 90, (3, 6))
HIDDEN = RANDOM.standard_normal((3, 6, 8)).astype(np.float32)
SCORES = np.tril(RANDOM.standard_normal((3, 2, 6, 6)).astype(np.float32))
POSITIONS = RANDOM.standard_normal((1, 6, 4)).astype(np.float32)


def step(number, ids, hidden, scores, positions=POSITIONS):
    values = {"in.input_ids": ids, "positions": positions, "emb": hidden, "scores": scores}
    kinds = ("input", "output", "output", "output")
    return [
        Record(name, value, kind, step=number, order=order)
        for order, ((name, value), kind) in enumerate(zip(values.items(), kinds, strict=True))
    ]


WHOLE = step(0, IDS, HIDDEN, SCORES)


def rows(order=(0, 1, 2), **changed):
    return [
        record
        for number, at in enumerate(order)
        for record in step(number, IDS[at : at + 1], HIDDEN[at : at + 1], SCORES[at : at + 1], **changed)
    ]


def tokens(*ends):
    return [
        record
        for number, (start, end) in enumerate(zip((0, *ends), ends, strict=False))
        for record in step(
            number,
            IDS[:, start:end],
            HIDDEN[:, start:end],
            SCORES[:, :, start:end, :end],
            POSITIONS[:, start:end],
        )
    ]


WAYS = {
    "rows": rows(),
    "rows in another order": rows((2, 0, 1)),
    "tokens": tokens(1, 2, 3, 4, 5, 6),
    "a prompt and tokens": tokens(4, 5, 6),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_swapped", [False, True], ids=["whole-pieces", "pieces-whole"])
def test_several_steps_are_compared_with_the_one(way, is_swapped):
    sides = (WAYS[way], WHOLE) if is_swapped else (WHOLE, WAYS[way])
    found = tt.compare_runs(*sides)
    assert (found.counts, found.exit_code) == ({"identical": 4}, 0)
    which = "A" if is_swapped else "B"
    assert found.notes[-1].startswith(f"{which} does in ") or found.notes[0].startswith("rows of step")


def with_mask(records, mask, number=0):
    return [*records, Record("in.attention_mask", mask, "input", step=number, order=9)]


def test_a_mask_that_grows_with_the_tokens_is_compared_as_far_as_it_reaches():
    mask = np.ones((3, 6), int)
    mask[1, :3] = 0
    ends = (2, 3, 4, 5, 6)
    pieces = [one for at, end in enumerate(ends) for one in with_mask([], mask[:, :end].copy(), at)]
    right, decode = with_mask(WHOLE, mask), [*tokens(*ends), *pieces]
    for sides in ((right, decode), (decode, right)):
        found = tt.compare_runs(*sides)
        assert (found.exit_code, found.counts, found.coverage.only_b) == (0, {"identical": 5}, ())
        assert "equal: inputs" in str(found)
    pieces[3].value[0, 4] = 0
    assert tt.compare_runs(right, [*tokens(*ends), *pieces]).first.seen_at == "in.attention_mask"


def test_rows_of_all_tokens_in_one_are_put_in_their_order():
    flat = HIDDEN.reshape(18, 8)
    pieces = [
        Record("flat", HIDDEN[:, start:end].reshape(-1, 8).copy(), "output", step=number, order=9)
        for number, (start, end) in enumerate(zip((0, 2, 3, 4, 5), (2, 3, 4, 5, 6), strict=True))
    ]
    whole, decode = [*WHOLE, Record("flat", flat, "output", order=9)], [*tokens(2, 3, 4, 5, 6), *pieces]
    # Positions come first, and once for all sequences.
    whole.insert(0, Record("in.position_ids", np.arange(6)[None], "input", order=-1))
    for number, (start, end) in enumerate(zip((0, 2, 3, 4, 5), (2, 3, 4, 5, 6), strict=True)):
        where = np.arange(start, end)[None]
        decode.insert(number, Record("in.position_ids", where, "input", step=number, order=-1))
    for sides in ((whole, decode), (decode, whole)):
        found = tt.compare_runs(*sides)
        assert (found.exit_code, found.counts) == (0, {"identical": 6})
    pieces[1].value[2] *= 1.5
    assert tt.compare_runs(whole, decode).first.seen_at == "flat"


@pytest.mark.parametrize(
    "sizes", [(4, 3, 2), (5, 3, 2), (3, 3, 3)], ids=["as-many", "fewer", "in-proportion"]
)
def test_rows_that_a_router_has_sorted_are_not_put_together(sizes):
    inner = RANDOM.standard_normal((9, 8))
    whole = [*WHOLE, Record("act", inner, "output", order=9)]
    pieces = [
        Record("act", RANDOM.standard_normal((size, 8)), "output", step=number, order=9)
        for number, size in enumerate(sizes)
    ]
    found = tt.compare_runs(whole, [*rows(), *pieces])
    assert (found.first, found.exit_code) == (None, 3)
    assert "nothing tells how what it has in several steps belongs together" in str(found)


def with_losses(records, *losses):
    made = [
        Record("out.loss", np.float32(loss), "output", step=at, order=9) for at, loss in enumerate(losses)
    ]
    return [*records, *made]


def test_a_number_that_each_step_has_of_its_own_is_no_fault():
    whole = with_losses(WHOLE, 2.0)
    mean = tt.compare_runs(whole, with_losses(rows(), 1.5, 2.4, 2.1))
    assert (mean.exit_code, mean.counts) == (0, {"identical": 5})
    assert "3 steps, of which this is the mean" in mean.explain("out.loss")
    weighted = tt.compare_runs(whole, with_losses(rows(), 1.5, 2.4, 2.3))
    assert (weighted.first, weighted.exit_code) == (None, 3)
    assert "every step has a number of its own, and nothing tells how they make up the one" in str(weighted)


def test_a_number_that_all_steps_have_in_common_is_compared():
    assert tt.compare_runs(with_losses(WHOLE, 2.0), with_losses(rows(), 2.0, 2.0, 2.0)).exit_code == 0
    for losses in ((3.0, 3.0, 3.0), (2.0, 3.0, 2.0)):
        found = tt.compare_runs(with_losses(WHOLE, 2.0), with_losses(rows(), *losses))
        assert found.first.seen_at == "out.loss"


def test_the_plan_tells_how_they_were_put_together():
    found = tt.compare_runs(WHOLE, WAYS["tokens"])
    assert "  B: 6 steps, put together along axis 1" in found.explain("emb").splitlines()
    assert "each of which reaches as far as its own tokens do" in found.explain("scores")
    assert "each of which has the whole: the farthest is compared" in tt.compare_runs(WHOLE, rows()).explain(
        "positions"
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["emb", "scores"])
def test_a_step_that_is_wrong_is_found(way, name):
    wrong = [
        one._replace(value=one.value * np.float32(1.1)) if (one.name, one.step) == (name, 1) else one
        for one in WAYS[way]
    ]
    assert tt.compare_runs(WHOLE, wrong).first.seen_at == name


def test_a_copy_of_one_step_that_is_wrong_is_not_hidden_by_the_others():
    wrong = [
        one._replace(value=one.value + 1) if (one.name, one.step) == ("positions", 1) else one
        for one in rows()
    ]
    assert tt.compare_runs(WHOLE, wrong).first.seen_at == "positions"


def test_steps_of_other_data_are_not_put_together():
    other = [one._replace(value=one.value + 1) if one.name == "in.input_ids" else one for one in rows()]
    found = tt.compare_runs(WHOLE, other)
    assert found.exit_code == 1
    assert not any("what the other does in one" in note for note in found.notes)


def test_as_many_steps_on_both_sides_stay_as_they_are():
    found = tt.compare_runs(rows(), rows())
    assert (len(found.table), found.plans) == (12, ())


def test_inputs_are_found_under_the_name_of_a_map():
    renamed = [one._replace(name=one.name.replace("input_ids", "tokens")) for one in rows()]
    found = tt.compare_runs(WHOLE, renamed, map={"in.input_ids": "in.tokens"})
    assert (found.counts, found.exit_code) == ({"identical": 4}, 0)


def test_a_value_that_not_every_step_has_is_a_gap():
    some = [one for one in rows() if (one.name, one.step) != ("emb", 2)]
    found = tt.compare_runs(WHOLE, some)
    assert (found.first, found.exit_code) == (None, 3)
    assert {entry.name for entry in found.coverage.only_b} == {"emb"}


def test_runs_on_disk_are_put_together_by_workers_too(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    for name, records in (("one", WHOLE), ("many", WAYS["tokens"])):
        sink = tt.RunDirectory(tmp_path / name)
        for record in records:
            sink.write(record)
        sink.close()
    with ThreadPoolExecutor(2) as executor:
        found = tt.compare_runs(tmp_path / "one", tmp_path / "many", executor=executor)
    assert found.counts == {"identical": 4}
