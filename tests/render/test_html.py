"""HTML is escaped wherever it is not HTML already, and tables and drawings are whole."""

from tensortap.render import html

EVIL = "<b title='x'>&"
ESCAPED = "&lt;b title=&#x27;x&#x27;&gt;&amp;"


def test_text_and_attributes_are_escaped_once():
    inner = html.element("i", EVIL, title=EVIL)
    assert inner == f'<i title="{ESCAPED}">{ESCAPED}</i>'
    assert html.element("p", inner, EVIL) == f"<p>{inner}{ESCAPED}</p>"
    assert html.page(EVIL, html.pre(EVIL)).count(ESCAPED) == 2


def test_attributes_are_named_as_in_html_and_may_have_no_value():
    assert html.element("details", class_="a", aria_label="b", open=True) == (
        '<details class="a" aria-label="b" open></details>'
    )
    assert html.element("rect", x=1, open=False) == '<rect x="1"/>'


def test_a_table_has_a_head_and_a_short_row_spans_it():
    page = html.table([["a", "b", "c"], ["1", "2", "3"], ["4", EVIL]], "two rows")
    assert "<caption>two rows</caption><thead><tr><th>a</th>" in page
    assert f'<td>4</td><td colspan="2">{ESCAPED}</td>' in page


def test_a_long_cell_is_truncated_but_html_is_not():
    page = html.table([["a", "b"], ["x" * 1000, html.Html("y" * 1000)]])
    assert f"<td>{'x' * 299}…</td><td>{'y' * 1000}</td>" in page


def test_a_drawing_is_as_large_as_its_units_unless_told_otherwise():
    assert 'viewBox="0 0 4 5" width="4" height="5"' in html.svg("x", (4, 5))
    assert 'viewBox="0 0 4 5" width="40" height="5"' in html.svg("x", (4, 5), width=40)
