"""Contracts for plug-in authors: subclass one in your tests, give it your part, and pytest does the rest."""

from __future__ import annotations

import contextlib
import io
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tensortap.comparison.values.compare import Comparator
from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.core.protocols import Sink
from tensortap.core.record import Placement, Record
from tensortap.formats.serializers import Serializer
from tensortap.frameworks.base import Description, Framework


class FrameworkContract:
    """What tensortap relies on when a framework answers for a value.

    >>> class TestMine(FrameworkContract):
    ...     framework = MINE
    ...     def values(self):
    ...         return [my_array([1.0, 2.0]), my_array([])]
    """

    framework: Framework

    def values(self) -> Iterable[Any]:
        """A few values of each kind the framework has, among them an empty and a zero-dimensional one."""
        raise NotImplementedError("a contract needs values() to try")

    def test_it_has_a_name_and_a_suffix(self) -> None:
        assert self.framework.name
        assert self.framework.suffix.startswith(".")

    def test_it_owns_the_class_of_its_values(self) -> None:
        for value in self.values():
            assert self.framework.owns(type(value)), f"does not own {type(value).__name__}"

    def test_a_description_agrees_with_the_bits(self) -> None:
        for value, description in self._numeric():
            bits = self.framework.bits(value)
            assert bits.shape == description.shape, description
            assert bits.nbytes == description.nbytes, description
            assert bits.dtype == DTYPE_TABLE[description.dtype].storage, description

    def test_bits_come_back_as_the_same_value(self) -> None:
        for value, description in self._numeric():
            bits = self.framework.bits(value)
            back = self.framework.from_bits(bits.copy(), description.dtype)
            assert self.framework.describe(back).dtype == description.dtype
            assert self.framework.describe(back).shape == description.shape
            assert self.framework.bits(back).tobytes() == bits.tobytes(), description

    def test_read_only_bits_are_welcome(self) -> None:
        for value, description in self._numeric():
            bits = self.framework.bits(value).copy()
            bits.flags.writeable = False
            back = self.framework.from_bits(bits, description.dtype)
            assert self.framework.bits(back).tobytes() == bits.tobytes(), description

    def test_what_is_not_one_block_of_bytes_is_refused(self) -> None:
        for value in self.values():
            description = self.framework.describe(value)
            if description.layout in ("strided", "python"):
                continue
            try:
                self.framework.bits(value)
            except UnsupportedValueError:
                continue
            raise AssertionError(f"bits() of {description} should raise UnsupportedValueError")

    def test_numbers_are_an_array_of_the_same_shape(self) -> None:
        for value, description in self._numeric():
            numbers = self.framework.to_numpy(value)
            assert isinstance(numbers, np.ndarray)
            assert numbers.shape == description.shape, description

    def test_a_snapshot_has_the_same_bits(self) -> None:
        for value, description in self._numeric():
            copy = self.framework.snapshot(value)
            assert self.framework.describe(copy).dtype == description.dtype
            assert self.framework.bits(copy).tobytes() == self.framework.bits(value).tobytes(), description

    def test_a_mark_knows_its_value_and_no_other(self) -> None:
        for value in self.values():
            is_same = self.framework.mark(value)
            assert is_same(value), self.framework.describe(value)
            assert not is_same(object()), self.framework.describe(value)

    def test_asking_changes_nothing(self) -> None:
        for value, description in self._numeric():
            before = self.framework.bits(value).tobytes()
            self.framework.to_numpy(value)
            self.framework.snapshot(value)
            self.framework.mark(value)(value)
            assert self.framework.bits(value).tobytes() == before, description

    def test_a_placement_is_told_or_there_is_none(self) -> None:
        for value in self.values():
            placement = self.framework.placement(value)
            assert placement is None or isinstance(placement, Placement)

    def _numeric(self) -> Iterator[tuple[Any, Description]]:
        for value in self.values():
            description = self.framework.describe(value)
            if description.dtype in DTYPE_TABLE and description.layout in ("strided", "python"):
                yield value, description


class SinkContract:
    """What tensortap relies on when it writes to a sink.

    >>> class TestMine(SinkContract):
    ...     def make(self):
    ...         return MySink()
    ...     def read(self, sink):
    ...         return [(record.name, record.step, record.value) for record in sink.records]

    `read` gives what the sink holds after a flush, in order, as `(name, step, value)`; values may come back
    as any array that numpy understands.
    """

    def make(self) -> Sink:
        raise NotImplementedError("a contract needs make() for a new, empty sink")

    def read(self, sink: Sink) -> Iterable[tuple[str, Any, Any]]:
        raise NotImplementedError("a contract needs read() to look at what was written")

    def test_what_was_written_is_there_after_a_flush(self) -> None:
        with self._opened() as sink:
            for step in range(3):
                sink.write(Record("x", np.arange(4.0) + step, step=step))
            assert self._found(sink) == [
                ("x", step, [step, step + 1, step + 2, step + 3]) for step in range(3)
            ]

    def test_nothing_is_there_before_a_write(self) -> None:
        with self._opened() as sink:
            assert self._found(sink) == []

    def test_records_of_several_names_are_kept_apart(self) -> None:
        with self._opened() as sink:
            for name in ("b", "a", "b", "a/b", "größe"):
                sink.write(Record(name, np.zeros(1)))
            assert sorted(name for name, _, _ in self._found(sink)) == ["a", "a/b", "b", "b", "größe"]

    def test_a_value_changed_after_the_write_is_kept_as_it_was(self) -> None:
        with self._opened() as sink:
            value = np.zeros(3)
            sink.write(Record("x", value))
            value += 1
            assert self._found(sink) == [("x", 0, [0, 0, 0])]

    def test_the_value_itself_is_left_alone(self) -> None:
        with self._opened() as sink:
            value = np.arange(6.0).reshape(2, 3).T
            sink.write(Record("x", value))
            sink.flush()
            assert value.tolist() == [[0, 3], [1, 4], [2, 5]]
            assert self._found(sink) == [("x", 0, [[0, 3], [1, 4], [2, 5]])]

    def test_every_number_type_keeps_its_numbers(self) -> None:
        with self._opened() as sink:
            names = [name for name, dtype_info in DTYPE_TABLE.items() if dtype_info.native]
            for name in names:
                sink.write(Record(name, np.array([0, 1], name)))
            assert sorted(self._found(sink)) == sorted((name, 0, [0, 1]) for name in names)

    def test_flushing_an_empty_sink_does_nothing(self) -> None:
        with self._opened() as sink:
            sink.flush()
            sink.flush()

    def test_closing_twice_does_nothing(self) -> None:
        sink = self.make()
        sink.write(Record("x", np.zeros(1)))
        sink.close()
        sink.close()

    def test_threads_that_take_turns_lose_nothing(self) -> None:
        with self._opened() as sink:
            lock = threading.Lock()  # a tap holds one around every sink
            threads = [threading.Thread(target=_write_some, args=(sink, lock)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(self._found(sink)) == 40

    def _found(self, sink: Sink) -> list[tuple[str, Any, Any]]:
        sink.flush()
        return [(name, step, np.asarray(value).tolist()) for name, step, value in self.read(sink)]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Sink]:
        sink = self.make()
        try:
            yield sink
        finally:
            sink.close()


class SerializerContract:
    """What tensortap relies on when a serializer writes and reads values of a type of your own.

    >>> class TestMine(SerializerContract):
    ...     serializer = PointsFormat()
    ...     def values(self):
    ...         return [Points([]), Points([(1, 2)])]

    Override `same` where `==` does not say whether two values are the same.
    """

    serializer: Serializer

    def values(self) -> Iterable[Any]:
        """A few values, among them the smallest that there is."""
        raise NotImplementedError("a contract needs values() to try")

    def same(self, first: Any, other: Any) -> bool:
        return bool(first == other)

    def test_its_suffix_fits_a_file_name(self) -> None:
        suffix = self.serializer.suffix
        assert suffix.startswith("."), f"{suffix!r} does not start with a dot"
        assert 1 < len(suffix) <= 32, f"{suffix!r} should be short"
        assert not set(suffix) & set('/\\"\0\n '), f"{suffix!r} does not fit a file name"

    def test_a_value_comes_back(self) -> None:
        for value in self.values():
            back = self.serializer.load(io.BytesIO(self._saved(value)))
            assert type(back) is type(value)
            assert self.same(value, back), f"{value!r} came back as {back!r}"

    def test_saving_changes_nothing(self) -> None:
        for value, unchanged in zip(self.values(), self.values(), strict=True):
            self._saved(value)
            assert self.same(value, unchanged), f"{unchanged!r} became {value!r}"

    def test_saving_twice_gives_the_same_value(self) -> None:
        for value in self.values():
            first, second = (self.serializer.load(io.BytesIO(self._saved(value))) for _ in range(2))
            assert self.same(first, second), f"{first!r} and {second!r}"

    def test_a_loaded_value_can_be_saved(self) -> None:
        for value in self.values():
            back = self.serializer.load(io.BytesIO(self._saved(value)))
            again = self.serializer.load(io.BytesIO(self._saved(back)))
            assert self.same(value, again), f"{value!r} came back as {again!r}"

    def test_the_stream_is_left_open(self) -> None:
        for value in self.values():
            stream = io.BytesIO()
            self.serializer.save(value, stream)
            assert not stream.closed, "save() closed the stream it was given"
            stream.seek(0)
            self.serializer.load(stream)
            assert not stream.closed, "load() closed the stream it was given"

    def test_it_works_with_a_file(self) -> None:
        for value in self.values():
            with tempfile.TemporaryFile() as file:
                self.serializer.save(value, file)
                file.seek(0)
                assert self.same(value, self.serializer.load(file)), f"{value!r}"

    def _saved(self, value: Any) -> bytes:
        stream = io.BytesIO()
        self.serializer.save(value, stream)
        return stream.getvalue()


class ComparatorContract:
    """What tensortap relies on when a comparator says whether two values of your type are equal.

    >>> class TestMine(ComparatorContract):
    ...     comparator = staticmethod(compare_points)
    ...     def pairs(self):
    ...         yield Points([(1, 2)]), Points([(1, 2)]), True
    ...         yield Points([(1, 2)]), Points([(1, 3)]), False
    """

    comparator: Comparator

    def pairs(self) -> Iterable[tuple[Any, Any, bool]]:
        """Two values, and whether they are equal without tolerance: some that are, some that are not."""
        raise NotImplementedError("a contract needs pairs() to try")

    def test_there_are_equal_and_different_pairs(self) -> None:
        assert {expected for _, _, expected in self.pairs()} == {True, False}

    def test_it_says_what_is_expected(self) -> None:
        for left, right, expected in self.pairs():
            assert self._compared(left, right) is expected, f"{left!r} and {right!r}"

    def test_the_order_does_not_matter_without_tolerance(self) -> None:
        for left, right, expected in self.pairs():
            assert self._compared(right, left) is expected, f"{right!r} and {left!r}"

    def test_a_value_equals_itself(self) -> None:
        for pair in self.pairs():
            for value in pair[:2]:
                assert self._compared(value, value) is True, f"{value!r}"

    def test_a_tolerance_never_makes_equal_values_differ(self) -> None:
        for left, right, expected in self.pairs():
            if expected:
                assert self._compared(left, right, 1e-3, 1e-3) is True, f"{left!r} and {right!r}"

    def test_another_type_is_different_and_no_error(self) -> None:
        for value, _, _ in self.pairs():
            assert self._compared(value, None) is False, f"{value!r} and None"
            assert self._compared(None, value) is False, f"None and {value!r}"

    def _compared(self, first: Any, other: Any, atol: float = 0.0, rtol: float = 0.0) -> Any:
        is_equal = self.comparator(first, other, atol, rtol)
        assert isinstance(is_equal, bool), f"a comparator answers True or False, not {is_equal!r}"
        return is_equal


def _write_some(sink: Sink, lock: threading.Lock) -> None:
    for number in range(10):
        with lock:
            sink.write(Record("x", np.array([number])))
