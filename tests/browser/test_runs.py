"""The pages of runs: the list, one run, its captures."""

from typing import Any

import pytest
from tests.browser.conftest import MANY, Open, Seen, Viewer
from tests.browser.sample import EVIL, STEPS

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.xdist_group("browser")


def test_two_runs_that_are_chosen_are_compared(open_page: Open, viewer: Viewer) -> None:
    page = open_page("/")
    expect(page.get_by_label("choose ")).to_have_count(5)  # beside the jobs that listen on this machine
    page.get_by_label("choose before").check()
    expect(page.get_by_role("button", name="Compare with")).to_be_disabled()
    page.get_by_label("choose after").check()
    page.screenshot(path=viewer.pictures / "runs.png")
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url(f"**{viewer.compare}")


def test_a_run_says_how_it_is_and_where_it_is_not_well(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/run/{viewer.ids['before']}", theme="light")
    expect(page.locator("h1")).to_contain_text("names over")
    expect(page.get_by_role("treeitem").first).to_contain_text("model")
    expect(page.get_by_label("Summary")).to_contain_text("1 NaN 1 Inf")
    expect(page.locator(".scalars svg").first).to_be_visible()
    page.screenshot(path=viewer.pictures / "run_light.png")


def test_the_charts_are_fetched_only_where_one_is_drawn(open_page: Open, viewer: Viewer, seen: Seen) -> None:
    page = open_page(f"/run/{viewer.ids['before']}/captures")
    expect(page.locator(".vt-row").first).to_be_visible()
    assert not any(url.endswith("/plotly.js") for url in seen.asked)
    page.get_by_role("link", name="Overview").click()
    expect(page.locator(".scalars svg").first).to_be_visible()
    assert any(url.endswith("/plotly.js") for url in seen.asked)


def test_charts_follow_the_look_of_the_page(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/run/{viewer.ids['before']}", theme="dark", user="one who changes the look")
    line = page.locator(".scalars .scatterlayer path.js-line").first
    expect(line).to_be_attached()
    before = line.evaluate("(line) => line.style.stroke")
    page.get_by_role("button", name="Light or dark").click()
    page.wait_for_function(
        "(before) => document.querySelector('.scalars path.js-line').style.stroke !== before", arg=before
    )


def test_a_name_that_is_markup_is_shown_as_text(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/run/{viewer.ids['before']}/captures?q=bold")
    expect(page.locator(".vt-row:visible")).to_have_count(1)
    expect(page.locator(".vt-row:visible")).to_contain_text(EVIL)
    assert page.locator("main img, main b").count() == 0


def test_what_is_not_finite_is_counted_where_it_is(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/run/{viewer.ids['before']}/captures?q=nan>0")
    expect(page.locator(".vt-row:visible")).to_contain_text("1 NaN 1 Inf")


def test_columns_are_sorted_and_the_order_is_in_the_address(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/run/{viewer.ids['before']}/captures?q=embed")
    page.get_by_role("button", name="step").click()
    page.get_by_role("button", name="step").click()
    expect(page.locator("[data-key=step]")).to_have_attribute("aria-sort", "descending")
    expect(page.locator(".vt-row:visible").first).to_contain_text(str(STEPS - 1))
    assert "o=-step" in page.url


def test_a_hundred_thousand_captures_need_few_elements_and_little_memory(
    open_page: Open, viewer: Viewer
) -> None:
    page = open_page(f"/run/{viewer.ids['many']}/captures")
    expect(page.locator(".card-head .note")).to_have_text(f"{MANY:,} of {MANY:,}")
    page.locator(".vt-body").evaluate("(body) => body.scrollTo(0, body.scrollHeight)")
    expect(page.locator(".vt-row", has_text="layers.49.part9").first).to_be_visible()
    assert page.locator(".vt-row").count() < 60
    assert page.evaluate("performance.memory.usedJSHeapSize") < 60e6


def test_a_frame_of_scrolling_leaves_time_for_the_next(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/run/{viewer.ids['many']}/captures")
    expect(page.locator(".vt-row").first).to_be_visible()
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})  # other programs do not count
    before = spent(tools)
    page.locator(".vt-body").evaluate(_SCROLL)
    assert (spent(tools) - before) / 60 < 1 / 45


def spent(tools: Any) -> float:
    """Seconds of work in the page so far."""
    metrics = tools.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def test_a_query_over_a_hundred_thousand_captures_is_little_work_for_the_page(
    open_page: Open, viewer: Viewer
) -> None:
    page = open_page(f"/run/{viewer.ids['many']}/captures")
    expect(page.locator(".vt-row").first).to_be_visible()
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    works = []
    for part in (3, 4, 5):
        before = spent(tools)
        page.get_by_label("Filter the captures").fill(f"layers.7.part{part} step>10")
        expect(page.locator(".card-head .note")).to_have_text(f"{MANY // 500 - 11} of {MANY:,}")
        works.append(spent(tools) - before)
        expect(page.locator(".vt-row:visible").first).to_contain_text(f"part{part}")
    assert 0 < min(works) < 0.06
    assert (
        page.evaluate(_ANSWERED, "step%3E10") < 4 * MANY // 500 + 1000
    )  # a number for each row, and few words


def test_the_table_is_there_after_little_work(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/run/{viewer.ids['many']}/captures")
    expect(page.locator(".vt-row").first).to_be_visible()
    tools = page.context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = spent(tools)
    page.reload()
    expect(page.locator(".card-head .note")).to_have_text(f"{MANY:,} of {MANY:,}")
    assert 0 < spent(tools) - before < 1.5


def test_an_unknown_page_says_so(open_page: Open) -> None:
    page = open_page("/run/zzzz/nothing")
    expect(page.get_by_role("alert")).to_contain_text("there is no page")


_ANSWERED = """(words) => performance.getEntriesByType("resource")
  .filter((one) => one.name.includes("rows.bin") && one.name.includes(words)).pop().decodedBodySize"""
_SCROLL = """async (body) => {
  for (let frame = 0; frame < 60; frame++) {
    body.scrollTop += 390;
    await new Promise((done) => requestAnimationFrame(done));
  }
}"""
