"""The manual source: calls become records, numbered, named and placed."""

import linecache
import threading
import time

import pytest

from tensortap.core.tap import Tap
from tensortap.sinks.memory import Memory
from tensortap.sources.manual import ManualSource


class Kept:
    """A sink that keeps the records themselves."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)

    def flush(self):
        pass

    def close(self):
        pass


@pytest.fixture
def source():
    return ManualSource()


@pytest.fixture
def kept(source):
    kept = Kept()
    Tap(sinks=[kept]).attach(source)
    return kept.records


def test_a_value_without_a_name_is_called_like_the_variable(source, kept):
    loss = 1
    source.emit(loss)
    source.emit(loss + 1)
    source.emit(loss, "named")
    assert [record.name for record in kept] == ["loss", "value", "named"]


def test_depth_counts_the_calls_between(source, kept):
    def dump(value):
        source.emit(value, depth=1)

    output = 1
    dump(output)
    (record,) = kept
    assert record.name == "output"
    assert linecache.getline(__file__, record.site.line).strip() == "dump(output)"
    assert record.site.function == "test_depth_counts_the_calls_between"


def test_records_are_counted_per_name_and_ordered_over_all(source, kept):
    for name in "aab":
        source.emit(0, name)
    first = kept[0].order
    assert [(record.name, record.call, record.order - first) for record in kept] == [
        ("a", 0, 0),
        ("a", 1, 1),
        ("b", 0, 2),
    ]
    assert all(abs(record.time - time.time()) < 60 for record in kept)


def test_threads_count_without_a_gap(source, kept):
    threads = [threading.Thread(target=lambda: [source.emit(0, "x") for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record.call for record in kept) == list(range(800))


def test_a_name_that_is_no_text_is_refused_with_the_order_of_arguments(source):
    with pytest.raises(
        TypeError, match=r"a name is a text, not 3; dump\(value, name\) takes the value first"
    ):
        source.emit("x", 3)


def test_a_stopped_source_pours_nowhere(source, kept):
    source.stop()
    source.stop()
    source.emit(1, "x")
    assert kept == []


def test_a_tap_given_with_the_call_gets_the_record_too(source, kept):
    memory = Memory()
    source.emit(5, "x", tap=Tap(sinks=[memory]))
    assert memory.series["x"].values == [5]
    assert len(kept) == 1
