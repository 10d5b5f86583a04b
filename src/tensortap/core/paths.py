"""Names and the patterns that select them: one grammar for capturing, reading, the command line and the page.

layers.*            one part          layers.0-5        numbers, both ends included
**.mlp              any depth         {q,k,v}_proj      one of several
<Linear>            a module's class  !head             everything but
attn@2              the third call    attn['k'][0]      a part of a nested value
attn.in.mask        an input          attn.grad         the gradient
"""

import ast
import difflib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

ANY_DEPTH = "**"
_DIGITS = re.compile(r"(\d+)")
_CHOICE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)-(\d+)")
_CALL = re.compile(r"@(\d+)(?=$|[.\[])")
_PIECE = re.compile(
    r"""(?P<item>\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]'"])*\])|(?P<kind><[^<>]*>)|(?P<dot>\.)|[^.\[<]+|.""",
    re.DOTALL,
)
_MOST_CHOICES = 4096


@dataclass(frozen=True, slots=True)
class Way:
    """One choice out of a pattern's `{}`: dotted segments, then items, then what follows the items."""

    segments: tuple[str, ...]
    items: str = ""
    is_gradient_of_items: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    text: str
    ways: tuple[Way, ...]
    excludes: bool = False
    call: int | None = None


@lru_cache(maxsize=1024)
def parse(text: str) -> Pattern:
    """Read a pattern; there is no wrong one, only one that matches nothing."""
    rest = text.removeprefix("!")
    call = _CALL.search(rest)
    if call is not None:
        rest = rest[: call.start()] + rest[call.end() :]
    ways = tuple(_way(choice) for choice in _choices(rest))
    return Pattern(text, ways, rest is not text and text.startswith("!"), int(call[1]) if call else None)


def segment_matches(segment: str, name: str, classes: Collection[str] = ()) -> bool:
    """Whether one segment of a pattern stands for this part of a name, a module of these classes."""
    if segment == name:
        return True
    if segment.startswith("<") and segment.endswith(">"):
        wanted = _glob(segment[1:-1])
        return any(wanted.fullmatch(kind) for kind in classes)
    bounds = _RANGE.fullmatch(segment)
    if bounds:
        return name.isdecimal() and int(bounds[1]) <= int(name) <= int(bounds[2])
    return "*" in segment and _glob(segment).fullmatch(name) is not None


def items_match(items: str, found: str) -> bool:
    """Whether a leaf at `found` is what the items select, or lies within it."""
    return not items or _items_glob(items).fullmatch(found) is not None


@lru_cache(maxsize=1024)
def regex(path: str) -> str:
    """The names a pattern selects, as a regular expression that never reaches across a line break."""
    expressions = [_way_regex(way) for way in parse(path).ways]
    return expressions[0] if len(expressions) == 1 else f"(?:{'|'.join(expressions)})"


def matches(path: str, name: str) -> bool:
    if path == name:
        return True
    return (re.fullmatch(regex(path), name) is not None) is not parse(path).excludes


def sort_key(name: str) -> list[tuple[int, int, str]]:
    """Numbers inside names sort as numbers: `layers.2` before `layers.10`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part]


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Known names that look most like this one, for a message that helps."""
    return difflib.get_close_matches(name, list(known), count, cutoff=0.5)


def _choices(text: str) -> list[str]:
    """Each text that the braces stand for; innermost first, so they may be nested."""
    texts = [text]
    while any(map(_CHOICE.search, texts)) and len(texts) < _MOST_CHOICES:
        texts = [chosen for text in texts for chosen in _without_first_choice(text)]
    return list(dict.fromkeys(texts))


def _without_first_choice(text: str) -> list[str]:
    braces = _CHOICE.search(text)
    if braces is None:
        return [text]
    return [text[: braces.start()] + choice + text[braces.end() :] for choice in braces[1].split(",")]


def _way(text: str) -> Way:
    segments, items = [""], ""
    for piece in _PIECE.finditer(text):
        if piece["item"]:
            items += _plain_item(piece["item"])
        elif items:
            items += piece[0]
        elif piece["dot"]:
            segments.append("")
        else:
            segments[-1] += piece[0]
    is_gradient = bool(items) and items.endswith(".grad")
    return Way(tuple(segments), items.removesuffix(".grad") if is_gradient else items, is_gradient)


def _plain_item(item: str) -> str:
    """A key as Python shows it: `["k"]` and `['k']` are one."""
    try:
        return f"[{ast.literal_eval(item[1:-1])!r}]"
    except (ValueError, SyntaxError, MemoryError):
        return item


def _way_regex(way: Way) -> str:
    *above, last = way.segments
    head = "".join(r"(?:[^\n]*\.)?" if part == ANY_DEPTH else _part_regex(part) + r"\." for part in above)
    after = r"\.grad" if way.is_gradient_of_items else ""
    if way.items:
        is_output = last == "out" and above and way.items.startswith("[")
        tail = _optional(head, r"\.out") if is_output else head + _part_regex(last)
        return tail + _items_regex(way.items) + after
    if last == ANY_DEPTH:
        return _optional(head, r"[.\[][^\n]*") if above else r"[^\n]*"
    if last == "out" and above:
        return _optional(head, r"\.out")
    return head + _part_regex(last) + (r"(?:[.\[][^\n]*)?" if last == "in" else "")


def _optional(head: str, tail: str) -> str:
    return f"{head.removesuffix(_DOT)}(?:{tail})?" if head.endswith(_DOT) else f"{head}(?:{tail})?"


_DOT = r"\."


def _part_regex(part: str) -> str:
    bounds = _RANGE.fullmatch(part)
    if bounds and int(bounds[2]) - int(bounds[1]) < _MOST_CHOICES:
        numbers = range(int(bounds[1]), int(bounds[2]) + 1)
        return f"(?:{'|'.join([re.escape(part), *map(str, numbers)])})"
    return "".join(_STARS.get(piece) or re.escape(piece) for piece in re.split(r"(\*\*|\*)", part))


_STARS = {"**": r"[^\n]*", "*": r"[^.\n]*"}


def _items_regex(items: str) -> str:
    return "".join(r"[^\].\[\n]*" if piece == "*" else re.escape(piece) for piece in re.split(r"(\*)", items))


@lru_cache(maxsize=1024)
def _glob(segment: str) -> re.Pattern[str]:
    return re.compile(_part_regex(segment))


@lru_cache(maxsize=1024)
def _items_glob(items: str) -> re.Pattern[str]:
    return re.compile(_items_regex(items) + r"(?:[.\[].*)?", re.DOTALL)
