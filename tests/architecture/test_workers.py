"""The tools that run the tests do what these rely on."""

import re
import subprocess
import sys

import pytest

TESTS = """
import pytest

pytestmark = pytest.mark.xdist_group("together")

@pytest.mark.parametrize("number", range(8))
def test_number(number):
    pass
"""


@pytest.mark.process
def test_tests_that_belong_together_run_on_one_worker(tmp_path):
    (tmp_path / "test_them.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider"]
    told = subprocess.run([*words, "test_them.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    workers = re.findall(r"\[(gw\d)\] \[ *\d+%\] PASSED", told.stdout)
    assert (len(workers), len(set(workers))) == (8, 1), told.stdout
