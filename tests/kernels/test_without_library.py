"""Where the compiled kernels could not be built, numpy does their work, and it is said why."""

import subprocess
import sys

import pytest

from tensortap.kernels import native

CODE = """
import sys
sys.modules["tensortap.kernels._native"] = None
import numpy as np
import tensortap as tt
from tensortap.kernels import native
from tensortap.kernels.per_axis import relative_l2_per_index
from tensortap.kernels.statistics import statistics
assert not native.available
assert not native.supports("float32")
a, b = np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3)
assert tt.difference(a, b).equal and not tt.compare(a, b + 1)
assert statistics(a, "float64").max == 5
assert relative_l2_per_index(a, "float64", b, "float64", 0).tolist() == [0, 0]
print(native.unavailable_reason)
"""


@pytest.mark.process
def test_everything_works_without_the_library_and_the_reason_is_told(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the compiled kernels are not there (import of tensortap.kernels._native")
    assert "Installing tensortap where there is a C compiler builds them" in done.stdout


def test_either_the_library_is_there_or_there_is_a_reason():
    assert native.available is (native.library is not None)
    assert native.available is not bool(native.unavailable_reason)


def test_complex_numbers_are_left_to_numpy():
    assert not native.supports("complex64")
    assert not native.supports("float32", "complex128")
