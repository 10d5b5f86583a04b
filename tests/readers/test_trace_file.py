import h5py
import numpy as np
import pytest
import torch

from tensortap.core.errors import CorruptRunError, NoRunError, UnknownNameError
from tensortap.readers.trace_file import TraceFile
from tensortap.sinks.hdf5 import HDF5


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.h5"


@pytest.fixture
def trace(path):
    sink = HDF5(path)
    for step in range(1, 6):
        sink.append("loss", [step / 2], [step], [0])
        sink.append("layers.10.scores", [torch.full((2, step), step).bfloat16()], [step], [1])
    sink.append("layers.2.scores", [np.ones(3)], [[1, 2]], [[0, 1]])
    sink.append("loss", ["none", 9.0], [6, 7], [0, 0])
    sink.close()
    return TraceFile(path)


def test_names_are_in_their_natural_order(trace):
    assert trace.names == ["layers.2.scores", "layers.10.scores", "loss"]
    assert list(trace) == trace.names
    assert "loss" in trace
    assert len(trace) == 13


def test_a_series_comes_back_in_the_order_it_was_written(trace):
    series = trace.load("loss")
    assert series.values == [0.5, 1.0, 1.5, 2.0, 2.5, "none", 9.0]
    assert series.iterations == [1, 2, 3, 4, 5, 6, 7]
    assert series.ranks == [0] * 7


def test_torch_comes_back_as_torch_and_numpy_as_numpy(trace):
    values = trace.load("layers.10.scores").values
    assert [tuple(value.shape) for value in values] == [(2, step) for step in range(1, 6)]
    assert all(value.dtype == torch.bfloat16 for value in values)
    assert type(trace.load("layers.2.scores").values[0]) is np.ndarray


@pytest.mark.parametrize("name", ["loss", "layers.10.scores"])
@pytest.mark.parametrize(
    "rows",
    [slice(None), slice(1, 4), slice(-2, None), slice(None, None, -1), slice(5, 0, -2), slice(9, 12)],
    ids=str,
)
def test_a_slice_gives_what_the_same_slice_of_everything_gives(trace, name, rows):
    whole, part = trace.load(name), trace[name][rows]
    assert list(map(str, part.values)) == list(map(str, whole.values[rows]))
    assert part.steps == whole.steps[rows]
    assert part.ranks == whole.ranks[rows]


def test_one_value_is_read_by_its_position(trace):
    lazy = trace["loss"]
    assert len(lazy) == 7
    assert (lazy[0], lazy[-1], lazy[5]) == (0.5, 9.0, "none")
    assert list(lazy) == trace.load("loss").values
    assert lazy.steps == [1, 2, 3, 4, 5, 6, 7]
    assert lazy.dtype == "float64"
    assert trace["layers.10.scores"].shape == (5, 2, 5)
    with pytest.raises(IndexError):
        lazy[7]


def test_a_pattern_selects_names_also_those_that_come_later(path):
    sink = HDF5(path)
    sink.append("layers.0.scores", [1], [1], [0])
    sink.append("loss", [1], [1], [0])
    sink.flush()
    trace = TraceFile(path)
    scores, others = trace.filter("layers.*.scores"), trace.filter("!loss")
    sink.append("layers.1.scores", [1], [1], [0])
    sink.append("layers.1.out", [1], [1], [0])
    sink.close()
    assert scores.names == ["layers.0.scores"]
    assert scores.refresh() == 2
    assert scores.names == ["layers.0.scores", "layers.1.scores"]
    others.refresh()
    assert others.names == ["layers.0.scores", "layers.1.out", "layers.1.scores"]


def test_a_refresh_shows_what_was_flushed_since(path):
    sink = HDF5(path)
    trace = TraceFile(path)
    assert trace.names == []
    for step in range(1, 4):
        sink.append("x", [np.full(step, step)], [step], [0])
        assert trace.refresh() == step - 1
        sink.flush()
        assert trace.refresh() == step
        assert trace["x"][-1].tolist() == [step] * step
    sink.close()


def test_a_file_is_shown_as_a_table(trace):
    head, columns, *rows = repr(trace).splitlines()
    assert head.endswith("trace.h5: 13 values of 3 names")
    assert columns.split() == ["name", "values", "iterations", "dtype", "shape"]
    assert [row.split() for row in rows] == [
        ["layers.2.scores", "1", "(1,", "2)", "float64", "3"],
        ["layers.10.scores", "5", "1", "..", "5", "bfloat16", "2x5"],
        ["loss", "6", "1", "..", "7", "float64"],
        ["loss", "1", "6", "text"],
    ]
    assert "<table>" in trace._repr_html_()


def test_an_unknown_name_is_answered_with_the_nearest(trace):
    with pytest.raises(
        UnknownNameError, match=r"no values of 'los' in .*; did you mean 'loss'\? names lists all 3"
    ):
        trace.load("los")


def test_a_file_of_someone_else_with_the_same_datasets_is_read(path):
    with h5py.File(path, "w") as file:
        file["forward.x"] = np.arange(6.0).reshape(3, 2)
        file["forward.x_iterations"] = [1, 2, 3]
        file["forward.x_ranks"] = [0, 1, 0]
        file["group/y"] = np.arange(4)
        file["group/y_iterations"] = [[1, 0], [2, 0], [3, 0], [4, 0]]
        file["text"] = ["a", "b"]
        file["text_iterations"] = [1, 2]
        file["unrelated"] = np.zeros(3)
    trace = TraceFile(path)
    assert trace.names == ["forward.x", "group/y", "text"]
    assert [value.tolist() for value in trace.load("forward.x").values] == [[0, 1], [2, 3], [4, 5]]
    assert trace.load("forward.x").ranks == [0, 1, 0]
    assert trace.load("group/y").steps == [(1, 0), (2, 0), (3, 0), (4, 0)]
    assert trace.load("group/y").ranks == [0, 0, 0, 0]
    assert trace.load("text").values == ["a", "b"]


def test_without_a_file_the_path_is_named(tmp_path):
    with pytest.raises(NoRunError, match=r"none\.h5 does not exist; give the HDF5 file of a trace"):
        TraceFile(tmp_path / "none.h5")
    with pytest.raises(NoRunError, match="is a folder"):
        TraceFile(tmp_path)


def test_a_file_that_is_no_hdf5_is_named(path):
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptRunError, match=r"trace\.h5 cannot be read as HDF5: .*signature"):
        TraceFile(path)
