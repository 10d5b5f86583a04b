"""`tensortap diff` and the gate look into the files of programs that no repository keeps."""

import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import tensortap as tt
from tensortap.metadata.source_archive import MAX_SOURCES, content_digest

pytestmark = pytest.mark.process

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
    assert "1 difference: helper.py " in code.text
    assert (code.state, code.names) == ("differs", ("files.helper.py",))


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


@pytest.mark.parametrize("other", ["factor = 1\r\n", "factor = 1"])
def test_ends_of_lines_that_differ_are_told_as_that(execute, tensortap, other, tmp_path):
    a = execute(helper="factor = 1\n")
    (tmp_path / "helper.py").write_bytes(other.encode())
    said = tensortap("diff", a, execute())
    assert "  helper.py, in both, not the same\n    only the ends of lines differ\n" in said.out


def test_long_files_are_not_set_side_by_side(execute, tensortap):
    tables = ["".join(f"x{n} = {n * (n % 2 + more)}\n" for n in range(20_000)) for more in (0, 1)]
    a, b = (execute(helper=f"factor = 1\n{table}") for table in tables)
    said = tensortap("diff", a, b)
    assert "    20,001 lines and 20,001\n" in said.out


def test_a_program_that_came_into_a_repository_is_not_said_to_be_new(execute, tensortap, tmp_path):
    a = execute(helper="factor = 1\n")
    for command in ("init -q", "add program.py helper.py", "-c user.name=a -c user.email=b commit -qm x"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    said = tensortap("diff", a, execute())
    assert "  project commit: - -> " in said.out
    assert ".py" not in said.out.partition("packages")[0]


def backwards(size: bytes) -> bytes:
    """A tar of which an entry says that the next one lies before it."""
    told = b"%d size=%s\n" % (len(size) + 9, size)
    entries = (("pax", told, tarfile.XHDTYPE), ("m.py", b"x", tarfile.REGTYPE))
    made = b""
    for name, content, kind in entries:
        entry = tarfile.TarInfo(name)
        entry.size, entry.type = len(content), kind
        made += entry.tobuf(tarfile.USTAR_FORMAT) + content.ljust(512, b"\0")
    return made + bytes(1024)


@pytest.mark.parametrize("size", [b"-1536", b"9" * 30])
def test_a_tar_that_has_no_end_is_not_read(execute, tensortap, size, tmp_path):
    a, b = execute(helper="factor = 1\n"), execute()
    (a / ".tensortap" / "code" / "sources.tar").write_bytes(backwards(size))
    said = tensortap("diff", a, b)
    assert said.code == 3
    assert "sources.tar is not whole ('m.py' in it is no file that a run keeps)" in said.err
    assert tt.compare_runs(a, b).coverage.pairs == 1
    facts = a / ".tensortap" / "code" / "sources.json"
    told = json.loads(facts.read_text())
    facts.write_text(json.dumps({**told, "digest": content_digest(backwards(size))}))  # as a stranger would
    again = tensortap("reproduce", a, "--go", "--into", tmp_path / "again", "--env", "current")
    assert again.code == 3
    assert "sources.tar is not whole ('m.py' in it is no file that a run keeps)" in again.err


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
