"""Of two runs whose programs differ by a line, the page opens on that line."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser.own import Own, violations
from tests.browser.sample import write_one
from tests.viewer.sample import keep_program

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def own(browser: Any, tmp_path: Any) -> Iterator[Own]:
    for name, factor in (("one", 1), ("other", 2)):
        keep_program(
            write_one(tmp_path / name, "x", 3), "train.py", f"import os\nfactor = {factor}\n<img src=x>\n"
        )
    made = Own(browser, tmp_path)
    yield made
    made.check()
    made.close()


def test_a_file_that_is_closed_stays_closed_in_a_shared_link(own: Own) -> None:
    page = own.open("/compare?a={one}&b={other}")
    page.get_by_text("train.py +1 −1, in both, not the same").click()
    page.wait_for_url("**d=0*")
    page = own.open(f"/{page.url.split('/', 3)[3]}")
    expect(page.get_by_text("train.py +1 −1, in both, not the same")).to_be_visible()
    expect(page.get_by_role("region", name="Lines of train.py")).to_be_hidden()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_small_change_is_in_sight(own: Own, theme: str) -> None:
    page = own.open("/compare?a={one}&b={other}", theme=theme)
    lines = page.get_by_role("region", name="Lines of train.py")
    expect(lines).to_be_visible()
    assert lines.locator(".taken").all_inner_texts() == ["-factor = 1\n"]
    assert lines.locator(".added").all_inner_texts() == ["+factor = 2\n"]
    expect(page.get_by_text("train.py +1 −1, in both, not the same")).to_be_visible()
    assert page.locator("main img").count() == 0
    assert violations(page) == ""
