"""A viewer as people start it, and a browser to look at it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.browser.sample import write, write_many, write_one

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Kept for people to look at; each test starts without settings from outside.
PICTURES = Path(os.environ.get("TENSORTAP_SCREENSHOTS", Path(__file__).parents[2] / "build" / "screenshots"))
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-precise-memory-info"]
playwright.expect.set_options(timeout=15_000)
MANY = 100_000


@dataclass
class Viewer:
    """A viewer in a process of its own; the state of a browser that was let in opens its pages."""

    address: str
    ids: dict[str, str]
    state: Any
    pictures: Path

    @property
    def compare(self) -> str:
        return f"/compare?a={self.ids['before']}&b={self.ids['after']}"


@dataclass
class Seen:
    """What a page said and asked for, besides what it shows."""

    problems: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()

    def unexpected(self) -> list[str]:
        return [told for told in self.problems if not any(word in told for word in self.expected)]


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    if _CHROMIUM is None:
        pytest.skip("no chromium on this machine: the pages were not looked at")
    PICTURES.mkdir(parents=True, exist_ok=True)
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=_CHROMIUM, args=_FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="package")
def viewer(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder = tmp_path_factory.mktemp("runs")
    write(folder / "before")
    write(folder / "after", is_changed=True)
    write_many(folder / "many", MANY)
    write_one(folder / "left", "alpha.x", 3)
    write_one(folder / "right", "beta.y", 4, 5)
    with Started(folder) as (url, address):
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        runs = page.evaluate("fetch('/api/runs').then((answer) => answer.json())")["runs"]
        state = context.storage_state()
        context.close()
        yield Viewer(address, {run["name"]: run["id"] for run in runs}, state, PICTURES)


class Started:
    """`tensortap view FOLDER`, until the block is left."""

    def __init__(self, *things: Path | str) -> None:
        words = [sys.executable, "-c", "import sys; from tensortap.cli.main import main; sys.exit(main())"]
        self._command = [*words, "view", *map(str, things), "--no-open", "--json"]

    def __enter__(self) -> tuple[str, str]:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        told = json.JSONDecoder()
        text = ""
        for line in self._process.stdout:
            text += line
            try:
                found = told.decode(text)
            except ValueError:
                continue
            return found["url"], found["address"]
        raise AssertionError(f"the viewer did not start: {text}")

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=20)
        assert self._process.stdout is not None
        self._process.stdout.close()


Open = Callable[..., Any]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture(scope="package")
def contexts(browser: Any, viewer: Viewer) -> Iterator[Callable[..., Any]]:
    """Browsers that were let in, one for each look and size: a second page in it has its files at hand."""
    made: dict[Any, Any] = {}

    def context(theme: str, width: int, height: int, user: str) -> Any:
        key = theme, width, height, user
        if key not in made:
            size = {"width": width, "height": height}
            made[key] = browser.new_context(storage_state=viewer.state, color_scheme=theme, viewport=size)
            made[key].set_default_timeout(15_000)
            made[key].grant_permissions(["clipboard-read", "clipboard-write"], origin=viewer.address)
        return made[key]

    yield context
    for one in made.values():
        one.close()


@pytest.fixture
def open_page(contexts: Callable[..., Any], viewer: Viewer, seen: Seen) -> Iterator[Open]:
    """Open an address; what goes wrong in the page fails the test."""
    pages: list[Any] = []

    def opened(
        path: str, *, theme: str = "dark", width: int = 1280, height: int = 720, user: str = "usual"
    ) -> Any:
        page = contexts(theme, width, height, user).new_page()
        pages.append(page)
        page.on("console", lambda told: told.type == "error" and seen.problems.append(told.text))
        page.on("pageerror", lambda error: seen.problems.append(str(error)))
        page.on("dialog", lambda dialog: (seen.problems.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: seen.asked.append(request.url))
        page.goto(viewer.address + path)
        return page

    yield opened
    for page in pages:
        page.close()
    hosts = {urlsplit(url).netloc for url in seen.asked if not url.startswith(("data:", "blob:"))}
    assert hosts <= {urlsplit(viewer.address).netloc}
    assert seen.unexpected() == []
