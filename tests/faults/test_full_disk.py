"""A full disk: one clear sentence, nothing half-written, nothing earlier lost, and on it goes."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensortap as tt
from tensortap.core.errors import WriteFailedError

BIG = np.arange(400_000.0)  # 3.2 MB, more than the disk
LAYOUTS = ("files", "pack")


def value_files(run: Path) -> set[str]:
    return {file.name for file in run.iterdir() if file.suffix in {".npy", ".pt", ".pkl"}}


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
    with pytest.raises(WriteFailedError, match="cannot write 'big' to .*: no space left on device"):
        tt.flush()
    tt.dump(numbers(2), "after")
    tt.close()
    assert tt.Run(run).names == ["after", "before"]


def test_in_the_background_the_next_dump_tells_of_the_failure(small_disk, numbers):
    tt.init(small_disk, background=True)
    tt.dump(BIG, "big")
    with pytest.raises(WriteFailedError, match="cannot write 'big'"):
        for number in range(100_000):  # until the writer has got there
            tt.dump(number, "small")
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
def test_a_value_whose_index_row_does_not_fit_is_refused_and_taken_back(small_disk, numbers, fill, layout):
    run = tt.init(small_disk, layout=layout)
    tt.dump(0, "before")
    ballast = fill(small_disk)
    # Beside the full disk: a tmpfs counts pages, so what still fits into the last page of each file fits.
    told, number = None, 0
    while told is None:
        number += 1
        try:
            tt.dump(None, f"n{number}" + "x" * 100, update_metadata=False)
        except WriteFailedError as error:
            told = error
    assert told.errno == errno.ENOSPC
    files = value_files(run)
    ballast.unlink()
    tt.dump(1, "after")
    tt.close()
    opened = tt.Run(run)
    assert opened.problems == []
    assert len(opened) == number + 1
    assert all(stored.load() in (None, 0, 1) for stored in opened)
    assert files == {stored.file for stored in opened if stored.name != "after"} - {
        stored.file for stored in opened if layout == "pack"
    }


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
