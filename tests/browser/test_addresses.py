"""What is chosen, opened, closed and pointed at is in the address: a link opened elsewhere shows the same."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser.conftest import Open, Viewer
from tests.browser.own import Own, choices, write_calls, write_values

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def looking(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    folder = tmp_path_factory.mktemp("addresses")
    write_calls(folder / "calls")
    run = write_values(folder / "values")
    (run / "runtime_info.json").write_text('{"command": {"full_command": "train.py"}}')
    made = Own(browser, folder)
    yield made
    made.close()


@pytest.fixture
def own(looking: Own) -> Iterator[Own]:
    yield looking
    looking.check()


def again(own: Own, page: Any) -> Any:
    return own.open(f"/{page.url.split('/', 3)[3]}")


def test_runs_that_are_chosen(own: Own) -> None:
    page = own.open("/")
    for name in ("values", "calls"):
        page.get_by_label(f"choose {name}").check()
    page = again(own, page)
    expect(page.get_by_label("choose calls")).to_be_checked()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare?a={values}&b={calls}".format(**own.ids))


def test_modules_that_are_opened_also_when_statistics_come(own: Own) -> None:
    page = own.open("/run/{values}")
    page.get_by_role("button", name="close blocks").click()
    rows = page.get_by_role("treeitem")
    expect(rows.filter(has_text="attn")).to_have_count(0)
    news = f'retry: 50\nevent: stats\ndata: {{"id": "{own.ids["values"]}"}}\n\n'
    page.route("**/api/events", lambda route: route.fulfill(body=news, content_type="text/event-stream"))
    page.reload()
    for _ in range(3):  # the tree is fetched each time that statistics are said to be new
        with page.expect_response(lambda answer: answer.url.endswith("/tree")):
            pass
    expect(rows.filter(has_text="blocks")).to_have_count(1)
    expect(rows.filter(has_text="attn")).to_have_count(0)


def test_parts_of_the_origin_that_are_opened(own: Own) -> None:
    page = own.open("/run/{values}")
    parts = page.get_by_label("Provenance").locator("details")
    expect(parts.first).to_have_js_property("open", True)
    parts.first.locator("summary").click()
    page.wait_for_url("**d=*")
    page = again(own, page)
    expect(page.get_by_label("Provenance").locator("details").first).to_have_js_property("open", False)


def test_calls_that_are_closed(own: Own) -> None:
    page = own.open("/run/{calls}/trace")
    rows = page.locator(".trace-lines .vt-row:visible")
    expect(rows).to_have_count(14)
    rows.nth(1).click()
    expect(rows).to_have_count(11)
    page = again(own, page)
    expect(page.locator(".trace-lines .vt-row:visible")).to_have_count(11)
    page.get_by_role("button", name="all", exact=True).click()
    expect(page.locator(".trace-lines .vt-row:visible")).to_have_count(14)


def test_an_element_that_was_gone_to(own: Own) -> None:
    page = own.open("/run/{values}/t/blocks.0.mlp?s=2")
    page.locator(".top-list button").nth(1).click()
    place = page.locator(".picture .place").inner_text()
    page = again(own, page)
    expect(page.locator(".picture .place")).to_have_text(place)
    page.get_by_label("place on axis 1").fill("1")
    page.wait_for_url(lambda url: "at=" not in url)


def test_the_element_of_a_pair_and_that_it_blinks(open_page: Open, viewer: Viewer) -> None:
    page = open_page(viewer.compare)
    page.locator(".worst button").nth(2).click()
    place = page.locator(".heat .place").first.inner_text()
    page.keyboard.press("b")
    page = open_page(f"/{page.url.split('/', 3)[3]}")
    expect(page.locator(".heat .place").first).to_have_text(place)
    expect(page.get_by_role("button", name="blink")).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".heat[data-side=a] .heat-caption b")).to_have_text("B")
    page.keyboard.press("b")
    page.wait_for_url(lambda url: "blink" not in url)
    assert choices(page)["at"]


def test_the_row_that_a_table_is_scrolled_to(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/run/{viewer.ids['many']}/captures?q=part3")
    rows = page.locator(".vt-row:visible")
    expect(rows.first).to_be_visible()
    page.locator(".vt-body").hover()
    page.mouse.wheel(0, 26 * 400)
    page.wait_for_url("**top=400*")
    page = open_page(f"/{page.url.split('/', 3)[3]}")
    place = page.locator(".vt-body")
    expect(place).to_have_js_property("scrollTop", 26 * 400)
    page.get_by_label("Filter the captures").fill("part4")
    page.wait_for_url(lambda url: "part4" in url and "top=" not in url)
    expect(place).to_have_js_property("scrollTop", 0)
