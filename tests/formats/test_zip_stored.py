"""A stored zip: every zip reader opens it, its data are aligned, and large sizes find their place."""

import io
import zipfile
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensortap.formats.zip_stored import (
    ALIGNMENT,
    ZipMember,
    data_descriptor,
    data_descriptor_size,
    directory,
    local_header,
)

HUGE = (1 << 32) + 5


def _archive(contents):
    """The bytes of an archive, its members, and where each one's data begin."""
    out, members, starts = bytearray(), [], []
    for name, data in contents:
        offset = len(out)
        out += local_header(name.encode(), offset, len(data))
        starts.append(len(out))
        crc = zlib.crc32(data)
        out += data + data_descriptor(crc, len(data))
        members.append(ZipMember(name.encode(), crc, len(data), offset))
    return bytes(out) + directory(members, len(out)), members, starts


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1)


@settings(deadline=None)
@given(st.dictionaries(names, st.binary()))
def test_python_reads_back_any_members(contents):
    data, _, _ = _archive(contents.items())
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert file.testzip() is None
        assert file.namelist() == list(contents)
        assert [file.read(info) for info in file.infolist()] == list(contents.values())


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["a", "bb", "äöü", "x" * 100]), st.binary()), max_size=5))
def test_data_begin_aligned(contents):
    assert all(start % ALIGNMENT == 0 for start in _archive(contents)[2])


def test_the_descriptor_is_as_long_as_it_says():
    for size in (0, 1, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, HUGE):
        assert len(data_descriptor(0, size)) == data_descriptor_size(size)


@pytest.mark.parametrize("size", [(1 << 32) - 2, (1 << 32) - 1, 1 << 32, HUGE])
@pytest.mark.parametrize("offset", [0, (1 << 32) - 1, HUGE])
def test_sizes_and_places_beyond_32_bits_are_found(size, offset):
    member = ZipMember(b"big", 7, size, offset)
    (info,) = _read_directory([member], offset + size + 100)
    assert (info.file_size, info.compress_size, info.header_offset, info.CRC) == (size, size, offset, 7)


def test_more_members_than_16_bits_count_are_found():
    members = [ZipMember(b"m%d" % number, 0, 0, number) for number in range(65_536)]
    assert len(_read_directory(members, 65_536)) == 65_536


def test_a_local_header_leaves_room_for_64_bit_sizes_where_they_are_needed():
    small, large = local_header(b"x", 0, (1 << 32) - 2), local_header(b"x", 0, 1 << 32)
    assert b"\1\0\x10\0" not in small
    assert b"\1\0\x10\0" in large
    assert len(small) % ALIGNMENT == len(large) % ALIGNMENT == 0


def _read_directory(members, start):
    """What zipfile finds when only the end of the file exists: nothing before it is read."""
    end = directory(members, start)

    class Sparse(io.RawIOBase):
        at = 0

        def seekable(self):
            return True

        def seek(self, to, whence=0):
            self.at = to + (0, self.at, start + len(end))[whence]
            return self.at

        def tell(self):
            return self.at

        def read(self, size=-1):
            begin = self.at - start
            found = end[begin : None if size < 0 else begin + size]
            self.at += len(found)
            return found

    with zipfile.ZipFile(Sparse()) as file:
        return file.infolist()
