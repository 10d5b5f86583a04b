"""The tables of the guide name everything that there is."""

import re

from tests.docs.pages import ROOT

from tensortap.core import errors, settings


def _first_cells(page: str) -> set[str]:
    return set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / page).read_text(), re.M))


def test_the_page_of_errors_names_each_error() -> None:
    raised = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.TensortapError)
    }
    assert _first_cells("errors.md") == raised - {"TensortapError"}


def test_the_page_of_errors_tells_which_built_in_error_each_one_is() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)`", (ROOT / "docs/errors.md").read_text(), re.M)
    assert len(rows) > 10
    for name, built_in in rows:
        assert built_in in {one.__name__ for one in getattr(errors, name).__mro__}, name


def test_the_page_of_settings_names_each_setting_with_its_default() -> None:
    text = (ROOT / "docs/settings.md").read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\|", text, re.M))
    assert told == settings.DEFAULTS
