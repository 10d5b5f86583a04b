"""The page of a running job: what it offers, what comes of a tap, and that a job that ends is said."""

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import PICTURES
from tests.browser.own import Own, violations

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.xdist_group("browser")

JOB = """
    import time, torch, tensortap as tt
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tt.listen("shown", share=None)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    tt.expose(model)
    print("ready", flush=True)
    while True:
        tt.tap(model(torch.randn(4, 8)).mean().detach(), "loss")
        tt.step()
        time.sleep(0.05)
"""


class Running:
    """Jobs that listen in a folder of their own, and viewers that see them."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self._browser, self._folder = browser, folder
        self._jobs: list[subprocess.Popen[str]] = []
        self._looking: dict[bool, Own] = {}

    def job(self) -> subprocess.Popen[str]:
        made = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(JOB)], stdout=subprocess.PIPE, text=True
        )
        self._jobs.append(made)
        assert made.stdout is not None
        assert made.stdout.readline() == "ready\n"
        return made

    def own(self, *, is_allowed: bool) -> Own:
        if is_allowed not in self._looking:
            words = ["--allow-actions"] if is_allowed else []
            self._looking[is_allowed] = Own(self._browser, self._folder, *words)
        return self._looking[is_allowed]

    def check(self) -> None:
        for own in self._looking.values():
            own.check()

    def end_jobs(self) -> None:
        while self._jobs:
            job = self._jobs.pop()
            job.kill()
            job.communicate()

    def close(self) -> None:
        self.end_jobs()
        for own in self._looking.values():
            own.close()


@pytest.fixture(scope="module")
def around(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One job and its viewers; the path of a socket may not be long."""
    with (
        tempfile.TemporaryDirectory(prefix="tt", dir="/tmp") as sockets,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("XDG_RUNTIME_DIR", sockets)
        made = Running(browser, tmp_path_factory.mktemp("live"))
        made.job()
        yield made
        made.close()


@pytest.fixture
def running(around: Running) -> Iterator[Running]:
    yield around
    around.check()


def opened(own: Own, **options: Any) -> Any:
    page = own.open("/live", **options)
    page.locator(".job", has_text="shown").click()
    expect(page.locator(".live-catalog .vt-row:visible").first).to_be_visible()
    return page


def switch(page: Any, name: str) -> Any:
    return page.get_by_role("switch", name=f"tap {name}", exact=True)


def tapped(page: Any, name: str) -> Any:
    """The tile of a name, once its first value is there."""
    if switch(page, name).get_attribute("aria-checked") == "false":
        switch(page, name).click()
    tile = page.locator(".wall-tile", has=page.get_by_text(name, exact=True))
    expect(tile).to_be_visible()
    return tile


def step_of(tile: Any) -> int:
    return int(tile.get_by_text("step ").inner_text().removeprefix("step "))


def moves_on(page: Any, tile: Any, step: int) -> None:
    page.wait_for_function(
        "([tile, step]) => Number(tile.innerText.match(/step (\\d+)/)[1]) > step",
        arg=[tile.element_handle(), step],
    )


def test_without_leave_the_switches_say_why_they_are_off(running: Running) -> None:
    page = opened(running.own(is_allowed=False))
    expect(page.locator(".live-why")).to_contain_text("--allow-actions")
    expect(switch(page, "0")).to_be_disabled()
    expect(page.get_by_role("button", name="Watch")).to_be_disabled()
    expect(page.locator("[data-meter='steps / s'] dd").first).not_to_have_text("–")


def test_a_switch_places_a_tap_and_its_values_refresh(running: Running) -> None:
    page = opened(running.own(is_allowed=True))
    tile = tapped(page, "0")
    expect(tile).to_contain_text("f32[4,16]")
    moves_on(page, tile, step_of(tile))
    expect(page.locator("[data-meter='job → screen'] dd").first).to_contain_text("ms")
    expect(page.locator("#header .live")).to_contain_text("not shown")
    switch(page, "0").click()
    expect(tile).to_have_count(0)
    expect(page.locator(".live-taps")).to_contain_text("none")


def test_a_single_number_is_shown_as_one(running: Running) -> None:
    page = opened(running.own(is_allowed=True))
    tile = tapped(page, "loss")
    float(tile.locator(".wall-big").inner_text())
    page.get_by_role("button", name="end the tap 'loss'").click()
    expect(switch(page, "loss")).to_have_attribute("aria-checked", "false")


def test_long_names_and_many_patterns_keep_to_their_cards(running: Running) -> None:
    page = opened(running.own(is_allowed=True))
    page.get_by_label("Patterns to tap").fill("loss 0 1 2 0.weight 0.bias 2.weight 2.bias")
    page.get_by_role("button", name="Tap", exact=True).click()
    end = page.locator(".live-taps li", has_text="loss 0 1 2").get_by_role("button", name="end")
    expect(end).to_be_visible()
    card, button = page.get_by_label("Meters").bounding_box(), end.bounding_box()
    assert button["x"] + button["width"] <= card["x"] + card["width"]
    assert page.get_by_label("Meters").evaluate("(card) => card.scrollWidth <= card.clientWidth")
    expect(page.locator(".wall-tile")).to_have_count(8)
    heights = page.locator(".wall-tile .wall-head:first-child").evaluate_all(
        "(heads) => heads.map((one) => one.offsetHeight)"
    )
    assert len(set(heights)) == 1
    end.click()
    expect(page.locator(".wall-tile")).to_have_count(0)


def test_freezing_stops_the_picture_and_not_the_job(running: Running) -> None:
    page = opened(running.own(is_allowed=True))
    tile = tapped(page, "2")
    meter = page.locator("[data-meter='step'] dd")
    page.get_by_role("button", name="Freeze").click()
    frozen, passed = step_of(tile), int(meter.inner_text().replace(",", ""))
    page.wait_for_function(
        "(step) => Number(document.querySelector('[data-meter=step] dd').innerText.replace(',', '')) > step",
        arg=passed + 5,
    )
    assert step_of(tile) == frozen
    page.get_by_role("button", name="Frozen").click()
    moves_on(page, tile, frozen)


def test_a_tile_opens_large_and_goes_on(running: Running) -> None:
    page = opened(running.own(is_allowed=True))
    tapped(page, "0").click()
    focus = page.get_by_label("The chosen value")
    expect(focus.locator(".ramp-end").first).to_be_visible()
    assert "t=" in page.url
    before = focus.locator(".note").inner_text()
    expect(focus.locator(".note")).not_to_have_text(before)
    focus.get_by_role("button", name="Close").click()
    expect(focus).to_be_hidden()


def test_what_the_job_does_not_understand_is_told_in_its_words(running: Running) -> None:
    own = running.own(is_allowed=True)
    own.seen.expected = ("status of 400", "status of 404")
    page = opened(own)
    page.get_by_label("Condition to watch").fill("absmax(0) >")
    page.get_by_role("button", name="Watch").click()
    expect(page.locator(".message.is-bad")).to_be_visible()
    page.get_by_label("Patterns to tap").fill("nowhere.at.all")
    page.get_by_role("button", name="Tap", exact=True).click()
    expect(page.locator(".message.is-bad", has_text="nowhere.at.all")).to_be_visible()


def test_a_tile_of_statistics_says_what_it_shows(running: Running) -> None:
    page = opened(running.own(is_allowed=True))
    page.get_by_label("What is sent").select_option("stats")
    page.get_by_label("Patterns to tap").fill("2")
    page.get_by_role("button", name="Tap", exact=True).click()
    tile = page.locator(".wall-tile", has_text="statistics of 4 elements")
    expect(tile.locator(".wall-big")).to_contain_text("mean")
    page.screenshot(path=PICTURES / "live_statistics.png")


def test_when_a_watch_ends_stands_on_its_form(running: Running) -> None:
    page = opened(running.own(is_allowed=True))
    page.get_by_label("Steps in which it holds before the watch ends").fill("3")
    page.get_by_label("Condition to watch").fill("absmax(0) > 0")
    page.get_by_role("button", name="Watch").click()
    expect(page.locator(".message")).to_contain_text("until it held in 3 steps")
    expect(page.get_by_text("held 3 times")).to_be_visible()


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_everyone_can_read_and_use_it_without_scrolling_sideways(running: Running, theme: str) -> None:
    page = opened(running.own(is_allowed=True), theme=theme)
    tapped(page, "0")
    page.screenshot(path=PICTURES / f"live_{theme}_1280.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert violations(page) == ""


def test_a_job_that_ends_is_said_and_its_last_values_stay(running: Running) -> None:
    page = opened(running.own(is_allowed=True))
    tile = tapped(page, "0")
    # What the page was asking for at that moment is gone, and the browser writes that down itself.
    running.own(is_allowed=True).seen.expected = ("410 (Gone)",)
    running.end_jobs()
    expect(page.locator(".live-ended")).to_contain_text("shown has ended")
    expect(page.locator("#header .live")).to_contain_text("ended")
    expect(tile).to_be_visible()
    jobs = running.own(is_allowed=True).open("/live")
    expect(jobs.locator("h1")).to_be_visible()
    expect(jobs.locator(".job", has_text="shown")).to_have_count(0)
