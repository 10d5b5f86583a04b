import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.formats.hdf5.ordered_file import OrderedFile
from tensortap.formats.hdf5.schema import (
    COMPANION_SUFFIXES,
    choose_chunk,
    decode_key,
    encode_key,
    is_companion,
    part_number,
    resolve_filters,
)
from tensortap.formats.hdf5.values import DtypeCasts, decode_cell, encode_cell
from tensortap.frameworks.base import framework_of

ODD_NAMES = ["", ".", "..", "/", "a/b", "a.b", "größe", "x" * 300, "x_iterations", "x~2", "%", "%2F", "a\0b"]
FLOAT8 = [name for name in DTYPE_TABLE if name.startswith("float8")]


@pytest.mark.parametrize("name", ["forward.x", "layers.0.attn['k'][0]", "größe", "x" * 300, "x_iteration"])
def test_an_ordinary_name_is_its_own_key(name):
    assert encode_key(name) == name


@given(st.one_of(st.text(st.characters(), max_size=20), st.sampled_from(ODD_NAMES)))
def test_a_key_gives_its_name_back_and_is_safe_for_hdf5(name):
    key = encode_key(name)
    assert decode_key(key) == name
    assert key not in ("", ".", "..")
    assert "/" not in key
    assert "\0" not in key
    assert not is_companion(key)
    assert part_number(key) == 1
    key.encode("utf-8")


@given(st.text(st.sampled_from("x/._~%2iterationsranksF\0"), max_size=15))
def test_the_datasets_beside_a_name_are_no_names(name):
    for number in ("", "~2"):
        key = encode_key(name) + number
        assert decode_key(key) == name
        assert all(is_companion(key + suffix) for suffix in COMPANION_SUFFIXES)


def test_a_name_beyond_all_bounds_is_refused():
    with pytest.raises(UnsupportedValueError, match="a name of 50000 characters is too long"):
        encode_key("x" * 50_000)


@given(st.lists(st.integers(0, 5000), max_size=4), st.sampled_from([1, 2, 4, 8, 16]))
def test_a_chunk_is_about_a_megabyte_at_most(shape, itemsize):
    chunk = choose_chunk(tuple(shape), itemsize)
    assert len(chunk) == len(shape) + 1
    assert all(1 <= part <= max(1, size) for part, size in zip(chunk[1:], shape, strict=True))
    assert math.prod(chunk) * itemsize <= 1 << 20


def test_small_values_share_a_chunk_and_large_ones_are_cut_into_even_slabs():
    assert choose_chunk((16, 64), 4) == (32, 16, 64)
    assert choose_chunk((), 8) == (1024,)
    assert choose_chunk((4096, 4096), 4) == (1, 64, 4096)
    assert choose_chunk((0, 3), 4) == (1024, 1, 3)


def bits_of(value):
    return framework_of(value).bits(value)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_code_of_an_eight_bit_float_comes_back(dtype):
    value = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype))
    cell = encode_cell(value, DtypeCasts())
    assert cell.content.dtype == np.float32
    back = decode_cell(cell.content, cell.form)
    assert back.dtype == value.dtype
    assert bits_of(back).tobytes() == bits_of(value).tobytes()


def test_every_code_of_bfloat16_comes_back_and_is_stored_as_its_number():
    value = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)
    cell = encode_cell(value, DtypeCasts())
    np.testing.assert_array_equal(cell.content, value.float().numpy())
    assert bits_of(decode_cell(cell.content, cell.form)).tobytes() == bits_of(value).tobytes()


def test_half_complex_numbers_come_back():
    value = torch.tensor([1.5, -2.0, 65504.0, 0.1]).half().view(torch.uint32).view(torch.complex32)
    cell = encode_cell(value, DtypeCasts())
    assert cell.content.dtype == np.complex64
    assert bits_of(decode_cell(cell.content, cell.form)).tobytes() == bits_of(value).tobytes()


@pytest.mark.parametrize(
    "dtype", ["datetime64[ms]", "timedelta64[s]", "<U5", "S3", "[('a', '<i4'), ('b', '<f8')]"]
)
def test_other_arrays_of_numpy_come_back(dtype):
    array = np.zeros(3, eval(dtype) if dtype.startswith("[") else dtype)
    if array.dtype.kind == "U":
        array[:] = ["a", "größe", ""]
    cell = encode_cell(array, DtypeCasts())
    back = decode_cell(cell.content, cell.form)
    assert back.dtype == array.dtype
    assert back.tolist() == array.tolist()


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES)
def test_plain_python_comes_back_exactly(value):
    cell = encode_cell(value, DtypeCasts())
    back = decode_cell(cell.content, cell.form)
    assert repr(back) == repr(value)


def test_a_number_that_does_not_fit_the_wanted_integers_is_refused():
    with pytest.raises(UnsupportedValueError, match=r"numbers from -1 to 300 do not fit int_dtype uint8"):
        encode_cell(np.array([-1, 300]), DtypeCasts(ints=np.dtype("u1")))


def test_wanted_types_are_for_their_family_alone():
    casts = DtypeCasts(np.dtype("f4"), np.dtype("i2"))
    values = [1.5, 7, True, 1j, torch.ones(2).bfloat16(), np.arange(3)]
    stored = [str(encode_cell(value, casts).content.dtype) for value in values]
    assert stored == ["float32", "int16", "bool", "complex128", "float32", "int16"]


@pytest.mark.parametrize(
    "value", [object(), torch.ones(2).to_sparse(), np.array([object()])], ids=["object", "sparse", "objects"]
)
def test_what_is_no_block_of_numbers_is_refused(value):
    with pytest.raises(UnsupportedValueError):
        encode_cell(value, DtypeCasts())


def test_a_filter_goes_by_its_name_or_as_hdf5plugin_gives_it():
    hdf5plugin = pytest.importorskip("hdf5plugin")
    assert resolve_filters("blosc", None, False) == {**hdf5plugin.Blosc(), "shuffle": False}
    assert resolve_filters("Zstd", 7, False) == {**hdf5plugin.Zstd(clevel=7), "shuffle": False}
    given = hdf5plugin.Blosc(cname="zstd", clevel=3)
    assert resolve_filters(given, None, True) == {**given, "shuffle": True}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nosuch", None, "no compression 'nosuch'; known are gzip, lzf, szip, and in hdf5plugin"),
        ("gzip", 77, "HDF5 cannot compress with compression='gzip', compression_opts=77"),
        (99999, None, "HDF5 cannot compress with compression=99999"),
    ],
)
def test_a_compression_that_does_not_work_is_refused_at_once(name, options, message):
    with pytest.raises(ValueError, match=message):
        resolve_filters(name, options, False)


def test_a_file_shows_only_what_was_committed(tmp_path):
    path, seen = tmp_path / "file", []
    file = OrderedFile(path)
    file.write(memoryview(b"\x89HDF first"))
    file.commit(lambda: None)

    def flush():
        file.seek(0)
        file.write(memoryview(b"\x89HDF later"))
        seen.append(path.read_bytes())

    file.commit(flush)
    file.close()
    assert seen == [b"\x89HDF first"]
    assert path.read_bytes() == b"\x89HDF later"


def test_what_waits_for_the_commit_can_be_read_back(tmp_path):
    file = OrderedFile(tmp_path / "file")
    file.write(memoryview(b"0123456789"))
    file.commit(lambda: None)
    found = bytearray(12)

    def flush():
        file.seek(3)
        file.write(memoryview(b"abc"))
        file.seek(0)
        file.readinto(memoryview(found))

    file.commit(flush)
    file.close()
    assert bytes(found) == b"012abc6789\0\0"
