"""Checksums are the same for the same bytes, whatever holds them, and None without their library."""

import importlib
import sys
import zlib

import numpy as np
import pytest

from tensortap.kernels import hashing
from tensortap.kernels.hashing import RunningChecksum, checksum, crc32

HOLDERS = [b"", b"abc", bytearray(b"abc"), memoryview(b"abc"), np.arange(6.0).reshape(2, 3), np.zeros((0, 3))]


@pytest.fixture
def forgotten(monkeypatch):
    """As if neither library were installed."""
    for name in ("xxhash", "isal"):
        monkeypatch.setitem(sys.modules, name, None)
    yield importlib.reload(hashing)
    monkeypatch.undo()
    importlib.reload(hashing)


@pytest.mark.parametrize("data", HOLDERS)
def test_a_checksum_depends_on_the_bytes_alone(data):
    assert checksum(data) == checksum(bytes(data))
    assert crc32(data) == zlib.crc32(bytes(data))


def test_a_checksum_reads_as_its_kind_and_sixteen_digits():
    assert checksum(b"") == "xxh3:2d06800538d394c2"


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "complex128", "datetime64[s]", "S3"])
def test_arrays_of_any_type_are_taken(dtype):
    array = np.zeros(5, dtype)
    assert checksum(array) == checksum(array.tobytes())
    assert checksum(array[:1].reshape(())) == checksum(array[:1].tobytes())


def test_pieces_give_the_checksum_of_the_whole():
    data, pieces, running = np.arange(1000.0), RunningChecksum(), 0
    for start in range(0, 1000, 300):
        pieces.update(data[start : start + 300])
        running = crc32(data[start : start + 300], running)
    assert pieces.text() == checksum(data)
    assert running == crc32(data)


def test_an_array_in_several_blocks_is_refused():
    with pytest.raises(ValueError, match="must lie in one block; make the array contiguous first"):
        checksum(np.zeros((4, 4))[:, ::2])


def test_without_its_library_there_is_no_checksum(forgotten):
    pieces = forgotten.RunningChecksum()
    pieces.update(b"abc")
    assert forgotten.checksum(b"abc") is None
    assert pieces.text() is None


def test_without_its_library_the_crc_is_that_of_zlib(forgotten):
    assert forgotten._crc32 is zlib.crc32
    assert forgotten.crc32(b"abc", 5) == zlib.crc32(b"abc", 5)
