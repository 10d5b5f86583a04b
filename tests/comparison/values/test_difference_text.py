"""What `difference` found reads well in a terminal and in a notebook."""

import numpy as np
import torch

from tensortap.comparison.values.compare import difference
from tensortap.kernels.accumulator import LargestDifference


def spoilt(count=37):
    a = np.ones((32, 32), np.float32)
    b = a.copy()
    b.flat[np.arange(count) * 20] = 1.125
    b[3, 7] = 1.25
    a[3, 7] = 1.5
    return a, b


def first_line(a, b, **options):
    return str(difference(a, b, **options)).splitlines()[0]


def test_equal_values_are_one_sentence():
    values = [np.zeros((400, 670), np.float32)] * 12
    assert str(difference(values, values)) == (
        "equal within atol=1e-08, rtol=1e-05: 12 arrays, 3.2 M numbers"
    )
    assert str(difference(1, 1)) == "equal within atol=1e-08, rtol=1e-05: 1 value"
    assert str(difference([], [])) == "equal within atol=1e-08, rtol=1e-05: 0 values"
    assert first_line({"a": np.ones(1), "b": "x"}, {"a": np.ones(1), "b": "x"}, atol=0.5) == (
        "equal within atol=0.5, rtol=1e-05: 1 array, 1 number, 1 other value"
    )


def test_the_first_sentence_states_the_answer():
    assert first_line(*spoilt(36)) == (
        "different: 37 of 1,024 numbers (3.6 %) beyond atol + rtol*|b|; "
        "largest |a - b| = 0.25 at [3, 7]: 1.5 against 1.25"
    )


def test_a_leaf_is_named_by_its_path():
    a, b = spoilt()
    assert "largest |a - b| = 0.25 at ['w'][3, 7]: 1.5 against 1.25" in first_line({"w": a}, {"w": b})


def test_what_does_not_fit_comes_first():
    assert first_line(np.ones(3), np.ones((1, 3))) == "different: shapes differ: [3] against [1, 3]"
    assert first_line("a", "b") == "different: 'a' against 'b'"
    assert first_line({"a": 1, "b": 2}, {"a": 1, "c": 2}) == (
        "different: 2 of 3 values do not match, first ['b']: only in a"
    )


def test_numbers_that_look_alike_are_shown_in_full():
    assert "1.0 against 1.0000000000001" in first_line(1.0, 1.0000000000001, atol=0, rtol=0)
    assert "1152921504606846976 against 1152921504606846977" in first_line(2**60, 2**60 + 1)


def test_nan_on_both_sides_comes_with_the_remedy():
    nan = np.array([np.nan, 1.0])
    assert first_line(nan, nan) == (
        "different: 1 of 2 numbers (50 %) beyond atol + rtol*|b|; "
        "1 NaN on both sides (equal_nan=True takes them as equal)"
    )
    assert "1 NaN or infinite on one side, not the same on the other" in first_line(nan, np.ones(2))


def test_the_table_has_aligned_columns():
    a, b = spoilt(36)
    lines = str(difference({"w": a, "s": "x"}, {"w": torch.from_numpy(b).double()})).splitlines()
    starts = [
        lines[1].index(heading) for heading in ("A", "B", "mismatches", "max |a", "max rel", "NaN", "Inf")
    ]
    assert [lines[3][start - 2 : start] for start in starts] == ["  "] * 7
    assert lines[2].split("  ")[0] == "['s']"
    assert lines[2].endswith("  only in a")
    assert " ".join(lines[3].split()) == (
        "['w'] ndarray float32 [32, 32] Tensor float64 [32, 32] 37 (3.6 %) "
        "0.25 at [3, 7]: 1.5 against 1.25 0.2 0|0 0|0"
    )


def test_many_leaves_are_folded_worst_first():
    a = [np.ones(4) for _ in range(40)]
    b = [np.ones(4) + (i if i >= 10 else 0) for i in range(40)]
    lines = str(difference(a, b)).splitlines()
    assert len(lines) == 23
    assert lines[2].startswith("[39] ")
    assert lines[-1] == "... and 10 more that differ, 10 the same"


def test_differences_within_the_tolerance_are_shown_too():
    lines = str(difference(np.ones(2), np.ones(2) + 1e-9)).splitlines()
    assert lines[0].startswith("equal within")
    assert "0 (0 %)" in lines[2]


def test_odd_keys_stay_on_one_line_of_ascii():
    text = str(difference({"é\n": 1}, {"é\n": 2}))
    assert text.isascii()
    assert r"['\xe9\n']" in text


def test_the_page_is_escaped_and_runs_nothing():
    page = difference({"<script>": 1}, {"<script>": 2})._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert page.startswith("<p>different: 1 of 1 number (100 %)")


def test_the_page_has_the_rows_of_the_table():
    page = difference({"a": np.ones(2), "b": 1}, {"a": np.zeros(2)})._repr_html_()
    assert page.count("<tr>") == 3
    assert '<td colspan="5">only in a</td>' in page


def test_the_worst_leaf_is_at_hand():
    a, b = spoilt()
    found = difference({"x": np.ones(2), "w": a}, {"x": np.ones(2), "w": b})
    assert not found.equal
    assert found.worst.path == "['w']"
    assert found.worst.numbers.absolute == LargestDifference(0.25, (3, 7), 1.5, 1.25)
    assert [leaf.is_equal for leaf in found.leaves] == [True, False]
    assert difference(1, 1).worst is None


def test_types_that_differ_are_noted_and_not_counted():
    found = difference(np.ones(2, np.float32), torch.ones(2, dtype=torch.bfloat16))
    assert found.equal
    assert (found.leaves[0].a.dtype, found.leaves[0].b.dtype) == ("float32", "bfloat16")
