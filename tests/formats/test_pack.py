"""Packs: appended values are readable at once by the index, and by numpy after closing."""

import io
import os
import zipfile

import numpy as np
import pytest
import torch

from tensortap.formats import pack as packs
from tensortap.formats.pack import PackWriter
from tensortap.formats.serializers import encode


@pytest.fixture
def pack(tmp_path):
    writer = PackWriter(str(tmp_path / "pack.npz"))
    yield writer
    try:
        writer.close()
    except OSError:
        pass  # closed by the test


def _append(writer, name, value):
    payload = encode(value, plain=True).payload
    return writer.append(name, payload, memoryview(np.ascontiguousarray(payload.bits)).cast("B"))


def test_numpy_opens_a_closed_pack(pack, tmp_path):
    values = {"a": np.arange(5), "äöü": np.ones((2, 3)), "empty": np.empty((0, 2)), "point": np.array(1.5)}
    for name, value in values.items():
        payload = encode(value, plain=True).payload
        pack.append(name, payload, memoryview(payload.bits.tobytes()))
    pack.close()
    with np.load(tmp_path / "pack.npz") as stored:
        assert sorted(stored.files) == sorted(values)
        for name, value in values.items():
            np.testing.assert_array_equal(stored[name], value)


def test_any_zip_reader_finds_it_sound(pack, tmp_path):
    _append(pack, "x", torch.ones(3))
    pack.append("y", payload := encode({"a": 1}).payload, memoryview(payload.bits))
    pack.close()
    with zipfile.ZipFile(tmp_path / "pack.npz") as file:
        assert file.testzip() is None
        assert file.namelist() == ["x.npy", "y.pkl"]


def test_a_place_leads_to_the_numbers_and_they_are_aligned(pack, tmp_path):
    for length in (1, 3, 100):
        value = np.arange(length, dtype=np.float32)
        place = _append(pack, "x", value)
        pack.flush()
        data = (tmp_path / "pack.npz").read_bytes()
        assert place.offset % 64 == 0
        assert data[place.offset : place.start + place.length] == value.tobytes()
        assert np.array_equal(np.load(io.BytesIO(data[place.start : place.start + place.length])), value)


def test_no_two_members_share_a_name(pack, tmp_path):
    for name in ("x", "x.2", "x", "x", "x.2"):
        _append(pack, name, np.zeros(1))
    pack.close()
    with zipfile.ZipFile(tmp_path / "pack.npz") as file:
        assert len(set(file.namelist())) == 5


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
def test_an_append_that_fails_halfway_leaves_the_others_sound(pack, tmp_path, monkeypatch, error):
    _append(pack, "before", np.arange(3))
    with monkeypatch.context() as patch:
        patch.setattr(packs, "write_parts", _halfway(error))
        with pytest.raises(type(error)):
            _append(pack, "lost", np.arange(10_000))
    place = _append(pack, "after", np.arange(4))
    pack.close()
    with np.load(tmp_path / "pack.npz") as stored:
        assert stored.files == ["before", "after"]
        assert stored["after"].tolist() == [0, 1, 2, 3]
    assert (tmp_path / "pack.npz").read_bytes()[place.offset :].startswith(np.arange(4).tobytes())


@pytest.mark.parametrize("error", [OSError(28, "full"), KeyboardInterrupt()])
def test_a_flush_that_fails_halfway_is_made_up_for_by_the_next(pack, tmp_path, monkeypatch, error):
    _append(pack, "x", np.arange(3))
    with monkeypatch.context() as patch:
        patch.setattr(packs, "write_all", lambda fd, parts: _halfway(error)(fd, parts[0][:40], None))
        with pytest.raises(type(error)):
            pack.flush()
    assert os.path.getsize(tmp_path / "pack.npz") == 0
    _append(pack, "y", np.arange(4))
    pack.close()
    with np.load(tmp_path / "pack.npz") as stored:
        assert {name: stored[name].tolist() for name in stored.files} == {"x": [0, 1, 2], "y": [0, 1, 2, 3]}


def test_what_is_taken_back_leaves_its_place_and_its_name(pack, tmp_path):
    for value in (1, 2):
        _append(pack, "x", np.array([value]))
        if value == 1:
            pack.undo_append()
    pack.close()
    with np.load(tmp_path / "pack.npz") as stored:
        assert {name: stored[name].tolist() for name in stored.files} == {"x": [2]}


def test_a_pack_never_continues_another(pack, tmp_path):
    with pytest.raises(FileExistsError):
        PackWriter(str(tmp_path / "pack.npz"))


def _halfway(error):
    def write(fd, head, body, *rest):
        os.write(fd, head)
        raise error

    return write
