"""Paths select names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.core.paths import matches, nearest, regex, sort_key

plain = st.text(st.characters(exclude_characters="*{}", exclude_categories=["Cs"]))
parts = st.text("abc_09", min_size=1)


@pytest.mark.parametrize(
    ("path", "name", "is_match"),
    [
        ("layers.0.mlp", "layers.0.mlp", True),
        ("layers.0.mlp", "layers.00mlp", False),
        ("layers.*.mlp", "layers.17.mlp", True),
        ("layers.*.mlp", "layers.1.2.mlp", False),
        ("layers.**", "layers.1.2.mlp", True),
        ("**.mlp", "a.b.mlp", True),
        ("layers.{0,2}.mlp", "layers.2.mlp", True),
        ("layers.{0,2}.mlp", "layers.1.mlp", False),
        ("{a*,b}.x", "abc.x", True),
        ("x", "x\n", False),
        ("**", "a\nb", False),
        ("a[0]", "a[0]", True),
        ("", "", True),
    ],
)
def test_a_path_selects_what_it_says(path, name, is_match):
    assert matches(path, name) is is_match


@given(plain)
def test_a_name_without_wildcards_matches_itself(name):
    assert matches(name, name)


@given(plain, plain)
def test_a_plain_path_matches_nothing_else(path, name):
    assert matches(path, name) is (path == name)


@given(st.lists(parts, min_size=1), st.data())
def test_a_star_stands_for_exactly_one_part(names, data):
    at = data.draw(st.integers(0, len(names) - 1))
    path = ".".join([*names[:at], "*", *names[at + 1 :]])
    assert matches(path, ".".join(names))
    assert not matches(path, ".".join([*names, "more"]))


@given(st.lists(parts, min_size=1))
def test_two_stars_match_every_name(names):
    assert matches("**", ".".join(names))


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_no_path_is_a_broken_expression(path, name):
    regex(path)
    matches(path, name)


def test_numbers_inside_names_sort_as_numbers():
    names = ["layers.10.w", "layers.2.w", "layers.1.w", "head"]
    assert sorted(names, key=sort_key) == ["head", "layers.1.w", "layers.2.w", "layers.10.w"]


@given(st.lists(st.text()))
def test_any_names_can_be_sorted(names):
    assert sorted(sorted(names, key=sort_key)) == sorted(names)


def test_the_nearest_names_are_found():
    assert nearest("layer.0", ["layers.0", "head", "layers.1"])[0] == "layers.0"
    assert nearest("x", []) == []
