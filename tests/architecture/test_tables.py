"""One table for one fact: what is listed once is known everywhere."""

import importlib
import tomllib
from pathlib import Path

import pytest

from tensortap.cli.commands.doctor import _EXTRAS
from tensortap.core.dtypes import ARRAY_LIBRARIES
from tensortap.core.launchers import LAUNCHERS, is_launcher_variable
from tensortap.core.ranks import RankInfo, from_launcher
from tensortap.kernels.statistics import STATISTIC_COLUMNS, STATISTIC_FIELDS, Statistics
from tensortap.live.conditions_language import FUNCTIONS
from tensortap.metadata.process import is_launcher
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


@pytest.mark.parametrize("library", ARRAY_LIBRARIES)
def test_an_array_library_of_the_table_has_a_home_and_an_extra(library):
    home = importlib.import_module(f"tensortap.frameworks.{library.name}")
    assert home.FRAMEWORK.name == library.name
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert library.name in project["optional-dependencies"]
    assert (library.name in _EXTRAS) is library.is_optional


@pytest.mark.parametrize("launcher", LAUNCHERS, ids=lambda launcher: launcher.commands[0])
def test_a_launcher_of_the_table_says_the_rank_and_is_known_by_its_command(launcher, monkeypatch):
    for rank, world in launcher.ranks:
        with monkeypatch.context() as environment:
            environment.setenv(rank, "1")
            environment.setenv(world, "2")
            assert from_launcher() == RankInfo(1, 2)
        assert is_launcher_variable(rank) is launcher.can_rerun
    assert all(
        is_launcher(["python", "-m", command] if "." in command else [command])
        for command in launcher.commands
    )
