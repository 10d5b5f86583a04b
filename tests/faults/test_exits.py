"""However a process ends or multiplies, what was accepted is on disk, and nothing hangs."""

import re
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import tensortap as tt

pytestmark = pytest.mark.process

FIFTY = "[tt.dump(np.full(1000, n), f'v{n}') for n in range(50)]"

ENDS = {
    "falling off the end": "",
    "sys.exit": "sys.exit(3)",
    "an unhandled exception": "raise ValueError('the crash')",
    "an exception in a thread": "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start()",
    "a thread that dumps on": """
        import threading
        t = threading.Thread(target=lambda: [tt.dump(np.full(1000, n), f'late{n}') for n in range(50)])
        t.start()
    """,
    "KeyboardInterrupt": "raise KeyboardInterrupt",
}


@pytest.mark.parametrize("layout", ["files", "pack"])
@pytest.mark.parametrize("end", ENDS)
def test_in_the_background_every_accepted_value_is_on_disk_after(run_python, only_run, end, layout):
    code = f"""
        import sys
        import numpy as np
        import tensortap as tt
        tt.init(sys.argv[1], background=True, layout={layout!r})
        {FIFTY}
    """
    run_python(textwrap.dedent(code) + textwrap.dedent(ENDS[end]), check=False)
    run = only_run()
    assert len(run.filter("v*")) == 50
    assert len(run.filter("late*")) == (50 if end == "a thread that dumps on" else 0)
    for number in range(50):
        np.testing.assert_array_equal(run.load(f"v{number}"), np.full(1000, number))


def test_a_failure_in_the_background_that_nobody_asked_for_is_told_at_exit(run_python, only_run):
    done = run_python("""
        import shutil, sys
        import tensortap as tt
        run = tt.init(sys.argv[1], background=True)
        shutil.rmtree(run)
        tt.dump(1, "x")
    """)
    assert "cannot write 'x' to" in done.stderr
    assert "the run folder is gone; call init() again" in done.stderr


def test_a_dump_after_the_exit_handlers_is_refused_and_nothing_hangs(run_python, only_run):
    done = run_python("""
        import atexit, sys
        import tensortap as tt
        atexit.register(lambda: tt.dump(2, "late"))  # runs after what init() registers
        tt.init(sys.argv[1], background=True)
        atexit.register(lambda: tt.dump(1, "in time"))
        tt.dump(0, "early")
    """)
    assert "NotInitialisedError: dump() needs a run" in done.stderr
    assert only_run().names == ["early", "in time"]


FORKS = """
    import os, sys
    import numpy as np
    import tensortap as tt
    tt.init(sys.argv[1], background={background}, layout={layout!r})
    for n in range(20): tt.dump(np.full(1000, n), f"before{{n}}")
    idle = os.fork()
    if idle == 0:
        sys.exit(0)  # has nothing to say, and must not end its parent's files
    children = [idle]
    for number in range(3):
        child = os.fork()
        if child == 0:
            for n in range(20): tt.dump(np.full(1000, n), f"child{{number}}.{{n}}")
            tt.dump(number, "same")
            tt.flush()
            sys.exit(0)  # runs the exit handlers of its parent too
        children.append(child)
        for n in range(20): tt.dump(np.full(1000, n), f"meanwhile{{number}}.{{n}}")
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    for n in range(20): tt.dump(np.full(1000, n), f"after{{n}}")
"""


@pytest.mark.parametrize("layout", ["files", "pack"])
@pytest.mark.parametrize("background", [False, True], ids=["at once", "background"])
def test_a_process_and_its_forked_children_lose_nothing(run_python, only_run, background, layout):
    run_python(FORKS.format(background=background, layout=layout))
    run = only_run()
    assert len(run) == 20 + 3 * 21 + 3 * 20 + 20
    assert sorted(run.series("same").values) == [0, 1, 2]
    assert run.problems == []
    for stored in run:
        if stored.name != "same":
            number = int(re.search(r"\d+$", stored.name).group())
            np.testing.assert_array_equal(stored.load(), np.full(1000, number), err_msg=stored.name)
    packs = list(run.path.glob(".tensortap/packs/*"))
    assert sum(len(np.load(pack).files) for pack in packs) == (len(run) if layout == "pack" else 0)


def test_a_fork_while_other_threads_dump_does_not_hang_the_child(run_python, only_run):
    run_python("""
        import os, sys, threading
        import numpy as np
        import tensortap as tt
        tt.init(sys.argv[1], background=True)
        tt.dump(np.ones((2, 2)), "first")  # Python itself hangs in a fork while another thread imports
        is_over = threading.Event()
        def dump_on():
            for _ in range(2000):
                tt.dump(np.ones((30, 30)).T, "parent")
                if is_over.is_set():
                    return
        threads = [threading.Thread(target=dump_on) for _ in range(3)]
        for thread in threads: thread.start()
        for number in range(20):
            child = os.fork()
            if child == 0:
                tt.dump(np.full((4, 4), number).T, "child")
                tt.flush()
                tt.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        is_over.set()
        for thread in threads: thread.join()
    """)
    assert sorted(int(value[0, 0]) for value in only_run().series("child").values) == list(range(20))


@pytest.mark.parametrize("layout", ["files", "pack"])
def test_the_writer_thread_imports_nothing_because_a_fork_meanwhile_would_hang_the_child(run_python, layout):
    done = run_python(f"""
        import sys, threading
        import numpy as np
        import torch
        import tensortap as tt

        class Noted:
            def find_spec(self, name, path=None, target=None):
                if threading.current_thread().name.startswith("tensortap-"):
                    print(name)

        sys.meta_path.insert(0, Noted())
        tt.init(sys.argv[1], background=True, layout={layout!r})
        for value in (np.ones(3), torch.ones(3), torch.ones(3, 3).T, [1], np.ones(1_000_000)):
            tt.dump(value, "x")
        tt.close()
    """)
    assert done.stdout == ""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_of_multiprocessing_that_dump_lose_nothing(run_python, tmp_path, method):
    run_python(
        """
        import multiprocessing, sys
        import numpy as np
        import tensortap as tt

        def work(number):
            tt.init(sys.argv[1] + f"/own{number}", background=True)
            for n in range(30): tt.dump(np.full(1000, n), "x")

        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[2])
            tt.init(sys.argv[1] + "/parent", background=True)
            processes = [context.Process(target=work, args=(number,)) for number in range(2)]
            for process in processes: process.start()
            for n in range(30): tt.dump(np.full(1000, n), "x")
            for process in processes: process.join()
            assert [process.exitcode for process in processes] == [0, 0]
        """,
        method,
    )
    for owner in ("parent", "own0", "own1"):
        (path,) = (tmp_path / "runs" / owner).iterdir()
        series = tt.Run(path).series("x")
        assert [int(value[0]) for value in series.values] == list(range(30))


def test_a_spawned_worker_without_a_run_is_told_to_begin_one(run_python):
    done = run_python("""
        import multiprocessing, sys
        import tensortap as tt

        def work():
            try:
                tt.dump(1, "x")
            except RuntimeError as error:
                print(error)

        if __name__ == "__main__":
            tt.init(sys.argv[1])
            process = multiprocessing.get_context("spawn").Process(target=work)
            process.start()
            process.join()
    """)
    assert done.stdout == "dump() needs a run: call init('experiments') first, once per process\n"


@pytest.mark.parametrize("background", [False, True], ids=["at once", "background"])
def test_workers_of_a_data_loader_dump_into_the_run_of_their_parent(run_python, only_run, background):
    run_python(f"""
        import sys
        import torch
        from torch.utils.data import DataLoader, Dataset
        import tensortap as tt

        class Numbers(Dataset):
            def __len__(self):
                return 12
            def __getitem__(self, number):
                value = torch.full((8, 8), float(number))
                tt.dump(value, "sample")
                return value

        tt.init(sys.argv[1], background={background})
        for batch in DataLoader(Numbers(), batch_size=2, num_workers=2, multiprocessing_context="fork"):
            tt.dump(batch, "batch")
    """)
    run = only_run()
    assert sorted(float(value[0, 0]) for value in run.series("sample").values) == list(range(12))
    assert [float(value[0, 0, 0]) for value in run.series("batch").values] == list(range(0, 12, 2))


TERMINATED = """
import sys
import numpy as np
import tensortap as tt
tt.init(sys.argv[1], background=sys.argv[2] == "background")
for n in range(20): tt.dump(np.full(1000, n), f"v{n}")
if sys.argv[2] == "background": tt.flush()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("when", ["at once", "background"])
def test_sigterm_costs_nothing_that_was_written_at_once_or_flushed(tmp_path, only_run, when):
    """Python's default for SIGTERM runs no exit handler: a background queue that was not flushed is not
    promised to survive it, and we install no signal handler in a guest's process."""
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINATED, str(tmp_path / "runs"), when],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM
    assert len(only_run()) == 20
    np.testing.assert_array_equal(only_run().load("v19"), np.full(1000, 19))
