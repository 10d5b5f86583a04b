"""Values, labels and colours in call trees: shape and dtype of an array, else its length or value."""

from __future__ import annotations

import dataclasses
import logging
import math
import unicodedata
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.settings import is_chinese
from tensortap.frameworks.base import Description, Framework, framework_of
from tensortap.frameworks.pytree import children
from tensortap.frameworks.torch_if_loaded import loaded_torch_summary
from tensortap.kernels.statistics import Statistics, statistics
from tensortap.render.text import ShortRepr, class_name
from tensortap.render.words import format_number

_INLINE_TYPES = (int, float, bool, str, type(None))
_MAX_INLINE_ITEMS = 8  # items of a short container that are shown
_MAX_INLINE_LENGTH = 40
_MAX_VISITED = 256
_MAX_DEPTH = 4
log = logging.getLogger("tensortap.tree.values")


class NonfiniteCounts(NamedTuple):
    """How many elements of an array are NaN or Inf."""

    nan: int
    inf: int
    total: int


class ValueText(NamedTuple):
    text: str
    is_array: bool = False
    facts: tuple[Any, ...] = ()  # compared with those of the next value of the same name
    nonfinite: NonfiniteCounts | None = None
    number: float | None = None  # the value itself if scalar, or its length
    short: str = ""  # of an array: its shape alone

    def number_label(self, name: str) -> str:
        """What the number is, for a value of that name."""
        return f"len({name})" if self.text.startswith("len(") else name


class ValueFormatter:
    """Formats values with or without statistics; at most `max_items` arrays of a container."""

    def __init__(self, *, stats: bool = False, max_items: int = 8) -> None:
        self.stats, self.max_items = stats, max_items
        self._words = ShortRepr()

    def format(self, value: Any) -> ValueText:
        """Never raises, whatever the value's class does."""
        try:
            kind = type(value)
            if kind is int:
                return ValueText(f"value: {self._words.format(value)}", False, (kind, None), None, value)
            framework = framework_of(value)
            return (
                self._format_array(framework, value)
                if framework.name != "python"
                else self._format_other(value, kind)
            )
        except Exception:  # a value of any library, or its own repr, may raise anything
            log.debug("a %s cannot be shown", class_name(type(value)), exc_info=True)
            return ValueText(f"value: {class_name(type(value))}", False, (type(value), None))

    def arrays(self, value: Any) -> tuple[list[tuple[str, Any]], bool]:
        """The first arrays in a container with their paths, and whether there may be more."""
        if not _is_plain_container(type(value)) or self.max_items < 1:
            return [], False
        try:
            arrays = list(islice(_find_arrays(value, "", _VisitBudget(), 0), self.max_items + 1))
        except Exception:  # a container's own iteration may raise anything
            log.debug("a %s cannot be walked", class_name(type(value)), exc_info=True)
            return [], False
        return arrays[: self.max_items], len(arrays) > self.max_items

    def _format_array(self, framework: Framework, value: Any) -> ValueText:
        description = (
            loaded_torch_summary().describe_untraced(value)
            if framework.name == "torch"
            else framework.describe(value)
        )
        facts = (framework.name, description.shape, description.dtype, description.device)
        shape, text, device = _array_text(*facts)
        if description.layout != "strided" or description.dtype not in DTYPE_TABLE or 0 in description.shape:
            layout = "" if description.layout == "strided" else f" | layout={description.layout}"
            return ValueText(text + device + layout, True, facts, None, None, shape + device)
        single = (
            _single_number(framework, value) if not device and math.prod(description.shape) == 1 else None
        )
        if single is not None:
            words = f" | value={single:.6g}" if isinstance(single, float) else f" | value={single}"
            return ValueText(text + words, True, facts, None, single, shape + words)
        summary = _statistics_or_none(framework, value, description, self.stats)
        nonfinite = (
            NonfiniteCounts(summary.nan, summary.inf, summary.count)
            if summary and summary.finite != summary.count
            else None
        )
        words = device + (_format_statistics(summary) if summary else "")
        return ValueText(text + words, True, facts, nonfinite, None, shape + words)

    def _format_other(self, value: Any, kind: type) -> ValueText:
        if kind is float:
            nonfinite = (
                None if math.isfinite(value) else NonfiniteCounts(int(value != value), int(value == value), 1)
            )
            return ValueText(
                f"value: {value!r}", False, (kind, None), nonfinite, None if nonfinite else value
            )
        if issubclass(kind, (list, tuple, dict, deque, set, frozenset)):
            length, items = len(value), self._format_items(value, kind)
            number = None if items else length
            return ValueText(f"len(value): {length}{items}", False, (kind, length), None, number)
        if dataclasses.is_dataclass(kind):
            return ValueText(f"value: {class_name(kind)}", False, (kind, len(dataclasses.fields(kind))))
        return ValueText(f"value: {self._words.format(value)}", False, (kind, None))

    def _format_items(self, value: Any, kind: type) -> str:
        """The items of a short container of plain values."""
        is_known = kind in (list, tuple, dict) or kind.__module__ == "torch"  # torch.Size
        if not is_known or not 0 < len(value) <= _MAX_INLINE_ITEMS:
            return ""
        items = [*value, *value.values()] if kind is dict else value
        if any(type(item) not in _INLINE_TYPES for item in items):
            return ""
        if any(type(item) is str and len(item) > _MAX_INLINE_LENGTH for item in items):
            return ""
        text = repr(value)
        return f" | {text}" if len(text) <= _MAX_INLINE_LENGTH else ""


@lru_cache(maxsize=1024)
def _array_text(framework: str, shape: tuple[int, ...], dtype: str, device: str) -> tuple[str, str, str]:
    """The shape alone, with the dtype, and the device if it is not the CPU."""
    is_torch = framework == "torch"
    size = f"shape=torch.Size({list(shape)})" if is_torch else f"shape={shape}"
    elsewhere = "" if device.startswith("cpu") else f" | device={device}"
    return size, f"{size} | dtype={'torch.' if is_torch else ''}{dtype}", elsewhere


def describe_change(before: tuple[Any, ...] | None, now: ValueText) -> str:
    """What changed since the last value of the same name: `~shape ~dtype`."""
    if before is None:
        return ""
    if before[0] != now.facts[0]:
        also = _differing_facts(before, now.facts) if len(before) == len(now.facts) else []
        return " ".join(["~type", *also])
    if now.is_array:
        return " ".join(_differing_facts(before, now.facts)) or "~values"
    if before[1] != now.facts[1]:
        return "~len"
    return "" if now.facts[1] is None else "~values"


def _differing_facts(before: tuple[Any, ...], now: tuple[Any, ...]) -> list[str]:
    if len(now) != 4:
        return []
    words = ("~shape", "~dtype", "~device")
    return [word for word, was, is_now in zip(words, before[1:], now[1:], strict=True) if was != is_now]


class _VisitBudget:
    left = _MAX_VISITED


def _is_plain_container(kind: type) -> bool:
    """Containers whose items can be read safely; others may load, compute or count on access."""
    return issubclass(kind, (list, tuple, dict, deque)) or dataclasses.is_dataclass(kind)


def _find_arrays(value: Any, path: str, budget: _VisitBudget, depth: int) -> Iterator[tuple[str, Any]]:
    for step, item in _iterate_children(value):
        budget.left -= 1
        if budget.left < 0:
            return
        kind = type(item)
        if kind in _INLINE_TYPES:
            continue
        if framework_of(item).name != "python":
            yield path + step, item
        elif depth < _MAX_DEPTH and _is_plain_container(kind):
            yield from _find_arrays(item, path + step, budget, depth + 1)


def _iterate_children(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if kind in (list, tuple, deque):  # lazily: they may be long
        return ((f"[{position}]", item) for position, item in enumerate(value))
    if kind is dict:
        return (
            (f"[{key!r}]" if type(key) in _INLINE_TYPES else "[...]", item) for key, item in value.items()
        )
    return ((part.step, part.value) for part in children(value) or ())


def _statistics_or_none(
    framework: Framework, value: Any, description: Description, stats: bool
) -> Statistics | None:
    try:
        return _compute_statistics(framework, value, description, stats)
    except Exception:  # data of any library may be freed, elsewhere or not summable; the description is shown
        log.debug("a %s cannot be looked into", description.type, exc_info=True)
        return None


def _compute_statistics(
    framework: Framework, value: Any, description: Description, stats: bool
) -> Statistics | None:
    """The statistics, if requested or if an element is not finite."""
    if not stats and (
        not description.dtype.startswith(("float", "bfloat", "complex")) or description.device == "meta"
    ):
        return None
    if framework.name == "torch":
        return _tensor_statistics(value, description, stats)
    bits = framework.bits(value)
    if not stats and DTYPE_TABLE[description.dtype].native and _has_finite_sum(bits):
        return None
    summary = statistics(bits, description.dtype)
    return summary if stats or summary.finite != summary.count else None


def _tensor_statistics(value: Any, description: Description, stats: bool) -> Statistics | None:
    if not stats and loaded_torch_summary().is_surely_finite(value, description):
        return None
    summary: Statistics | None = loaded_torch_summary().tensor_statistics(value)
    return summary if summary is not None and (stats or summary.finite != summary.count) else None


def _has_finite_sum(bits: Any) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.isfinite(bits.sum()))


def _format_statistics(summary: Statistics) -> str:
    if summary.min is None or summary.max is None or summary.mean is None:
        return ""
    known = (("min", summary.min), ("max", summary.max), ("mean", summary.mean), ("norm", summary.norm))
    return f" | {' '.join(f'{what}={format_number(value)}' for what, value in known)}"


def _single_number(framework: Framework, value: Any) -> float | None:
    """The only element of an array, if it is finite and can be read safely."""
    if framework.name == "torch" and not loaded_torch_summary().is_readable(value):
        return None
    try:
        item = value.item()
    except (RuntimeError, TypeError, ValueError):
        return None
    return item if isinstance(item, (int, float)) and math.isfinite(item) else None


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


class CallLine(NamedTuple):
    """One line of a tree: its text, how it differs from before, and what is wrong."""

    text: str
    note: str = ""
    alarm: str = ""
    key: str = ""  # equal for similar lines; empty: the whole line
    is_target: bool = False
    is_header: bool = False
    lineno: int = 0
    number: float | None = None  # the only number in the line, not part of the key
    counts: str = ""  # what the number is: a variable, its length, an output

    def plain(self) -> str:
        text = f"{self.text}  {self.note}" if self.note else self.text
        return f"{text}  {self.alarm}" if self.alarm else text

    def similarity_key(self) -> str:
        return self.key or self.plain()


def choose_labels(encoding: str | None) -> Labels:
    """The labels in the configured language, if the stream can encode them."""
    return CHINESE if is_chinese() and can_encode("".join(CHINESE), encoding) else ENGLISH


def can_encode(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def make_encodable(text: str, encoding: str | None) -> str:
    """The text with box characters if the encoding has them; anything else it lacks is escaped."""
    if can_encode(text, encoding):
        return text
    drawn = text.translate(_TO_ASCII)
    name = encoding or "utf-8"
    try:
        return drawn.encode(name, "backslashreplace").decode(name)
    except LookupError:
        return drawn.encode("ascii", "backslashreplace").decode("ascii")


def colour_line(line: CallLine, width: int | None) -> str:
    """For a terminal: notes are never truncated, and only anomalies are coloured."""
    notes = "  ".join(part for part in (line.note, line.alarm) if part)
    text = (
        line.text
        if width is None
        else _truncate_to_width(line.text, width - (len(notes) + 2 if notes else 0))
    )
    if line.is_header:
        text = _paint(text, _BOLD)
    elif line.is_target:
        text = _paint(text, _YELLOW)
    note = f"  {_paint(line.note, _CYAN)}" if line.note else ""
    return text + note + (f"  {_paint(line.alarm, _RED)}" if line.alarm else "")


def fit_line(line: CallLine, width: int | None) -> str:
    """The same without colours."""
    notes = "  ".join(part for part in (line.note, line.alarm) if part)
    if width is None or not notes:
        return line.plain() if width is None else _truncate_to_width(line.text, width)
    return f"{_truncate_to_width(line.text, width - len(notes) - 2)}  {notes}"


def _paint(text: str, colour: str) -> str:
    """Colours the text, not the tree's branches."""
    start = len(text) - len(text.lstrip("│├└┌─ "))
    return f"{text[:start]}{colour}{text[start:]}{_PLAIN}"


def _truncate_to_width(text: str, width: int) -> str:
    width = max(width, 20)
    if len(text) <= width // 2 or _display_width(text) <= width:
        return text
    while _display_width(text) > width - 1:
        text = text[: len(text) - max(1, (_display_width(text) - width + 1) // 2)]
    return f"{text}…"


def _display_width(text: str) -> int:
    """East Asian wide characters take two columns."""
    wide = sum(letter >= "\u1100" and unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide
