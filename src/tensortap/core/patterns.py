"""Names and the patterns that select them: one grammar for capturing, reading, the command line and the page.

layers.*            one part          layers.0-5        numbers, both ends included
**.mlp              any depth         {q,k,v}_proj      one of several
<Linear>            a module's class  !head             everything but
attn@2              the third call    attn['k'][0]      a part of a nested value
attn.in.mask        an input          attn.grad         the gradient
pkg.mod:func.x      a variable of a function, which pkg.mod:func[0] returns a part of
"""

import ast
import difflib
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, zip_longest

ANY_DEPTH = "**"
_DIGITS = re.compile(r"(\d{1,300})")
_CHOICE = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")
_CALL = re.compile(r"@([0-9]{1,18})$")
_ITEM = r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\]'"])*\]"""
_PIECE = re.compile(rf"(?P<item>{_ITEM})|(?P<kind><[^<>]*>)|(?P<dot>\.)|[^.\[<]+|.", re.DOTALL)
_MAX_CHOICES = 4096
_MAX_EXPANDED_LENGTH = 1 << 20  # of all expansions together


@dataclass(frozen=True, slots=True)
class Alternative:
    """One expansion of a pattern's `{}`: dotted segments, then items, then what follows the items."""

    segments: tuple[str, ...]
    items: str = ""
    is_gradient_of_items: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    text: str
    alternatives: tuple[Alternative, ...]
    excludes: bool = False
    call: int | None = None
    body: str = ""  # the text without `!` and `@2`


@lru_cache(maxsize=1024)
def parse_pattern(text: str) -> Pattern:
    """Parse a pattern; every string is valid, though it may match nothing."""
    rest = text.removeprefix("!")
    start, end, call = _find_call(rest)
    body = rest[:start] + rest[end:]
    return Pattern(
        text, tuple(map(_parse_alternative, _expand_braces(body))), text.startswith("!"), call, body
    )


def segment_matches(segment: str, name: str, classes: Collection[str] = ()) -> bool:
    """Whether one segment of a pattern matches this segment of a name, or a module of these classes."""
    if segment == name:
        return True
    if segment.startswith("<") and segment.endswith(">"):
        class_glob = _glob(segment[1:-1])
        return any(class_glob.fullmatch(kind) for kind in classes)
    is_plain = "*" not in segment and not _RANGE.fullmatch(segment)
    return not is_plain and _glob(segment).fullmatch(name) is not None


def items_match(items: str, leaf_path: str) -> bool:
    """Whether the leaf at `leaf_path` is selected by the items, or lies inside what they select."""
    return not items or _items_glob(items).fullmatch(leaf_path) is not None


@lru_cache(maxsize=1024)
def pattern_regex(path: str) -> str:
    """A regular expression for the names a pattern selects, and for their nested leaves; it never matches
    across a line break. It covers neither `!` nor `@2`, and class patterns match no name."""
    expressions = [_alternative_regex(alternative) for alternative in parse_pattern(path).alternatives]
    return expressions[0] if len(expressions) == 1 else f"(?:{'|'.join(expressions)})"


def matches_pattern(path: str, name: str) -> bool:
    if path == name:
        return True
    return (re.fullmatch(pattern_regex(path), name) is not None) is not parse_pattern(path).excludes


def natural_sort_key(name: str) -> list[tuple[int, int, str]]:
    """Numbers inside names sort as numbers: `layers.2` before `layers.10`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(name) if part]


def closest_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names most similar to this one, for error messages."""
    return difflib.get_close_matches(name, list(known), count, cutoff=0.5)


def _find_call(text: str) -> tuple[int, int, int | None]:
    """Start, end and number of the `@n` suffix; an `@` inside an item belongs to its key."""
    for piece in _PIECE.finditer(text):
        match = None if piece["item"] else _CALL.search(piece[0])
        if match is not None:
            return piece.start() + match.start(), piece.end(), int(match[1])
    return len(text), len(text), None


def _expand_braces(text: str) -> list[str]:
    """All expansions of the braces, innermost first, so they may be nested. Braces with too many
    expansions are taken literally."""
    texts = [text]
    most = min(_MAX_CHOICES, _MAX_EXPANDED_LENGTH // (len(text) + 1))
    while any(map(_CHOICE.search, texts)):
        if sum(map(_count_innermost_choices, texts)) > most:
            break
        texts = list(dict.fromkeys(chosen for text in texts for chosen in _expand_innermost_braces(text)))
    return texts


def _count_innermost_choices(text: str) -> int:
    braces = _CHOICE.search(text)
    return 1 if braces is None else braces[1].count(",") + 1


def _expand_innermost_braces(text: str) -> list[str]:
    braces = _CHOICE.search(text)
    if braces is None:
        return [text]
    return [text[: braces.start()] + choice + text[braces.end() :] for choice in braces[1].split(",")]


def _parse_alternative(text: str) -> Alternative:
    segments, items = [""], ""
    for piece in _PIECE.finditer(text):
        if piece["item"]:
            items += _normalize_item(piece["item"])
        elif items:
            items += piece[0]
        elif piece["dot"]:
            segments.append("")
        else:
            segments[-1] += piece[0]
    is_gradient = bool(items) and items.endswith(".grad")
    once = [above for above, below in pairwise(segments) if not above == below == ANY_DEPTH]
    return Alternative(
        (*once, segments[-1]), items.removesuffix(".grad") if is_gradient else items, is_gradient
    )


def _normalize_item(item: str) -> str:
    """The key as `repr` writes it, so that `["k"]` and `['k']` are equal."""
    if "\\" in item or len(item) > 1000:
        return item
    try:
        return f"[{ast.literal_eval(item[1:-1])!r}]"
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return item


def _alternative_regex(alternative: Alternative) -> str:
    segments = list(alternative.segments)
    is_gradient = alternative.is_gradient_of_items
    if len(segments) > 1 and segments[-1] == "grad":
        is_gradient = bool(segments.pop())
    return _value_regex(segments, alternative.items) + (r"\.grad" if is_gradient else "")


def _value_regex(segments: list[str], items: str) -> str:
    *above, last = segments
    if segments == [""]:
        return _items_regex(items)
    if last in _RETURNED and above:
        return _output_regex(above, last, items)
    if last == ANY_DEPTH and not items:
        return _below_regex(above)
    name = _below_regex(above) if last == ANY_DEPTH else _dotted_regex(segments)
    if items:
        return name + _items_regex(items) + _PARTS_INSIDE
    is_inside = last == "in" or "in" in above or not set(_RETURNED).isdisjoint(segments)
    return name + (_PARTS_INSIDE if is_inside else _PARTS)


# Nested leaves of a value are selected with it; its gradient has a name of its own.
_RETURNED = ("out", "return")  # of a module, of a function
_PARTS = r"(?:(?:\.(?:out|return)\.(?!in\.)|\[[^\n]*\])[^\n]*(?<!\.grad))?"
_PARTS_INSIDE = r"(?:(?:\.|\[[^\n]*\])[^\n]*(?<!\.grad))?"


def _output_regex(above: list[str], last: str, items: str) -> str:
    """`layers.0.out` is the output of `layers.0`, recorded under the module's name unless the longer name
    was selected."""
    if above[-1] == ANY_DEPTH:
        return rf"(?!(?:[^\n]*\.)?in\.){_below_regex(above[:-1])}(?<!\.grad){_items_regex(items)}"
    return rf"{_dotted_regex(above)}(?:\.{last})?{_items_regex(items)}{_PARTS_INSIDE if items else _PARTS}"


def _below_regex(above: list[str]) -> str:
    if not above:
        return r"[^\n]*"
    return rf"{_dotted_regex(above)}(?:[.\[][^\n]*)?"


def _dotted_regex(segments: list[str]) -> str:
    """Runs of segments separated by `**`. The first match of an inner run is kept (atomic group), which
    avoids backtracking over all ways to split a name."""
    blocks = list(_blocks(segments))
    written = _block_regex(blocks[0])
    for block in blocks[1:-1]:
        is_simple = not any(ANY_DEPTH in part for part in block)
        written += rf"(?>(?:[^\n]*?\.)??{_block_regex(block)})" if is_simple else _deep_regex(block)
    return (written + _deep_regex(blocks[-1]) if len(blocks) > 1 else written).removesuffix(_DOT)


_DOT = r"\."


def _blocks(segments: list[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for segment in segments:
        if segment == ANY_DEPTH:
            yield block
            block = []
        else:
            block.append(segment)
    yield block


def _deep_regex(block: list[str]) -> str:
    return rf"(?:[^\n]*\.)?{_block_regex(block)}"


def _block_regex(block: list[str]) -> str:
    return "".join(_part_regex(part) + _DOT for part in block)


def _part_regex(part: str) -> str:
    bounds = _RANGE.fullmatch(part)
    if bounds:
        return "|".join(["(?:" + re.escape(part), *_range_regexes(int(bounds[1]), int(bounds[2]))]) + ")"
    first, *rest = _STARS.split(part)
    stars, texts = rest[::2], rest[1::2]
    written = re.escape(first)
    for star, text, later in zip_longest(stars, texts, stars[1:]):
        is_final = later is None or (len(star) > 1 and len(later) == 1)
        any_letter = r"[^.\n]" if len(star) == 1 else r"[^\n]"
        # As with runs: the first match is enough where the next star matches as much.
        written += f"{any_letter}*{re.escape(text)}" if is_final else f"(?>{any_letter}*?{re.escape(text)})"
    return written


_STARS = re.compile(r"(\*+)")


def _range_regexes(low: int, high: int) -> Iterator[str]:
    """Expressions for the numbers from low to high: `[3-9]`, `[1-9][0-9]`, `1[0-1][0-9]`."""
    while low <= high:
        size = 1
        while low % (size * 10) == 0 and size * 10 <= min(low, high - low + 1):
            size *= 10
        above, digit = divmod(low // size, 10)
        last = min(9, digit + (high - low + 1) // size - 1)
        free = "[0-9]" * (len(str(size)) - 1)
        yield f"0*{above or ''}[{digit}-{last}]{free}"
        low += (last - digit + 1) * size


def _items_regex(items: str) -> str:
    return "".join(map(_item_regex, _PIECE.finditer(items)))


def _item_regex(piece: re.Match[str]) -> str:
    text = piece[0]
    if text == "[*]":
        return _ITEM_OF_A_LINE
    end = r".\[" if not piece["item"] else text[1] if text[1] in "'\"" else r"\]"
    return rf"[^{end}\n]*".join(map(re.escape, _STARS.split(text)[::2]))


_ITEM_OF_A_LINE = r"""\[(?:'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|[^\]'"\n])*\]"""


@lru_cache(maxsize=1024)
def _glob(segment: str) -> re.Pattern[str]:
    return re.compile(_part_regex(segment))


@lru_cache(maxsize=1024)
def _items_glob(items: str) -> re.Pattern[str]:
    return re.compile(_items_regex(items) + r"(?:[.\[].*)?", re.DOTALL)
