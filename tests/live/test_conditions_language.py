"""The closed language of conditions: what it means, and that nothing else can be said in it."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tensortap.kernels.statistics import statistics
from tensortap.live.conditions_language import MAX_DEPTH, parse_condition


def seen(**values: dict[str, list[float]]):
    return {
        pattern: {name: statistics(np.array(numbers), "float64") for name, numbers in found.items()}
        for pattern, found in values.items()
    }


LAYERS = seen(a={"a.0": [1.0, -3.0], "a.1": [0.5, 0.5]}, b={"b": [2.0]})
TRUE = [
    "absmax(a) > 2.5",
    "absmax(a) >= 3 and max(b) == 2",
    "all(absmax(a) > 0.4)",
    "any(absmax(a) > 2.5)",
    "not all(absmax(a) > 1)",
    "min(a) < -2.9 or min(b) > 100",
    "count(a) == 2",
    "nan(a) == 0 and inf(a) == 0",
    "b > 1.5",
    "norm(a) > std(a)",
    "(mean(a) == -1)",
    "not (mean(b) != 2)",
    "1e0 < b",
]
FALSE = ["absmax(a) > 3", "all(absmax(a) > 1)", "not absmax(a) > 1", "min(b) < 2", "absmax(unseen) > 0"]
WRONG = [
    "",
    "absmax(a)",
    "1 < 2",
    "a >",
    "a > 1 extra",
    "open('x') > 1",
    "__import__('os').system('true') > 1",
    "absmax(a > 1",
    "absmax((a)) > 1",
    "a > (b > 1)",
    "lambda: 1",
    "a > 1; b",
    "a.b[0] = 3",
    "and a > 1",
    "a > 1 and",
    "1__0 > a",
]


@pytest.mark.parametrize("text", TRUE)
def test_what_holds_for_any_match_holds(text):
    assert parse_condition(text).holds(LAYERS)


@pytest.mark.parametrize("text", FALSE)
def test_what_holds_for_no_match_does_not(text):
    assert not parse_condition(text).holds(LAYERS)


@pytest.mark.parametrize("text", WRONG)
def test_what_is_not_of_the_language_is_refused(text):
    with pytest.raises(ValueError, match="condition"):
        parse_condition(text)


def test_an_infinite_value_has_an_infinite_absmax_and_a_nan_is_counted():
    found = seen(a={"a": [1.0, np.inf, np.nan]})
    assert parse_condition("absmax(a) > 1e300 and nan(a) == 1").holds(found)


def test_patterns_keep_their_own_signs():
    found = parse_condition("max(layers.*.{q,k}_proj['x'][0].grad) > 1 and nan(<Linear>.out) > 0")
    assert found.patterns == ("layers.*.{q,k}_proj['x'][0].grad", "<Linear>.out")


@pytest.mark.parametrize(
    "text", ["(" * (MAX_DEPTH + 2) + "a > 1", "not " * (MAX_DEPTH + 2) + "a > 1", "a" * 1001]
)
def test_a_condition_has_a_limit_to_its_depth_and_length(text):
    with pytest.raises(ValueError, match=r"deeper than|parts|letters"):
        parse_condition(text)


def test_only_a_condition_without_not_and_all_can_be_told_before_the_step_ends():
    assert parse_condition("absmax(a) > 1 or nan(b) > 0").is_monotonic
    assert not parse_condition("all(absmax(a) > 1)").is_monotonic
    assert not parse_condition("not absmax(a) > 1").is_monotonic


WORDS = st.sampled_from(
    ["a", "absmax", "(", ")", "<", ">=", "1e3", "and", "or", "not", "all", " ", "-1", "nan(x)"]
)


@given(st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=40).map(" ".join)))
@example("absmax(" * 400)
def test_no_text_does_anything_but_parse_or_be_refused(text):
    try:
        parse_condition(text).holds(LAYERS)
    except ValueError:
        pass
