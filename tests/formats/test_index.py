"""The index: every record comes back from it as it went in, whatever happened to other lines."""

import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proof import examples

from tensortap.core.errors import UnknownFormatError
from tensortap.core.patterns import matches_pattern
from tensortap.core.record import Placement, Record, Site
from tensortap.formats import index_columns as module
from tensortap.formats.index import COLUMNS, IndexWriter, format_facts, format_row_end, format_row_start
from tensortap.formats.index_columns import IndexColumns
from tensortap.frameworks.base import Description
from tensortap.readers.stored_record import StoredRecord

any_text = st.text(st.characters(codec=None, categories=None), max_size=20)
whole = st.integers(-(2**70), 2**70)
count = st.integers(0, 2**62)
numbers = whole | st.lists(whole, min_size=1, max_size=3).map(tuple)
few = st.lists(st.integers(0, 2**40), max_size=3).map(tuple)
line = st.text(st.characters(exclude_characters="\t"), max_size=10)
caller = st.text(st.characters(exclude_characters="\t<"), min_size=1, max_size=10)
callers = st.lists(caller, max_size=3).map(tuple)
sites = st.builds(Site, line, line, count, st.integers(0, 100), callers, st.just(0) | count)
placements = st.builds(Placement, few, few, st.lists(any_text, max_size=2).map(tuple), few, few)
records = st.builds(
    Record,
    name=any_text,
    value=st.none(),
    kind=st.sampled_from(
        ["value", "input", "output", "grad_input", "param", "local", "call", "return", "yield", "raise"]
    ),
    step=numbers,
    rank=numbers,
    call=count,
    order=count,
    time=st.floats(0, 4e9),
    site=st.none() | sites,
    placement=st.none() | placements,
)
descriptions = st.builds(Description, any_text, any_text, few, count, any_text)


def _row(record, description=None, **place):
    description = description or Description("Tensor", "float32", (2, 3), 24)
    known = {"file": "x.pt", "suffix": ".pt", "start": 0, "length": 24, "offset": 0, "checksum": None}
    known |= place
    start = format_row_start(record, "torch", description, 24)
    return (start + format_row_end(facts=format_facts(record, None), **known)).encode()


def _write(folder, rows, name="index-rank0.jsonl"):
    writer = IndexWriter(str(folder / name))
    for row in rows:
        writer.append(row)
    writer.close()


def _open(folder):
    return IndexColumns(folder, folder / "cache")


def _stored(columns):
    return [StoredRecord(row, columns, None, None) for row in range(len(columns))]


def _names(columns):
    return [columns.coded["name"][row] for row in range(len(columns))]


@pytest.mark.law
@settings(max_examples=examples(75), deadline=None)
@given(st.lists(st.tuples(records, descriptions), min_size=1, max_size=4))
def test_a_record_comes_back_as_it_went_in(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("own")
    _write(folder, [_row(record, description) for record, description in written])
    columns = _open(folder)
    assert columns.problems == []
    for stored, (record, description) in zip(_stored(columns), written, strict=True):
        for field in ("name", "kind", "step", "rank", "call", "order", "site", "placement"):
            assert getattr(stored, field) == getattr(record, field), field
        for field in ("type", "dtype", "shape", "device"):
            assert getattr(stored, field) == getattr(description, field), field
        assert math.isclose(stored.time, record.time, abs_tol=1e-6)


@pytest.mark.parametrize("step", [(1,), (1, 2), np.int64(3), True, -(2**63), 2**63])
def test_a_step_keeps_its_form(tmp_path, step):
    _write(tmp_path, [_row(Record("x", None, step=step))])
    assert _open(tmp_path).step(0) == step


def test_where_a_value_lies_comes_back(tmp_path):
    place = {"file": 'a"\n/ä.pt', "start": 5, "length": 2**40, "offset": None, "checksum": "xxh3:" + "f" * 16}
    _write(tmp_path, [_row(Record("x", None), **place)])
    (stored,) = _stored(_open(tmp_path))
    assert (stored.file, stored.checksum) == (place["file"], place["checksum"])
    assert int(stored._columns.plain["offset"][0]) == -1
    assert int(stored._columns.plain["length"][0]) == 2**40


# The cache


@pytest.fixture
def eager_cache(monkeypatch):
    monkeypatch.setattr(module, "_MIN_ROWS_TO_CACHE", 1)


def _everything(columns):
    asked = ("name", "kind", "step", "rank", "call", "order", "time", "site", "placement", "shape")
    return [[getattr(stored, fact) for fact in asked] for stored in _stored(columns)]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(records, min_size=1, max_size=5))
def test_the_cache_gives_the_same_answers(tmp_path_factory, written):
    folder = tmp_path_factory.mktemp("own")
    _write(folder, map(_row, written))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MIN_ROWS_TO_CACHE", 1)
        without = _everything(_open(folder))
        assert (folder / "cache" / "columns.npz").exists()
        patch.setattr(module, "read_rows", None)  # nothing is parsed again
        assert _everything(_open(folder)) == without


@pytest.mark.usefixtures("eager_cache")
def test_rows_behind_the_cache_are_added(tmp_path):
    _write(tmp_path, [_row(Record("a", None))])
    _open(tmp_path)
    _write(tmp_path, [_row(Record("b", None, step=(1, 2)))])
    _write(tmp_path, [_row(Record("c", None))], "index-rank1.jsonl")
    assert _names(_open(tmp_path)) == ["a", "b", "c"]
    assert _open(tmp_path).step(1) == (1, 2)


@pytest.mark.usefixtures("eager_cache")
@pytest.mark.parametrize("change", ["replaced", "shorter", "gone"])
def test_a_stale_cache_is_ignored(tmp_path, change):
    _write(tmp_path, [_row(Record("old", None)), _row(Record("older", None))])
    _open(tmp_path)
    (tmp_path / "index-rank0.jsonl").unlink()
    if change == "replaced":
        _write(tmp_path, [_row(Record("new", None))] * 9)
    if change == "shorter":
        _write(tmp_path, [_row(Record("new", None))])
    assert set(_names(_open(tmp_path))) == ({"new"} if change != "gone" else set())


@pytest.mark.usefixtures("eager_cache")
@pytest.mark.parametrize("damage", ["empty", "text", "half", "flipped", "foreign", "other facts", "folder"])
def test_a_cache_that_is_not_ours_is_ignored(tmp_path, damage):
    _write(tmp_path, [_row(Record("a", None))])
    _open(tmp_path)
    cache = tmp_path / "cache" / "columns.npz"
    data = cache.read_bytes()
    if damage == "folder":
        cache.unlink()
        cache.mkdir()
    elif damage == "foreign":
        np.savez(cache, x=np.arange(3))
    elif damage == "other facts":
        np.savez(cache, facts=np.frombuffer(b"[1, 2]", np.uint8))
    else:
        flipped = data[:400] + bytes(50) + data[450:]
        half = data[: len(data) // 2]
        cache.write_bytes({"empty": b"", "text": b"hello", "half": half, "flipped": flipped}[damage])
    assert _names(_open(tmp_path)) == ["a"]


@pytest.mark.usefixtures("eager_cache")
def test_a_folder_that_takes_no_cache_is_read_without(tmp_path):
    _write(tmp_path, [_row(Record("a", None))])
    (tmp_path / "cache").write_text("a file stands in the way")
    assert _names(_open(tmp_path)) == ["a"]


# While it is written, and after accidents


def test_rows_appear_as_they_are_appended(tmp_path):
    columns = _open(tmp_path)
    assert (len(columns), columns.refresh()) == (0, 0)
    writer = IndexWriter(str(tmp_path / "index-rank0.jsonl"))
    for number in range(3):
        writer.append(_row(Record(f"x{number}", None)))
        assert columns.refresh() == 1
    writer.close()
    assert columns.refresh() == 0
    assert _names(columns) == ["x0", "x1", "x2"]


def test_half_a_line_at_the_end_is_not_read_yet(tmp_path):
    _write(tmp_path, [_row(Record("a", None))])
    row = _row(Record("b", None))
    with open(tmp_path / "index-rank0.jsonl", "ab", buffering=0) as file:
        file.write(row[:30])
        columns = _open(tmp_path)
        assert (_names(columns), columns.problems) == (["a"], [])
        file.write(row[30:])
    assert (columns.refresh(), _names(columns)) == (1, ["a", "b"])


def test_a_writer_that_comes_after_a_crash_does_not_continue_half_a_line(tmp_path):
    _write(tmp_path, [_row(Record("a", None))])
    with open(tmp_path / "index-rank0.jsonl", "ab") as file:
        file.write(_row(Record("lost", None))[:30])
    _write(tmp_path, [_row(Record("b", None))])
    columns = _open(tmp_path)
    assert _names(columns) == ["a", "b"]
    assert len(columns.problems) == 1


@pytest.mark.parametrize(
    "damage",
    [b"garbage", b"[1,2", b"[]", b"5", b"{}", b"\xff\xfe\x00", b"null", b"[" + b"1," * 21 + b"1]"],
)
def test_a_damaged_line_is_reported_and_the_rest_is_read(tmp_path, damage):
    _write(tmp_path, [_row(Record("a", None)), damage + b"\n", _row(Record("b", None))])
    columns = _open(tmp_path)
    assert _names(columns) == ["a", "b"]
    assert len(columns.problems) == 1


def test_a_problem_says_where_it_is(tmp_path):
    _write(tmp_path, [_row(Record("a", None))])
    columns = _open(tmp_path)
    at = os.path.getsize(tmp_path / "index-rank0.jsonl")
    _write(tmp_path, [b"oops\n"])
    columns.refresh()
    assert columns.problems == [f"the line at byte {at} of index-rank0.jsonl is damaged"]


def test_a_row_with_a_cell_of_a_wrong_type_costs_only_itself(tmp_path):
    bad = json.loads(_row(Record("bad", None)))
    bad[COLUMNS.index("nbytes")] = "many"
    _write(tmp_path, [_row(Record("a", None)), json.dumps(bad).encode() + b"\n"])
    columns = _open(tmp_path)
    assert _names(columns) == ["a"]
    assert columns.problems == ["1 rows of the index have cells of a wrong type"]


def test_a_damaged_header_is_reported_and_the_rows_are_read(tmp_path):
    _write(tmp_path, [_row(Record("a", None))])
    path = tmp_path / "index-rank0.jsonl"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    columns = _open(tmp_path)
    assert _names(columns) == ["a"]
    assert columns.problems == ["the header of index-rank0.jsonl is damaged"]


def test_columns_that_a_later_version_added_are_passed_over(tmp_path):
    header = json.dumps({"tensortap_index": 1, "columns": ["new", *COLUMNS, "newer"]})
    row = json.dumps([7, *json.loads(_row(Record("a", None, step=3))), {}])
    (tmp_path / "index-rank0.jsonl").write_text(f"{header}\n{row}\n")
    columns = _open(tmp_path)
    assert (_names(columns), columns.step(0), columns.problems) == (["a"], 3, [])


@pytest.mark.parametrize(("version", "columns"), [(2, COLUMNS), (1, ["name", "file"]), ("x", COLUMNS)])
def test_an_index_of_another_version_is_refused_with_a_remedy(tmp_path, version, columns):
    header = json.dumps({"tensortap_index": version, "columns": columns})
    (tmp_path / "index-rank0.jsonl").write_text(f"{header}\n")
    with pytest.raises(
        UnknownFormatError, match=rf"version {version}, .*; upgrade tensortap to read the run"
    ):
        _open(tmp_path)


def test_two_writers_that_begin_at_once_share_a_file(tmp_path):
    path = tmp_path / "index-rank0.jsonl"
    _write(tmp_path, [_row(Record("a", None))])
    header = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(header + path.read_bytes())
    columns = _open(tmp_path)
    assert (_names(columns), columns.problems) == (["a"], [])


def test_a_row_that_finds_no_room_leaves_the_others(tmp_path, monkeypatch):
    writer = IndexWriter(str(tmp_path / "index-rank0.jsonl"))
    writer.append(_row(Record("a", None)))
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:20]))
        with pytest.raises(OSError, match="no space left for the index"):
            writer.append(_row(Record("lost", None)))
    writer.append(_row(Record("b", None)))
    writer.close()
    columns = _open(tmp_path)
    assert (_names(columns), columns.problems) == (["a", "b"], [])


def test_an_empty_run_answers_every_question(tmp_path):
    column = _open(tmp_path).coded["name"]
    assert column.mask_matching("**").tolist() == column.rows_equal("x").tolist() == []


@settings(deadline=None)
@given(st.lists(any_text, max_size=6, unique=True), st.sampled_from(["*", "**", "a*", "{a,b}", ""]))
def test_a_path_selects_what_it_matches(names, path):
    column = module.CodedColumn(np.arange(len(names), dtype=np.int32), names)
    assert column.mask_matching(path).tolist() == [matches_pattern(path, name) for name in names]
