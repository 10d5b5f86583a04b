"""The page of one value: every slice of it, its figures, and the way to the next one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.browser.conftest import PICTURES
from tests.browser.own import IS_MARKED, RANKS, SHAPE, STEPS, Own, choices, value, violations, write_values
from tests.browser.sample import EVIL

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.xdist_group("browser")
MLP = "/run/{values}/t/blocks.0.mlp"


@pytest.fixture(scope="module")
def looking(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    folder = tmp_path_factory.mktemp("values")
    write_values(folder / "values")
    made = Own(browser, folder)
    yield made
    made.close()


@pytest.fixture
def own(looking: Own) -> Iterator[Own]:
    yield looking
    looking.check()


def drawn(page: Any) -> Any:
    """When the heat map has its colours and the lists their entries."""
    expect(page.locator(".ramp-end").first).to_be_visible()
    expect(page.locator(".top-list button").first).to_be_visible()
    return page


def point(page: Any, row: int, col: int, rows: int, cols: int) -> Any:
    """Put the pointer on one element of a slice that is seen as a whole."""
    canvas = page.locator(".picture .heat-canvas")
    box = canvas.bounding_box()
    canvas.hover(position={"x": (col + 0.5) * box["width"] / cols, "y": (row + 0.5) * box["height"] / rows})
    return page.locator(".picture .value")


def shown(page: Any) -> float:
    return float(page.locator(".picture .value").inner_text().replace(",", ""))


def test_a_value_opens_at_the_moment_that_the_address_says(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=1&r=2"))
    expect(page.locator("h1")).to_have_text("blocks.0.mlp")
    expect(page.locator(".moment")).to_have_text(f"step 1 of 0–{STEPS - 1} · rank 2")
    expect(page.get_by_label("Statistics")).to_contain_text("code/model.py:212")
    expect(page.get_by_label("Statistics")).to_contain_text(f"{value(1, 2, 2).std():#.4g}")


def test_under_the_pointer_is_the_element_itself(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=2&i=1,2,0,0"))
    point(page, 13, 21, 20, 30)
    expect(page.locator(".picture .place")).to_have_text("[1, 2, 13, 21]")
    assert shown(page) == pytest.approx(value(2, 0, 2)[1, 2, 13, 21], rel=1e-3)


def test_a_slider_moves_through_the_array_and_the_link_keeps_it(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=2"))
    page.get_by_label("place on axis 1").fill("2")
    page.wait_for_url("**i=0,2,0,0")
    again = drawn(own.open(f"/{page.url.split('/', 3)[3]}"))
    expect(again.get_by_label("place on axis 1")).to_have_value("2")


def test_an_axis_dragged_onto_another_takes_its_place(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=0&i=1,2,3,4"))
    page.drag_and_drop(".axis[data-axis='1'] b", ".axis[data-axis='3'] b")
    expect(page.get_by_label("axis 1, 3 long")).to_have_value("cols")
    assert choices(page)["x"] == "2,1"
    point(page, 7, 0, 20, 3)
    expect(page.locator(".picture .place")).to_have_text("[1, 0, 7, 2]")
    assert shown(page) == pytest.approx(value(0, 0, 2)[1, 0, 7, 2], rel=1e-3)


def test_an_axis_can_be_done_away_with_by_its_mean(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=0"))
    page.get_by_label("axis 1, 3 long").select_option("mean")
    expect(page.locator(".axis")).to_have_count(4)
    assert choices(page)["i"] == "0,mean,0,0"
    point(page, 3, 4, 20, 30)
    expect(page.locator(".picture .place")).to_have_text("[0, mean, 3, 4]")
    assert shown(page) == pytest.approx(value(0, 0, 2)[0, :, 3, 4].mean(), rel=1e-3)


def test_the_part_that_is_zoomed_to_is_in_the_address(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=0"))
    page.locator(".picture .heat-canvas").hover()
    page.mouse.wheel(0, -500)
    page.wait_for_url("**w=*")
    again = drawn(own.open(f"/{page.url.split('/', 3)[3]}"))
    again.wait_for_timeout(400)
    assert choices(again)["w"] == choices(page)["w"]
    again.keyboard.press("0")
    again.wait_for_url(lambda url: "w=" not in url)


def test_the_place_that_is_looked_at_is_marked_when_the_page_opens(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=2&i=1,2,0,0"))
    for axis, place in ((0, 1), (1, 2)):
        strip = page.get_by_role("img", name=f"along axis {axis}")
        expect(strip).to_be_visible()
        page.wait_for_function(IS_MARKED, arg=[f"along axis {axis}", place, SHAPE[axis]])


def test_close_to_the_nan_map_only_what_is_not_finite_is_named(own: Own) -> None:
    page = own.open("/run/{values}/t/wide?v=odd&w=615,620,300,306")
    expect(page.locator(".swatch-name").first).to_have_text("NaN")
    page.wait_for_function(_HAS_MAGENTA)
    page.evaluate(_LISTEN_TO_TEXTS)
    page.locator(".picture .heat-canvas").hover()
    page.wait_for_function("window.texts.includes('NaN')")
    assert page.evaluate("window.texts.filter((text) => text === '0')") == []


def test_a_single_nan_among_many_is_not_overlooked(own: Own) -> None:
    page = own.open("/run/{values}/t/wide?v=odd")
    expect(page.locator(".swatch-name").first).to_have_text("NaN")
    page.wait_for_function(_HAS_MAGENTA)
    page.get_by_role("button", name="NaN, Inf").click()
    page.locator(".top-list button").first.click()
    expect(page.locator(".picture .place")).to_have_text("[617, 303]")
    expect(page.locator(".picture .value")).to_have_text("NaN")


def test_the_largest_element_is_one_click_away(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=3"))
    largest = np.unravel_index(np.abs(value(3, 0, 2)).argmax(), SHAPE)
    page.locator(".top-list button").first.click()
    expect(page.locator(".picture .place")).to_have_text(f"[{', '.join(map(str, largest))}]")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("i=1,2,0,0", lambda array: array[1, 2]),
        ("i=1,2,0,0&x=3,2", lambda array: array[1, 2].T),
        ("i=0,mean,0,0", lambda array: array[0].mean(0)),
        ("i=absmax,0,4,0&x=3", lambda array: np.abs(array[:, 0, 4]).max(0)),
        ("i=1,std,max,0&x=0,3", lambda array: array.max(2).std(1)),
    ],
    ids=["place", "turned", "mean", "line", "two reductions"],
)
def test_the_copied_python_gives_the_slice_that_is_seen(own: Own, words: str, wanted: Any) -> None:
    page = drawn(own.open(f"{MLP}?s=2&r=1&{words}"))
    page.keyboard.press(".")
    expect(page.locator(".message")).to_contain_text("clipboard")
    made: dict[str, Any] = {}
    exec(page.evaluate("navigator.clipboard.readText()"), made)
    np.testing.assert_allclose(made["part"], wanted(value(2, 1, 2)), rtol=1e-5)


def test_the_value_is_downloaded_as_it_is(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=2"))
    with page.expect_download() as got:
        page.get_by_role("link", name="Download .npy").click()
    np.testing.assert_array_equal(np.load(got.value.path()), value(2, 0, 2))


def test_keys_go_to_other_tensors_steps_and_ranks(own: Own) -> None:
    page = drawn(own.open("/run/{values}/t/embed?s=1"))
    expect(page.locator(".ranks canvas")).to_have_count(RANKS)
    page.keyboard.press("l")
    expect(page.locator(".moment")).to_contain_text("step 2 of")
    page.keyboard.press("h")
    expect(page.locator(".moment")).to_contain_text("step 1 of")
    expect(page.locator(".ranks .is-shown")).to_contain_text("rank 0")
    page.keyboard.press("]")
    expect(page.locator(".moment")).to_contain_text("rank 1")
    page.keyboard.press("j")
    expect(page.locator("h1")).to_have_text("blocks.0.attn")
    expect(page.locator(".moment")).to_have_text(f"step 1 of 0–{STEPS - 1} · rank 1")


def test_the_choices_of_figures_are_in_the_address(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=0&h=symlog&n=count&u=slice&o=min&g=-1,2.5"))
    pressed = page.locator("[aria-pressed=true]").all_inner_texts()
    assert {"symlog", "count", "slice", "min"} <= set(pressed)
    expect(page.get_by_label("Lowest colour")).to_have_value("-1")
    page.get_by_label("Highest colour").fill("4")
    page.get_by_label("Highest colour").press("Enter")
    page.wait_for_url("**g=-1,4")
    page.get_by_role("button", name="± 0").click()
    page.wait_for_url("**g=sym")


def test_the_chart_of_the_history_is_fetched_when_it_comes_into_sight(own: Own) -> None:
    page = drawn(own.open(f"{MLP}?s=2"))
    assert not any(url.endswith("/plotly.js") for url in own.seen.asked)
    page.get_by_label("History over steps").scroll_into_view_if_needed()
    expect(page.locator(".history-host svg").first).to_be_visible()
    assert any(url.endswith("/plotly.js") for url in own.seen.asked)


def test_a_number_is_shown_as_one(own: Own) -> None:
    page = own.open("/run/{values}/t/loss?s=3")
    expect(page.locator(".single")).to_have_text("0.2500")


def test_what_is_not_an_array_is_shown_as_text(own: Own) -> None:
    page = own.open("/run/{values}/t/settings")
    expect(page.locator(".tensor-body .plain")).to_have_text("{'rate': 0.1}")


def test_a_name_that_is_markup_stays_text(own: Own) -> None:
    name = "".join(f"%{letter:02x}" for letter in EVIL.encode())
    page = drawn(own.open(f"/run/{own.ids['values']}/t/{name}"))
    expect(page.locator("h1")).to_have_text(EVIL)
    assert page.locator("main img, main h1 b").count() == 0


def test_a_name_that_is_nowhere_is_told_with_those_that_are_near(own: Own) -> None:
    own.seen.expected = ("status of 404",)
    page = own.open("/run/{values}/t/blocks.0.mpl")
    expect(page.get_by_role("alert")).to_contain_text("blocks.0.mlp")


def test_a_tab_that_is_not_seen_holds_no_connection(own: Own) -> None:
    page = own.open("/run/{values}/t/loss")
    expect(page.locator(".single")).to_be_visible()
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/api/events")):
        page.evaluate(_HIDDEN, True)
    with page.expect_request("**/api/events"):
        page.evaluate(_HIDDEN, False)


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_everyone_can_read_and_use_it_without_scrolling_sideways(own: Own, theme: str) -> None:
    page = drawn(own.open(f"{MLP}?s=2", theme=theme))
    expect(page.locator(".ranks canvas").first).to_be_visible()
    page.screenshot(path=PICTURES / f"tensor_{theme}_1280.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert violations(page) == ""


_HAS_MAGENTA = """() => {
  const canvas = document.querySelector(".picture .heat-canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < data.length; i += 4) {
    if (data[i] === 255 && data[i + 1] === 61 && data[i + 2] === 242) return true;
  }
  return false;
}"""
_LISTEN_TO_TEXTS = """() => {
  window.texts = [];
  const write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.texts.push(text);
    return write.call(this, text, ...rest);
  };
}"""
_HIDDEN = """(is_hidden) => {
  Object.defineProperty(document, "hidden", { value: is_hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""
