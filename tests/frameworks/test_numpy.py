"""Arrays and scalars of numpy, plain and odd."""

import sys

import numpy as np
import pytest

from tensortap.core.errors import UnsupportedValueError
from tensortap.frameworks.numpy import FRAMEWORK

ml_dtypes = pytest.importorskip("ml_dtypes")


def test_bits_of_a_view_are_the_view():
    base = np.arange(12.0).reshape(3, 4)
    for view in (base, base.T, base[::2, 1:], base[::-1], np.broadcast_to(base[0], (5, 4)), base[:0]):
        assert FRAMEWORK.bits(view).tolist() == view.tolist()
        assert view.size == 0 or np.shares_memory(FRAMEWORK.bits(view), base)
        assert FRAMEWORK.describe(view).nbytes == view.nbytes


def test_big_endian_arrays_are_described_and_read_as_little_endian():
    value = np.array([1.5, -2], ">f4")
    assert FRAMEWORK.describe(value).dtype == "float32"
    assert FRAMEWORK.bits(value).tobytes() == np.array([1.5, -2], "<f4").tobytes()
    assert FRAMEWORK.to_numpy(value).tolist() == [1.5, -2]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_types_of_ml_dtypes_have_torchs_names_and_widen_exactly(name):
    value = np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))
    assert FRAMEWORK.describe(value).dtype == name
    np.testing.assert_array_equal(FRAMEWORK.to_numpy(value), value.astype(np.float32))
    back = FRAMEWORK.from_bits(FRAMEWORK.bits(value), name)
    assert back.dtype == value.dtype
    assert np.shares_memory(back, value)


def test_without_ml_dtypes_the_numbers_come_back_wider(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    back = FRAMEWORK.from_bits(np.array([0x3F80, 0xC000], np.uint16), "bfloat16")
    assert (back.dtype, back.tolist()) == (np.float32, [1, -2])


def test_small_types_outside_the_table_still_give_bytes_and_numbers():
    value = np.array([1, -2], ml_dtypes.float8_e3m4)
    assert FRAMEWORK.describe(value).dtype == "float8_e3m4"
    assert FRAMEWORK.to_numpy(value).tolist() == [1, -2]
    assert FRAMEWORK.from_bits(FRAMEWORK.bits(value), "float8_e3m4").tolist() == value.tolist()


@pytest.mark.parametrize(
    "value",
    [
        np.array(["2024-01-01"], "datetime64[ns]"),
        np.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")]),
        np.array([(1, 2.0)], np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        np.array(["abc"]),
        np.array([b"abc"]),
        np.array([1], np.longdouble),
    ],
    ids=["datetime", "structured", "aligned", "text", "bytes", "long double"],
)
def test_other_plain_types_come_back_under_numpys_own_spelling(value):
    description = FRAMEWORK.describe(value)
    assert description.layout == "strided"
    assert description.dtype == str(value.dtype)
    back = FRAMEWORK.from_bits(FRAMEWORK.bits(value), description.dtype)
    assert back.dtype == value.dtype
    assert back.tolist() == value.tolist()


@pytest.mark.parametrize(
    ("value", "layout"), [(np.array([None, 1]), "object"), (np.ma.array([1, 2], mask=[0, 1]), "masked")]
)
def test_arrays_that_are_more_than_their_bytes_are_refused(value, layout):
    assert FRAMEWORK.describe(value).layout == layout
    with pytest.raises(UnsupportedValueError, match=rf"a numpy array of shape \[2\] \({layout}\)"):
        FRAMEWORK.bits(value)


def test_an_unknown_type_is_refused():
    with pytest.raises(UnsupportedValueError, match="numpy has no type 'float7'"):
        FRAMEWORK.from_bits(np.zeros(1), "float7")


@pytest.mark.parametrize("size", [3, 5000])
def test_a_mark_sees_a_change_through_a_view(size):
    value = np.zeros(size)
    is_same = FRAMEWORK.mark(value)
    assert is_same(value)
    assert not is_same(value.copy())
    value[:2][1] = 1
    assert not is_same(value)


def test_a_mark_sees_objects_and_masks_change():
    objects, masked = np.array([None, 1]), np.ma.array([1, 2])
    marks = FRAMEWORK.mark(objects), FRAMEWORK.mark(masked)
    assert marks[0](objects)
    assert marks[1](masked)
    objects[0], masked[0] = "x", np.ma.masked
    assert not marks[0](objects)
    assert not marks[1](masked)


def test_scalars_are_the_same_when_their_bits_are():
    is_same = FRAMEWORK.mark(np.float32("nan"))
    assert is_same(np.float32("nan"))
    assert not is_same(np.float64("nan"))
    assert not FRAMEWORK.mark(np.float32(0))(np.float32(-0.0))
    assert FRAMEWORK.snapshot(np.float32(1)) == 1


def test_a_snapshot_keeps_its_own_bytes_only():
    base = np.zeros(1000)
    copy = FRAMEWORK.snapshot(base[:2])
    base[0] = 1
    assert copy.tolist() == [0, 0]
    assert copy.base is None
