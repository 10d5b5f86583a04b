"""The .npy files: numpy reads them without us, and loading them copies nothing."""

import contextlib
import io
import mmap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensortap.core.errors import CorruptRunError, UntrustedFileError
from tensortap.formats import npy
from tensortap.formats.serializers import encode, load

BASE = np.arange(24).reshape(2, 3, 4)
DTYPES = "?bhilqBHILQefdgFDG"
ODD = {
    "zero dimensions": np.array(1.5),
    "scalar": np.float32(2),
    "empty": np.empty((0, 3)),
    "no bytes": np.zeros(3, "V0"),
    "structured": np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]),
    "unicode field": np.zeros(2, [("长度", "f4")]),
    "many fields": np.zeros(2, [(f"field{i}", "i1") for i in range(300)]),
    "datetime": np.array(["2025-10-28", "NaT"], "M8[ns]"),
    "timedelta": np.array([1, 2], "m8[3h]"),
    "texts": np.array(["a", "äöü"]),
    "bytes": np.array([b"a", b"bcd"]),
    "big-endian": BASE.astype(">f4"),
    "transposed": BASE.T,
    "strided": BASE[:, ::2, ::-1],
    "broadcast": np.broadcast_to(np.float32(1), (3, 4)),
}


@pytest.mark.parametrize("code", DTYPES)
def test_numpy_reads_every_number_type(saved, code):
    value = BASE.astype(code)
    back = np.load(saved(value))
    assert back.dtype == value.dtype
    np.testing.assert_array_equal(back, value)


@pytest.mark.parametrize("case", ODD)
def test_numpy_reads_every_kind_of_array(saved, case):
    value = ODD[case]
    for back in (np.load(path := saved(value)), load(path)):
        assert back.shape == value.shape
        assert back.dtype == value.dtype.newbyteorder("=")
        np.testing.assert_array_equal(back, value)


@settings(deadline=None)
@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
def test_any_array_comes_back_bit_for_bit(value):
    payload = encode(value).payload
    bits = np.frombuffer(payload.head + payload.bits.tobytes(), np.uint8)
    back = npy.read(_stream(bits.tobytes()), "x", False)
    assert back.shape == value.shape
    assert back.tobytes() == value.astype(value.dtype.newbyteorder("=")).tobytes()


def test_a_bf16_tensor_in_plain_form_keeps_its_bits(saved):
    tensor = torch.tensor([1.0, -2.5, float("nan")], dtype=torch.bfloat16)
    back = np.load(saved(tensor, plain=True))
    assert back.dtype == np.uint16
    assert torch.equal(torch.from_numpy(back).view(torch.bfloat16).isnan(), tensor.isnan())


def test_the_numbers_begin_aligned(saved):
    for value in (np.ones(3), np.ones((7, 5), "c8"), ODD["many fields"], ODD["unicode field"]):
        assert len(encode(value).payload.head) % 64 == 0


def test_loading_maps_the_file(saved):
    back = load(saved(np.arange(1000.0)))
    assert type(back) is np.ndarray
    assert isinstance(back.base._mmap, mmap.mmap)


def test_writing_to_a_loaded_array_does_not_reach_the_file(saved):
    path = saved(np.arange(1000.0))
    before = path.read_bytes()
    load(path)[:] = -1
    assert path.read_bytes() == before


def test_arrays_of_objects_want_trust(saved):
    path = saved(np.array([1, "two", None], object))
    with pytest.raises(UntrustedFileError, match=r"holds pickled Python objects.*pass trust=True if you do"):
        load(path)
    assert load(path, trust=True).tolist() == [1, "two", None]
    assert np.load(path, allow_pickle=True).tolist() == [1, "two", None]


def test_texts_of_variable_length_come_back_as_such(saved):
    value = np.array(["a", "long " * 20], np.dtypes.StringDType())
    back = load(saved(value), trust=True)
    assert back.dtype == value.dtype
    assert back.tolist() == value.tolist()


def test_a_shorter_file_is_named_in_one_sentence(saved):
    path = saved(np.arange(100))
    whole = path.read_bytes()
    for length in (0, 5, 9, 60, 128, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptRunError, match=r"is not a whole \.npy file \(.*\); dump it again$"):
            load(path)


@settings(deadline=None)
@given(at=st.integers(0, 127), byte=st.integers(0, 255), trust=st.booleans())
def test_a_damaged_header_gives_an_array_or_a_sentence(at, byte, trust):
    data = bytearray(npy.npy_header(np.dtype("f8"), (3,)) + bytes(24))
    data[at % len(data)] = byte
    with contextlib.suppress(CorruptRunError, UntrustedFileError):
        assert isinstance(npy.read(_stream(data), "x", trust), np.ndarray)


def test_a_shape_beyond_all_memory_is_a_damaged_file(tmp_path):
    (tmp_path / "x.npy").write_bytes(npy.npy_header(np.dtype("f8"), (10**15,)) + bytes(8))
    with pytest.raises(CorruptRunError):
        load(tmp_path / "x.npy")


def _stream(data):
    return io.BytesIO(bytes(data))
