"""Tables as text for a terminal and as HTML for a notebook."""

from html import escape

_MAX_COLUMN_WIDTH = 60
_MAX_CELL_LENGTH = 300  # letters of a cell on a page: a notebook keeps all of it


def format_table(rows: list[list[str]]) -> str:
    """Columns as wide as they must be, up to a limit; a longer cell is never cut, it only pushes its line."""
    widths = [min(_MAX_COLUMN_WIDTH, max(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def format_table_html(caption: str, rows: list[list[str]]) -> str:
    """A static table, everything escaped, nothing that runs."""
    head, *body = rows
    lines = [_html_row("th", head), *(_html_row("td", row) for row in body)]
    return f"<table><caption>{escape(caption)}</caption>{''.join(lines)}</table>"


def format_nbytes(nbytes: float) -> str:
    """`1.23 MB`"""
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if nbytes < 1000:
            break
        nbytes, unit = nbytes / 1000, larger
    return f"{nbytes:.3g} {unit}"


def _html_row(tag: str, cells: list[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(_truncate_cell(cell))}</{tag}>" for cell in cells) + "</tr>"


def _truncate_cell(cell: str) -> str:
    return cell if len(cell) <= _MAX_CELL_LENGTH else f"{cell[: _MAX_CELL_LENGTH - 1]}…"
