"""The compare page: it lands on the answer, and everything on it can be followed and shared."""

from itertools import pairwise
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.browser.conftest import Open, Seen, Viewer
from tests.browser.own import IS_MARKED
from tests.browser.sample import FIRST, LAYERS, PARTS_AT, STEPS

expect = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").expect
pytestmark = pytest.mark.xdist_group("browser")


def choices(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


@pytest.fixture
def page(open_page: Open, viewer: Viewer) -> Any:
    """The comparison, when its first pair has been drawn."""
    opened = open_page(viewer.compare)
    expect(opened.locator(".worst li").first).to_be_visible()
    return opened


def test_two_runs_open_on_where_they_part(page: Any, viewer: Viewer) -> None:
    expect(page.locator(".headline")).to_contain_text(f"step {PARTS_AT} at {FIRST}")
    expect(page.locator(".map-canvas")).to_have_attribute(
        "aria-label",
        f"Divergence map: {3 * LAYERS + 4} tensors in execution order × {STEPS} steps; "
        f"the first difference is at {FIRST}, step {PARTS_AT}",
    )
    expect(page.locator(".pair-card h2")).to_have_text(FIRST)
    page.screenshot(path=viewer.pictures / "compare_dark.png")


def test_the_answer_is_not_cut_on_a_small_screen(page: Any) -> None:
    for what in (".answer-sentence", ".answer-facts", ".worst button span"):
        for element in page.locator(what).all():
            assert element.evaluate(_IS_WHOLE), element.inner_text()
    verdict, copier = (
        page.locator(what).bounding_box() for what in (".pair-card .note b", ".pair-card .card-head button")
    )
    assert verdict["x"] + verdict["width"] < copier["x"]


def test_the_map_lies_within_a_small_screen(page: Any) -> None:
    box = page.locator(".map-canvas").bounding_box()
    assert box["y"] + box["height"] <= 720


def test_all_that_is_said_of_a_pair_can_be_read_on_a_small_screen(page: Any) -> None:
    note = page.locator(".pair-card .card-head .note")
    expect(note).to_contain_text("rank 0 · output")
    assert note.evaluate(_IS_WHOLE)


def test_the_place_of_the_pair_is_marked_when_the_page_opens(page: Any) -> None:
    page.wait_for_function(IS_MARKED, arg=["difference along axis 1", 2, 4])


def test_what_the_page_says_of_the_first_difference_it_says_of_no_other(page: Any) -> None:
    expect(page.get_by_label("Shape of the error")).to_contain_text("only row 2 of 4 along axis 1")
    expect(page.locator(".symptoms")).to_be_hidden()
    page.keyboard.press("j")
    expect(page.locator(".symptoms")).to_contain_text("The difference:")


def test_runs_that_cannot_be_made_again_offer_nothing_of_the_kind(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/compare?a={viewer.ids['before']}&b={viewer.ids['left']}")
    expect(page.locator(".headline")).to_be_visible()
    page.get_by_role("button", name="Reproduce…").click()
    expect(page.get_by_role("dialog", name="Reproduce A").locator("pre")).to_contain_text("/before")
    page = open_page(f"/compare?a={viewer.ids['left']}&b={viewer.ids['right']}")
    expect(page.locator(".headline")).to_be_visible()
    expect(page.get_by_role("button", name="Reproduce…")).to_be_hidden()


def test_labels_of_the_map_do_not_touch_at_its_top(page: Any) -> None:
    places = page.evaluate(
        "async (names) => { const { labels, labelPlace } = await import('/static/instruments/labels.js');"
        "return labels(names, names.map(() => 'output'), 0, names.length, 3)"
        ".map(({ row }) => labelPlace(row, 3)).sort((a, b) => a - b); }",
        ["in", *(f"blocks.{number // 5}.{number % 5}" for number in range(20))],
    )
    assert len(places) > 1
    assert min(after - before for before, after in pairwise(places)) >= 11


def test_on_the_map_no_pair_does_not_look_like_equal(page: Any) -> None:
    # The last of the lines has a pair at step 0 alone.
    equal, none = (
        page.locator(".map-canvas").evaluate(_COLOURS, [line, 3 * LAYERS + 4]) for line in (0, 3 * LAYERS + 3)
    )
    assert equal == 1
    assert none > 1


def test_lines_of_the_map_tell_the_way_back_and_repeated_calls(page: Any) -> None:
    names = [f"model.layers.{layer}.{part}" for layer in (0, 1) for part in ("a", "b")]
    told = page.evaluate(
        "async ([names, kinds]) => "
        "(await import('/static/instruments/labels.js')).labels(names, kinds, 0, names.length, 7)",
        [
            [*names, *reversed(names), *(f"{name}@1" for name in names)],
            ["output"] * 4 + ["grad_output"] * 4 + ["output"] * 4,
        ],
    )
    assert [one["text"] for one in told] == ["0", "1", "1 ∇", "0 ∇", "0@1", "1@1"]


def test_the_slice_that_is_shown_first_holds_the_largest_difference(page: Any) -> None:
    place = page.locator(".heat").first.locator(".place")
    expect(place).to_contain_text(", 2, ")
    assert page.get_by_label("place on axis 1").input_value() == "2"


def test_a_click_on_the_map_inspects_that_pair_and_back_returns(page: Any) -> None:
    map_canvas = page.locator(".map-canvas")
    box = map_canvas.bounding_box()
    map_canvas.click(position={"x": box["width"] - 20, "y": box["height"] - 130})
    expect(page.locator(".pair-card h2")).not_to_have_text(FIRST)
    assert choices(page)["s"] == str(STEPS - 1)
    page.go_back()
    expect(page.locator(".pair-card h2")).to_have_text(FIRST)


def test_dragging_restricts_the_map_and_a_button_shows_all_again(page: Any) -> None:
    box = page.locator(".map-canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 160)
    page.mouse.up()
    expect(page.get_by_role("button", name="Show all")).to_be_visible()
    assert "z" in choices(page)
    page.get_by_role("button", name="Show all").click()
    assert "z" not in choices(page)


def test_a_shared_link_opens_the_same_view(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"{viewer.compare}&t=blocks.2.mlp&s=7&i=1,3,0,0&v=rel&e=max_abs&q=mlp&o=-max_abs")
    expect(page.locator(".pair-card h2")).to_have_text("blocks.2.mlp")
    expect(page.locator(".pair-card .note")).to_contain_text("step 7")
    expect(page.get_by_role("button", name="relative", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="max |Δ|").first).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("place on axis 1")).to_have_value("3")
    expect(page.locator(".pairs-card .note")).to_have_text(
        f"{LAYERS * STEPS} of {(3 * LAYERS + 3) * STEPS + 1}"
    )
    expect(page.locator(".pairs-card [data-key=max_abs]")).to_have_attribute("aria-sort", "descending")


def test_keys_go_from_tensor_to_tensor_and_from_step_to_step(page: Any) -> None:
    page.keyboard.press("j")
    expect(page.locator(".pair-card h2")).to_have_text("blocks.1.mlp")
    page.keyboard.press("k")
    expect(page.locator(".pair-card h2")).to_have_text(FIRST)
    page.keyboard.press("l")
    expect(page.locator(".pair-card .note")).to_contain_text(f"step {PARTS_AT + 1}")
    page.keyboard.press("h")
    expect(page.locator(".pair-card .note")).to_contain_text(f"step {PARTS_AT} ")


def test_one_of_the_three_pictures_can_be_alone(page: Any) -> None:
    page.keyboard.press("3")
    expect(page.locator(".heat[data-side=a]")).to_be_hidden()
    expect(page.locator(".heat[data-side=d]")).to_be_visible()
    assert choices(page)["p"] == "d"
    page.keyboard.press("3")
    expect(page.locator(".heat[data-side=a]")).to_be_visible()


def test_the_cursor_is_the_same_on_all_three(page: Any) -> None:
    page.locator(".heat-canvas").first.hover(position={"x": 50, "y": 150})
    values = [page.locator(".heat .value").nth(at) for at in range(3)]
    for value in values:
        expect(value).not_to_have_text("")
    a, b, difference = (float(value.inner_text()) for value in values)
    assert b - a == pytest.approx(difference, abs=2e-3)


def test_blinking_shows_b_in_the_place_of_a(page: Any) -> None:
    page.keyboard.press("b")
    title = page.locator(".heat[data-side=a] .heat-caption b")
    expect(title).to_have_text("B")
    page.keyboard.press("b")
    expect(title).to_have_text("A")


def test_a_worst_element_is_shown_with_its_value(page: Any) -> None:
    first = page.locator(".worst button").first
    index = first.locator("span").first.inner_text()
    first.click()
    expect(page.locator(".heat").first.locator(".place")).to_have_text(index.replace(",", ", "))
    assert choices(page)["i"] == index.strip("[]")


def test_the_pairs_are_filtered_with_the_query_language(page: Any, seen: Seen) -> None:
    seen.expected = ("status of 400",)
    page.keyboard.press("f")
    page.keyboard.type("attn verdict:identical")
    expect(page.locator(".pairs-card .note")).not_to_contain_text(f"{(3 * LAYERS + 3) * STEPS + 1} of")
    assert choices(page)["q"] == "attn verdict:identical"
    page.get_by_label("Filter the pairs").fill("step>>3")
    expect(page.get_by_label("Filter the pairs")).to_have_attribute("aria-invalid", "true")


def test_elements_of_a_are_drawn_against_those_of_b(page: Any, open_page: Open) -> None:
    page.get_by_role("button", name="A against B").click()
    cloud = page.get_by_label("Elements of A against those of B")
    expect(cloud).to_be_visible()
    expect(page.get_by_label("Histogram of A and B")).to_be_hidden()
    again = open_page(f"/{page.url.split('/', 3)[3]}")
    cloud = again.get_by_label("Elements of A against those of B")
    expect(cloud).to_be_visible()
    again.wait_for_function(_HAS_INK, arg=cloud.element_handle())


def test_the_palette_finds_a_tensor_by_some_letters(page: Any) -> None:
    page.keyboard.press("Control+k")
    page.get_by_label("Search commands").fill("blk3attn")
    expect(page.locator(".palette-entry").first).to_contain_text("blocks.3.attn")
    page.keyboard.press("Enter")
    expect(page.locator(".pair-card h2")).to_have_text("blocks.3.attn")


def test_python_for_the_pair_is_one_key_away(page: Any) -> None:
    page.keyboard.press(".")
    expect(page.locator(".message")).to_contain_text("clipboard")
    text, made = page.evaluate("navigator.clipboard.readText()"), dict[str, Any]()
    exec(text, made)
    assert text.count("import") == 1
    assert made["a"].shape == made["b"].shape == made["difference"].shape == (24, 32)  # head 2, which is seen
    assert (made["difference"][:16] == 0).all()
    assert (made["difference"][16:] != 0).all()


def test_what_was_left_out_and_how_names_were_paired_can_be_seen(page: Any) -> None:
    page.get_by_role("button", name="Names and rules").click()
    expect(page.locator(".names-body")).to_contain_text("by name")
    assert choices(page)["m"] == "1"


def test_a_name_dropped_on_another_becomes_a_rule(open_page: Open, viewer: Viewer) -> None:
    page = open_page(f"/compare?a={viewer.ids['left']}&b={viewer.ids['right']}&m=1")
    expect(page.locator(".headline")).to_contain_text("Nothing to compare")
    page.locator(".name-list .is-a").drag_to(page.locator(".name-list .is-b"))
    expect(page.get_by_label("Rules as TOML")).to_have_value('[[rule]]\nfrom = "alpha.x"\nto = "beta.y"\n')
    page.get_by_role("button", name="Compare again").click()
    expect(page.locator(".headline")).to_contain_text("alpha.x")


def test_playing_goes_through_the_steps(page: Any) -> None:
    page.locator(".map-canvas").focus()
    page.keyboard.press("Space")
    expect(page.locator(".pair-card .note")).to_contain_text(f"step {STEPS - 1}")


def test_a_comparison_that_is_not_there_is_told(open_page: Open, seen: Seen) -> None:
    seen.expected = ("status of 404", "status of 400")
    page = open_page("/compare?a=abcdef&b=fedcba")
    expect(page.get_by_role("alert")).to_contain_text("This cannot be shown")


_HAS_INK = """(canvas) =>
  new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height - 40).data.buffer)
    .some((pixel) => pixel !== 0)"""
_IS_WHOLE = "(one) => one.scrollHeight <= one.clientHeight + 1 && one.scrollWidth <= one.clientWidth + 1"
_COLOURS = """(canvas, [line, lines]) => {
  const context = canvas.getContext("2d");
  const ratio = canvas.width / canvas.clientWidth;
  const each = (canvas.clientHeight - 26) / lines;
  const y = Math.round((4 + line * each + 2) * ratio);
  const part = context.getImageData(canvas.width - 70 * ratio, y, 50 * ratio, (each - 4) * ratio);
  return new Set(new Uint32Array(part.data.buffer)).size;
}"""
