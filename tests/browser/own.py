"""A viewer over runs of the tests' own, and pages of it that must not complain."""

from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from tests.browser.conftest import Seen, Started
from tests.browser.sample import EVIL

from tensortap.core.record import Record, Site
from tensortap.sinks.run_directory import RunDirectory

STEPS, RANKS = 4, 3
SHAPE = (2, 3, 20, 30)


# Whether a strip has its mark at one of so many places.
IS_MARKED = """([label, place, length]) => {
  const canvas = document.querySelector(`canvas[aria-label*="${label}"]`);
  if (!canvas?.width) return false;
  const context = canvas.getContext("2d");
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
  const [r, g, b] = context.getImageData(((place + 0.5) / length) * canvas.width, 0, 1, 1).data;
  return pen.fillStyle === "#" + [r, g, b].map((one) => one.toString(16).padStart(2, "0")).join("");
}"""


class Own:
    """Pages of one viewer, in one browser that was let in."""

    def __init__(self, browser: Any, *things: Path | str) -> None:
        self.seen = Seen()
        self._browser = browser
        self._started = Started(*things)
        url, self.address = self._started.__enter__()
        context = browser.new_context()
        page = context.new_page()
        page.goto(url)
        runs = page.evaluate("fetch('/api/runs').then((answer) => answer.json())")["runs"]
        self.ids = {run["name"]: run["id"] for run in runs}
        self._state = context.storage_state()
        context.close()
        self._contexts: dict[str, Any] = {}

    def open(self, path: str, *, theme: str = "dark") -> Any:
        page = self._context(theme).new_page()
        page.on("console", lambda told: told.type == "error" and self.seen.problems.append(told.text))
        page.on("pageerror", lambda error: self.seen.problems.append(str(error)))
        page.on("dialog", lambda dialog: (self.seen.problems.append("a dialog"), dialog.dismiss()))
        page.on("request", lambda request: self.seen.asked.append(request.url))
        page.goto(self.address + path.format(**self.ids))
        return page

    def _context(self, theme: str) -> Any:
        if theme not in self._contexts:
            size = {"width": 1280, "height": 720}
            made = self._browser.new_context(storage_state=self._state, color_scheme=theme, viewport=size)
            made.set_default_timeout(15_000)
            made.grant_permissions(["clipboard-read", "clipboard-write"], origin=self.address)
            self._contexts[theme] = made
        return self._contexts[theme]

    def check(self) -> None:
        """Nothing was complained of, nothing left the machine; pages are closed."""
        for context in self._contexts.values():
            for page in context.pages:
                page.close()
        seen, self.seen = self.seen, Seen()
        hosts = {urlsplit(url).netloc for url in seen.asked if not url.startswith(("data:", "blob:"))}
        assert hosts <= {urlsplit(self.address).netloc}
        told = seen.unexpected()
        assert told == [], told

    def close(self) -> None:
        for context in self._contexts.values():
            context.close()
        self._started.__exit__()


def choices(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def violations(page: Any) -> str:
    """What hinders people who see, hear or point otherwise."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    found = axe.Axe().run(page).response["violations"]
    return "\n".join(f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"])


def value(step: int, rank: int = 0, order: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(1000 * step + 10 * rank + order).standard_normal(SHAPE)
    return drawn.astype(np.float32)


def write_values(path: Path) -> Path:
    """Three names on three ranks, a line, a number, a text, and what is not finite."""
    sink = RunDirectory(path)
    site = Site("forward", "/code/model.py", 212)
    for step in range(STEPS):
        for rank in range(RANKS):
            for order, name in enumerate(("embed", "blocks.0.attn", "blocks.0.mlp")):
                array = value(step, rank, order)
                sink.write(Record(name, array, "output", step, rank=rank, order=order, time=1e9, site=site))
        sink.write(Record("loss", np.float32(1 / (step + 1)), "value", step, order=8, time=1e9))
    wide = np.zeros((1000, 900), np.float32)
    wide[617, 303] = np.nan
    sink.write(Record("wide", wide, "value", 0, order=9, time=1e9))
    sink.write(Record("settings", {"rate": 0.1}, "value", 0, order=10, time=1e9))
    sink.write(Record(EVIL, np.arange(12.0, dtype=np.float32), "value", 0, order=11, time=1e9))
    sink.close()
    return path


def write_calls(path: Path, calls: int = 3) -> Path:
    """A function that calls another some times; in the last of them a variable is not a number."""
    sink = RunDirectory(path)
    lines: list[tuple[str, str, str, object, int, int]] = [("call", "main", "main", "", 0, 1)]
    for number in range(calls):
        scores = np.full((2, 3), np.nan if number == calls - 1 else number, np.float32)
        lines += [
            ("call", "attend", "attend", "", 1, 10),
            ("local", "attend", "attend.scores", np.full((2, 3), number, np.float32), 1, 11),
            ("local", "attend", "attend.scores", scores.astype(np.float16), 1, 12),
            ("return", "attend", "attend", scores, 1, 13),
        ]
    lines.append(("return", "main", "main", np.ones(3, np.float32), 0, 2))
    for order, (kind, function, name, held, depth, line) in enumerate(lines):
        site = Site(function, "/code/program.py", line, depth, (), 1)
        call = sum(1 for one in lines[:order] if (one[0], one[2]) == (kind, name)) if calls < 100 else 0
        sink.write(Record(name, held, kind, order=order, call=call, time=1e9, site=site))
    sink.close()
    return path
