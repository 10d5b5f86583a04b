import os
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest
import torch

from tensortap.core.errors import WriteFailedError
from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.readers.trace_file import TraceFile
from tensortap.sinks.hdf5 import HDF5


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.h5"


def written(path, values, name="x", **options):
    sink = HDF5(path, **options)
    sink.append(name, values, list(range(len(values))), [0] * len(values))
    sink.close()
    return sink


def test_plain_h5py_finds_three_datasets(path):
    sink = HDF5(path)
    sink.append("forward.x", [torch.ones(2, 3), torch.zeros(2, 3)], [1, 2], [0, 1])
    sink.close()
    with h5py.File(path) as file:
        assert set(file) == {"forward.x", "forward.x_iterations", "forward.x_ranks"}
        assert file["forward.x"].shape == (2, 2, 3)
        assert file["forward.x"].dtype == np.float32
        assert file["forward.x_iterations"][:].tolist() == [1, 2]
        assert file["forward.x_ranks"][:].tolist() == [0, 1]
        assert file["forward.x"].attrs["name"] == "forward.x"


def test_stacked_values_have_a_row_of_iterations_and_ranks_each(path):
    sink = HDF5(path)
    sink.append("x", [torch.ones(4, 3)], [[1, 1, 2, 2]], [[0, 1, 0, 1]])
    sink.append("x", [torch.ones(2, 3)], [[3, 3]], [(0, 1)])
    assert sink.datasets["x"].iterations[:].tolist() == [[1, 1, 2, 2], [3, 3, -1, -1]]
    sink.close()
    series = TraceFile(path).load("x")
    assert series.steps == [(1, 1, 2, 2), (3, 3)]
    assert series.ranks == [(0, 1, 0, 1), (0, 1)]
    assert [tuple(value.shape) for value in series.values] == [(4, 3), (2, 3)]


def test_a_dataset_behaves_like_h5pys_while_it_grows_and_after(path):
    sink = HDF5(path)
    sink.append("x", [np.arange(3.0)], [1], [0])
    dataset = sink.datasets["x"]
    sink.append("x", [np.arange(3.0) + 1], [2], [0])
    for _ in range(2):
        assert dataset.shape == (2, 3)
        assert dataset.dtype == np.float64
        assert len(dataset) == 2
        assert dataset[1, :2].tolist() == [1, 2]
        assert np.asarray(dataset).sum() == 9
        assert [row.tolist() for row in dataset] == [[0, 1, 2], [1, 2, 3]]
        assert dataset.iterations[-1] == 2
        assert dataset.ranks[:].tolist() == [0, 0]
        assert dataset.attrs["framework"] == "numpy"
        assert repr(dataset) == '<HDF5 dataset "x": shape (2, 3), type "<f8">'
        sink.close()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "uint64", "float16", "float64", "complex64"])
def test_values_keep_their_type(path, dtype):
    value = np.array([0, 1, 1], dtype)
    written(path, [value])
    with h5py.File(path) as file:
        assert file["x"].dtype == value.dtype
    assert TraceFile(path).load("x").values[0].dtype == value.dtype


def test_large_integers_do_not_wrap(path):
    written(path, [2**63 - 1, -(2**63), 2**64, 2**70])
    assert TraceFile(path).load("x").values == [2**63 - 1, -(2**63), 2**64, 2**70]


def test_scalars_of_changing_kinds_come_back_in_their_order(path):
    values = [1, 2.5, True, None, "text", 3, "", 1j, [1, (2, None)], {"a": 1.0}, b"\0", "a\0b", -0.0, 4]
    written(path, values)
    assert list(map(repr, TraceFile(path).load("x").values)) == list(map(repr, values))


def test_a_float_after_an_int_goes_to_a_dataset_of_its_own(path):
    written(path, [np.array([1]), np.array([0.1]), np.array([2])])
    with h5py.File(path) as file:
        assert file["x"][:].tolist() == [[1], [2]]
        assert file["x~2"][:].tolist() == [[0.1]]
        assert file["x~2_positions"][:].tolist() == [1]


def test_a_larger_shape_grows_the_dataset_and_true_shapes_are_kept(path):
    values = [np.ones((2, 3)), np.full((4, 1), 2.0), np.zeros((0, 3)), np.ones((1, 5))]
    written(path, values)
    with h5py.File(path) as file:
        assert file["x"].shape == (4, 4, 5)
        assert file["x"][1, :, 1:].tolist() == np.zeros((4, 4)).tolist()
        assert file["x_shapes"][:].tolist() == [[2, 3], [4, 1], [0, 3], [1, 5]]
    for value, back in zip(values, TraceFile(path).load("x").values, strict=True):
        np.testing.assert_array_equal(back, value)
        assert back.shape == value.shape


def test_even_values_have_no_shapes_beside_them(path):
    written(path, [np.ones(3), np.ones(3)])
    with h5py.File(path) as file:
        assert "x_shapes" not in file


def test_a_shape_that_would_waste_space_goes_to_a_dataset_of_its_own(path):
    values = [np.ones((1, 300_000), "f4"), np.ones((300_000, 1), "f4"), np.ones((1, 1), "f4")]
    written(path, values)
    assert path.stat().st_size < 12e6
    for value, back in zip(values, TraceFile(path).load("x").values, strict=True):
        np.testing.assert_array_equal(back, value)


@pytest.mark.parametrize(
    "value", [torch.tensor(2.5), torch.zeros(0), torch.zeros(3, 0, 2)], ids=["0-d", "0", "3x0x2"]
)
def test_empty_and_zero_dimensional_values_come_back(path, value):
    written(path, [value, value])
    for back in TraceFile(path).load("x").values:
        assert torch.equal(back, value)
        assert back.dtype == value.dtype


def test_bfloat16_is_stored_as_float32_with_its_true_type_beside_it(path):
    value = torch.randn(5, generator=torch.Generator().manual_seed(0)).bfloat16()
    written(path, [value])
    with h5py.File(path) as file:
        assert file["x"].dtype == np.float32
        assert file["x"].attrs["dtype"] == "bfloat16"
    assert torch.equal(TraceFile(path).load("x").values[0], value)


def test_wanted_types_are_what_lies_in_the_file(path):
    sink = HDF5(path, iteration_dtype="uint16", float_dtype=torch.float16, int_dtype=np.int32)
    sink.append("f", [torch.ones(2), 0.5], [1, 2], [0, 0])
    sink.append("i", [torch.arange(3)], [[1, 2]], [[0, 1]])
    sink.close()
    with h5py.File(path) as file:
        assert file["f"].dtype == np.float16
        assert file["i"].dtype == np.int32
        assert file["f_iterations"].dtype == np.uint16
    trace = TraceFile(path)
    assert trace.load("f").values[0].dtype == torch.float16
    assert trace.load("f").values[1] == 0.5
    assert trace.load("i").steps == [(1, 2)]


@pytest.mark.parametrize("argument", ["iteration_dtype", "float_dtype", "int_dtype"])
@pytest.mark.parametrize("wanted", ["text", torch.bfloat16, "complex64"], ids=str)
def test_a_type_that_cannot_be_is_refused_at_once(path, argument, wanted):
    with pytest.raises(ValueError, match=f"{argument} is a number type of numpy"):
        HDF5(path, **{argument: wanted})
    assert not path.exists()


def test_an_iteration_that_does_not_fit_its_type_is_not_wrapped(path):
    sink = HDF5(path, iteration_dtype="uint8")
    sink.append("x", [1, 2], [255, 256], [0, 0])
    sink.close()
    assert sink.skipped == {"x": 1}
    assert "iteration 256 does not fit uint8" in sink.reasons["x"]
    assert TraceFile(path).load("x").steps == [255]


def test_what_cannot_be_stored_is_named_and_counted_and_the_rest_goes_on(path):
    sink = HDF5(path)
    sink.append("x", [1, object(), 2, object()], [1, 2, 3, 4], [0] * 4)
    sink.append("sparse", [torch.ones(2).to_sparse()], [1], [0])
    sink.append("x" * 50_000, [1], [1], [0])
    sink.close()
    assert sink.skipped == {"x": 2, "sparse": 1, "x" * 50_000: 1}
    assert "a value of type object has no place" in sink.reasons["x"]
    assert TraceFile(path).load("x").steps == [1, 3]


def test_the_arrays_inside_a_structure_have_names_of_their_own(path):
    written(path, [{"a": torch.ones(2), "b": [torch.zeros(1), None]}], "forward")
    trace = TraceFile(path)
    assert trace.names == ["forward['a']", "forward['b'][0]", "forward['b'][1]"]
    assert trace.load("forward['b'][1]").values == [None]


def test_a_value_changed_later_is_kept_as_it_was(path):
    sink, value = HDF5(path), np.zeros(3)
    sink.append("x", [value], [1], [0])
    value += 1
    sink.close()
    assert TraceFile(path).load("x").values[0].tolist() == [0, 0, 0]


def test_the_old_file_is_kept_once(path):
    for number in range(3):
        written(path, [number])
    assert TraceFile(path).load("x").values == [2]
    assert TraceFile(f"{path}.old").load("x").values == [1]
    assert len(list(path.parent.iterdir())) == 2


def test_a_file_that_must_not_be_replaced_stays(path):
    written(path, [1])
    with pytest.raises(ValueError, match=r"trace\.h5 exists already, and existing_ok is False; give another"):
        HDF5(path, existing_ok=False)
    assert TraceFile(path).load("x").values == [1]


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ValueError, match="is a folder; give the name of a file"):
        HDF5(tmp_path)


def test_a_file_that_is_open_elsewhere_is_not_replaced(path):
    written(path, [1])
    with (
        h5py.File(path, "r+"),
        pytest.raises(WriteFailedError, match="is open elsewhere, in this or another"),
    ):
        HDF5(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["trace.h5"]


def test_two_sinks_do_not_share_a_file(path):
    first = HDF5(path)
    with pytest.raises(WriteFailedError, match="is open elsewhere"):
        HDF5(path)
    first.close()
    HDF5(path).close()


def test_others_may_read_but_not_write_while_it_is_open(path):
    sink = HDF5(path)
    sink.append("x", [1.5], [1], [0])
    sink.flush()
    with h5py.File(path) as file:
        assert file["x"][:].tolist() == [1.5]
    with pytest.raises(BlockingIOError):
        h5py.File(path, "r+")
    sink.close()
    h5py.File(path, "r+").close()


@pytest.mark.parametrize("compression", ["gzip", "lzf", "blosc", "zstd", "bitshuffle"])
def test_compressed_values_come_back_and_take_less_space(path, compression):
    values = [np.full((300, 300), number, "i4") for number in range(5)]
    written(path, values, compression=compression, shuffle=compression == "gzip")
    assert path.stat().st_size < 200_000
    np.testing.assert_array_equal(np.stack(TraceFile(path).load("x").values), np.stack(values))
    with h5py.File(path) as file:
        assert len(file["x"]._filters) == 1 + (compression == "gzip")


def test_other_ranks_have_no_file(path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sink = written(path, [1])
    sink.flush()
    assert sink.datasets == {}
    assert not path.exists()


def test_a_tap_writes_its_records(path):
    with Tap(sinks=[HDF5(path)]) as tap:
        tap.emit(Record("x", torch.ones(2), step=4, rank=3))
    series = TraceFile(path).load("x")
    assert (series.steps, series.ranks) == ([4], [3])


def run(code, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ},
        check=False,
    )


@pytest.mark.process
def test_a_program_that_ends_without_closing_loses_nothing(path):
    done = run(
        """
        import sys
        from tensortap.sinks.hdf5 import HDF5
        sink = HDF5(sys.argv[1])
        sink.append("x", [1, 2], [1, 2], [0, 0])
        """,
        path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert TraceFile(path).load("x").values == [1, 2]


@pytest.mark.process
def test_a_forked_child_leaves_the_file_of_its_parent_alone(path):
    done = run(
        """
        import os, sys
        from tensortap.sinks.hdf5 import HDF5
        sink = HDF5(sys.argv[1])
        sink.append("x", [1], [1], [0])
        child = os.fork()
        if child == 0:
            sink.append("x", [2], [2], [0])
            sink.close()
            print(sink.skipped)
            sys.exit()
        os.waitpid(child, 0)
        sink.append("x", [3], [3], [0])
        sink.close()
        """,
        path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'x': 1}\n"
    assert TraceFile(path).load("x").values == [1, 3]


@pytest.mark.process
def test_without_h5py_the_pip_line_is_said():
    done = run(
        """
        import sys
        sys.modules["h5py"] = None
        from tensortap.core.errors import MissingExtraError
        from tensortap.sinks.open import open_sink
        try:
            open_sink("trace.h5")
        except MissingExtraError as error:
            print(error)
        """
    )
    assert done.stdout == "traces in HDF5 need h5py, so: pip install 'tensortap[hdf5]'\n", done.stderr


@pytest.mark.process
def test_without_hdf5plugin_the_pip_line_is_said(path):
    done = run(
        """
        import sys
        sys.modules["hdf5plugin"] = None
        from tensortap.core.errors import MissingExtraError
        from tensortap.sinks.hdf5 import HDF5
        try:
            HDF5(sys.argv[1], compression="blosc")
        except MissingExtraError as error:
            print(error)
        """,
        path,
    )
    assert done.stdout.endswith("so: pip install hdf5plugin\n"), done.stderr
