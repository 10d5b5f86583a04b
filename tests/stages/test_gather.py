"""Gather in one process: what is held, what callbacks may do, what a failing one leaves."""

from functools import partial

import numpy as np
import pytest
import torch

from tensortap.core.errors import GatherError
from tensortap.core.record import Placement, Record, Series
from tensortap.core.tap import Tap
from tensortap.sinks.memory import Memory
from tensortap.stages.callbacks import CallbackChain, PreSaveCallbacks
from tensortap.stages.collective import GatherCollective, _plan_messages
from tensortap.stages.gather import Gather
from tensortap.stages.payload import ArraySlot, pack_records, payload_from_header, unpack_records
from tensortap.stages.reduce import mean, stack_padded_tensors, stack_tensors


def nothing(name, values, iterations, ranks):
    pass


def traced(gather, steps, make=lambda step: torch.full((3, 2), float(step))):
    memory = Memory(keep=None)
    with Tap(stages=[gather], sinks=[memory]) as tap:
        for step in range(1, steps + 1):
            tap.emit(Record("x", make(step), step=step))
            tap.tick(step)
    return memory.series.get("x", Series("x"))


# Time and structure


def test_without_other_ranks_and_callbacks_records_pass_at_once():
    gather, record = Gather(4), Record("x", 7, "local", step=3, call=2, order=9)
    assert list(gather.push(record)) == [record]
    assert list(gather.tick(3)) == list(gather.close()) == []


def test_what_passes_is_a_snapshot_of_its_own():
    value = {"a": [torch.zeros(3), np.zeros(2)]}
    (record,) = Gather(4).push(Record("x", value))
    value["a"][0].add_(1)
    value["a"][1][0] = 1
    assert record.value["a"][0].sum() == record.value["a"][1].sum() == 0
    (record,) = Gather(4, keep=None).push(Record("x", value))
    assert record.value is value


def test_records_are_held_until_the_interval_is_over():
    gather = Gather(3, post=[nothing])
    released = []
    for step in range(1, 8):
        assert list(gather.push(Record("x", step, step=step))) == []
        released.append([record.value for record in gather.tick(step)])
    assert released == [[], [], [1, 2, 3], [], [], [4, 5, 6], []]
    assert [record.value for record in gather.close()] == [7]
    assert list(gather.close()) == []


def test_the_last_smaller_part_may_be_dropped():
    assert traced(Gather(3, post=[nothing], drop_last=True), 7).steps == [1, 2, 3, 4, 5, 6]


def test_leaving_by_an_exception_releases_nothing_more():
    memory = Memory()

    def stumble():
        with Tap(stages=[Gather(3, post=[nothing])], sinks=[memory]) as tap:
            tap.emit(Record("x", 1))
            raise KeyError

    with pytest.raises(KeyError):
        stumble()
    assert not memory.records


def test_the_first_example_has_a_world_of_one():
    series = traced(Gather(4, pre=[stack_padded_tensors], post=[stack_padded_tensors]), 8)
    stack_padded_tensors("x", series)
    assert series.values[0].shape == (2, 1, 4, 3, 2)
    assert series.iterations == [(((1, 2, 3, 4),), ((5, 6, 7, 8),))]
    assert series.ranks == [(((0,) * 4,),) * 2]


def test_a_smaller_last_part_is_padded():
    series = traced(Gather(4, pre=[stack_padded_tensors]), 6)
    assert [value.shape for value in series.values] == [(4, 3, 2), (2, 3, 2)]
    stack_padded_tensors("x", series)
    assert series.values[0].shape == (2, 4, 3, 2)
    assert series.iterations == [((1, 2, 3, 4), (5, 6))]


def test_the_third_example_leaves_a_mean_per_interval():
    def mean_post_gather(name, values, iterations, ranks):
        values[0] = values[0].mean(dim=(0, 1))

    series = traced(Gather(4, post=[stack_padded_tensors, mean_post_gather]), 8)
    stack_padded_tensors("x", series)
    assert series.values[0].tolist() == [[2.5, 2.5], [6.5, 6.5]]


@pytest.mark.parametrize("interval", [0, -1, 2.0, True, None])
def test_an_interval_without_end_is_refused(interval):
    with pytest.raises(ValueError) as caught:
        Gather(interval)
    assert str(caught.value) == f"gathering_interval is {interval!r}; give a whole number from 1 on"


def test_steps_that_do_not_count_bring_the_gathering_no_nearer():
    gather = Gather(2, post=[stack_padded_tensors], counts=lambda step: step % 2 == 1)
    found = []
    for step in range(1, 6):
        gather.push(Record("x", torch.ones(1), step=step))
        found.append([record.step for record in gather.tick(step)])
    assert found == [[], [], [(1, 2, 3)], [], []]


def test_who_leaves_the_others_still_releases_what_it_holds():
    gather = Gather(4, post=[stack_padded_tensors])
    gather.push(Record("x", torch.ones(1), step=1))
    gather.leave()
    assert [record.step for record in gather.close()] == [(1,)]


# Callbacks


def test_callbacks_are_called_as_they_ask():
    seen = []

    class Saver:
        def __call__(self, name, values, iterations, ranks):
            seen.append((name, values[:], iterations[:], ranks[:]))

    def three(name, values, iterations):
        seen.append((name, values[:], iterations[:]))

    def two(name, results, verbose=False):
        seen.append((name, results.values[:], results.iterations[:], results.ranks[:], verbose))

    def any_number(*arguments):
        seen.append(len(arguments))

    traced(Gather(2, pre=[three], post=[two, Saver(), any_number]), 2, make=lambda step: step)
    both = ("x", [1, 2], [1, 2])
    assert seen == [both, (*both, [0, 0], False), (*both, [0, 0]), 4]


def test_callbacks_may_empty_the_lists():
    def save(name, values, iterations, ranks):
        for column in (values, iterations, ranks):
            column.clear()

    assert len(traced(Gather(2, post=[save]), 4)) == 0


def test_iterations_and_ranks_follow_a_callback_that_leaves_one_value():
    def total(name, values, iterations, ranks):
        values[:] = [sum(values)]

    def every_second(name, values, iterations):
        del values[1::2], iterations[1::2]

    series = traced(Gather(4, pre=[every_second], post=[total]), 4, make=lambda step: step)
    assert (series.values, series.iterations, series.ranks) == ([4], [(1, 3)], [(0, 0)])


def test_a_record_keeps_what_is_still_known_of_it():
    placed = Placement((2,), (0,), ("shard(0)",), (4,), (0,))
    first = Record("x", torch.ones(2), "output", step=1, call=0, order=5, placement=placed)
    records = [first, first._replace(step=2, order=6, value=torch.zeros(2))]

    def halve(name, values, iterations, ranks):
        values[:] = [value.half() for value in values]

    def swap(name, values, iterations, ranks):
        values[:], iterations[:], ranks[:] = values[1:], iterations[1:], ranks[1:]

    halved, _ = CallbackChain([halve]).apply(records)
    assert [(record.kind, record.order, record.placement) for record in halved] == [
        ("output", 5, placed),
        ("output", 6, placed),
    ]
    (second,), _ = CallbackChain([swap]).apply(records)
    assert second == records[1]
    (stacked,), _ = CallbackChain([stack_tensors]).apply(records)
    assert (stacked.kind, stacked.placement, stacked.step) == ("output", None, (1, 2))


def test_what_is_no_callback_is_refused_at_once():
    with pytest.raises(TypeError, match="3 is no callback; give a function of"):
        Gather(2, pre=[3])
    with pytest.raises(TypeError) as caught:
        Gather(2, post=[lambda name: None])
    assert str(caught.value) == (
        "the callback <lambda> takes 1 arguments; give a function of "
        "(name, values, iterations, ranks) or of (name, results)"
    )


def test_a_callback_before_saving_changes_the_value_and_what_is_known_of_the_piece():
    placement = Placement((2,), (0,), ("shard(0)",), (4, 2), (0, 0))
    record = Record("x", torch.ones(2, 2), step=3, placement=placement)
    (same,) = PreSaveCallbacks([lambda name, value, iteration: value * iteration]).push(record)
    assert (same.value.tolist(), same.placement) == ([[3.0, 3.0]] * 2, placement)
    (less,) = PreSaveCallbacks([mean()]).push(record)
    assert (less.value.item(), less.placement) == (1.0, None)


# Failures


def fail(name, values, iterations, ranks):
    values.clear()
    raise ValueError("not today")


SENTENCE = (
    "the callback fail failed for 'x' (ValueError: not today); the values are kept as they were before it"
)


@pytest.mark.parametrize("where", ["pre", "post"])
def test_a_callback_that_fails_is_logged_once_and_costs_no_value(where, monkeypatch, caplog):
    monkeypatch.setenv("TENSORTAP_STRICT", "0")
    series = traced(Gather(2, **{where: [stack_padded_tensors, fail, fail]}), 4)
    assert [value.shape for value in series.values] == [(2, 3, 2)] * 2
    assert [line.getMessage().partition("\n")[0] for line in caplog.records] == [SENTENCE]


def test_in_strict_mode_it_is_raised_and_the_values_come_with_the_next_call(monkeypatch):
    monkeypatch.setenv("TENSORTAP_STRICT", "1")
    gather = Gather(1, post=[fail])
    gather.push(Record("x", 1))
    with pytest.raises(GatherError) as caught:
        gather.tick(1)
    assert str(caught.value) == SENTENCE
    assert [record.value for record in gather.close()] == [1]


def test_lists_that_do_not_match_any_more_are_a_failure(monkeypatch, caplog):
    monkeypatch.setenv("TENSORTAP_STRICT", "0")
    series = traced(Gather(3, post=[lambda name, values, iterations, ranks: values.pop()]), 3)
    assert series.steps == [1, 2, 3]
    assert "2 values and 3 iterations are left, and nothing tells which belong together" in caplog.text


def test_a_value_that_cannot_be_kept_is_named_and_counted(caplog):
    gather = Gather(1)
    for _ in range(2):
        assert list(gather.push(Record("x", torch.ones(2, device="meta")))) == []
    assert gather.refused["x"].startswith("a meta tensor of shape [2] has no values")
    assert gather.skipped == 2
    assert len(caplog.records) == 1


# Parcels


def test_a_header_is_small_and_holds_no_numbers_of_arrays():
    value = torch.rand(1000)
    parcel, arrays = pack_records([Record("x", value), Record("y", {"a": value, "b": [value, 3]})])
    header = parcel.header()
    assert len(header) < 1000
    assert value.numpy().tobytes()[:64] not in header
    assert [array is value for array in arrays] == [True]
    records, refused = unpack_records(payload_from_header(header), arrays)
    assert records[0].value is records[1].value["b"][0] is value
    assert refused.count == 0


def test_a_snapshot_is_sent_without_being_parted_from_its_original():
    from tensortap.stages.collective import _to_byte_tensor

    value = torch.rand(1000)
    snapshot = torch._lazy_clone(value)
    assert _to_byte_tensor(snapshot).numel() == 4000
    assert torch._C._is_cow_tensor(snapshot)


def test_messages_cover_every_byte_once_and_stay_small():
    sizes = [0, 10, 70_000, 5, 10_000_000, 65_535, 0, 60_000, 65_536, *[1000] * 5000]
    slots = [ArraySlot("torch", "uint8", (size,), size) for size in sizes]
    messages = list(_plan_messages(slots, 1 << 20))
    covered = [0] * len(sizes)
    for spans in messages:
        assert sum(end - start for _, start, end in spans) <= 1 << 20
        for number, start, end in spans:
            assert start == covered[number]
            covered[number] = end
    assert covered == sizes
    assert len(messages) < 30


def test_an_exchange_needs_a_process_group():
    with pytest.raises(ValueError, match="process group"):
        GatherCollective(None, 1 << 20)


def test_a_partial_function_is_a_callback():
    stack = partial(stack_padded_tensors, padding=-1)
    series = traced(Gather(2, post=[stack]), 2, make=lambda step: torch.ones(step))
    assert series.values[0].tolist() == [[1, -1], [1, 1]]
