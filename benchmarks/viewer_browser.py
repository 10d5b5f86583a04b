"""What somebody at the viewer waits for, in a real browser: pages, queries, scrolling, tiles, a live job.

`viewer_browser.py [captures] [megabytes]`: 100,000 captures, a tensor of 1,024 MB unless told. The clock
on the wall is what counts here, so other programs slow it down."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

import many_captures
import tensortap as tt
from harness import Table, finish, tell
from viewer import large

ROUNDS = 5
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-precise-memory-info"]
QUERIES = ("attn.q step>137", "layers.1*.attn.*", "module:layers.13", "q|k|v dtype:f32", "step:3")
JOB = """
import time, torch, tensortap as tt
torch.set_num_threads(1)
tt.listen("bench", share=None)
print("ready", flush=True)
while True:
    value = torch.randn(256, 256)
    tt.tap(value, "picture")
    tt.tap(value.mean(), "number")
    tt.step()
    time.sleep(0.1)
"""
table = Table("the viewer in a browser")


class Pages:
    """Pages of one viewer; what they complain of, and whom they ask."""

    def __init__(self, browser: Any, viewer: Any) -> None:
        self.address = viewer.address
        self.problems: list[str] = []
        self.hosts: set[str] = set()
        self._context = browser.new_context(viewport={"width": 1280, "height": 720})
        self._context.add_init_script(WATCHED)
        self._context.new_page().goto(viewer.url)

    def open(self, path: str) -> Any:
        page = self._context.new_page()
        page.on("console", lambda told: told.type == "error" and self.problems.append(told.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        page.goto(self.address + path)
        return page

    def run(self) -> str:
        page = self.open("/")
        runs = page.evaluate("fetch('/api/runs').then((answer) => answer.json())")["runs"]
        page.close()
        return str(runs[0]["id"])

    def ready(self, path: str, what: str) -> float:
        page = self.open(path)
        taken = _ready(page, what)
        page.close()
        return taken

    def close(self) -> None:
        table.add("complaints of the pages", len(self.problems), 0, "")
        foreign = self.hosts - {urlsplit(self.address).netloc}
        table.add("hosts that were asked besides the viewer", len(foreign), 0, "")
        self._context.close()


@contextmanager
def looking(browser: Any, folder: Path, **options: Any) -> Iterator[Pages]:
    with tt.view(folder, **options) as viewer:
        pages = Pages(browser, viewer)
        yield pages
        pages.close()


def captures(browser: Any, folder: Path, count: int) -> None:
    many_captures.write(folder, count)
    with looking(browser, folder) as pages:
        address = f"/run/{pages.run()}/captures"
        ready = [pages.ready(address, ".vt-row") for _ in range(ROUNDS)]
        table.add(f"{count:,} captures: until the table is there", statistics.median(ready), 1500, "ms")
        page = pages.open(address)
        _ready(page, ".vt-row")
        page.wait_for_timeout(500)
        found = [page.evaluate(FILTERED, text) for text in (*QUERIES, "")]
        table.add("a query, from the key to the rows", statistics.median(found), 60, "ms")
        frames = page.evaluate(SCROLLED)
        table.add("a frame of scrolling (45 a second)", frames["each"], 1000 / 45, "ms")
        tell("  of which the page itself works", frames["work"], "ms")
        table.add("memory of scripts", page.evaluate("performance.memory.usedJSHeapSize") / 1e6, 60, "MB")


def tensor(browser: Any, folder: Path, megabytes: int) -> None:
    large(folder, megabytes)
    with looking(browser, folder) as pages:
        run = pages.run()
        page = pages.open("/")
        for level in range(7):
            taken = page.evaluate(FETCHED, f"/api/run/{run}/row/0/tile.bin?lod={level}")
            table.add(f"the first tile of level {level} of {megabytes} MB", taken, 150, "ms")
        page.close()
        page = pages.open(f"/run/{run}/t/large")
        tell("the page of the tensor, until it has a picture", _ready(page, ".ramp-end"), "ms")
        frames = page.evaluate(ZOOMED)
        table.add("a frame of zooming into it (45 a second)", frames["work"], 1000 / 45, "ms")


def live(browser: Any, folder: Path) -> None:
    with _job() as pid, looking(browser, folder, allow_actions=True) as pages:
        page = pages.open("/live")
        page.locator(".job", has_text=f"process {pid}").click()
        for name in ("picture", "number"):
            page.get_by_role("switch", name=f"tap {name}", exact=True).click()
            page.locator(".wall-tile", has=page.get_by_text(name, exact=True)).wait_for()
        page.wait_for_timeout(6000)
        shown = page.locator("[data-meter='job → screen']").get_attribute("data-ms")
        table.add("from the job to the pixel, at 10 a second", float(shown), 300, "ms")


@contextmanager
def _job() -> Iterator[int]:
    with tempfile.TemporaryDirectory(prefix="tt", dir="/tmp") as sockets:
        os.environ["XDG_RUNTIME_DIR"] = sockets
        with subprocess.Popen([sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True) as made:
            try:
                assert made.stdout is not None
                made.stdout.readline()
                yield made.pid
            finally:
                made.kill()


def _ready(page: Any, what: str) -> float:
    """Milliseconds from the start of a page to the first sight of that."""
    page.locator(what).first.wait_for()
    return float(page.evaluate("(what) => window.firstSeen[what]", what))


WATCHED = """
window.firstSeen = {};
new MutationObserver(() => {
  for (const what of [".vt-row", ".ramp-end"]) {
    if (document.querySelector(what)) window.firstSeen[what] ??= performance.now();
  }
}).observe(document, { childList: true, subtree: true });
"""
FILTERED = """async (text) => {
  const [input, note] = ["input.filter", ".card-head .note"].map((what) => document.querySelector(what));
  const changed = new Promise((done) => new MutationObserver((_, watch) => {
    watch.disconnect();
    requestAnimationFrame(done);
  }).observe(note, { childList: true, characterData: true, subtree: true }));
  const begin = performance.now();
  input.value = text;
  input.dispatchEvent(new Event("input"));
  await changed;
  return performance.now() - begin;
}"""
SCROLLED = """async () => {
  const body = document.querySelector(".vt-body");
  const work = [];
  const begin = performance.now();
  for (let at = 0; at < 120; at++) {
    body.scrollTop += 390;
    await new Promise((done) => requestAnimationFrame(() => {
      const start = performance.now();
      setTimeout(() => { body.offsetHeight; work.push(performance.now() - start); done(); });
    }));
  }
  return { each: (performance.now() - begin) / 120, work: work.sort((a, b) => a - b)[60] };
}"""
ZOOMED = """async () => {
  const canvas = document.querySelector(".picture .heat-canvas");
  const { left, top } = canvas.getBoundingClientRect();
  const work = [];
  for (let at = 0; at < 60; at++) {
    const options = { deltaY: at < 40 ? -60 : 60, clientX: left + 300, clientY: top + 120, cancelable: true };
    canvas.dispatchEvent(new WheelEvent("wheel", options));
    await new Promise((done) => requestAnimationFrame(() => {
      const start = performance.now();
      setTimeout(() => { work.push(performance.now() - start); done(); });
    }));
  }
  return { work: work.sort((a, b) => a - b)[30] };
}"""
FETCHED = """async (address) => {
  const begin = performance.now();
  await (await fetch(address)).arrayBuffer();
  return performance.now() - begin;
}"""


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else many_captures.COUNT
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 1024
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("no chromium on this machine: nothing was measured in a browser")
        sys.exit(0)
    with sync_playwright() as started, tempfile.TemporaryDirectory() as made:
        opened = started.chromium.launch(executable_path=chromium, args=FLAGS)
        captures(opened, Path(made) / "many", count)
        tensor(opened, Path(made) / "large", size)
        live(opened, Path(made) / "large")
        opened.close()
    sys.exit(finish([table]) > 0)
