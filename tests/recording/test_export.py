"""Values of a run in files that other programs read."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tensortap as tt
from tensortap.formats.safetensors import NamedArray, write_npz
from tensortap.recording import export

_TYPES = [
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float16",
    "float64",
    "complex64",
    "bool",
    "uint8",
    "int64",
]


@pytest.fixture
def made(tmp_path: Path) -> Any:
    def make(*records: Any) -> tt.Run:
        with tt.Tap(sinks=[tt.RunDirectory(tmp_path / "run", layout="files")]) as tap:
            for record in records:
                tap.emit(record)
        return tt.Run(tmp_path / "run")

    return make


@pytest.mark.parametrize("dtype", _TYPES)
def test_numbers_come_back_exactly(made: Any, tmp_path: Path, dtype: str) -> None:
    value = torch.arange(-8, 8).reshape(4, 4).to(getattr(torch, dtype))
    run = made(tt.Record("layers.0.out", value))
    tt.export(run, tmp_path / "a.npz")
    tt.export(run, tmp_path / "a.safetensors")
    read = np.load(tmp_path / "a.npz")["layers.0.out"]
    assert tt.compare(read, value, atol=0, rtol=0)
    exact = load_file(tmp_path / "a.safetensors")["layers.0.out"]
    assert exact.dtype is value.dtype
    assert torch.equal(exact.view(torch.uint8), value.contiguous().view(torch.uint8))


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_every_shape_comes_back(made: Any, tmp_path: Path, shape: tuple[int, ...]) -> None:
    value = torch.randn(shape)
    run = made(tt.Record("x", value))
    for name in ("a.npz", "a.safetensors"):
        assert tt.export(run, tmp_path / name).keys == ["x"]
    assert np.load(tmp_path / "a.npz")["x"].shape == shape
    assert load_file(tmp_path / "a.safetensors")["x"].shape == shape


def test_a_value_larger_than_a_block_comes_back(made: Any, tmp_path: Path) -> None:
    value = torch.randn(3, 100_001)
    run = made(tt.Record("x", value))
    tt.export(run, tmp_path / "a.npz")
    tt.export(run, tmp_path / "a.safetensors")
    assert np.array_equal(np.load(tmp_path / "a.npz")["x"], value.numpy())
    assert torch.equal(load_file(tmp_path / "a.safetensors")["x"], value)


def test_a_trace_has_steps_and_ranks_beside_the_values(made: Any, tmp_path: Path) -> None:
    run = made(*(tt.Record("loss", torch.tensor(float(step)), step=step) for step in range(3)))
    assert tt.export(run, tmp_path / "a.h5").keys == ["loss"]
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["loss"][:].tolist() == [0.0, 1.0, 2.0]
        assert file["loss_iterations"][:].tolist() == [0, 1, 2]


def test_keys_tell_what_differs_and_no_two_are_alike(made: Any) -> None:
    run = made(
        tt.Record("alone", np.ones(1), step=7),
        tt.Record("loss", np.ones(1), step=0),
        tt.Record("loss", np.ones(1), step=1),
        tt.Record("x", np.ones(1), step=0, rank=0),
        tt.Record("x", np.ones(1), step=0, rank=1),
        tt.Record("again", np.ones(1)),
        tt.Record("again", np.ones(1)),
    )
    keys = export.record_keys(run)
    assert keys[:5] == ["alone", "loss@step=0", "loss@step=1", "x@rank=0", "x@rank=1"]
    assert len(set(keys)) == len(keys)


def test_what_has_no_place_in_a_format_is_named(made: Any, tmp_path: Path) -> None:
    run = made(tt.Record("x", np.ones(2)), tt.Record("settings", {"a": 1}))
    done = tt.export(run, tmp_path / "a.npz")
    assert done.keys == ["x"]
    assert list(done.skipped) == ["settings"]
    assert "has no place in this format" in done.skipped["settings"]


@pytest.mark.parametrize(
    "value",
    [
        np.array(["ab", "ç"]),
        np.array([b"x", b"yz"]),
        np.array(["2020-01-01", "NaT"], "M8[D]"),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.array([[1.5], [2.5]], np.longdouble),
    ],
    ids=["text", "bytes", "dates", "fields", "longdouble"],
)
def test_arrays_that_numpy_alone_has_are_in_its_own_format(value: Any, made: Any, tmp_path: Path) -> None:
    done = tt.export(made(tt.Record("x", value)), tmp_path / "a.npz")
    assert done.skipped == {}
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        np.testing.assert_array_equal(found["x"], value)
        assert found["x"].dtype == value.dtype


def test_an_array_of_objects_is_left_out_of_every_format(made: Any, tmp_path: Path) -> None:
    fields = np.array([(1, None)], [("a", "i4"), ("b", object)])
    run = made(tt.Record("o", np.array([None], object)), tt.Record("f", fields), tt.Record("x", np.ones(1)))
    for name in ("a.npz", "a.safetensors", "a.h5"):
        done = tt.export(run, tmp_path / name)
        assert (done.keys, sorted(done.skipped), done.unreadable) == (["x"], ["f", "o"], 0)


def test_a_damaged_value_is_named_and_the_rest_is_written(made: Any, tmp_path: Path) -> None:
    run = made(tt.Record("good", np.ones(2)), tt.Record("bad", np.ones(2)))
    (run.path / run.find("bad").file).write_bytes(b"x")
    done = tt.export(tt.Run(run.path), tmp_path / "a.npz")
    assert done.keys == ["good"]
    assert "bad" in done.skipped


def test_a_page_is_one_file_without_scripts_that_shows_names_as_text(made: Any, tmp_path: Path) -> None:
    run = made(
        tt.Record("<script>alert(1)</script>", torch.randn(8, 8)), tt.Record("layers.0", torch.ones(3))
    )
    tt.export(run, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "http://" not in text
    assert "https://" not in text
    assert "layers.0" in text


def test_a_page_of_many_values_stays_below_five_megabytes(made: Any, tmp_path: Path) -> None:
    run = made(*(tt.Record(f"layers.{at}", torch.randn(128, 128)) for at in range(300)))
    done = tt.export(run, tmp_path / "a.html")
    assert done.nbytes <= 5_000_000
    assert done.skipped
    assert "more values are not shown" in (tmp_path / "a.html").read_text()


def test_a_part_of_a_run_can_be_exported(made: Any, tmp_path: Path) -> None:
    run = made(tt.Record("a", np.ones(1)), tt.Record("b", np.ones(1)))
    assert tt.export(run.filter("b"), tmp_path / "a.npz").keys == ["b"]


def test_a_name_never_leads_out_of_the_folder_that_it_is_unpacked_to(tmp_path: Path) -> None:
    with (tmp_path / "a.npz").open("wb") as stream:
        write_npz(stream, [NamedArray("../../evil\n", np.ones(2), "float64")])
    assert np.load(tmp_path / "a.npz").files == ["..%2F..%2Fevil%0A"]


def test_a_file_that_exists_is_kept_unless_forced(made: Any, tmp_path: Path) -> None:
    run = made(tt.Record("x", np.ones(2)))
    (tmp_path / "a.npz").write_text("mine")
    with pytest.raises(tt.RefusedError, match="exists; choose another name"):
        tt.export(run, tmp_path / "a.npz")
    assert (tmp_path / "a.npz").read_text() == "mine"
    tt.export(run, tmp_path / "a.npz", force=True)
    assert np.load(tmp_path / "a.npz").files == ["x"]


def test_a_name_without_a_format_gets_a_sentence(made: Any, tmp_path: Path) -> None:
    with pytest.raises(tt.UnknownFormatError, match=r"a\.txt says no format; end it in \.npz"):
        tt.export(made(tt.Record("x", np.ones(2))), tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.html"])
def test_a_full_disk_leaves_no_half_file(made: Any, tmp_path: Path, name: str) -> None:
    run = made(tt.Record("x", np.ones(2)))
    folder = tmp_path / "target"
    folder.mkdir()

    def full(records: Any, total: int) -> Any:
        yield from ()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        tt.export(run, folder / name, watch=full)
    assert list(folder.iterdir()) == []


def test_the_header_of_safetensors_is_json_of_the_length_it_says(made: Any, tmp_path: Path) -> None:
    tt.export(made(tt.Record("ünï", np.ones(2))), tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert set(json.loads(data[8 : 8 + length])) == {"__metadata__", "ünï"}
