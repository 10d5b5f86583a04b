"""Paths select names: one grammar, in which no text is wrong."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensortap.core.patterns import (
    Alternative,
    closest_names,
    items_match,
    matches_pattern,
    natural_sort_key,
    parse_pattern,
    pattern_regex,
    segment_matches,
)

anything = st.text(st.characters(exclude_categories=["Cs"]))
plain = st.text(st.characters(exclude_characters="*{}<>!@[]-.", exclude_categories=["Cs"])).filter(
    lambda name: name not in ("in", "out", "grad")
)
parts = st.text("abc_09", min_size=1)
grammar = st.lists(
    st.sampled_from([*"ab.*!@<>{},-0129[]'\"", "**", ".in", ".out", ".grad", "['k']", "[0]", "[*]", "\n"])
).map("".join)


@pytest.mark.parametrize(
    ("path", "name", "is_match"),
    [
        ("layers.0.mlp", "layers.0.mlp", True),
        ("layers.0.mlp", "layers.00mlp", False),
        ("layers.*.mlp", "layers.17.mlp", True),
        ("layers.*.mlp", "layers.1.2.mlp", False),
        ("layers.**", "layers.1.2.mlp", True),
        ("layers.**", "layers", True),
        ("layers.**", "layers[0]", True),
        ("layers.**", "layersx", False),
        ("**.mlp", "a.b.mlp", True),
        ("**.mlp", "mlp", True),
        ("**.mlp", "xmlp", False),
        ("a.**.b", "a.b", True),
        ("a.**.b", "a.x.y.b", True),
        ("**.**.**.b", "b", True),
        ("a.**.**.b", "a.b", True),
        ("**.a.b.**.c", "a.x.a.b.y.c", True),
        ("**.a.b.**.c", "a.x.b.y.c", False),
        ("layers.{0,2}.mlp", "layers.2.mlp", True),
        ("layers.{0,2}.mlp", "layers.1.mlp", False),
        ("{a*,b}.x", "abc.x", True),
        ("{a,{b,c}d}.x", "cd.x", True),
        ("{a,{b,c}d}.x", "b.x", False),
        ("a{,.b}", "a", True),
        ("x", "x\n", False),
        ("**", "a\nb", False),
        ("a[0]", "a[0]", True),
        ("", "", True),
        ("", "[0]", False),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b*", "xxbxxaxx", False),
        ("a**b*c", "a.b.bxc", True),
        ("***", "a.b", True),
    ],
)
def test_a_path_selects_what_it_says(path, name, is_match):
    assert matches_pattern(path, name) is is_match


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("attn", ["attn", "attn[0]", "attn['k.v'][0]", "attn.out.logits"]),
        ("attn.out", ["attn", "attn[0]", "attn['k.v'][0]", "attn.out.logits"]),
        ("attn.out.logits", ["attn.out.logits"]),
        ("attn[0]", ["attn[0]"]),
        ("attn['k.v']", ["attn['k.v'][0]"]),
        ('attn["k.v"][0]', ["attn['k.v'][0]"]),
        ("attn.out[0]", ["attn[0]"]),
        ("attn[*]", ["attn[0]", "attn['k.v'][0]"]),
        ("attn['k*']", ["attn['k.v'][0]"]),
        ("attn['*.v']", ["attn['k.v'][0]"]),
        ("attn.in", ["attn.in.x", "attn.in.cache[1]", "attn.in.cache.keys"]),
        ("attn.in.x", ["attn.in.x"]),
        ("attn.in.cache", ["attn.in.cache[1]", "attn.in.cache.keys"]),
        ("attn.in.c*", ["attn.in.cache[1]", "attn.in.cache.keys"]),
        ("attn.in.cache[1]", ["attn.in.cache[1]"]),
        ("attn.in.grad", ["attn.in.x.grad"]),
        ("attn.in.x.grad", ["attn.in.x.grad"]),
        ("attn.grad", ["attn.grad", "attn[0].grad"]),
        ("attn[0].grad", ["attn[0].grad"]),
        ("attn[*].grad", ["attn[0].grad"]),
        ("at*", ["attn", "attn[0]", "attn['k.v'][0]", "attn.out.logits"]),
        ("nobody", []),
    ],
)  # fmt: skip
def test_values_their_parts_their_inputs_and_their_gradients_are_told_apart(path, names):
    known = [
        "attn", "attn[0]", "attn['k.v'][0]", "attn.out.logits", "attn.in.x", "attn.in.cache[1]",
        "attn.in.cache.keys", "attn.in.x.grad", "attn.grad", "attn[0].grad", "in", "other.attn",
    ]  # fmt: skip
    assert [name for name in known if re.fullmatch(pattern_regex(path), name)] == names


def test_an_output_may_be_recorded_by_the_longer_name():
    assert [name for name in ("a", "a.out", "a.b", "a.out.x") if matches_pattern("a.out", name)] == [
        "a",
        "a.out",
        "a.out.x",
    ]


def test_every_output_is_neither_input_nor_gradient():
    known = ["a", "a.b", "a.b[0]", "out", "a.in.x", "in.x", "a.grad", "a.b[0].grad", "main.x"]
    assert [name for name in known if matches_pattern("**.out", name)] == [
        "a",
        "a.b",
        "a.b[0]",
        "out",
        "main.x",
    ]


@pytest.mark.parametrize("path", ["!a", "!{a,b}", "!a.*", "!**.a"])
def test_an_exclamation_mark_turns_a_path_around(path):
    for name in ("a", "b", "a.b", "x.a", "other"):
        assert matches_pattern(path, name) is not matches_pattern(path.removeprefix("!"), name)


# Ranges


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(0, 4000))
@example(0, 9, 10)
@example(10, 99, 100)
@example(0, 10_000_000, 9_999_999)
def test_a_range_holds_its_numbers_and_no_other(low, high, number):
    is_inside = low <= number <= high
    assert segment_matches(f"{low}-{high}", str(number)) is is_inside
    assert matches_pattern(f"layers.{low}-{high}.mlp", f"layers.{number}.mlp") is is_inside


def test_a_range_takes_zeros_in_front_and_itself():
    assert matches_pattern("shards.5-12", "shards.0007")
    assert matches_pattern("2024-01", "2024-01")
    assert not matches_pattern("0-5", "²")
    assert not matches_pattern("0-5", "٣")
    assert not matches_pattern("0-5", "")


def test_a_wide_range_is_a_short_expression():
    assert len(pattern_regex("0-999999999999999999")) < 2000
    assert len(pattern_regex("123456789-987654321")) < 2000


# Calls


@pytest.mark.parametrize(
    ("path", "call", "body"),
    [
        ("attn@2", 2, "attn"),
        ("attn@2.in.x", 2, "attn.in.x"),
        ("attn@2[0]", 2, "attn[0]"),
        ("attn[0]@2", 2, "attn[0]"),
        ("!attn@0", 0, "attn"),
        ("{q,k}@1", 1, "{q,k}"),
        ("attn['a@2.b']", None, "attn['a@2.b']"),
        ("attn['a@2']@3", 3, "attn['a@2']"),
        ("user@host", None, "user@host"),
        ("attn@2x", None, "attn@2x"),
        ("attn@", None, "attn@"),
    ],
)
def test_a_call_is_read_where_a_part_ends(path, call, body):
    pattern = parse_pattern(path)
    assert (pattern.call, pattern.body) == (call, body)


# Items


@pytest.mark.parametrize(
    ("items", "found", "is_match"),
    [
        ("", "[0]", True),
        ("[0]", "[0]", True),
        ("[0]", "[0]['k']", True),
        ("[0]", "[0].keys", True),
        ("[0]", "[01]", False),
        ("['k']", "['k'][3]", True),
        ("['k']", "['kk']", False),
        ("[*]", "['a.b]']", True),
        ("[*]", '["it\'s"][1]', True),
        ("[*][1]", "[0][1]", True),
        ("[*][1]", "[0][0]", False),
        ("['a*']", "['a.b']", True),
        ("['a*']", "['b']", False),
        (".log*", ".logits", True),
        (".log*", ".hidden", False),
        ("[1*]", "[12]", True),
        ("[0]", "[0]\n", False),
        ("['a\nb']", "['a\nb'][0]", True),
    ],
)
def test_items_select_a_part_and_what_lies_within(items, found, is_match):
    assert items_match(items, found) is is_match


def test_a_key_may_be_quoted_either_way():
    assert parse_pattern('a["k"][(1,2)]').alternatives == (Alternative(("a",), "['k'][(1, 2)]"),)
    assert parse_pattern('a["it\'s"]').alternatives == (Alternative(("a",), '["it\'s"]'),)
    assert parse_pattern(r"a['\d']").alternatives == (Alternative(("a",), r"['\d']"),)


def test_what_follows_the_items_belongs_to_them():
    assert parse_pattern("a.b[0].keys.grad").alternatives == (
        Alternative(("a", "b"), "[0].keys", is_gradient_of_items=True),
    )
    assert parse_pattern("a[0.b").alternatives == (Alternative(("a[0", "b")),)


# Classes


def test_a_class_is_matched_by_any_of_its_names():
    classes = ("LoraLinear", "Linear", "Module", "object")
    assert segment_matches("<Linear>", "q", classes)
    assert segment_matches("<*Linear>", "q", classes)
    assert segment_matches("<Lora*>", "q", classes)
    assert not segment_matches("<Line>", "q", classes)
    assert not segment_matches("<>", "q", classes)
    assert segment_matches("<Linear>", "<Linear>")
    assert not segment_matches("<Linear>", "Linear")


# Laws


@given(anything)
def test_a_name_without_wildcards_matches_itself(name):
    assert matches_pattern(name, name)


@given(plain, plain)
@example("a", "in")
@example("a", "a ")
@example("x", "X")
def test_a_plain_path_matches_nothing_else(path, name):
    assert matches_pattern(path, name) is (path == name)


@given(st.lists(parts, min_size=1), st.data())
def test_a_star_stands_for_exactly_one_part(names, data):
    at = data.draw(st.integers(0, len(names) - 1))
    path = ".".join([*names[:at], "*", *names[at + 1 :]])
    assert matches_pattern(path, ".".join(names))
    assert not matches_pattern(path, ".".join([*names, "more"]))


@given(st.lists(parts, min_size=1))
def test_two_stars_match_every_name(names):
    assert matches_pattern("**", ".".join(names))


@given(
    st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1), st.lists(st.sampled_from("abc"), min_size=1)
)
def test_any_depth_is_any_number_of_parts(path, names):
    """Held against a matcher that tries every way."""
    assert matches_pattern(".".join(path), ".".join(names)) is _fits(path, names)


def _fits(path, names):
    if not path:
        return not names
    if path[0] == "**":
        return any(_fits(path[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and path[0] in ("*", names[0]) and _fits(path[1:], names[1:])


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_stars_within_a_part_are_any_letters(path, name):
    path = re.sub(r"\*+", "*", path)
    simple = "".join(".*" if letter == "*" else letter for letter in path)
    assert segment_matches(path, name) is (re.fullmatch(simple, name) is not None)


@given(st.one_of(anything, grammar), st.one_of(anything, grammar))
@example("a@" + "9" * 5000, "a")
@example("0-" + "9" * 5000, "1")
@example("[" + "-" * 900 + "1]", "a")
@example("[" + "(" * 900 + "]", "a")
@example("['\\d\\N{x}\\x']", "a")
@example("[\x00]", "a")
@example("<", ">")
def test_no_path_is_a_broken_expression(path, name):
    pattern = parse_pattern(path)
    re.compile(pattern_regex(path))
    matches_pattern(path, name)
    for way in pattern.alternatives:
        items_match(way.items, name)
        for segment in way.segments:
            segment_matches(segment, name, [name])


@pytest.mark.parametrize(
    "path", ["{a,b}" * 40, "{" + "," * 5000 + "}" + "{" + "," * 5000 + "}", "{a,b}" * 11 + "x" * 100_000]
)
def test_braces_that_stand_for_too_much_are_letters(path):
    ways = parse_pattern(path).alternatives
    assert len(ways) <= 4096
    assert sum(len(segment) for way in ways for segment in way.segments) <= 2 << 20
    assert "{" in ways[0].segments[0]


def test_many_choices_are_all_made():
    assert len(parse_pattern("{a,b}" * 12).alternatives) == 4096
    assert len(parse_pattern("{a,a}{,}").alternatives) == 1


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("**." + "a.**." * 12 + "b", "a." * 150),
        ("*a" * 20 + "*b", "a" * 300),
        ("**" + "a**" * 20 + "b", "a" * 300),
    ],
)
def test_many_stars_do_not_try_a_long_name_in_every_way(path, name):
    assert not matches_pattern(path, name)


def test_numbers_inside_names_sort_as_numbers():
    names = ["layers.10.w", "layers.2.w", "layers.1.w", "head"]
    assert sorted(names, key=natural_sort_key) == ["head", "layers.1.w", "layers.2.w", "layers.10.w"]


@given(st.lists(st.text()))
@example(["9" * 5000, "1"])
def test_any_names_can_be_sorted(names):
    assert sorted(sorted(names, key=natural_sort_key)) == sorted(names)


def test_the_nearest_names_are_found():
    assert closest_names("layer.0", ["layers.0", "head", "layers.1"])[0] == "layers.0"
    assert closest_names("x", []) == []
