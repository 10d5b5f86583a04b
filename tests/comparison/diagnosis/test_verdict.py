"""What one difference means by itself."""

import math

import pytest
import torch

from tensortap.comparison.diagnosis.verdict import GREEN, judge
from tensortap.comparison.matching.match import EntryPair
from tensortap.comparison.sides.entry import InMemoryRef
from tensortap.comparison.sides.load import Entry
from tensortap.comparison.values.metrics import Metrics, measure
from tensortap.comparison.values.noise import Noise
from tensortap.core.record import Placement

NOISE = Noise(1e-6, 2e-6, 3e-6, "repeat")


def test_the_same_is_identical_whatever_the_noise():
    assert judge(measure(torch.ones(3), torch.ones(3)), NOISE).verdict == "identical"


@pytest.mark.parametrize(("size", "verdict"), [(3.9e-6, "within noise"), (4.1e-6, "origin")])
def test_four_times_the_noise_is_the_limit(size, verdict):
    assert judge(Metrics(relative_l2=size), NOISE).verdict == verdict


@pytest.mark.parametrize(
    ("found", "axis", "ratio"),
    [
        (Metrics(relative_l2=5e-6), "whole", 5.0),
        (Metrics(relative_l2=1e-6, row=2e-5), "row", 10.0),
        (Metrics(relative_l2=1e-6, column=6e-5), "column", 20.0),
    ],
)
def test_the_worst_axis_decides(found, axis, ratio):
    judged = judge(found, NOISE)
    assert (judged.axis, judged.ratio) == (axis, pytest.approx(ratio))


def test_weights_after_a_step_are_judged_as_a_whole():
    entry = Entry("up.weight.after_step", InMemoryRef(None), kind="param")
    found = Metrics(relative_l2=2e-6, row=2e-5, column=6e-5)
    judged = judge(found, NOISE, EntryPair(entry, entry))
    assert (judged.verdict, judged.axis, judged.ratio) == ("within noise", "whole", pytest.approx(2.0))
    assert judge(Metrics(relative_l2=5e-6), NOISE, EntryPair(entry, entry)).verdict == "origin"


def test_a_nan_is_beyond_any_noise():
    judged = judge(measure(torch.ones(3), torch.tensor([1.0, math.nan, 1.0])), NOISE)
    assert (judged.verdict, judged.ratio) == ("nonfinite", math.inf)
    assert judged.note == "1 NaN in B"


def test_another_mask_is_a_difference_and_no_nan():
    judged = judge(measure(torch.tensor([0.0, -math.inf]), torch.zeros(2)), NOISE)
    assert judged.verdict == "origin"
    assert "masked on one side" in judged.note


def test_decisions_flip():
    judged = judge(measure(torch.arange(4), torch.tensor([0, 1, 3, 2])), NOISE)
    assert (judged.verdict, judged.note) == ("flip", "2 of 4 differ")


def test_as_many_flips_as_in_a_twin_are_noise():
    noise = Noise(0.0, 0.0, 0.0, "ulp", flips=1)
    assert judge(measure(torch.arange(4), torch.tensor([0, 1, 3, 2])), noise).verdict == "within noise"


def test_another_shape_is_structure_and_another_cut_is_unaligned():
    found = measure(torch.zeros(2), torch.zeros(3))
    assert judge(found, NOISE).verdict == "structure"
    cut = Placement((2,), (0,), ("shard(0)",), (4,), (0,))
    whole, piece = Entry("x", InMemoryRef(0)), Entry("x", InMemoryRef(0), placement=cut)
    assert judge(found, NOISE, EntryPair(whole, piece)).verdict == "unaligned"


def test_what_cannot_be_read_is_never_green():
    judged = judge("OSError: gone", NOISE)
    assert judged.verdict == "unreadable"
    assert judged.verdict not in GREEN
    assert judged.note == "OSError: gone"


def test_without_noise_any_difference_is_beyond():
    assert judge(Metrics(relative_l2=1e-30), Noise(0.0, 0.0, 0.0, "repeat")).ratio == math.inf
