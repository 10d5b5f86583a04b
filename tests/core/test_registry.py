"""A registry: parts by a call, by a class, and by an installed entry point."""

import logging

import pytest

from tensortap.core.registry import Registry


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs a distribution whose entry points are the given lines."""

    def install(what, *lines, module="plugin_parts", code="PART = (('.abc', '.abd'), 'from the plug-in')"):
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tensortap.{what}]\n" + "\n".join(lines))
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


def test_the_part_added_last_wins():
    parts = Registry("things")
    parts.add("a", 1)
    parts.add(("a", "b"), 2)
    assert (parts.get("a"), parts.get("b"), parts.get("c")) == (2, 2, None)


def test_the_nearest_class_answers():
    parts = Registry("things")
    parts.add(object, "any")
    parts.add(int, "int")
    assert (parts.for_type(bool), parts.for_type(str)) == ("int", "any")


def test_a_real_entry_point_is_loaded_when_first_missed(installed):
    installed("things", "mine = plugin_parts:PART")
    parts = Registry("things")
    parts.add(".own", "own")
    assert parts.get(".own") == "own"
    assert parts.get(".abd") == "from the plug-in"
    assert sorted(set(parts.plugins())) == ["from the plug-in", "own"]


def test_an_entry_point_does_not_replace_what_was_added_by_hand(installed):
    installed("things", "mine = plugin_parts:PART")
    parts = Registry("things")
    parts.add(".abc", "own")
    assert parts.get(".abd") == "from the plug-in"
    assert parts.get(".abc") == "own"


def test_a_broken_plug_in_is_logged_and_the_others_load(installed, caplog):
    installed("things", "bad = plugin_gone:PART", "odd = plugin_odd:ODD", "good = plugin_odd:PART",
              module="plugin_odd", code="ODD = 3\nPART = ('k', 'good')")  # fmt: skip
    parts = Registry("things")
    with caplog.at_level(logging.ERROR, "tensortap.registry"):
        assert parts.get("k") == "good"
    assert [record.args[0] for record in caplog.records] == ["bad", "odd"]
