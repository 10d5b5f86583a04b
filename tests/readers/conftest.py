"""Runs to read."""

import numpy as np
import pytest

from tensortap.core.record import Record
from tensortap.sinks.run_directory import RunDirectory


@pytest.fixture
def written(tmp_path):
    """Write records, given or made from names, into a run; give its path."""

    def write(*records, layout="pack", **options):
        sink = RunDirectory(tmp_path / "run", layout=layout, **options)
        for number, record in enumerate(records):
            is_name = isinstance(record, str)
            sink.write(Record(record, np.array([number]), order=number) if is_name else record)
        sink.close()
        return tmp_path / "run"

    return write
