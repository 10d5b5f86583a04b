"""A folder of files: each appears whole under a name of its own, or not at all."""

import errno
import itertools
import os
import threading
import zipfile

import numpy as np
import pytest
import torch

from tensortap.formats import atomic_files
from tensortap.formats.atomic_files import DIRECT_ALIGNMENT, AtomicFolder, contiguous_bytes
from tensortap.formats.payload import Payload
from tensortap.formats.serializers import encode
from tensortap.frameworks.retention import BufferPool
from tensortap.kernels.hashing import checksum


@pytest.fixture(params=["nameless", "renamed"])
def folder(request, tmp_path):
    (tmp_path / "scratch").mkdir()
    folder = AtomicFolder(str(tmp_path), str(tmp_path / "scratch"))
    if request.param == "renamed":
        folder._has_tmpfile = False
    elif not folder._has_tmpfile:
        pytest.skip("this file system has no nameless files")
    return folder


def _names():
    return itertools.chain(["x.bin"], (f"x.{number}.bin" for number in itertools.count(2)))


def _put(folder, data=b"abc", tail=None):
    payload = Payload(".bin", np.frombuffer(data, np.uint8), b"head", tail)
    return folder.write_new(_names(), payload, memoryview(data))


def _files(folder):
    return sorted(os.listdir(folder.path)), os.listdir(folder._scratch)


def test_a_file_holds_head_body_and_tail(folder, tmp_path):
    name, summed = _put(folder, b"abc", lambda crc: f"{crc:08x}".encode())
    assert (tmp_path / name).read_bytes() == b"headabc352441c2"
    assert summed == checksum(b"abc")


def test_taken_names_are_left_alone(folder, tmp_path):
    (tmp_path / "x.2.bin").write_bytes(b"mine")
    assert [_put(folder)[0] for _ in range(3)] == ["x.bin", "x.3.bin", "x.4.bin"]
    assert (tmp_path / "x.2.bin").read_bytes() == b"mine"
    assert _files(folder)[1] == []


def test_a_large_body_is_written_in_blocks(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_files, "_BLOCK_NBYTES", 1000)
    data = os.urandom(3500)
    name, summed = _put(folder, data, lambda crc: crc.to_bytes(4, "little"))
    written = (tmp_path / name).read_bytes()
    assert written[4:-4] == data
    assert int.from_bytes(written[-4:], "little") == atomic_files.crc32(data)
    assert summed == checksum(data)


def test_a_failed_write_leaves_nothing(folder):
    def full(crc):
        raise OSError(errno.ENOSPC, "no space left")

    with pytest.raises(OSError, match="no space left"):
        _put(folder, b"abc", full)
    assert _files(folder) == (["scratch"], [])
    assert _put(folder)[0] == "x.bin"


def test_a_folder_that_is_gone_is_an_error(tmp_path):
    (tmp_path / "run").mkdir()
    folder = AtomicFolder(str(tmp_path / "run"), str(tmp_path / "run"))
    (tmp_path / "run").rmdir()
    with pytest.raises(FileNotFoundError):
        _put(folder)


def test_a_file_system_without_nameless_files_is_noticed_once(tmp_path, monkeypatch):
    folder = AtomicFolder(str(tmp_path), str(tmp_path))
    folder._has_tmpfile = True
    calls = []

    def unsupported(self):
        calls.append(1)
        raise atomic_files._Unsupported

    monkeypatch.setattr(AtomicFolder, "_open_unnamed", unsupported)
    assert [_put(folder)[0], _put(folder)[0]] == ["x.bin", "x.2.bin"]
    assert len(calls) == 1


def test_a_file_system_without_links_renames(folder, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EPERM, "no links here")

    folder._has_tmpfile = False
    monkeypatch.setattr(os, "link", refuse)
    assert [_put(folder)[0], _put(folder)[0]] == ["x.bin", "x.2.bin"]
    assert _files(folder)[1] == []


def test_threads_that_want_one_name_each_get_one(folder):
    found = []
    work = lambda: found.extend(_put(folder)[0] for _ in range(20))  # noqa: E731
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 80


@pytest.mark.parametrize("dtype", ["f4", "c16", "?", "M8[s]", "U3", "V0", "f2", "S0"])
def test_any_array_is_one_block_of_bytes(dtype):
    array = np.zeros((2, 3), dtype)
    assert contiguous_bytes(array).nbytes == array.nbytes


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, parts: real(fd, [bytes(parts[0])[:2]]))
    folder = AtomicFolder(str(tmp_path), str(tmp_path))
    name, _ = _put(folder)
    assert (tmp_path / name).read_bytes() == b"headabc"


def _staged(value, shift=0):
    """A payload whose bits lie in staging memory, as the background writer prepares it."""
    payload = encode(value).payload
    room = BufferPool().copy(payload.bits, len(payload.head) + shift, 2 * DIRECT_ALIGNMENT)
    payload.staging = room.whole[shift:].data
    return payload, room.array.data


@pytest.mark.parametrize("shift", [0, 1], ids=["past the cache", "misaligned, so through it"])
@pytest.mark.parametrize("size", [1 << 18, (1 << 18) + 1, 1_000_003])
def test_a_staged_value_is_written_whole(tmp_path, size, shift):
    folder = AtomicFolder(str(tmp_path), str(tmp_path))
    tensor = torch.arange(size, dtype=torch.float32)
    folder.write_new(["x.pt"], *_staged(tensor, shift))
    folder.write_new(["x.npy"], *_staged(tensor.numpy(), shift))
    assert torch.equal(torch.load(tmp_path / "x.pt", weights_only=True), tensor)
    assert zipfile.ZipFile(tmp_path / "x.pt").testzip() is None
    assert np.array_equal(np.load(tmp_path / "x.npy"), tensor.numpy())
    if shift:
        assert not folder._has_direct
