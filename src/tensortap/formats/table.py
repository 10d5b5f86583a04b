"""Tables as text for a terminal and as HTML for a notebook."""

from html import escape

_WIDEST = 60
_LONGEST = 300  # letters of a cell on a page: a notebook keeps all of it


def table_text(rows: list[list[str]]) -> str:
    """Columns as wide as they must be, up to a limit; a longer cell is never cut, it only pushes its line."""
    widths = [min(_WIDEST, max(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def table_html(caption: str, rows: list[list[str]]) -> str:
    """A static table, everything escaped, nothing that runs."""
    head, *body = rows
    lines = [_row("th", head), *(_row("td", row) for row in body)]
    return f"<table><caption>{escape(caption)}</caption>{''.join(lines)}</table>"


def size_words(nbytes: float) -> str:
    """`1.23 MB`"""
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if nbytes < 1000:
            break
        nbytes, unit = nbytes / 1000, larger
    return f"{nbytes:.3g} {unit}"


def _row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(_cut(cell))}</{tag}>" for cell in cells) + "</tr>"


def _cut(cell: str) -> str:
    return cell if len(cell) <= _LONGEST else f"{cell[: _LONGEST - 1]}…"
