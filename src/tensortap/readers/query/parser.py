"""The query language of the page, the command line and Python: words about records, read without eval.

softmax                 a part of the name; with * ** {} @ a pattern
step>137 rank:3         a number: > >= < <= = != or : with 3, 1..5, 1,2,3
dtype:bf16 kind:output  a text, or a pattern with *
shape:[*,16,128]        one word per axis; ** for any number of them
a b      a|b      -a      (a b)|c      "two words"          and, or, not
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from tensortap.core.errors import TensortapError
from tensortap.readers.query.fields import (
    FIELDS,
    NUMBER_FIELDS,
    TEXT_FIELDS,
    number_test,
    text_test,
    word_test,
)

Mask = np.ndarray[Any, Any]
_FIELD = re.compile(r"([a-z_]+)(>=|<=|!=|[:><=])", re.IGNORECASE)
_CLOSING = {"[": "]", "{": "}", "<": ">", "(": ")"}
_MAX_LENGTH, _MAX_DEPTH = 2000, 32


class QueryError(TensortapError, ValueError):
    """A query that cannot be read; `at` is the letter where."""

    def __init__(self, text: str, at: int = 0) -> None:
        super().__init__(text)
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.at)


class QueryTable(Protocol):
    """What is queried: string columns with few distinct values, and number columns."""

    def __len__(self) -> int: ...

    def texts(self, field: str) -> tuple[Mask, list[Any]] | None:
        """The code of each row and the strings they stand for; None if there is no such column."""

    def numbers(self, field: str) -> Mask | None:
        """A number per row, NaN if unknown; None if there is no such column."""


@dataclass(frozen=True, slots=True)
class Query:
    """A parsed query; `mask(table)` selects the matching rows."""

    text: str
    _root: _Node

    def mask(self, table: QueryTable) -> Mask:
        return self._root.mask(table)

    @property
    def fields(self) -> set[str]:
        """The fields it tests."""
        return set(self._root.fields())


def parse_query(text: str) -> Query:
    """Parse a query; an empty one matches everything.

    >>> run.query("attn step>137 -rank:0")
    """
    if len(text) > _MAX_LENGTH:
        raise QueryError(
            f"a query of {len(text)} letters is too long; {_MAX_LENGTH} are allowed", _MAX_LENGTH
        )
    parser = _Parser(list(_tokenize(text)), len(text))
    root = parser.parse_and(0)
    if parser.peek() is not None:
        raise QueryError("a ) closes nothing; write ( before it, or put it in quotes", parser.at)
    return Query(text, root)


class _Token(NamedTuple):
    kind: Literal["(", ")", "|", "-", "word"]
    text: str
    at: int
    is_quoted: bool = False


class _Node(Protocol):
    def mask(self, table: QueryTable) -> Mask: ...

    def fields(self) -> Iterator[str]: ...


class _And(NamedTuple):
    parts: tuple[_Node, ...]

    def mask(self, table: QueryTable) -> Mask:
        mask = np.ones(len(table), bool)
        for part in self.parts:
            mask &= part.mask(table)
        return mask

    def fields(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.fields()


class _Or(NamedTuple):
    parts: tuple[_Node, ...]

    def mask(self, table: QueryTable) -> Mask:
        mask = self.parts[0].mask(table)
        for part in self.parts[1:]:
            mask = mask | part.mask(table)
        return mask

    def fields(self) -> Iterator[str]:
        return _And(self.parts).fields()


class _Not(NamedTuple):
    part: _Node

    def mask(self, table: QueryTable) -> Mask:
        return ~self.part.mask(table)

    def fields(self) -> Iterator[str]:
        return self.part.fields()


class _TextTest(NamedTuple):
    """Tests each distinct string once, then looks up each row by its code."""

    field: str
    test: Callable[[str], bool]

    def mask(self, table: QueryTable) -> Mask:
        column = table.texts("name" if self.field == "module" else self.field)
        if column is None:
            return np.zeros(len(table), bool)
        codes, texts = column
        hits = np.fromiter((self.test(text or "") for text in texts), bool, len(texts))
        mask: Mask = hits[codes] if len(texts) else np.zeros(len(table), bool)
        return mask

    def fields(self) -> Iterator[str]:
        yield self.field


class _NumberTest(NamedTuple):
    field: str
    test: Callable[[Mask], Mask]

    def mask(self, table: QueryTable) -> Mask:
        numbers = table.numbers(self.field)
        if numbers is None:
            return np.zeros(len(table), bool)
        with np.errstate(invalid="ignore"):
            return self.test(numbers)

    def fields(self) -> Iterator[str]:
        yield self.field


class _Parser:
    """A recursive-descent parser: adjacent terms are and-ed; `|` binds tighter, `-` tightest."""

    def __init__(self, tokens: list[_Token], end: int) -> None:
        self._tokens, self._end, self._next = tokens, end, 0

    @property
    def at(self) -> int:
        token = self.peek()
        return self._end if token is None else token.at

    def peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def parse_and(self, depth: int) -> _Node:
        parts = []
        while (token := self.peek()) is not None and token.kind != ")":
            parts.append(self._parse_or(depth))
        return parts[0] if len(parts) == 1 else _And(tuple(parts))

    def _parse_or(self, depth: int) -> _Node:
        parts = [self._parse_operand(depth)]
        while (token := self.peek()) is not None and token.kind == "|":
            self._next += 1
            parts.append(self._parse_operand(depth))
        return parts[0] if len(parts) == 1 else _Or(tuple(parts))

    def _parse_operand(self, depth: int) -> _Node:
        token = self.peek()
        if token is None or token.kind in ")|":
            raise QueryError("a word is missing here", self.at)
        if depth > _MAX_DEPTH:
            raise QueryError("brackets and minus signs are nested too deep", token.at)
        self._next += 1
        if token.kind == "-":
            return _Not(self._parse_operand(depth + 1))
        return self._parse_group(depth, token) if token.kind == "(" else _parse_term(token)

    def _parse_group(self, depth: int, start: _Token) -> _Node:
        node = self.parse_and(depth + 1)
        if self.peek() is None:
            raise QueryError("this ( is never closed", start.at)
        self._next += 1
        return node


def _tokenize(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        letter = text[at]
        if letter.isspace():
            at += 1
        elif letter in "()|":
            yield _Token(letter, letter, at)  # type: ignore[arg-type]
            at += 1
        elif letter == "-" and at + 1 < len(text) and not text[at + 1].isspace():
            yield _Token("-", letter, at)
            at += 1
        else:
            token = _read_word(text, at)
            yield token[0]
            at = token[1]


def _read_word(text: str, start: int) -> tuple[_Token, int]:
    """A word up to a space, parenthesis or bar outside of quotes and brackets, and where it ends."""
    parts: list[str] = []
    at, closing, is_quoted = start, "", False
    while at < len(text):
        letter = text[at]
        if letter == '"':
            end = text.find('"', at + 1)
            if end < 0:
                raise QueryError('this " is never closed', at)
            is_quoted = is_quoted or not parts
            parts.append(text[at + 1 : end])
            at = end + 1
            continue
        if not closing and (letter.isspace() or letter in "()|"):
            break
        if not closing and letter in "[{":
            closing = _CLOSING[letter]
        elif letter == closing:
            closing = ""
        parts.append(letter)
        at += 1
    if closing:
        raise QueryError(f"a {closing} is missing", at)
    return _Token("word", "".join(parts), start, is_quoted), at


def _parse_term(token: _Token) -> _Node:
    match = None if token.is_quoted else _FIELD.match(token.text)
    if match is None:
        return _TextTest("name", word_test(token.text, is_quoted=token.is_quoted))
    field, sign, value = match[1].lower(), match[2], token.text[match.end() :]
    if field not in FIELDS:
        return _parse_unknown_field(token, field, sign)
    field, at = FIELDS[field].name, token.at + match.end()
    try:
        if field in NUMBER_FIELDS:
            return _NumberTest(field, number_test(field, sign, value))
        if field in TEXT_FIELDS:
            return _TextTest(field, text_test(field, sign, value))
    except ValueError as error:
        raise QueryError(str(error), at) from None
    raise AssertionError(field)


def _parse_unknown_field(token: _Token, field: str, sign: str) -> _Node:
    """A name such as `pkg.mod:func.x`; raises if the word is close to a field, hence a typo."""
    near = difflib.get_close_matches(field, FIELDS, 1, cutoff=0.7)
    if sign == ":" and not near:
        return _TextTest("name", word_test(token.text))
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(dict.fromkeys(known_field.name for known_field in FIELDS.values()))
    raise QueryError(f"there is no field {field!r}; {hint}there are {known}", token.at)
