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
from tensortap.readers.query_fields import FIELDS, NUMBERS, TEXTS, number_test, text_test, word_test

Mask = np.ndarray[Any, Any]
_FIELD = re.compile(r"([a-z_]+)(>=|<=|!=|[:><=])", re.IGNORECASE)
_PAIRS = {"[": "]", "{": "}", "<": ">", "(": ")"}
_LONGEST, _DEEPEST = 2000, 32


class QueryError(TensortapError, ValueError):
    """A query that cannot be read; `at` is the letter where."""

    def __init__(self, text: str, at: int = 0) -> None:
        super().__init__(text)
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.at)


class Table(Protocol):
    """What is asked: columns of few different texts, and columns of numbers."""

    def __len__(self) -> int: ...

    def texts(self, field: str) -> tuple[Mask, list[Any]] | None:
        """The code of each row and the texts they stand for; None where there is no such column."""

    def numbers(self, field: str) -> Mask | None:
        """A number for each row; NaN where it is not known."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query that was read; `mask(table)` says which rows it means."""

    text: str
    _root: _Node

    def mask(self, table: Table) -> Mask:
        return self._root.mask(table)

    @property
    def fields(self) -> set[str]:
        """The fields it speaks of."""
        return set(self._root.fields())


def parse(text: str) -> Query:
    """Read a query; an empty one means everything.

    >>> run.query("attn step>137 -rank:0")
    """
    if len(text) > _LONGEST:
        raise QueryError(f"a query of {len(text)} letters is too long; {_LONGEST} are allowed", _LONGEST)
    reader = _Reader(list(_tokens(text)), len(text))
    root = reader.all_of(0)
    if reader.peek() is not None:
        raise QueryError("a ) closes nothing; write ( before it, or put it in quotes", reader.at)
    return Query(text, root)


class _Token(NamedTuple):
    kind: Literal["(", ")", "|", "-", "word"]
    text: str
    at: int
    is_quoted: bool = False


class _Node(Protocol):
    def mask(self, table: Table) -> Mask: ...

    def fields(self) -> Iterator[str]: ...


class _All(NamedTuple):
    parts: tuple[_Node, ...]

    def mask(self, table: Table) -> Mask:
        found = np.ones(len(table), bool)
        for part in self.parts:
            found &= part.mask(table)
        return found

    def fields(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.fields()


class _Any(NamedTuple):
    parts: tuple[_Node, ...]

    def mask(self, table: Table) -> Mask:
        found = self.parts[0].mask(table)
        for part in self.parts[1:]:
            found = found | part.mask(table)
        return found

    def fields(self) -> Iterator[str]:
        return _All(self.parts).fields()


class _Not(NamedTuple):
    part: _Node

    def mask(self, table: Table) -> Mask:
        return ~self.part.mask(table)

    def fields(self) -> Iterator[str]:
        return self.part.fields()


class _Texts(NamedTuple):
    """A test of each different text, then of each row by its code."""

    field: str
    test: Callable[[str], bool]

    def mask(self, table: Table) -> Mask:
        found = table.texts("name" if self.field == "module" else self.field)
        if found is None:
            return np.zeros(len(table), bool)
        codes, texts = found
        hits = np.fromiter((self.test(text or "") for text in texts), bool, len(texts))
        mask: Mask = hits[codes] if len(texts) else np.zeros(len(table), bool)
        return mask

    def fields(self) -> Iterator[str]:
        yield self.field


class _Numbers(NamedTuple):
    field: str
    test: Callable[[Mask], Mask]

    def mask(self, table: Table) -> Mask:
        found = table.numbers(self.field)
        if found is None:
            return np.zeros(len(table), bool)
        with np.errstate(invalid="ignore"):
            return self.test(found)

    def fields(self) -> Iterator[str]:
        yield self.field


class _Reader:
    """Words with nothing between them are all meant; `|` binds closer, `-` closest."""

    def __init__(self, tokens: list[_Token], end: int) -> None:
        self._tokens, self._end, self._next = tokens, end, 0

    @property
    def at(self) -> int:
        token = self.peek()
        return self._end if token is None else token.at

    def peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def all_of(self, depth: int) -> _Node:
        parts = []
        while (token := self.peek()) is not None and token.kind != ")":
            parts.append(self._any_of(depth))
        return parts[0] if len(parts) == 1 else _All(tuple(parts))

    def _any_of(self, depth: int) -> _Node:
        parts = [self._one(depth)]
        while (token := self.peek()) is not None and token.kind == "|":
            self._next += 1
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else _Any(tuple(parts))

    def _one(self, depth: int) -> _Node:
        token = self.peek()
        if token is None or token.kind in ")|":
            raise QueryError("a word is missing here", self.at)
        if depth > _DEEPEST:
            raise QueryError("brackets and minus signs are nested too deep", token.at)
        self._next += 1
        if token.kind == "-":
            return _Not(self._one(depth + 1))
        return self._group(depth, token) if token.kind == "(" else _term(token)

    def _group(self, depth: int, start: _Token) -> _Node:
        inside = self.all_of(depth + 1)
        if self.peek() is None:
            raise QueryError("this ( is never closed", start.at)
        self._next += 1
        return inside


def _tokens(text: str) -> Iterator[_Token]:
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
            token = _word(text, at)
            yield token[0]
            at = token[1]


def _word(text: str, start: int) -> tuple[_Token, int]:
    """Up to a space, a bracket or a bar that does not stand in quotes or in brackets of the word's own."""
    found: list[str] = []
    at, closing, is_quoted = start, "", False
    while at < len(text):
        letter = text[at]
        if letter == '"':
            end = text.find('"', at + 1)
            if end < 0:
                raise QueryError('this " is never closed', at)
            is_quoted = is_quoted or not found
            found.append(text[at + 1 : end])
            at = end + 1
            continue
        if not closing and (letter.isspace() or letter in "()|"):
            break
        if not closing and letter in "[{":
            closing = _PAIRS[letter]
        elif letter == closing:
            closing = ""
        found.append(letter)
        at += 1
    if closing:
        raise QueryError(f"a {closing} is missing", at)
    return _Token("word", "".join(found), start, is_quoted), at


def _term(token: _Token) -> _Node:
    found = None if token.is_quoted else _FIELD.match(token.text)
    if found is None:
        return _Texts("name", word_test(token.text, is_quoted=token.is_quoted))
    field, sign, value = found[1].lower(), found[2], token.text[found.end() :]
    if field not in FIELDS:
        return _stranger(token, field, sign)
    field, at = FIELDS[field].name, token.at + found.end()
    try:
        if field in NUMBERS:
            return _Numbers(field, number_test(field, sign, value))
        if field in TEXTS:
            return _Texts(field, text_test(field, sign, value))
    except ValueError as error:
        raise QueryError(str(error), at) from None
    raise AssertionError(field)


def _stranger(token: _Token, field: str, sign: str) -> _Node:
    """A word of that kind may be a name: `pkg.mod:func.x`. One that is nearly a field is a slip."""
    near = difflib.get_close_matches(field, FIELDS, 1, cutoff=0.7)
    if sign == ":" and not near:
        return _Texts("name", word_test(token.text))
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(dict.fromkeys(one.name for one in FIELDS.values()))
    raise QueryError(f"there is no field {field!r}; {hint}there are {known}", token.at)
