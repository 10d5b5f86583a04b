"""The words and the drawing of a call tree: two languages, box characters or ASCII, colours."""

from __future__ import annotations

import unicodedata
from typing import NamedTuple

from tensortap.core.settings import is_chinese


class Labels(NamedTuple):
    function: str
    called_from: str
    input: str
    output: str
    gives: str
    error: str
    goes_on: str
    module: str
    step: str
    again: str
    above: str
    more: str


ENGLISH = Labels(
    "function",
    "called from",
    "input",
    "output",
    "yield",
    "error",
    "goes on",
    "module",
    "step",
    "the line above {times} more times",
    "the {lines} lines above {times} more times",
    "more",
)
CHINESE = Labels(
    "函数",
    "被调用于",
    "输入",
    "输出",
    "产出",
    "异常",
    "继续",
    "模块",
    "步",
    "上一行再重复 {times} 次",
    "以上 {lines} 行再重复 {times} 次",
    "还有更多",
)
BAR = "│   "
_ASCII = {"┌": ",", "├": "|", "└": "`", "│": "|", "─": "-", "→": "->", "…": "...", "⋮": ":"}
_TO_ASCII = str.maketrans(_ASCII)
_BOLD, _RED, _YELLOW, _CYAN, _PLAIN = (f"\x1b[{code}m" for code in ("1", "1;31", "1;33", "36", "0"))


class Line(NamedTuple):
    """One line of a tree: what it says, how it differs from before, and what is wrong."""

    text: str
    note: str = ""
    alarm: str = ""
    key: str = ""  # what makes two lines alike; the whole line when empty
    is_target: bool = False
    is_header: bool = False
    lineno: int = 0
    number: float | None = None  # the only one that the line tells, which is no part of the key
    counts: str = ""  # what the number is: a variable, its length, an output

    def plain(self) -> str:
        text = f"{self.text}  {self.note}" if self.note else self.text
        return f"{text}  {self.alarm}" if self.alarm else text

    def likeness(self) -> str:
        return self.key or self.plain()


def labels_for(encoding: str | None) -> Labels:
    """The words of the language that is asked for, as long as the stream can take them."""
    return CHINESE if is_chinese() and can_encode("".join(CHINESE), encoding) else ENGLISH


def can_encode(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def encodable(text: str, encoding: str | None) -> str:
    """The text with box characters where the encoding has them; what else it lacks is escaped."""
    if can_encode(text, encoding):
        return text
    drawn = text.translate(_TO_ASCII)
    name = encoding or "utf-8"
    try:
        return drawn.encode(name, "backslashreplace").decode(name)
    except LookupError:
        return drawn.encode("ascii", "backslashreplace").decode("ascii")


def coloured(line: Line, width: int | None) -> str:
    """For a terminal: the notes are never cut away, and only the unusual has a colour."""
    notes = "  ".join(part for part in (line.note, line.alarm) if part)
    text = line.text if width is None else _cut(line.text, width - (len(notes) + 2 if notes else 0))
    if line.is_header:
        text = _painted(text, _BOLD)
    elif line.is_target:
        text = _painted(text, _YELLOW)
    note = f"  {_painted(line.note, _CYAN)}" if line.note else ""
    return text + note + (f"  {_painted(line.alarm, _RED)}" if line.alarm else "")


def fitted(line: Line, width: int | None) -> str:
    """The same without colours."""
    notes = "  ".join(part for part in (line.note, line.alarm) if part)
    if width is None or not notes:
        return line.plain() if width is None else _cut(line.text, width)
    return f"{_cut(line.text, width - len(notes) - 2)}  {notes}"


def _painted(text: str, colour: str) -> str:
    """The lines of the tree itself stay as they are."""
    start = len(text) - len(text.lstrip("│├└┌─ "))
    return f"{text[:start]}{colour}{text[start:]}{_PLAIN}"


def _cut(text: str, width: int) -> str:
    width = max(width, 20)
    if len(text) <= width // 2 or _columns(text) <= width:
        return text
    while _columns(text) > width - 1:
        text = text[: len(text) - max(1, (_columns(text) - width + 1) // 2)]
    return f"{text}…"


def _columns(text: str) -> int:
    """A Chinese character takes two."""
    wide = sum(letter >= "\u1100" and unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide
