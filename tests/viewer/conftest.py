"""Two small runs that part at step 3, and a viewer on a real socket with a client that was let in."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.viewer.sample import write

from tensortap.viewer.server import View, view
from tensortap.viewer.web.responses import decode_columns


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "a")
    write(folder / "b", parts_at=3)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A copy that the test may change."""
    return Path(shutil.copytree(pristine, tmp_path / "runs"))


class Client:
    """A browser that was let in, as far as a program can be one."""

    def __init__(self, viewer: View) -> None:
        self.viewer = viewer
        self.http = httpx.Client(base_url=viewer.address, timeout=30, trust_env=False)
        assert self.http.get(viewer.url).status_code == 303

    def get(self, path: str, status: int = 200, **options: Any) -> httpx.Response:
        answer = self.http.get(path, **options)
        assert answer.status_code == status, answer.text[:500]
        return answer

    def json(self, path: str, status: int = 200) -> Any:
        return self.get(path, status).json()

    def columns(self, path: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        return decode_columns(self.get(path).content)

    def post(self, path: str, body: Any, status: int = 200, **headers: str) -> Any:
        answer = self.http.post(path, json=body, headers={"origin": self.viewer.address, **headers})
        assert answer.status_code == status, answer.text[:500]
        return answer.json()

    def run(self, name: str) -> str:
        return next(run["id"] for run in self.json("/api/runs")["runs"] if run["name"] == name)

    def row(self, name: str, **wanted: int) -> str:
        """The address of a record of run `a`."""
        run = self.run("a")
        words = "&".join(f"{key}={number}" for key, number in wanted.items())
        return f"/api/run/{run}/row/{self.json(f'/api/run/{run}/find?name={name}&{words}')['row']}"


Look = Callable[..., Client]


@pytest.fixture
def look(folder: Path) -> Iterator[Look]:
    """Start a viewer of these things, or of the folder of runs; it is closed after the test."""
    clients: list[Client] = []

    def start(*things: Any, **options: Any) -> Client:
        clients.append(Client(view(*(things or (folder,)), **options)))
        return clients[-1]

    yield start
    for client in clients:
        client.http.close()
        client.viewer.close()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private folder for the sockets of jobs; short, since the path of a socket may not be long."""
    made = tempfile.mkdtemp(prefix="tt", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", made)
    yield Path(made)
    shutil.rmtree(made)
