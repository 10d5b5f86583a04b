import re

import pytest

from tensortap.core.errors import UnknownFormatError
from tensortap.core.record import Record
from tensortap.readers.run import Run
from tensortap.readers.trace_file import TraceFile
from tensortap.sinks.memory import Memory
from tensortap.sinks.open import open_sink, register_sink, sinks


def test_a_folder_means_a_timestamped_run_in_it(tmp_path):
    sink = open_sink(f"{tmp_path}/runs")
    sink.write(Record("x", 1))
    sink.close()
    (run,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"\d{8}_\d{6}", run.name)
    assert Run(run).load("x") == 1


def test_a_scheme_means_the_sink_that_was_registered_for_it():
    made = Memory()
    register_sink("shelf", lambda address: made if address == "shelf://third" else Memory())
    try:
        assert open_sink("shelf://third") is made
    finally:
        sinks.remove("shelf")


def test_an_unknown_scheme_says_what_to_do():
    with pytest.raises(UnknownFormatError, match=r"no sink is known for fax:// .*register_sink"):
        open_sink("fax://office")


@pytest.mark.parametrize("suffix", [".h5", ".hdf5"])
def test_the_name_of_an_hdf5_file_means_a_trace(tmp_path, suffix):
    path = tmp_path / f"trace{suffix}"
    sink = open_sink(str(path))
    sink.write(Record("x", 1.5, step=3))
    sink.close()
    assert list(tmp_path.iterdir()) == [path]
    assert TraceFile(path).load("x").values == [1.5]


@pytest.mark.parametrize("suffix", [".h5", ".zarr"])
def test_a_sink_that_was_registered_for_a_suffix_takes_its_files(tmp_path, suffix):
    made = Memory()
    register_sink(suffix, lambda address: made)
    try:
        assert open_sink(str(tmp_path / f"trace{suffix}")) is made
    finally:
        sinks.remove(suffix)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scheme", ["", ".", "a/b", "s3://", 3, ".tar/x"])
def test_what_is_neither_scheme_nor_suffix_is_refused(scheme):
    with pytest.raises(ValueError, match=r"neither a scheme such as 's3' nor a suffix such as '.zarr'"):
        register_sink(scheme, lambda address: Memory())
