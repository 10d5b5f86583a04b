"""Runs that are not as one thinks of them: nothing in them, not a number, names that never end."""

import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.browser.own import Own, violations

from tensortap.core.record import Record, Site
from tensortap.sinks.run_directory import RunDirectory

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.xdist_group("browser")
LONG, SLASHES = "very_long_module_name." * 12 + "proj", "/a" * 60
_OVERFLOWS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def pages(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    folder = tmp_path_factory.mktemp("odd")
    ones, nans = np.ones((4, 4), np.float32), np.full((4, 4), np.nan, np.float32)
    slope = np.arange(16, dtype=np.float32).reshape(4, 4)
    for name, values in {
        "empty": {},
        "nan": {"x": nans},
        "slope": {"x": slope},
        "it's": {"x": slope},
        "down": {"x": np.float32(-np.inf), "mixed": np.array([1, -np.inf, np.inf, np.nan], np.float32)},
        "up": {"x": np.float32(np.inf)},
        "twice": {"x": slope, "y": slope},
        "wide": {"x": np.ones((4, 5), np.float32)},
        f"long{'_name' * 40}": {LONG: ones, "one\nline": ones},
    }.items():
        sink = RunDirectory(folder / name)
        for order, (word, value) in enumerate(values.items()):
            site = Site("forward", f"{SLASHES}/model.py", 7)
            sink.write(Record(word, value, "output", 0, order=order, time=1e9, site=site))
        sink.close()
    broken = RunDirectory(folder / "<i>broken</i>")
    broken.write(Record("x", ones, "output", 0, time=1e9))
    broken.close()
    (index,) = (folder / "<i>broken</i>" / ".tensortap").glob("index-*.jsonl")
    index.write_bytes(index.read_bytes().replace(b'"tensortap_index": 1', b'"tensortap_index": 9', 1))
    made = Own(browser, folder)
    made.ids["broken"] = made.ids["i>"]
    made.ids["long"] = next(found for name, found in made.ids.items() if name.startswith("long"))
    made.ids["quoted"] = made.ids["it's"]
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _calm(pages: Own) -> Iterator[None]:
    yield
    pages.check()


def test_a_long_name_hides_no_column_and_no_button(pages: Own) -> None:
    page = pages.open("/")
    health = page.get_by_role("columnheader", name="health").bounding_box()
    assert health["x"] + health["width"] < 1280
    page = pages.open("/run/{long}/captures")
    expect(page.locator(".vt-row:visible")).to_have_count(2)
    assert not page.evaluate(_OVERFLOWS)
    crumbs = page.get_by_label("Breadcrumb").bounding_box()
    assert crumbs["x"] + crumbs["width"] < page.get_by_role("button", name="Share link").bounding_box()["x"]


def test_a_name_of_two_lines_keeps_to_its_row(pages: Own) -> None:
    page = pages.open("/run/{long}/captures?q=line")
    cell = page.locator(".vt-row:visible div", has_text="one").first
    assert cell.evaluate("(cell) => getComputedStyle(cell).whiteSpace") == "nowrap"


def test_a_command_to_copy_keeps_each_name_a_word(pages: Own) -> None:
    page = pages.open("/compare?a={quoted}&b={slope}")
    expect(page.locator(".headline")).to_be_visible()
    page.keyboard.press("Control+k")
    page.get_by_label("Search commands").fill("copy the command")
    expect(page.get_by_role("option").first).to_contain_text("opy the command")  # before that, Enter is lost
    page.keyboard.press("Enter")
    expect(page.locator(".message")).to_contain_text("clipboard")
    words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert [word.rpartition("/")[2] for word in words] == ["tensortap", "compare", "it's", "slope"]


def test_a_short_run_says_at_once_what_was_found_in_it(pages: Own) -> None:
    page = pages.open("/run/{nan}")
    expect(page.locator("h1")).to_contain_text("first NaN at step 0 in x")


def test_a_run_without_a_record_says_so(pages: Own) -> None:
    page = pages.open("/run/{empty}", theme="light")
    expect(page.locator("h1")).to_have_text("nothing was captured")
    assert violations(page) == ""
    page = pages.open("/compare?a={empty}&b={nan}")
    expect(page.get_by_text("There is no pair to look at.")).to_be_visible()


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_damaged_run_is_listed_with_what_is_wrong_and_cannot_be_chosen(pages: Own, theme: str) -> None:
    pages.seen.expected = ("status of 4",)
    page = pages.open("/", theme=theme)
    row = page.get_by_role("row").filter(has_text="damaged")
    expect(row).to_contain_text("<i>broken</i>")
    expect(row).to_contain_text("upgrade tensortap")
    expect(row.get_by_role("checkbox")).to_be_disabled()
    expect(row.get_by_role("link")).to_have_count(0)
    assert page.locator("main i").count() == 0
    assert violations(page) == ""
    page = pages.open("/run/{broken}", theme=theme)
    expect(page.get_by_role("alert")).to_contain_text("upgrade tensortap")


def test_infinities_are_told_with_their_sign(pages: Own) -> None:
    page = pages.open("/run/{down}/t/x")
    expect(page.locator(".single")).to_have_text("-inf")
    page = pages.open("/run/{down}/t/mixed")
    elements = page.locator(".top-list button span:last-child")
    expect(elements).to_have_count(4)
    assert sorted(elements.all_inner_texts()) == ["+inf", "-inf", "1", "NaN"]
    page = pages.open("/compare?a={down}&b={up}")
    expect(page.locator(".singles dd")).to_have_text(["-inf", "+inf", "+inf"])


def test_where_nothing_can_be_compared_the_names_are_told_and_nothing_is_empty(pages: Own) -> None:
    page = pages.open("/compare?a={empty}&b={twice}", theme="light")
    expect(page.get_by_text("There is no pair to look at.")).to_be_visible()
    expect(page.get_by_text("Only in B (2)")).to_be_visible()
    for what in ("Divergence map", "Pairs", "The pair"):
        expect(page.get_by_role("region", name=what, exact=True)).to_have_count(0)
    expect(page.get_by_role("button", name="Look at a pair")).to_have_count(0)
    assert violations(page) == ""
    page.get_by_role("button", name="Names and rules").click()
    expect(page.get_by_text("Only in B (2)")).to_be_hidden()


def test_a_query_that_is_not_understood_hides_nothing(pages: Own) -> None:
    pages.seen.expected = ("status of 400",)
    page = pages.open("/run/{twice}/captures?q=step>>3")
    expect(page.get_by_label("Filter the captures")).to_have_attribute("aria-invalid", "true")
    expect(page.locator(".vt-row:visible")).to_have_count(2)


def test_a_side_without_a_number_takes_no_colours_from_the_other(pages: Own) -> None:
    page = pages.open("/compare?a={nan}&b={slope}")
    expect(page.get_by_text("no two finite numbers to compare")).to_be_visible()
    expect(page.locator(".triptych")).to_contain_text("15")
    expect(page.locator(".triptych")).not_to_contain_text("NaN")


def test_a_long_path_in_the_sentence_is_not_cut(pages: Own) -> None:
    page = pages.open("/compare?a={nan}&b={wide}")
    expect(page.locator(".answer-sentence")).to_contain_text("model.py:7")
    assert page.locator(".answer-sentence").evaluate("(told) => told.scrollWidth <= told.clientWidth")
    assert not page.evaluate(_OVERFLOWS)
