"""A full disk: one clear sentence, nothing half-written, nothing earlier lost, and on it goes."""

import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tensortap as tt
from tensortap.compat import tensor_dumper
from tensortap.core.errors import WriteFailedError

BIG = np.arange(400_000.0)  # 3.2 MB, more than the disk
LAYOUTS = ("files", "pack")


def value_files(run: Path) -> set[str]:
    return {file.name for file in run.iterdir() if file.suffix in {".npy", ".pt", ".pkl"}}


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() == 0, reason="as root the tests below mount the disk themselves")
def test_the_same_holds_for_a_user_in_a_namespace_of_his_own():
    inside = ["unshare", "-rm", sys.executable, "-m", "pytest", "-q", __file__]
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no root and no user namespaces here: a small disk cannot be mounted")
    done = subprocess.run(inside, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_value_that_does_not_fit_is_refused_in_one_sentence(small_disk, layout):
    run = tt.init(small_disk, layout=layout)
    with pytest.raises(WriteFailedError) as caught:
        tt.dump(BIG, "big")
    assert caught.value.errno == errno.ENOSPC
    assert isinstance(caught.value, OSError)
    assert str(caught.value) == (
        f"cannot write 'big' to {run}: no space left on device; "
        f"free some space, what was written before is safe"
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_full_disk_costs_no_earlier_value_leaves_no_partial_file_and_can_be_freed(
    small_disk, numbers, fill, layout
):
    run = tt.init(small_disk, layout=layout)
    tt.dump(numbers(1), "before")
    ballast = fill(small_disk, leave=8192)
    with pytest.raises(WriteFailedError):
        tt.dump(numbers(2, 100_000), "during")
    left = value_files(run)
    assert left == ({"before.npy"} if layout == "files" else set())
    ballast.unlink()
    tt.dump(numbers(3), "after")
    tt.close()
    opened = tt.Run(run)
    assert opened.names == ["after", "before"]
    np.testing.assert_array_equal(opened.load("before"), numbers(1))
    np.testing.assert_array_equal(opened.load("after"), numbers(3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_the_background_a_full_disk_is_told_at_the_next_call(small_disk, numbers, layout):
    run = tt.init(small_disk, background=True, layout=layout)
    tt.dump(numbers(1), "before")
    tt.dump(BIG, "big")
    with pytest.raises(WriteFailedError, match=r"cannot write 'big' to .*: no space left on device"):
        tt.flush()
    tt.dump(numbers(2), "after")
    tt.close()
    assert tt.Run(run).names == ["after", "before"]


def test_in_the_background_the_next_dump_tells_of_the_failure(small_disk, numbers):
    tt.init(small_disk, background=True)
    tt.dump(BIG, "big")
    tensor_dumper._tap._sinks[0]._writer.wait()  # until it has got to the value that fails
    with pytest.raises(WriteFailedError, match="cannot write 'big'"):
        tt.dump(1, "small")
    tt.flush()


def test_in_the_background_close_tells_of_every_failure_that_nobody_was_told(small_disk):
    tt.init(small_disk, background=True)
    tt.dump(BIG, "first")
    try:
        tt.dump(BIG, "second")
    except WriteFailedError:  # the writer was that quick
        tt.dump(BIG, "first")
        with pytest.raises(WriteFailedError, match="cannot write 'first'"):
            tt.close()
        return
    with pytest.raises(WriteFailedError, match="cannot write 'first'") as caught:
        tt.close()
    assert caught.value.__notes__ == ["1 more values failed after it"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_values_until_the_disk_is_full_are_all_there_but_the_one_refused(small_disk, fill, layout):
    run = tt.init(small_disk, layout=layout)
    ballast = fill(small_disk, leave=32768)
    accepted = dump_until_refused()
    opened = tt.Run(run)
    assert opened.problems == []
    assert opened.names == [f"n{number}" for number in range(accepted)]
    assert [stored.load() for stored in opened] == list(range(accepted))
    assert value_files(run) == (set() if layout == "pack" else {stored.file for stored in opened})
    ballast.unlink()


def dump_until_refused() -> int:
    for number in range(10_000):
        try:
            tt.dump(number, f"n{number}")
        except WriteFailedError:
            return number
    raise AssertionError("the disk has no end")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_disk_too_full_for_a_run_is_told_by_init(small_disk, fill, layout):
    ballast = fill(small_disk)
    with pytest.raises(WriteFailedError) as caught:
        tt.init(small_disk, layout=layout)
    assert caught.value.errno == errno.ENOSPC
    assert f"to {small_disk}" in str(caught.value) or f"folder {small_disk}" in str(caught.value)
    ballast.unlink()
    run = tt.init(small_disk, layout=layout)
    tt.dump(1, "x")
    assert tt.Run(run).load("x") == 1


def test_a_disk_that_fills_up_before_close_costs_a_pack_its_directory_but_no_value(small_disk, numbers, fill):
    run = tt.init(small_disk, layout="pack")
    for number in range(100):
        tt.dump(numbers(number, 10), f"a name that is long enough to fill a page of the directory {number}")
    fill(small_disk)
    with pytest.raises(WriteFailedError, match="no space left on device; free some space, what was written"):
        tt.close()
    opened = tt.Run(run)
    assert len(opened) == 100
    np.testing.assert_array_equal(opened[99].load(), numbers(99, 10))


LIMITED = """
    import resource, signal, sys
    import numpy as np
    import tensortap as tt

    run = tt.init(sys.argv[1], background=sys.argv[2] == "background", layout=sys.argv[3])
    tt.dump(np.arange(10.0), "before")
    tt.flush()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    try:
        tt.dump(np.arange(100_000.0), "big")
        tt.flush()
    except tt.TensortapError as error:
        print(error.errno, error)
    tt.dump(np.arange(20.0), "after")
    tt.close()
"""


ROW_TOO_LONG = """
    import resource, signal, sys
    from pathlib import Path
    import tensortap as tt

    run = tt.init(sys.argv[1], layout=sys.argv[2])
    for number in range(50):
        tt.dump(number, "before")
    (index,) = (run / ".tensortap").glob("index-*.jsonl")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (index.stat().st_size + 20, limit[1]))
    for _ in range(2):
        try:
            tt.dump(0, "x")
        except tt.TensortapError as error:
            print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    print(sorted(file.name for file in run.glob("x*")))
    tt.dump(1, "x")
    tt.close()
"""


@pytest.mark.process
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_value_whose_index_row_does_not_fit_is_refused_and_taken_back(run_python, only_run, layout):
    first, second, left = run_python(ROW_TOO_LONG, layout).stdout.splitlines()
    run = only_run()
    assert first == second
    assert first.startswith(f"cannot write 'x' to {run.path}: ")
    assert left == "[]"
    assert run.problems == []
    assert run.series("before").values == list(range(50))
    assert run.series("x").values == [1]
    if layout == "files":
        assert run.find("x").file == "x.pkl"
    else:
        (pack,) = (run.path / ".tensortap" / "packs").iterdir()
        with zipfile.ZipFile(pack) as members:
            assert members.testzip() is None
            assert len(members.namelist()) == 51


@pytest.mark.process
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("when", ["at once", "background"])
def test_a_limit_on_file_sizes_is_told_like_a_full_disk(run_python, only_run, when, layout):
    told = run_python(LIMITED, when, layout).stdout
    run = only_run()
    assert told == (
        f"{errno.EFBIG} cannot write 'big' to {run.path}: file too large; "
        f"check the folder, what was written before is safe\n"
    )
    assert run.names == ["after", "before"]
    assert value_files(run.path) == ({"after.npy", "before.npy"} if layout == "files" else set())
    np.testing.assert_array_equal(run.load("before"), np.arange(10.0))
    np.testing.assert_array_equal(run.load("after"), np.arange(20.0))
