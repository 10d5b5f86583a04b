"""Changed: the same object is not passed again until it was changed; equal content is not, by content."""

import gc
import weakref
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.sinks.memory import Memory
from tensortap.stages.changed import Changed


def passes(stage, value, **where):
    return list(stage.push(Record("x", value, **where))) != []


def test_only_what_changed_reaches_the_sinks_with_the_step_of_its_change():
    memory, value = Memory(), torch.zeros(3)
    tap = Tap(stages=[Changed(by="object")], sinks=[memory])
    for step in range(6):
        if step in (2, 5):
            value += 1
        tap.emit(Record("x", value, step=step))
    assert memory.series["x"].steps == [0, 2, 5]
    assert [kept[0].item() for kept in memory.series["x"].values] == [0, 1, 2]


MAKERS = {
    "tensor": lambda: torch.arange(6.0),
    "large tensor": lambda: torch.arange(5000.0),
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "numpy": lambda: np.arange(10),
    "jax": lambda: jnp.ones(3),
    "list": lambda: [1, 2],
    "dict of tensors": lambda: {"a": torch.ones(2)},
    "object": lambda: SimpleNamespace(a=1),
    "NaN": lambda: torch.tensor([float("nan")]),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_by_object_the_same_one_is_no_change_and_an_equal_one_is(kind):
    stage, value = Changed(by="object"), MAKERS[kind]()
    assert [passes(stage, value) for _ in range(3)] == [True, False, False]
    assert passes(stage, MAKERS[kind]())
    assert passes(stage, value)


@pytest.mark.parametrize("kind", sorted(MAKERS.keys() - {"object"}))
def test_by_content_an_equal_one_is_no_change(kind):
    stage = Changed(by="content")
    assert [passes(stage, MAKERS[kind]()) for _ in range(3)] == [True, False, False]


CHANGES = {
    "in place": (lambda: torch.zeros(3), lambda x: x.add_(1)),
    "through data": (lambda: torch.zeros(3), lambda x: x.data.add_(1)),
    "through numpy": (lambda: torch.zeros(5000), lambda x: x.numpy().__setitem__(7, 1)),
    "through a view": (lambda: torch.zeros(3), lambda x: x[1:].mul_(0).add_(2)),
    "to NaN": (lambda: torch.zeros(3), lambda x: x.fill_(float("nan"))),
    "of a numpy array": (lambda: np.zeros(3), lambda x: x.__setitem__(0, 1)),
    "of a list": (lambda: [1, 2], lambda x: x.append(3)),
    "of a dictionary": (lambda: {"a": 1}, lambda x: x.update(a=2)),
    "to a longer list of nothing": (lambda: [[]], lambda x: x.append([])),
    "of a key without content": (lambda: {}, lambda x: x.update(cache=[])),
    "deep inside": (lambda: {"a": [torch.zeros(3)]}, lambda x: x["a"][0].add_(1)),
    "of a tensor in a list": (lambda: [torch.zeros(3)], lambda x: x.__setitem__(0, torch.ones(3))),
}


@pytest.mark.parametrize("by", ["object", "content"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_same_object_is_seen_once(change, by):
    make, modify = CHANGES[change]
    stage, value = Changed(by), make()
    assert [passes(stage, value), passes(stage, value)] == [True, False]
    modify(value)
    assert [passes(stage, value), passes(stage, value)] == [True, False]


def test_a_change_inside_inference_mode_is_seen():
    stage = Changed(by="object")
    with torch.inference_mode():
        value = torch.zeros(3)
        assert [passes(stage, value), passes(stage, value)] == [True, False]
        value.add_(1)
        assert passes(stage, value)


def test_memory_that_is_used_again_is_not_taken_for_the_value_before():
    stage, addresses = Changed(by="object"), set()
    for _ in range(200):
        value = torch.zeros(8)
        addresses.add((id(value), value.data_ptr()))
        assert passes(stage, value)
        del value
    assert len(addresses) < 200  # else the trap was not set


@pytest.mark.parametrize("by", ["object", "content"])
def test_numbers_and_texts_are_compared_by_what_they_are(by):
    stage = Changed(by)
    values = [1, 1, True, 1.0, float("nan"), float("nan"), 0.0, -0.0, "a", "a", None, None]
    found = [passes(stage, value) for value in values]
    assert found == [True, False, True, True, True, False, True, True, True, False, True, False]


def test_each_name_call_and_rank_is_compared_with_itself():
    stage, value = Changed(by="object"), torch.ones(1)
    for where in ({}, {"call": 1}, {"rank": 1}):
        assert [passes(stage, value, **where) for _ in range(2)] == [True, False]
    assert list(stage.push(Record("y", value)))


@pytest.mark.parametrize("by", ["object", "content"])
def test_being_remembered_keeps_no_array_alive(by):
    stage, value = Changed(by), {"a": torch.ones(10_000)}
    stage.push(Record("x", value))
    gone = weakref.ref(value["a"])
    del value
    gc.collect()
    assert gone() is None


def test_the_predicate_is_the_stage():
    assert tt.changed is Changed
    predicate, value = tt.changed(), torch.ones(3)
    assert [predicate(Record("x", value)), predicate(Record("x", value.clone()))] == [True, False]


def test_another_way_to_compare_is_refused():
    with pytest.raises(ValueError) as caught:
        Changed(by="identity")
    assert str(caught.value) == "Changed compares by 'identity'; give 'object' or 'content'"
