"""Every built-in sink keeps the contract that plug-in authors are given, and the contract finds a bad one."""

import pytest

from tensortap.readers.run import Run
from tensortap.readers.trace_file import TraceFile
from tensortap.sinks.hdf5 import HDF5
from tensortap.sinks.memory import Memory
from tensortap.sinks.run_directory import RunDirectory
from tensortap.testing import SinkContract


class TestMemory(SinkContract):
    def make(self):
        return Memory()

    def read(self, sink):
        return [
            (name, step, value)
            for name, series in sink.series.items()
            for step, value in zip(series.steps, series.values, strict=True)
        ]


class _OnDisk(SinkContract):
    options = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path):
        self.folder = tmp_path

    def make(self):
        return RunDirectory(self.folder / "run", **self.options)

    def read(self, sink):
        return [(stored.name, stored.step, stored.load()) for stored in Run(sink.path)]


class TestFiles(_OnDisk):
    options = {"layout": "files"}  # noqa: RUF012


class TestFilesInTheBackground(_OnDisk):
    options = {"layout": "files", "background": True}  # noqa: RUF012


class TestPack(_OnDisk):
    options = {"layout": "pack"}  # noqa: RUF012


class TestPackInTheBackground(_OnDisk):
    options = {"layout": "pack", "background": True, "budget": 100}  # noqa: RUF012


class TestHDF5(SinkContract):
    options = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _in_a_folder(self, tmp_path):
        self.folder = tmp_path

    def make(self):
        return HDF5(self.folder / "trace.h5", **self.options)

    def read(self, sink):
        trace = TraceFile(sink.path)
        loaded = map(trace.load, trace.names)
        return [
            (series.name, step, value)
            for series in loaded
            for step, value in zip(series.steps, series.values, strict=True)
        ]


class TestHDF5Compressed(TestHDF5):
    options = {"compression": "gzip", "shuffle": True}  # noqa: RUF012


class _Careless:
    """A sink that keeps the program's own value."""

    def __init__(self):
        self.kept = []

    def write(self, record):
        self.kept.append((record.name, record.step, record.value))

    def flush(self):
        pass

    def close(self):
        pass


class _CarelessContract(SinkContract):
    def make(self):
        return _Careless()

    def read(self, sink):
        return sink.kept


def test_a_sink_that_keeps_the_programs_own_value_is_found_out():
    with pytest.raises(AssertionError):
        _CarelessContract().test_a_value_changed_after_the_write_is_kept_as_it_was()
