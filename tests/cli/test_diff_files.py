"""`tensortap diff` and the gate look into the files of programs that no repository keeps."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import tensortap as tt
from tensortap.metadata.sources import MAX_SOURCES

PROGRAM = """
import numpy as np
import tensortap as tt
from helper import factor

run = tt.init("runs")
tt.dump(np.ones(3) * factor, "x")
tt.close()
print(run)
"""


@pytest.fixture
def execute(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(**files: str) -> Path:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        command = [sys.executable, "-B", "program.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
        return tmp_path / done.stdout.strip()

    return run


def test_a_changed_line_of_an_imported_file_is_shown(execute, tensortap):
    a, b = execute(helper="factor = 1\n"), execute(helper="factor = 2\n")
    said = tensortap("diff", a, b)
    assert said.code == 1
    assert "  helper.py +1 -1, in both, not the same\n" in said.out
    assert "    -factor = 1\n    +factor = 2\n" in said.out
    assert "program.py" not in said.out
    code = next(one for one in tt.compare_runs(a, b).gate if one.what == "code")
    assert (code.state, code.names) == ("differs", ("helper.py",))


def test_a_file_that_only_one_program_has_is_told(execute, tensortap):
    a = execute(helper="factor = 1\n")
    b = execute(helper="import other\nfactor = 1\n", other="")
    assert "  other.py, only in B\n" in tensortap("diff", a, b).out


def test_the_same_files_are_the_same_code(execute, tensortap):
    a, b = execute(helper="factor = 1\n"), execute()
    told = tensortap("diff", a, b, "--json").json["topics"]
    assert next(topic["state"] for topic in told if topic["name"] == "code") == "same"


def test_kept_files_that_are_not_whole_are_missing_data(execute, tensortap):
    a, b = execute(helper="factor = 1\n"), execute()
    kept = a / ".tensortap" / "code" / "sources.tar"
    kept.write_bytes(kept.read_bytes()[:700])
    said = tensortap("diff", a, b)
    assert said.code == 3
    assert "sources.tar is not whole" in said.err


@pytest.mark.parametrize("mode", ["w:gz", "w"])
def test_a_tar_that_would_fill_the_memory_is_not_read(execute, tensortap, mode):
    a, b = execute(helper="factor = 1\n"), execute()
    with tarfile.open(a / ".tensortap" / "code" / "sources.tar", mode) as tar:
        entry = tarfile.TarInfo("big.py")
        entry.size = MAX_SOURCES + 1
        tar.addfile(entry, io.BytesIO(bytes(entry.size)))
    said = tensortap("diff", a, b)
    assert said.code == 3
    assert "sources.tar is not whole (" in said.err
    assert "big.py" not in said.out
