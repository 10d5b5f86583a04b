"""The query language: words about records, the same on the page, the command line and in Python."""

import contextlib
import fnmatch
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensortap as tt
from tensortap.core.record import Record, Site
from tensortap.readers.query.fields import FIELDS
from tensortap.readers.query.parser import QueryError, parse_query

NAMES = ["layers.0.attn", "layers.1.attn", "layers.10.mlp", "head", "pkg.mod:func.x"]


@pytest.fixture
def run(written):
    site = Site("forward", "/code/model.py", 212)
    records = [
        Record(
            name,
            np.zeros((order + 1, 16), "f4" if order % 2 else "f8"),
            "output" if order else "input",
            step,
            rank=step % 2,
            order=order,
            time=1e9,
            site=site if order == 1 else None,
        )
        for step in range(4)
        for order, name in enumerate(NAMES)
    ]
    return tt.Run(written(*records))


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 20),
        ("attn", 8),
        ("ATTN", 8),
        ("attn step>1", 4),
        ("attn|head", 12),
        ("attn head", 0),
        ("-attn", 12),
        ("-(attn|head)", 8),
        ("(attn step:0)|head", 6),
        ("layers.*.attn", 8),
        ("layers.0-1.attn", 8),
        ("name:layers.0.attn", 4),
        ("module:layers.1", 4),
        ("module:layers", 12),
        ("pkg.mod:func.x", 4),
        ("step:1..2", 10),
        ("step:..1", 10),
        ("step:0,3", 10),
        ("step!=0", 15),
        ("rank:1 step>=2", 5),
        ("kind:input", 4),
        ("kind!=input", 16),
        ("dtype:f64", 12),
        ("dtype:float*", 20),
        ("shape:[*,16]", 20),
        ("shape:[2,16]", 4),
        ("shape:[**,16]", 20),
        ("shape:[2]", 0),
        ("nbytes>0.2kB", 12),
        ("site:model.py", 4),
        ('"layers.1"', 8),
        ("since:1h", 0),
        ("before:1h", 20),
        ("nan>0", 0),
        ("nan=0", 0),
        ("order<2 -step:0", 6),
    ],
)
def test_a_query_means_these_records(run, query, count):
    assert len(run.query(query)) == count


def test_queries_narrow_each_other_and_filters(run):
    assert len(run.query("attn").query("step:0")) == 2
    assert len(run.filter("layers.0.attn").query("step>0").filter(step=2)) == 1


def test_statistics_that_were_written_with_the_values_can_be_asked_for(tmp_path):
    sink = tt.RunDirectory(tmp_path / "run", stats=True)
    for name, number in (("a", 1.0), ("b", -5.0), ("c", np.nan)):
        sink.write(Record(name, np.full(4, number, "f4")))
    sink.close()
    run = tt.Run(tmp_path / "run")
    assert run.query("absmax>2").names == ["b"]
    assert run.query("nan>0").names == ["c"]
    assert run.query("mean<0").names == ["b"]


@pytest.mark.parametrize(
    ("query", "at", "words"),
    [
        ("attn stp>3", 5, "did you mean 'step'?"),
        ("nothing>3", 0, "there is no field 'nothing'"),
        ("step>many", 5, "is no number"),
        ("dtype>3", 6, "is a text"),
        ("shape:[a]", 6, "is no size of an axis"),
        ("since:2x", 6, "is no time"),
        ("step>3kB", 5, "is no number"),
        ('a "b', 2, "never closed"),
        ("a (b", 2, "never closed"),
        ("a) b", 1, "closes nothing"),
        ("a|", 2, "a word is missing"),
        ("shape:[1,2", 10, "] is missing"),
        ("-" * 100 + "a", 33, "too deep"),
        ("a" * 3000, 2000, "too long"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(query, at, words):
    with pytest.raises(QueryError) as caught:
        parse_query(query)
    assert words in str(caught.value)
    assert caught.value.at == at


@given(st.text(alphabet="ab()|-\"'[]{}<>:=!*.,@0123456789 stepnanshape", max_size=60))
def test_any_text_is_read_or_refused_in_words(text):
    with contextlib.suppress(QueryError):
        assert parse_query(text).fields <= {field.name for field in FIELDS.values()}


def test_every_field_has_an_example_that_can_be_read():
    for field in FIELDS.values():
        assert parse_query(field.example).fields == {field.name}


class _Table:
    """One column of texts, whatever the field."""

    def __init__(self, *texts):
        self._texts = list(texts)

    def __len__(self):
        return len(self._texts)

    def texts(self, field):
        return np.arange(len(self)), self._texts

    def numbers(self, field):
        return None


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("type:" + "*a" * 30 + "*b", "a" * 4000),
        ("site:" + "*a" * 30 + "*b", "a" * 4000),
        ("shape:[" + "**,1," * 20 + "2]", ",".join("1" * 300)),
    ],
)
def test_a_query_with_many_stars_is_answered_at_once(query, text):
    before = time.process_time()
    assert not parse_query(query).mask(_Table(text)).any()
    assert time.process_time() - before < 2


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_stars_in_a_text_stand_for_any_letters(pattern, text):
    if "*" in pattern:
        wanted = fnmatch.fnmatchcase(text, pattern)
        assert parse_query(f"type:{pattern}").mask(_Table(text)).tolist() == [wanted]


@given(st.lists(st.sampled_from(["*", "**", "1", "22"]), max_size=6), st.lists(st.sampled_from([1, 2, 22])))
def test_stars_in_a_shape_stand_for_axes(words, sizes):
    def fits(words, sizes):
        if not words:
            return not sizes
        if words[0] == "**":
            return any(fits(words[1:], sizes[start:]) for start in range(len(sizes) + 1))
        return bool(sizes) and words[0] in ("*", str(sizes[0])) and fits(words[1:], sizes[1:])

    table = _Table(",".join(map(str, sizes)))
    assert parse_query(f"shape:[{','.join(words)}]").mask(table).tolist() == [fits(words, sizes)]
