"""The shape of a difference is told where it is sure, and nothing is told where it is not."""

import numpy as np
import pytest
from tests.comparison.differences_made import NOTHING, SPEAKING, made

import tensortap as tt
from tensortap.comparison.diagnosis.symptoms import DETECTORS, find_symptoms
from tensortap.core.record import Record

SEEDS = range(1000, 1060)


@pytest.mark.parametrize("label", SPEAKING)
def test_a_detector_hits_what_it_is_for_and_no_other_speaks(label):
    found = [{one.name for one in find_symptoms(*made(label, seed))} for seed in SEEDS]
    expected, *also = SPEAKING[label]
    assert sum(expected in names for names in found) >= 0.95 * len(found)
    assert set().union(*found) <= {expected, *also}


@pytest.mark.parametrize("label", NOTHING)
def test_nothing_is_said_of_a_difference_without_a_shape(label):
    assert [one for seed in SEEDS for one in find_symptoms(*made(label, seed))] == []


def test_every_detector_has_labelled_cases():
    assert DETECTORS.keys() == {expected for expected, *_ in SPEAKING.values()}


def told(a, b):
    return [one.description for one in find_symptoms(np.asarray(a), np.asarray(b))]


def test_the_sentences_name_what_was_done():
    a = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)
    shard, heads = a.copy(), a.reshape(8, 3, 4)[:, [2, 1, 0]].reshape(8, 12)
    shard[2:4] += 1 + a[4:6]
    assert told(a, a * 0.5) == ["B is A times 0.5"]
    assert told(a, a + 2) == ["B is A plus 2"]
    assert told(a, a.astype(np.float16)) == ["B is the other rounded to float16 or tf32, in every number"]
    assert told(a, np.roll(a, 1, 0)) == ["B is A moved by +1 along axis 0"]
    assert told(a, shard) == ["only 2 to 3 of 8 along axis 0, part 2 of 4"]
    assert told(a, heads)[0] == "2 blocks of 4 of B stand elsewhere along axis 1: the same, in another order"
    assert told(a, a) == told(a, a.T) == told(a[0, :4], a[1, :4]) == []


def test_of_a_factor_and_a_summand_only_the_one_that_fits_is_told():
    a = (5 + 0.001 * np.random.default_rng(0).standard_normal((8, 16))).astype(np.float32)
    assert told(a, a + np.float32(0.1)) == ["B is A plus 0.1"]
    assert told(a, a * np.float32(1.02)) == ["B is A times 1.02"]


def test_explain_tells_the_shape_of_the_error():
    a = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)
    found = tt.compare_runs([Record("x", a)], [Record("x", a * np.float32(1.25))])
    assert "  the difference: B is A times 1.25" in found.explain("x").splitlines()
