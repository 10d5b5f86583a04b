"""Records, series, settings and errors."""

import inspect

import numpy as np
import pytest

from tensortap.core import errors, settings
from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.record import Record, Series

ALL_ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.TensortapError) and kind is not errors.TensortapError
]


def test_a_record_does_not_change():
    with pytest.raises(AttributeError):
        Record("x", 1).value = 2


def test_a_record_shows_what_it_is_and_never_all_its_numbers():
    array = np.zeros((300, 4), np.float32)
    assert repr(Record("a.b", array, "output", step=3, call=1)) == (
        "<Record 'a.b' output float32[300, 4] step 3 call 1>"
    )
    assert repr(Record("loss", 0.5)) == "<Record 'loss' value 0.5>"
    assert repr(Record("pair", ["a"] * 9)) == "<Record 'pair' value list>"


def test_a_series_keeps_records_as_columns_under_both_words():
    series = Series("x")
    series.add(Record("x", 1.5, step=3, rank=1))
    assert (series.values, series.steps, series.ranks, len(series)) == ([1.5], [3], [1], 1)
    assert series.iterations is series.steps


def test_two_series_share_nothing():
    first, second = Series("a"), Series("b")
    first.values.append(1)
    assert second.values == []


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_every_error_is_also_a_built_in_one_and_shows_its_sentence(kind):
    error = kind("no record 'x'; there is 'y'")
    assert str(error) == "no record 'x'; there is 'y'"
    assert isinstance(error, errors.TensortapError)
    assert any(parent.__module__ == "builtins" and parent not in (Exception, BaseException, object)
               for parent in kind.__mro__)  # fmt: skip


def test_an_error_with_an_errno_keeps_it():
    error = errors.WriteFailedError(28, "disk full", "file")
    assert error.errno == 28
    assert "disk full" in str(error)


@pytest.mark.parametrize(("value", "is_on"), [(None, True), ("", True), ("1", True), ("0", False)])
def test_zero_turns_everything_off(monkeypatch, value, is_on):
    monkeypatch.delenv("TENSORTAP", raising=False)
    if value is not None:
        monkeypatch.setenv("TENSORTAP", value)
    assert settings.is_on() is is_on


def test_an_unknown_setting_is_a_mistake_of_ours():
    with pytest.raises(KeyError):
        settings.setting("TENSORTAP_NO_SUCH")


def test_a_setting_is_read_when_asked(monkeypatch):
    monkeypatch.setenv("TENSORTAP_TZ", "UTC")
    assert settings.setting("TENSORTAP_TZ") == "UTC"
    monkeypatch.delenv("TENSORTAP_TZ")
    assert settings.setting("TENSORTAP_TZ") == "Asia/Shanghai"


def test_every_number_type_knows_its_width():
    widths = {row.name: row.itemsize for row in DTYPE_TABLE.values()}
    assert (widths["bool"], widths["bfloat16"], widths["complex32"], widths["complex128"]) == (1, 2, 4, 16)
