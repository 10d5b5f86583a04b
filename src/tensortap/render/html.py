"""Static HTML without scripts: elements, tables, images, drawings and pages; all text is escaped here."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from tensortap.render.text import truncate

_MAX_CELL_LENGTH = 300  # characters; a notebook keeps all of them
SMALL_LABELS = {"font_size": 10, "fill": "currentColor"}  # attributes of a drawing with labels
_EMPTY_ELEMENTS = {"br", "circle", "image", "img", "path", "polygon", "polyline", "rect"}


class Html(str):
    """A string that is HTML already; any other is escaped when it becomes part of an element."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: object) -> Html:
    """`<tag attribute="...">children</tag>`; True is an attribute without a value, False is none.

    >>> element("p", "a < b", class_="note", aria_label="x")
    '<p class="note" aria-label="x">a &lt; b</p>'
    """
    pairs = "".join(_attribute(name, value) for name, value in attributes.items())
    if not children and tag in _EMPTY_ELEMENTS:
        return Html(f"<{tag}{pairs}/>")
    return Html(f"<{tag}{pairs}>{join(*children)}</{tag}>")


def join(*parts: str) -> Html:
    """The parts as one piece of HTML."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def page(title: str, *body: Html, style: str = "") -> Html:
    """A whole document."""
    return Html(f"{page_start(title, style)}{join(*body)}{PAGE_END}")


def page_start(title: str, style: str = "") -> Html:
    """A document up to its body, for a page that is written in parts or must fit a size."""
    head = join(Html('<meta charset="utf-8">'), element("title", title), style_sheet(style))
    return Html(f'<!doctype html><html lang="en">{element("head", head)}<body>')


PAGE_END = Html("</body></html>\n")


def style_sheet(style: str) -> Html:
    return Html(f"<style>{style}</style>" if style else "")


def table(rows: Sequence[Sequence[str]], caption: str = "") -> Html:
    """A table, its first row as the head; long cells are truncated, and the last cell of a row shorter than
    the head spans the rest."""
    head, *body = rows
    title = element("caption", caption) if caption else ""
    labels = element("thead", element("tr", *(element("th", _cell(label)) for label in head)))
    lines = (element("tr", *_data_cells(row, len(head))) for row in body)
    return element("table", title, labels, element("tbody", *lines))


def pre(text: str) -> Html:
    return element("pre", text)


def svg(label: str, size: tuple[float, float], *content: Html, **attributes: object) -> Html:
    """A drawing of that width and height, in as many pixels unless the attributes say otherwise."""
    width, height = size
    shown = {"width": width, "height": height} | attributes
    return element("svg", *content, role="img", aria_label=label, viewBox=f"0 0 {width} {height}", **shown)


def image(png: bytes, description: str, width: int, height: int) -> Html:
    return element("img", alt=description, width=width, height=height, src=png_data_url(png))


def png_data_url(png: bytes) -> str:
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _attribute(name: str, value: object) -> str:
    if value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def _data_cells(row: Sequence[str], width: int) -> list[Html]:
    cells = [element("td", _cell(cell)) for cell in row]
    if row and len(row) < width:
        cells[-1] = element("td", _cell(row[-1]), colspan=width - len(row) + 1)
    return cells


def _cell(text: str) -> str:
    return text if isinstance(text, Html) else truncate(text, _MAX_CELL_LENGTH)
