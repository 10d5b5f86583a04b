"""The registry of serializers: which bytes a value becomes, and which value a file gives back."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tensortap.core.errors import CorruptRunError, UnknownFormatError, UntrustedFileError
from tensortap.core.record import Record
from tensortap.core.registry import Registry
from tensortap.formats import serializers
from tensortap.formats.serializers import encode, load, register_serializer
from tensortap.readers.run import Run
from tensortap.sinks.run_directory import RunDirectory


class Point:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return isinstance(other, Point) and self.x == other.x

    __hash__ = None


class PointFile:
    suffix = ".point.json"

    def save(self, value, stream):
        stream.write(json.dumps(value.x).encode())

    def load(self, stream):
        return Point(json.load(stream))


@pytest.fixture
def registry(monkeypatch):
    registry = Registry("serializers")
    monkeypatch.setattr(serializers, "serializers", registry)
    return registry


@pytest.mark.parametrize(
    ("value", "suffix"),
    [(torch.ones(2), ".pt"), (np.ones(2), ".npy"), ({"a": 1}, ".pkl"), (np.ma.ones(2), ".pkl"), (3, ".pkl")],
)
def test_the_type_chooses_the_suffix(value, suffix):
    assert encode(value).payload.suffix == suffix


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("layout", ["files", "pack"])
def test_a_type_of_ones_own_is_written_and_read_with_its_serializer(tmp_path, layout):
    register_serializer(Point, PointFile())
    sink = RunDirectory(tmp_path, layout=layout)
    sink.write(Record("p", Point([1, 2])))
    sink.close()
    assert Run(tmp_path).load("p") == Point([1, 2])
    assert layout == "pack" or load(tmp_path / "p.point.json") == Point([1, 2])


@pytest.mark.usefixtures("registry")
def test_a_subclass_is_written_by_the_serializer_of_its_parent(tmp_path):
    register_serializer((Point, Path), PointFile())
    assert encode(type("Pixel", (Point,), {})(5)).payload.bits.tobytes() == b"5"


@pytest.mark.parametrize("layout", ["files", "pack"])
def test_a_value_whose_serializer_is_gone_names_the_suffix(tmp_path, registry, monkeypatch, layout):
    register_serializer(Point, PointFile())
    sink = RunDirectory(tmp_path, layout=layout)
    sink.write(Record("p", Point(1)))
    sink.write(Record("x", np.arange(3)))
    sink.close()
    monkeypatch.setattr(serializers, "serializers", Registry("serializers"))
    with pytest.raises(UnknownFormatError, match=r"no serializer reads '\S*json'.*register_serializer"):
        Run(tmp_path).load("p")
    assert Run(tmp_path).load("x").tolist() == [0, 1, 2]


def test_an_installed_entry_point_reads_and_writes(tmp_path, registry, monkeypatch):
    (tmp_path / "point_plugin.py").write_text(
        "import json\n"
        "class Pixel:\n"
        "    def __init__(self, x): self.x = x\n"
        "class PixelFile:\n"
        "    suffix = '.pixel'\n"
        "    def save(self, value, stream): stream.write(json.dumps(value.x).encode())\n"
        "    def load(self, stream): return Pixel(json.load(stream))\n"
        "PART = (Pixel, PixelFile())\n"
    )
    info = tmp_path / "point_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: point_plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tensortap.serializers]\npixel = point_plugin:PART\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "a.pixel").write_text("[1, 2]")
    value = load(tmp_path / "a.pixel")
    assert (type(value).__name__, value.x) == ("Pixel", [1, 2])
    assert encode(value).payload.suffix == ".pixel"
    sys.modules.pop("point_plugin")


def test_an_unknown_suffix_lists_the_known_ones(tmp_path):
    with pytest.raises(UnknownFormatError) as caught:
        load(tmp_path / "x.csv")
    assert str(caught.value) == (
        f"no serializer reads '.csv' ({tmp_path}/x.csv); known are .pt, .pth, .npy, .npz, .pkl, .pickle; "
        "register_serializer adds one"
    )


def test_a_path_that_is_not_a_file_says_what_it_is(tmp_path):
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(FileNotFoundError, match=r"x\.npy is a folder, not a file; give the path of"):
        load(tmp_path / "x.npy")
    with pytest.raises(FileNotFoundError, match=r"y\.npy does not exist; give the path of a dumped value"):
        load(tmp_path / "y.npy")


def test_the_case_of_a_suffix_does_not_matter(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(3))
    (tmp_path / "x.npy").rename(tmp_path / "X.NPY")
    assert load(tmp_path / "X.NPY").tolist() == [0, 1, 2]


def test_an_npz_gives_its_arrays(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(3), b=np.ones(2))
    back = load(tmp_path / "x.npz")
    assert {name: value.tolist() for name, value in back.items()} == {"a": [0, 1, 2], "b": [1, 1]}


def test_an_npz_of_objects_wants_trust(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([None, 1], object))
    with pytest.raises(UntrustedFileError, match="holds pickled Python objects"):
        load(tmp_path / "x.npz")
    assert load(tmp_path / "x.npz", trust=True)["a"].tolist() == [None, 1]


def test_a_damaged_npz_is_named_in_one_sentence(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(100))
    whole = (tmp_path / "x.npz").read_bytes()
    for data in (whole[:100], whole[:-1], b"PK\3\4", b"", whole[:300] + b"?" + whole[301:]):
        (tmp_path / "x.npz").write_bytes(data)
        with pytest.raises(CorruptRunError, match=r"x\.npz is not a whole \.npz file \(.*\); dump it again"):
            load(tmp_path / "x.npz")


def test_a_serializer_that_fails_leaves_no_file(tmp_path, registry):
    class Broken(PointFile):
        def save(self, value, stream):
            raise RuntimeError("not today")

    register_serializer(Point, Broken())
    sink = RunDirectory(tmp_path, layout="files")
    with pytest.raises(RuntimeError, match="not today"):
        sink.write(Record("p", Point(1)))
    sink.close()
    assert [path.name for path in tmp_path.iterdir()] == [".tensortap"]
