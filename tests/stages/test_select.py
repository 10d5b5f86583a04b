"""Select: which records go on, and what each predicate makes of every kind of value."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.frameworks.retention import summarise_value
from tensortap.kernels.statistics import statistics
from tensortap.sinks.memory import Memory
from tensortap.stages.select import (
    Changed,
    StepPredicate,
    When,
    changed,
    every,
    first,
    nonfinite,
    predicates_of,
)

NAN, INF = float("nan"), float("inf")


def at(step):
    return Record("x", 0, step=step)


# The stage


def test_only_records_for_which_all_predicates_hold_go_on():
    memory = Memory()
    tap = Tap(stages=[When(every(2), lambda record: record.value > 2)], sinks=[memory])
    for step in range(6):
        tap.emit(Record("x", step, step=step))
    assert memory.series["x"].steps == [4]


def test_a_later_predicate_is_asked_only_if_the_earlier_ones_hold():
    asked = []
    stage = When(every(2), lambda record: bool(asked.append(record.step)))
    for step in range(4):
        assert list(stage.push(at(step))) == []
    assert asked == [0, 2]


def test_without_predicates_everything_goes_on():
    record = at(3)
    assert list(When().push(record)) == [record]


# Steps


def test_every_and_first_count_steps_from_nought():
    assert [step for step in range(10) if every(4)(at(step))] == [0, 4, 8]
    assert [step for step in range(10) if first(2)(at(step))] == [0, 1]


def test_a_merged_record_counts_by_its_first_step():
    assert every(4)(at((4, 5)))
    assert every(4)(at(((4, 5), (4, 5))))
    assert not every(4)(at((5, 8)))


def test_a_source_may_ask_which_steps_are_wanted():
    assert isinstance(every(3), StepPredicate)
    assert [every(3).wants(step) for step in range(4)] == [True, False, False, True]


@pytest.mark.parametrize("count", [0, -1, 2.0, True, "3", None])
@pytest.mark.parametrize("predicate", [every, first])
def test_a_count_that_selects_nothing_is_refused(predicate, count):
    with pytest.raises(ValueError, match="selects nothing") as caught:
        predicate(count)
    assert str(caught.value) == (
        f"{predicate.__name__}({count!r}) selects nothing; give a whole number from 1 on"
    )


# What `when` may be


def test_when_may_be_nothing_one_or_several():
    three = every(3)
    assert predicates_of(None) == []
    assert predicates_of(three) == [three]
    assert predicates_of([three, nonfinite]) == [three, nonfinite]
    assert predicates_of((three,)) == [three]


def test_changed_is_made_anew_for_each_use():
    (one,), (other,) = predicates_of(changed), predicates_of(changed)
    assert isinstance(one, Changed)
    assert one is not other


@pytest.mark.parametrize("wrong", [3, "every", [every(2), None]])
def test_what_is_no_predicate_is_refused(wrong):
    named = None if isinstance(wrong, list) else wrong
    with pytest.raises(TypeError) as caught:
        predicates_of(wrong)
    assert str(caught.value) == f"when is {named!r}; give a function of the record, such as tt.every(10)"


# Numbers that are none


FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_a_nan_or_an_inf_is_seen_in_every_type_of_torch(dtype, odd):
    tensor = torch.zeros(5)
    assert not nonfinite(Record("x", tensor.to(dtype)))
    tensor[3] = odd
    assert nonfinite(Record("x", tensor.to(dtype)))


@pytest.mark.parametrize(
    "value",
    [
        np.array([1.0, NAN]),
        np.array([1, 1 + 1j * INF]),
        np.float32(NAN),
        jnp.array([1.0, INF]),
        NAN,
        complex(0, NAN),
        -INF,
        {"a": [torch.ones(2), torch.tensor(NAN)]},
        torch.tensor([0.0, NAN]).to_sparse(),
        torch.nn.Parameter(torch.tensor(INF)),
        statistics(np.array([1.0, NAN]), "float64"),
        summarise_value(torch.tensor([1.0, NAN])),
        summarise_value(np.array([1.0, INF])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_nan_or_an_inf_is_seen_in_every_kind_of_value(value):
    assert nonfinite(Record("x", value))


@pytest.mark.parametrize(
    "value",
    [
        np.array([1.0, 3e38]),
        np.array([], dtype=np.float32),
        np.array(["text"]),
        np.array([object()]),
        torch.ones(3, dtype=torch.int64),
        torch.tensor(torch.finfo(torch.float32).max),
        torch.empty(0),
        torch.ones(3, device="meta"),
        torch.eye(3).to_sparse(),
        1,
        2.5,
        10**400,
        "nan",
        None,
        object(),
        [],
        statistics(np.array([1.0, 2.0]), "float64"),
        summarise_value(torch.ones(3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_finite_or_no_number_is_not_nonfinite(value):
    assert not nonfinite(Record("x", value))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_numbers_are_finite():
    assert not nonfinite(Record("x", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)))


# Content that changed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (torch.zeros(3), torch.ones(3)),
        (torch.zeros(3), torch.zeros(3, 1)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int32)),
        (torch.zeros(3), -torch.zeros(3)),
        (torch.zeros(3), None),
        (torch.zeros(5000), torch.cat([torch.zeros(4999), torch.ones(1)])),
        (np.zeros(3), np.zeros(3, np.float32)),
        ({"a": torch.zeros(3)}, {"b": torch.zeros(3)}),
        ([torch.zeros(3)], [torch.zeros(3), torch.zeros(3)]),
        (1, True),
        (1, 2),
        (1, 1.0),
        ("a", "b"),
        (10**30, 10**31),
        (torch.ones(1), 1.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_another_content_is_a_change(before, after):
    predicate = Changed()
    assert [predicate(Record("x", value)) for value in (before, after, before)] == [True, True, True]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(5000.0),
        lambda: torch.tensor([NAN, 1.0]),
        lambda: torch.arange(6).view(2, 3).t(),
        lambda: torch.ones(3, dtype=torch.bfloat16),
        lambda: torch.ones(3, requires_grad=True) * 2,
        lambda: np.arange(10),
        lambda: {"a": [1, 2.0, "x", None], "b": np.ones(2)},
        lambda: float("nan"),
        lambda: 10**30,
    ],
)
def test_the_same_content_is_no_change(make):
    predicate = Changed()
    assert [predicate(Record("x", make())) for _ in range(3)] == [True, False, False]


def test_a_change_in_place_is_a_change():
    predicate, tensor = Changed(), torch.zeros(3)
    assert predicate(Record("x", tensor))
    tensor.data[1] = 1
    assert predicate(Record("x", tensor))
    assert not predicate(Record("x", tensor))


def test_each_name_call_and_rank_is_compared_with_itself():
    predicate, value = Changed(), torch.ones(1)
    for record in [
        Record("x", value),
        Record("y", value),
        Record("x", value, call=1),
        Record("x", value, rank=1),
    ]:
        assert predicate(record)
        assert not predicate(record)


@pytest.mark.parametrize(
    "value",
    [torch.ones(3, device="meta"), torch.eye(2).to_sparse(), object(), np.array([object()])],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_looked_into_may_have_changed(value):
    predicate = Changed()
    assert [predicate(Record("x", value)) for _ in range(2)] == [True, True]


def test_looking_for_a_change_keeps_no_value():
    import weakref

    predicate, tensor = Changed(), torch.ones(10_000)
    predicate(Record("x", tensor))
    gone = weakref.ref(tensor)
    del tensor
    assert gone() is None
