"""The call tree: calls, what variables became, and the first value that is not a number."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser.conftest import PICTURES
from tests.browser.own import STEPS, Own, choices, violations, write_calls, write_values

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.xdist_group("browser")
CALLS, LARGE = 3, 800


@pytest.fixture(scope="module")
def looking(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    folder = tmp_path_factory.mktemp("traces")
    write_calls(folder / "calls", CALLS)
    write_calls(folder / "large", LARGE)
    write_values(folder / "values")
    made = Own(browser, folder)
    yield made
    made.close()


@pytest.fixture
def own(looking: Own) -> Iterator[Own]:
    yield looking
    looking.check()


def rows(page: Any) -> Any:
    return page.locator(".trace-lines .vt-row:visible")


def opened(own: Own, path: str = "/run/{calls}/trace", **options: Any) -> Any:
    page = own.open(path, **options)
    expect(rows(page).first).to_be_visible()
    return page


def test_without_calls_the_page_is_called_what_it_is(own: Own) -> None:
    page = own.open("/run/{values}")
    page.get_by_role("link", name="Values of each step").click()
    expect(page.get_by_label("Breadcrumb")).to_contain_text("Values of each step")
    line = page.locator(".trace-lines .vt-row:visible").filter(has_text="loss")
    expect(line.locator(".trace-name")).to_have_text("loss")
    expect(line.locator(".trace-kind")).to_have_text("value")
    page = own.open("/run/{calls}")
    expect(page.get_by_role("link", name="Call tree")).to_be_visible()


def test_a_tree_shows_calls_and_what_a_variable_became(own: Own) -> None:
    page = opened(own)
    expect(rows(page)).to_have_count(4 * CALLS + 2)
    expect(rows(page).nth(0)).to_contain_text("main()")
    expect(rows(page).nth(2)).to_contain_text("scores")
    expect(rows(page).nth(3)).to_contain_text("f32 → f16")
    expect(rows(page).nth(3)).to_contain_text("program.py:12")
    # The same variable in another call begins anew.
    expect(rows(page).nth(6)).not_to_contain_text("→")


def test_the_first_value_that_is_not_a_number_is_marked_and_shown(own: Own) -> None:
    page = opened(own, "/run/{calls}/trace?d=1")
    expect(page.locator(".trace-alarm")).to_contain_text("First NaN: attend.scores at program.py:12")
    page.get_by_role("button", name="Show it").click()
    expect(page.locator(".vt-row[aria-selected=true] .trace-odd.is-first")).to_have_text("first NaN")
    expect(page.locator(".trace-odd:visible")).to_have_count(2)


def test_a_line_opens_the_very_value_that_it_tells_of(own: Own) -> None:
    page = opened(own)
    rows(page).nth(7).click()
    page.wait_for_url("**/t/attend.scores?**")
    expect(page.locator(".facts")).to_contain_text("program.py:12")
    assert choices(page)["c"] == "3"
    expect(page.get_by_label("Statistics")).to_contain_text("mean")
    expect(page.locator(".numbers dd").first).to_have_text("1")


def test_calls_close_and_open(own: Own) -> None:
    page = opened(own)
    rows(page).nth(1).click()
    expect(rows(page)).to_have_count(4 * CALLS + 2 - 3)
    page.get_by_role("group", name="Open calls").get_by_role("button", name="1", exact=True).click()
    expect(rows(page)).to_have_count(2 + CALLS)
    assert choices(page)["d"] == "1"


def test_lines_can_be_searched_and_only_changes_shown(own: Own) -> None:
    page = opened(own)
    page.keyboard.press("f")
    page.keyboard.type("scores")
    expect(rows(page)).to_have_count(2 * CALLS)
    page.get_by_role("button", name="only changes").click()
    expect(rows(page)).to_have_count(CALLS)
    assert choices(page) == {"q": "scores", "m": "1"}


def test_a_tree_of_thousands_of_lines_needs_few_elements(own: Own) -> None:
    page = opened(own, "/run/{large}/trace")
    expect(page.locator(".trace-lines .note")).to_have_text(f"{4 * LARGE + 2:,} lines")
    assert page.locator(".trace-lines .vt-row").count() < 60
    page.locator(".trace-lines .vt-body").evaluate("(body) => body.scrollTo(0, body.scrollHeight)")
    expect(page.locator(f".vt-row[aria-rowindex='{4 * LARGE + 3}']")).to_contain_text("return")


def test_statistics_that_come_late_do_not_scroll_it_back(own: Own) -> None:
    page = opened(own, "/run/{large}/trace")
    news = f'retry: 50\nevent: stats\ndata: {{"id": "{own.ids["large"]}"}}\n\n'
    page.route("**/api/events", lambda route: route.fulfill(body=news, content_type="text/event-stream"))
    page.reload()
    expect(page.locator(".trace-lines .note")).to_have_text(f"{4 * LARGE + 2:,} lines")
    page.locator(".trace-lines .vt-body").evaluate("(body) => body.scrollTo(0, body.scrollHeight)")
    last = page.locator(f".vt-row[aria-rowindex='{4 * LARGE + 3}']")
    expect(last).to_be_visible()
    for _ in range(2):  # the first may have been on its way
        with page.expect_response(lambda answer: "/trace?" in answer.url and "from=2000" in answer.url):
            pass
    expect(last).to_be_visible()
    assert page.locator(".trace-lines .vt-body").evaluate("(body) => body.scrollTop") > 40_000


def test_statistics_that_come_quickly_are_fetched_one_after_the_other(own: Own) -> None:
    page = opened(own, "/run/{large}/trace")
    news = f'retry: 50\nevent: stats\ndata: {{"id": "{own.ids["large"]}"}}\n\n'
    page.route("**/api/events", lambda route: route.fulfill(body=news, content_type="text/event-stream"))
    held: list[Any] = []
    page.route("**/trace?*from=2000*", lambda route: held.append(route))  # playwright marks its handlers
    with page.expect_request("**/trace?*from=2000*"):
        page.reload()
    for _ in range(8):
        with page.expect_request("**/api/events"):
            pass
    assert len(held) <= 2  # the first, and one for all the news
    page.unroute("**/trace?*from=2000*")
    for route in held:
        route.continue_()
    expect(page.locator(".trace-lines .note")).to_have_text(f"{4 * LARGE + 2:,} lines")


def test_without_calls_the_values_of_each_step_are_listed(own: Own) -> None:
    page = opened(own, "/run/{values}/trace")
    expect(page.locator(".trace-trees .note")).to_have_text(str(3 * STEPS))
    expect(rows(page).first).to_contain_text("embed")


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_everyone_can_read_and_use_it_without_scrolling_sideways(own: Own, theme: str) -> None:
    page = opened(own, theme=theme)
    expect(page.locator(".trace-alarm")).to_be_visible()
    page.screenshot(path=PICTURES / f"trace_{theme}_1280.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert violations(page) == ""
