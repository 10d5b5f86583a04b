"""Contracts for plug-in authors: subclass one in your tests, give it your part, and pytest does the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tensortap.core.dtypes import NUMBER_TYPES
from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Placement
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
            assert bits.dtype == NUMBER_TYPES[description.dtype].storage, description

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
            if description.dtype in NUMBER_TYPES and description.layout in ("strided", "python"):
                yield value, description
