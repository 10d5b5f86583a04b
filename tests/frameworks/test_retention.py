"""Keep: each word means one way of keeping a value, whichever framework it is from."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.registry import Registry
from tensortap.frameworks import base
from tensortap.frameworks.base import register_framework
from tensortap.frameworks.retention import (
    clone,
    copy_on_write,
    copy_to_host,
    detached_reference,
    retention_policy,
    summarise_value,
)
from tensortap.kernels.statistics import Statistics


@pytest.mark.parametrize(
    ("word", "function"),
    [
        ("cow", copy_on_write),
        ("clone", clone),
        ("ref", detached_reference),
        ("cpu", copy_to_host),
        ("stats", summarise_value),
        (len, len),
    ],
)
def test_a_word_is_a_function_and_a_function_is_itself(word, function):
    assert retention_policy(word) is function


@pytest.mark.parametrize("wrong", ["copy", "", None, 3, ["cow"]])
def test_any_other_word_is_refused(wrong):
    with pytest.raises(ValueError, match="keep is") as caught:
        retention_policy(wrong)
    assert str(caught.value) == (
        f"keep is {wrong!r}; give 'cow', 'clone', 'ref', 'cpu', 'stats', or a function of the value"
    )


@pytest.mark.parametrize("word", ["cow", "clone", "cpu"])
@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
def test_a_kept_value_does_not_change_any_more(word, make):
    original = make(3)
    kept = retention_policy(word)(original)
    original += 1
    assert type(kept) is type(original)
    assert kept.tolist() == [0, 0, 0]


@pytest.mark.parametrize("word", ["cow", "clone", "ref", "cpu"])
def test_a_kept_tensor_has_no_graph(word):
    kept = retention_policy(word)(torch.ones(2, requires_grad=True) * 2)
    assert (kept.requires_grad, kept.tolist()) == (False, [2, 2])


@pytest.mark.parametrize("word", ["cow", "clone", "ref", "cpu"])
@pytest.mark.parametrize("value", [jnp.ones(2), 3, 2.5, "text", None], ids=lambda value: type(value).__name__)
def test_what_cannot_be_written_to_is_kept_as_it_is(word, value):
    kept = retention_policy(word)(value)
    assert type(kept) is type(value)
    assert np.all(kept == value)


def test_a_reference_shows_what_is_written_later():
    tensor, array = torch.zeros(2), np.zeros(2)
    kept = detached_reference(tensor), detached_reference(array)
    tensor += 1
    array += 1
    assert [one.tolist() for one in kept] == [[1, 1], [1, 1]]


def test_cow_copies_nothing_and_clone_does():
    tensor = torch.zeros(3)
    assert not torch._C._is_cow_tensor(clone(tensor))
    assert not torch._C._is_cow_tensor(tensor)
    assert torch._C._is_cow_tensor(copy_on_write(tensor))


@pytest.mark.parametrize("word", ["cow", "clone", "cpu", "stats"])
def test_what_has_no_values_is_refused_by_every_word_but_ref(word):
    meta = torch.ones(2, device="meta")
    with pytest.raises(UnsupportedValueError, match=r"a meta tensor of shape \[2\] has no values"):
        retention_policy(word)(meta)
    assert detached_reference(meta).device.type == "meta"


def test_a_summary_is_made_of_every_framework():
    expected = Statistics(3, 1.0, 3.0, 2.0, pytest.approx((2 / 3) ** 0.5), pytest.approx(14**0.5))
    values = [1.0, 2.0, 3.0]
    assert summarise_value(torch.tensor(values)).statistics == expected
    assert summarise_value(np.array(values)) == expected
    assert summarise_value(jnp.array(values)) == expected
    assert summarise_value(2.0) == Statistics(1, 2.0, 2.0, 2.0, 0.0, 2.0)


@pytest.mark.parametrize(
    "value", ["text", np.array([object()]), torch.eye(2).to_sparse()], ids=lambda value: type(value).__name__
)
def test_what_has_no_numbers_has_no_summary(value):
    with pytest.raises(UnsupportedValueError):
        summarise_value(value)


class Celsius:
    def __init__(self, degrees):
        self.degrees = degrees


class Thermometers:
    """A framework of someone's own, as far as keeping is concerned."""

    name, suffix = "thermometers", ".tmp"

    def owns(self, kind):
        return kind is Celsius

    def snapshot(self, value):
        return Celsius(value.degrees + 100)


def test_a_framework_that_comes_later_keeps_its_own_values(monkeypatch):
    monkeypatch.setattr(base, "frameworks", Registry("frameworks"))
    assert copy_on_write(Celsius(1)).degrees == clone(Celsius(1)).degrees == 1
    try:
        register_framework(Thermometers())
        assert copy_on_write(Celsius(1)).degrees == clone(Celsius(1)).degrees == 101
    finally:
        base._framework_of_type.cache_clear()
