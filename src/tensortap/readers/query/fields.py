"""The fields of the query language, and a predicate for each operator."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.patterns import matches_pattern, pattern_regex
from tensortap.kernels.statistics import STATISTIC_COLUMNS

_Array = np.ndarray[Any, Any]
_PATTERN = re.compile(r"[*{}@\[\]!]|(?:^|\.)\d+-\d+(?:\.|$)")
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 1e3,
    "mb": 1e6,
    "gb": 1e9,
    "tb": 1e12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_AGE_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_NUMBER = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?|inf|nan))\s*([a-z]*)", re.I)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">": np.greater,
    ">=": np.greater_equal,
    "<": np.less,
    "<=": np.less_equal,
    "=": np.equal,
    ":": np.equal,
    "!=": np.not_equal,
}
_DTYPE_ALIASES = {
    **{"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16", "fp32": "float32"},
    **{"f32": "float32", "fp64": "float64", "f64": "float64", "double": "float64", "fp8": "float8_*"},
    **{"f8": "float8_*", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8"},
}


class QueryField(NamedTuple):
    """A field of the query language, with an example and a description."""

    name: str
    value_type: Literal["number", "text"]
    example: str
    what: str


_TABLE = (
    QueryField("name", "text", "name:layers.*.attn", "the name, or a pattern of it"),
    QueryField("module", "text", "module:blocks.13", "everything in this module"),
    QueryField("kind", "text", "kind:output", "value, input, output, grad_output, param, local, ..."),
    QueryField("step", "number", "step>137", "the step"),
    QueryField("rank", "number", "rank:0..3", "the process"),
    QueryField("call", "number", "call:0", "how often the name was seen before in its step"),
    QueryField("dtype", "text", "dtype:bf16", "the number type"),
    QueryField("shape", "text", "shape:[*,16,128]", "the shape, one word per axis"),
    QueryField("nbytes", "number", "nbytes>1MB", "the size in bytes"),
    *(QueryField(field.name, "number", field.example, field.what) for field in STATISTIC_COLUMNS),
    QueryField("order", "number", "order<100", "the place in the execution of its step"),
    QueryField("site", "text", "site:model.py", "a part of file, line or function"),
    QueryField("device", "text", "device:cuda*", "where it was"),
    QueryField("type", "text", "type:Parameter", "the class of the value"),
    QueryField("since", "number", "since:2h", "not older than that"),
    QueryField("before", "number", "before:1d", "older than that"),
    QueryField("err", "number", "err>1e-4", "of two runs: the difference, relative to the larger side"),
    QueryField("abs", "number", "abs>1e-3", "of two runs: the largest difference of an element"),
    QueryField("ulp", "number", "ulp>4", "of two runs: in units of the last place"),
    QueryField("cos", "number", "cos>1e-3", "of two runs: one minus the cosine"),
    QueryField("mismatch", "number", "mismatch>0.5", "of two runs: the share of elements that are not close"),
    QueryField("ratio", "number", "ratio>10", "of two runs: times the noise"),
    QueryField("verdict", "text", "verdict:origin", "of two runs: what it was judged to be"),
    QueryField("state", "text", "state:writing", "of runs: whether it is finished"),
    QueryField("command", "text", "command:train.py", "of runs: the command line"),
    QueryField("commit", "text", "commit:3fa9", "of runs: the commit"),
    QueryField("branch", "text", "branch:main", "of runs: the branch"),
    QueryField("model", "text", "model:Llama*", "of runs: the class of the model"),
    QueryField("steps", "number", "steps>100", "of runs: how many steps"),
    QueryField("captures", "number", "captures>1000", "of runs: how many records"),
    QueryField("tag", "text", "tag:lr=3e-4", "of runs: a tag"),
)
_FIELD_ALIASES = {"rel": "err", "bytes": "nbytes", "size": "nbytes", "file": "site", "line": "site"}
FIELDS = {field.name: field for field in _TABLE}
FIELDS |= {word: FIELDS[name] for word, name in _FIELD_ALIASES.items()}
NUMBER_FIELDS = {field.name for field in _TABLE if field.value_type == "number"}
TEXT_FIELDS = {field.name for field in _TABLE if field.value_type == "text"}
_SUBSTRING_FIELDS = {"site", "command", "commit", "tag"}  # match by substring


def word_test(word: str, *, is_quoted: bool = False) -> Callable[[str], bool]:
    """Match a pattern if the word is one, else a case-insensitive substring."""
    if _PATTERN.search(word) and not is_quoted:
        return lambda text: matches_pattern(word, text)
    wanted = word.casefold()
    return lambda text: wanted in text.casefold()


def text_test(field: str, sign: str, value: str) -> Callable[[str], bool]:
    if sign not in (":", "=", "!="):
        raise ValueError(f"{field} is a text, so that {sign} means nothing; write {FIELDS[field].example}")
    test = _alternatives_test(field, value)
    return (lambda text: not test(text)) if sign == "!=" else test


def number_test(field: str, sign: str, value: str) -> Callable[[_Array], _Array]:
    if field in ("since", "before"):
        return _age_test(field, sign, value)
    if sign in (":", "=") and ".." in value:
        low, _, high = value.partition("..")
        ends = (_parse_number(field, low or "-inf"), _parse_number(field, high or "inf"))
        return lambda values: (values >= ends[0]) & (values <= ends[1])
    if sign in (":", "=", "!=") and "," in value:
        wanted = [_parse_number(field, part) for part in value.split(",")]
        return lambda values: np.isin(values, wanted, invert=sign == "!=")
    number, compare = _parse_number(field, value), _COMPARISONS[sign]
    # An unknown number (NaN) does not match != either.
    return lambda values: compare(values, number) & ~np.isnan(values)


def _alternatives_test(field: str, value: str) -> Callable[[str], bool]:
    if field == "shape":
        return _shape_test(value)
    if not value:
        return lambda text: not text
    tests = [
        _single_text_test(field, alternative)
        for alternative in (value.split(",") if "{" not in value else [value])
    ]
    return tests[0] if len(tests) == 1 else lambda text: any(test(text) for test in tests)


def _single_text_test(field: str, value: str) -> Callable[[str], bool]:
    if field == "module":
        inside = re.compile(rf"(?:{pattern_regex(value)})(?:[.\[:@].*)?", re.DOTALL)
        return lambda text: inside.fullmatch(text) is not None
    if field == "name":
        return lambda text: matches_pattern(value, text)
    if field == "dtype":
        value = _DTYPE_ALIASES.get(value.lower(), value)
    if "*" in value:
        pattern = re.compile(
            _regex_with_gaps(".", map(re.escape, value.split("*"))), re.DOTALL | re.IGNORECASE
        )
        return lambda text: pattern.fullmatch(text) is not None
    wanted = value.casefold()
    if field in _SUBSTRING_FIELDS:
        return lambda text: wanted in text.casefold()
    return lambda text: wanted == text.casefold()


def _shape_test(value: str) -> Callable[[str], bool]:
    words = [word.strip() for word in value.strip("[]() ").split(",") if word.strip()]
    for word in words:
        if word not in ("*", "**") and not word.isdecimal():
            raise ValueError(
                f"{word!r} is no size of an axis; write a number, * or **, as in shape:[*,16,128]"
            )
    blocks = [""]
    for word in words:
        if word == "**":
            blocks.append("")
        else:
            blocks[-1] += r"\d+," if word == "*" else f"{word},"
    pattern = re.compile(_regex_with_gaps(r"(?:\d+,)", blocks))
    return lambda text: pattern.fullmatch(f"{text}," if text else "") is not None


def _regex_with_gaps(anything: str, blocks: Iterable[str]) -> str:
    """A regex of blocks with anything between them. The first match of an inner block is as good as a later
    one, so the groups are atomic: else backtracking would be exponential."""
    first, *rest = blocks
    inner = "".join(f"(?>{anything}*?{block})" for block in rest[:-1])
    return f"{first}{inner}{anything}*{rest[-1]}" if rest else first


def _age_test(field: str, sign: str, value: str) -> Callable[[_Array], _Array]:
    if sign not in (":", "="):
        raise ValueError(f"{field} takes a time to look back, as in {FIELDS[field].example}")
    match = _NUMBER.fullmatch(value.strip())
    if match is None or match[2].lower() not in _AGE_UNITS:
        raise ValueError(f"{value!r} is no time; write a number and s, m, h, d or w, as in 2h")
    moment = time.time() - float(match[1]) * _AGE_UNITS[match[2].lower()]
    return (lambda times: times >= moment) if field == "since" else (lambda times: times < moment)


def _parse_number(field: str, text: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    unit = match[2].lower() if match is not None else ""
    if match is None or (unit and (field != "nbytes" or unit not in _SIZE_UNITS)):
        raise ValueError(f"{text!r} is no number; write it as in {FIELDS[field].example}")
    return float(match[1].replace("_", "")) * _SIZE_UNITS[unit]


assert set(_DTYPE_ALIASES.values()) - {"float8_*"} <= DTYPE_TABLE.keys()
