"""Conditions as text, `absmax(layers.*) > 1e3`: a closed language with a parser of its own.

    condition = both {"or" both} ; both = single {"and" single} ; single = "not" single | comparison
    comparison = operand [("<" | "<=" | ">" | ">=" | "==" | "!=") operand]
    operand = number | function "(" pattern ")" | ("any" | "all") "(" condition ")" | "(" condition ")" | name

A function gives a number for every value that its pattern matches in a step. A comparison holds if it does
for any of them, within `all(...)` if it does for each. A name alone is the mean of its values.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensortap.kernels.statistics import Statistics

MOST_LETTERS, MOST_DEPTH, MOST_PARTS = 1000, 32, 100
Numbers = Mapping[str, Mapping[str, Statistics]]  # by pattern, by name
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?(?![\w.*]))"
    r"|(?P<name>[A-Za-z_*][\w.*@]*)|(?P<sign><=|>=|==|!=|<|>|\(|\)))"
)
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def _absmax(found: Statistics) -> float | None:
    if found.inf:
        return float("inf")
    return None if found.min is None or found.max is None else max(abs(found.min), abs(found.max))


FUNCTIONS: dict[str, Callable[[Statistics], float | None]] = {
    "absmax": _absmax,
    **{
        name: operator.attrgetter(name)
        for name in ("min", "max", "mean", "norm", "std", "nan", "inf", "count")
    },
}


@dataclass(frozen=True, slots=True)
class Number:
    value: float

    def numbers(self, _: Numbers) -> list[float]:
        return [self.value]


@dataclass(frozen=True, slots=True)
class Measure:
    function: str
    pattern: str

    def numbers(self, seen: Numbers) -> list[float]:
        found = map(FUNCTIONS[self.function], seen.get(self.pattern, {}).values())
        return [one for one in found if one is not None]


@dataclass(frozen=True, slots=True)
class Comparison:
    left: Number | Measure
    sign: str
    right: Number | Measure

    def holds(self, seen: Numbers, of_all: bool = False) -> bool:
        compare = _COMPARISONS[self.sign]
        lefts, rights = self.left.numbers(seen), self.right.numbers(seen)
        results = [compare(left, right) for left in lefts for right in rights]
        return bool(results) and (all if of_all else any)(results)


@dataclass(frozen=True, slots=True)
class Quantified:
    inner: Any
    of_all: bool

    def holds(self, seen: Numbers, of_all: bool = False) -> bool:
        return bool(self.inner.holds(seen, self.of_all))


@dataclass(frozen=True, slots=True)
class Joined:
    parts: tuple[Any, ...]
    of_all: bool

    def holds(self, seen: Numbers, of_all: bool = False) -> bool:
        return (all if self.of_all else any)(part.holds(seen, of_all) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    inner: Any

    def holds(self, seen: Numbers, of_all: bool = False) -> bool:
        return not self.inner.holds(seen, of_all)


@dataclass(frozen=True, slots=True)
class Condition:
    """`patterns` are what has to be seen, `grows` says that what holds once cannot cease to within a step."""

    text: str
    tree: Any
    patterns: tuple[str, ...]
    grows: bool

    def holds(self, seen: Numbers) -> bool:
        return bool(self.tree.holds(seen))


def parse_condition(text: str) -> Condition:
    """Read a condition; the error says where it is wrong."""
    if len(text) > MOST_LETTERS:
        raise ValueError(f"the condition has {len(text)} letters; at most {MOST_LETTERS} are read")
    parser = _Parser(text)
    tree = parser.either(0)
    if parser.token():
        raise parser.wrong("nothing more was expected")
    patterns = tuple(dict.fromkeys(parser.patterns))
    if not patterns:
        raise ValueError(f"the condition {text!r} looks at no value; write such as 'absmax(layers.*) > 1e3'")
    return Condition(text, tree, patterns, parser.grows)


class _Parser:
    """Goes down by one function per rule; each knows how deep it is."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self._parts = text, 0, 0
        self.patterns: list[str] = []
        self.grows = True

    def either(self, depth: int) -> Any:
        return self._joined(self._both, "or", False, depth)

    def token(self) -> str:
        """The next word or sign, left where it is; empty at the end."""
        found = _TOKEN.match(self._text, self._at)
        if found is None and self._text[self._at :].strip():
            raise self.wrong("a number, a function or a name was expected")
        return found[0].strip() if found else ""

    def wrong(self, what: str) -> ValueError:
        known, rest = ", ".join(FUNCTIONS), self._text[self._at :].strip()[:20]
        return ValueError(
            f"the condition {self._text!r} is not understood at {rest!r}: {what}; "
            f"it is made of numbers, names, <, <=, >, >=, ==, !=, and, or, not, any, all, and {known}"
        )

    def _joined(self, rule: Callable[[int], Any], word: str, of_all: bool, depth: int) -> Any:
        parts = [rule(depth)]
        while self.token() == word:
            self._take()
            parts.append(rule(depth))
        return Joined(tuple(parts), of_all) if len(parts) > 1 else parts[0]

    def _both(self, depth: int) -> Any:
        return self._joined(self._single, "and", True, depth)

    def _single(self, depth: int) -> Any:
        self._check(depth)
        if self.token() != "not":
            return self._comparison(depth)
        self._take()
        self.grows = False
        return Not(self._single(depth + 1))

    def _comparison(self, depth: int) -> Any:
        left = self._operand(depth)
        if not isinstance(left, Number | Measure):
            return left
        sign = self.token()
        if sign not in _COMPARISONS:
            raise self.wrong("a comparison was expected")
        self._take()
        right = self._operand(depth)
        if not isinstance(right, Number | Measure):
            raise self.wrong("numbers are compared, not conditions")
        return Comparison(left, sign, right)

    def _operand(self, depth: int) -> Any:
        self._check(depth)
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self.wrong("a number, a function or a name was expected")
        word = self._take()
        if found["number"]:
            return Number(float(word))
        if word == "(":
            return self._closed(self.either(depth + 1))
        if word in ("any", "all") and self.token() == "(":
            self._take()
            self.grows &= word == "any"
            return Quantified(self._closed(self.either(depth + 1)), word == "all")
        if word in FUNCTIONS and self.token() == "(":
            return self._measure(word, self._pattern())
        if not found["name"] or word in ("and", "or", "not") or self.token() == "(":
            raise self.wrong(f"{word!r} is no function")
        return self._measure("mean", word)

    def _measure(self, function: str, pattern: str) -> Measure:
        self.patterns.append(pattern)
        return Measure(function, pattern)

    def _closed(self, inner: Any) -> Any:
        if self.token() != ")":
            raise self.wrong("a ')' was expected")
        self._take()
        return inner

    def _pattern(self) -> str:
        """Everything up to the closing bracket: patterns have signs of their own, but no round brackets."""
        self._take()
        end = self._text.find(")", self._at)
        pattern = self._text[self._at : end].strip() if end >= 0 else ""
        if not pattern or "(" in pattern:
            raise self.wrong("a name or a pattern and a ')' were expected")
        self._at = end + 1
        return pattern

    def _take(self) -> str:
        found = _TOKEN.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return found[0].strip()

    def _check(self, depth: int) -> None:
        self._parts += 1
        if depth > MOST_DEPTH or self._parts > MOST_PARTS:
            raise ValueError(
                f"the condition has more than {MOST_PARTS} parts, or is deeper than {MOST_DEPTH}; "
                "write a simpler one"
            )
