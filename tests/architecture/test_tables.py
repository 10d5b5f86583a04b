"""One table for one fact: what is listed once is known everywhere."""

import pytest

from tensortap.kernels.statistics import STATISTIC_COLUMNS, STATISTIC_FIELDS, Statistics
from tensortap.live.conditions_language import FUNCTIONS
from tensortap.readers.query.fields import FIELDS
from tensortap.viewer.data.cached_run import SORTS, StatisticsColumns
from tensortap.viewer.data.tensor import statistics_facts

SUMMARY = Statistics(4, -3, 2, 0.5, 1.0, 4.0, 1, 0)


@pytest.mark.parametrize("field", STATISTIC_FIELDS)
def test_a_statistic_of_the_table_is_a_live_function_and_on_the_page(field):
    assert FUNCTIONS[field.name](SUMMARY) == field.read(SUMMARY)
    assert statistics_facts(SUMMARY)[field.name] == field.read(SUMMARY)


@pytest.mark.parametrize("field", STATISTIC_COLUMNS)
def test_a_statistic_with_an_example_is_a_field_of_queries_and_a_column_of_the_viewer(field):
    assert (FIELDS[field.name].example, FIELDS[field.name].what) == (field.example, field.what)
    columns = StatisticsColumns()
    columns.grow(1)
    columns.put(0, SUMMARY)
    assert columns.columns[field.name][0] == field.read(SUMMARY)
    assert field.name in SORTS
