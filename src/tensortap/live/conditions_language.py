"""The language of conditions, such as `absmax(layers.*) > 1e3`: closed, with its own parser.

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

from tensortap.kernels.statistics import STATISTIC_FIELDS, Statistics

MAX_LENGTH, MAX_DEPTH, MAX_NODES = 1000, 32, 100
StatisticsByPattern = Mapping[str, Mapping[str, Statistics]]  # by pattern, by name
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


def _absmax(statistics: Statistics) -> float | None:
    """Infinite where a number is: a condition that waits for large numbers must not miss it."""
    return float("inf") if statistics.inf else statistics.absmax


FUNCTIONS: dict[str, Callable[[Statistics], float | None]] = {
    **{field.name: field.read for field in STATISTIC_FIELDS},
    "absmax": _absmax,
}


@dataclass(frozen=True, slots=True)
class NumberNode:
    value: float

    def numbers(self, _: StatisticsByPattern) -> list[float]:
        return [self.value]


@dataclass(frozen=True, slots=True)
class StatisticNode:
    function: str
    pattern: str

    def numbers(self, observed: StatisticsByPattern) -> list[float]:
        values = map(FUNCTIONS[self.function], observed.get(self.pattern, {}).values())
        return [value for value in values if value is not None]


@dataclass(frozen=True, slots=True)
class ComparisonNode:
    left: NumberNode | StatisticNode
    sign: str
    right: NumberNode | StatisticNode

    def holds(self, observed: StatisticsByPattern, of_all: bool = False) -> bool:
        compare = _COMPARISONS[self.sign]
        lefts, rights = self.left.numbers(observed), self.right.numbers(observed)
        results = [compare(left, right) for left in lefts for right in rights]
        return bool(results) and (all if of_all else any)(results)


@dataclass(frozen=True, slots=True)
class QuantifierNode:
    inner: Any
    of_all: bool

    def holds(self, observed: StatisticsByPattern, of_all: bool = False) -> bool:
        return bool(self.inner.holds(observed, self.of_all))


@dataclass(frozen=True, slots=True)
class BooleanNode:
    operands: tuple[Any, ...]
    of_all: bool

    def holds(self, observed: StatisticsByPattern, of_all: bool = False) -> bool:
        return (all if self.of_all else any)(operand.holds(observed, of_all) for operand in self.operands)


@dataclass(frozen=True, slots=True)
class NotNode:
    inner: Any

    def holds(self, observed: StatisticsByPattern, of_all: bool = False) -> bool:
        return not self.inner.holds(observed, of_all)


@dataclass(frozen=True, slots=True)
class Condition:
    """`patterns` must be observed; `is_monotonic`: once true, the condition stays true within the step."""

    text: str
    tree: Any
    patterns: tuple[str, ...]
    is_monotonic: bool

    def holds(self, observed: StatisticsByPattern) -> bool:
        return bool(self.tree.holds(observed))


def parse_condition(text: str) -> Condition:
    """Parse a condition; a ValueError says where it is wrong."""
    if len(text) > MAX_LENGTH:
        raise ValueError(f"the condition has {len(text)} letters; at most {MAX_LENGTH} are read")
    parser = _ConditionParser(text)
    tree = parser.parse_or(0)
    if parser.peek():
        raise parser.error("nothing more was expected")
    patterns = tuple(dict.fromkeys(parser.patterns))
    if not patterns:
        raise ValueError(f"the condition {text!r} looks at no value; write such as 'absmax(layers.*) > 1e3'")
    return Condition(text, tree, patterns, parser.is_monotonic)


class _ConditionParser:
    """A recursive descent parser: one method per rule, each with its depth."""

    def __init__(self, text: str) -> None:
        self._text, self._position, self._node_count = text, 0, 0
        self.patterns: list[str] = []
        self.is_monotonic = True

    def parse_or(self, depth: int) -> Any:
        return self._parse_chain(self._parse_and, "or", False, depth)

    def peek(self) -> str:
        """The next token, not consumed; empty at the end."""
        match = _TOKEN.match(self._text, self._position)
        if match is None and self._text[self._position :].strip():
            raise self.error("a number, a function or a name was expected")
        return match[0].strip() if match else ""

    def error(self, expected: str) -> ValueError:
        functions, rest = ", ".join(FUNCTIONS), self._text[self._position :].strip()[:20]
        return ValueError(
            f"the condition {self._text!r} is not understood at {rest!r}: {expected}; "
            f"it is made of numbers, names, <, <=, >, >=, ==, !=, and, or, not, any, all, and {functions}"
        )

    def _parse_chain(self, rule: Callable[[int], Any], keyword: str, of_all: bool, depth: int) -> Any:
        operands = [rule(depth)]
        while self.peek() == keyword:
            self._advance()
            operands.append(rule(depth))
        return BooleanNode(tuple(operands), of_all) if len(operands) > 1 else operands[0]

    def _parse_and(self, depth: int) -> Any:
        return self._parse_chain(self._parse_not, "and", True, depth)

    def _parse_not(self, depth: int) -> Any:
        self._check_limits(depth)
        if self.peek() != "not":
            return self._parse_comparison(depth)
        self._advance()
        self.is_monotonic = False
        return NotNode(self._parse_not(depth + 1))

    def _parse_comparison(self, depth: int) -> Any:
        left = self._parse_operand(depth)
        if not isinstance(left, NumberNode | StatisticNode):
            return left
        sign = self.peek()
        if sign not in _COMPARISONS:
            raise self.error("a comparison was expected")
        self._advance()
        right = self._parse_operand(depth)
        if not isinstance(right, NumberNode | StatisticNode):
            raise self.error("numbers are compared, not conditions")
        return ComparisonNode(left, sign, right)

    def _parse_operand(self, depth: int) -> Any:
        self._check_limits(depth)
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            raise self.error("a number, a function or a name was expected")
        word = self._advance()
        if match["number"]:
            return NumberNode(float(word))
        if word == "(":
            return self._expect_closing(self.parse_or(depth + 1))
        if word in ("any", "all") and self.peek() == "(":
            self._advance()
            self.is_monotonic &= word == "any"
            return QuantifierNode(self._expect_closing(self.parse_or(depth + 1)), word == "all")
        if word in FUNCTIONS and self.peek() == "(":
            return self._make_statistic(word, self._parse_pattern())
        if not match["name"] or word in ("and", "or", "not") or self.peek() == "(":
            raise self.error(f"{word!r} is no function")
        return self._make_statistic("mean", word)

    def _make_statistic(self, function: str, pattern: str) -> StatisticNode:
        self.patterns.append(pattern)
        return StatisticNode(function, pattern)

    def _expect_closing(self, inner: Any) -> Any:
        if self.peek() != ")":
            raise self.error("a ')' was expected")
        self._advance()
        return inner

    def _parse_pattern(self) -> str:
        """Everything up to the closing parenthesis: patterns contain other signs, but no parentheses."""
        self._advance()
        end = self._text.find(")", self._position)
        pattern = self._text[self._position : end].strip() if end >= 0 else ""
        if not pattern or "(" in pattern:
            raise self.error("a name or a pattern and a ')' were expected")
        self._position = end + 1
        return pattern

    def _advance(self) -> str:
        match = _TOKEN.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return match[0].strip()

    def _check_limits(self, depth: int) -> None:
        self._node_count += 1
        if depth > MAX_DEPTH or self._node_count > MAX_NODES:
            raise ValueError(
                f"the condition has more than {MAX_NODES} parts, or is deeper than {MAX_DEPTH}; "
                "write a simpler one"
            )
