"""What holds on every page: both looks, contrast and labels, no sideways scrolling, the header."""

from itertools import pairwise
from typing import Any

import pytest
from tests.browser.conftest import Open, Seen, Viewer
from tests.proof import sampled

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
pytestmark = pytest.mark.xdist_group("browser")

PAGES = {
    "runs": "/",
    "run": "/run/{before}",
    "captures": "/run/{before}/captures",
    "compare": "/compare?a={before}&b={after}&m=1",
}
READY = {"runs": "tbody tr", "run": ".scalars svg", "captures": ".vt-row", "compare": ".worst button"}


def ready(open_page: Open, viewer: Viewer, name: str, theme: str) -> Any:
    page = open_page(PAGES[name].format(**viewer.ids), theme=theme)
    expect(page.locator(READY[name]).first).to_be_visible()
    return page


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("name", PAGES)
def test_everyone_can_read_and_use_it_without_scrolling_sideways(
    open_page: Open, viewer: Viewer, name: str, theme: str
) -> None:
    page = ready(open_page, viewer, name, theme)
    page.screenshot(path=viewer.pictures / f"{name}_{theme}_1280.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    found = axe.Axe().run(page).response["violations"]
    told = [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]]
    assert "\n".join(told) == ""


def test_the_look_can_be_chosen_and_stays(open_page: Open) -> None:
    page = open_page("/", theme="dark", user="one who chooses")
    page.get_by_role("button", name="Light or dark").click()
    assert page.locator("html").get_attribute("data-theme") == "light"
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == "light"


def test_help_lists_the_keys_of_the_page(open_page: Open, viewer: Viewer) -> None:
    page = ready(open_page, viewer, "compare", "dark")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("blink between A and B")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_script_that_gets_into_a_page_does_not_run(open_page: Open, viewer: Viewer, seen: Seen) -> None:
    seen.expected = ("Content Security Policy",)
    page = ready(open_page, viewer, "captures", "dark")
    assert page.evaluate(_SMUGGLED) is None


def test_the_link_to_a_view_is_shared_by_a_button(open_page: Open, viewer: Viewer) -> None:
    page = ready(open_page, viewer, "captures", "dark")
    page.get_by_role("button", name="Share link").click()
    expect(page.locator(".message")).to_contain_text("clipboard")
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def test_the_list_of_keys_tells_how_to_go_anywhere(open_page: Open, viewer: Viewer) -> None:
    page = ready(open_page, viewer, "captures", "dark")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Ctrl-K")


def test_how_to_reproduce_a_run_is_told_as_a_command(open_page: Open, viewer: Viewer) -> None:
    page = ready(open_page, viewer, "captures", "dark")
    page.get_by_role("button", name="Reproduce").click()
    expect(page.get_by_role("dialog")).to_contain_text("tensortap reproduce")


DIALOGS = {
    "keys": "?",
    "palette": "Control+k",
    "queries": "The query language",
    "reproduce": "Reproduce…",
}


@pytest.mark.parametrize("theme", sampled(["dark", "light"], ["light"]))
@pytest.mark.parametrize("name", DIALOGS)
def test_everyone_can_read_and_use_what_opens_over_a_page(
    open_page: Open, viewer: Viewer, name: str, theme: str
) -> None:
    page = ready(open_page, viewer, "captures", theme)
    if name in ("keys", "palette"):
        page.keyboard.press(DIALOGS[name])
    else:
        page.get_by_role("button", name=DIALOGS[name]).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("dd, li, pre").first).to_be_visible()
    page.screenshot(path=viewer.pictures / f"{name}_{theme}_1280.png")
    found = axe.Axe().run(page).response["violations"]
    assert [f"{one['id']}: {node['html'][:120]}" for one in found for node in one["nodes"]] == []


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_colours_can_be_told_apart_without_colour_vision(open_page: Open, theme: str) -> None:
    page = open_page("/", theme=theme, user="one who sees no colours")
    rises = page.evaluate(_LIGHTNESS, ["values", "error"])
    for light in rises:
        steps = [after - before for before, after in pairwise(light[::15])]
        assert min(steps) > 0.01 or max(steps) < -0.01
        assert abs(light[-1] - light[0]) > 0.5
    (signed,) = page.evaluate(_LIGHTNESS, ["signed"])
    for half in (signed[:128], signed[128:]):
        assert abs(half[-1] - half[0]) > 0.3


_SMUGGLED = """async () => {
  const script = document.createElement("script");
  script.textContent = "window.ran = 'a script'";
  const picture = document.createElement("div");
  picture.innerHTML = "<img src='data:image/png,no' onerror='window.ran = 1'>";
  const isRefused = new Promise((done) => picture.firstChild.addEventListener("error", done));
  document.body.append(script, picture);
  await isRefused;
  return window.ran;
}"""
_LIGHTNESS = """async (scales) => {
  const { table } = await import("/static/colors.js");
  const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const lightness = (colour) => {
    const [r, g, b] = [0, 8, 16].map((shift) => linear((colour >> shift) & 255));
    const y = 0.2126 * r + 0.7152 * g + 0.0722 * b;
    return y > 0.008856 ? 1.16 * Math.cbrt(y) - 0.16 : 9.033 * y;
  };
  return scales.map((scale) => Array.from(table(scale).subarray(0, 256), lightness));
}"""
