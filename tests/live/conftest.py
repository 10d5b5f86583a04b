"""A private folder for sockets, a small model in this very process, and jobs in processes of their own."""

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PRELUDE = """
import os, sys, time
import torch
import tensortap as tt

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05)

def train_once():
    loss = model(torch.randn(4, 8)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return tt.tap(loss.detach(), "loss")

def say(*words):
    print(*words, flush=True)
"""


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Short, since the path of a socket may not be long."""
    folder = tempfile.mkdtemp(prefix="tt", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield Path(folder)
    shutil.rmtree(folder)


class InProcess:
    """A job in the process of the test, which makes its steps one by one."""

    def __init__(self, name: str) -> None:
        import torch

        import tensortap as tt

        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        # No limit: on a busy machine fewer steps would be taken than a test makes.
        self.endpoint: Any = tt.listen(name, share=None)
        tt.expose(self.model)

    def step(self, count: int = 1) -> Any:
        import torch

        output = None
        for _ in range(count):
            output = self.model(torch.randn(4, 8))
        return output

    @property
    def hooks(self) -> int:
        """How many hang on the model, but for the one of the offer."""
        modules = list(self.model.modules())
        return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in modules) - 1


@pytest.fixture
def job() -> Iterator[InProcess]:
    gc.collect()  # models of other tests are held weakly, but may hold themselves
    found = InProcess("here")
    yield found
    found.endpoint.close()


@pytest.fixture
def session(job: InProcess) -> Iterator[Any]:
    import tensortap as tt

    with tt.attach("here") as found:
        yield found


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a program that says `ready`, and wait until it does."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *arguments: str, waits: bool = True, **settings: str) -> subprocess.Popen[str]:
        program = tmp_path / f"program{len(started)}.py"
        program.write_text(PRELUDE + textwrap.dedent(code))
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(program), *arguments],
            cwd=tmp_path,
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        started.append(process)
        if waits:
            line = process.stdout.readline()
            assert line.startswith("ready"), process.communicate(timeout=20)[1]
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)


@pytest.fixture
def stepping() -> Callable[[InProcess], contextlib.AbstractContextManager[None]]:
    """Let a job make steps in a thread, while the test asks."""

    @contextlib.contextmanager
    def run(job: InProcess) -> Iterator[None]:
        is_over = threading.Event()

        def go() -> None:
            while not is_over.wait(0.002):
                job.step()

        thread = threading.Thread(target=go)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    return run
