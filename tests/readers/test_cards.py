"""What a notebook shows of records and series: static, escaped, small."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.core.record import Site, cards, render_card

_MOST = 200_000


class Seen(HTMLParser):
    """The tags and the words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words += data


def shown(thing: Any) -> Seen:
    text = thing._repr_html_()
    assert len(text.encode()) <= _MOST
    return Seen(text)


def test_a_record_shows_a_picture_a_histogram_and_its_numbers() -> None:
    seen = shown(tt.Record("layers.0", torch.arange(-4.0, 4.0).reshape(2, 4), "output", step=7))
    assert {"img", "svg", "table"} <= set(seen.tags)
    assert "layers.0" in seen.words
    assert "output, step 7, rank 0" in seen.words
    assert "float32[2, 4] 32 B" in seen.words
    assert "-4" in seen.words


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "complex64", "bool", "int64", "float16"])
def test_every_number_type_has_a_card(dtype: str) -> None:
    seen = shown(tt.Record("x", torch.ones(3, 5).to(getattr(torch, dtype))))
    assert f"{dtype}[3, 5]" in seen.words
    assert "img" in seen.tags


def test_what_is_not_finite_is_counted_and_marked() -> None:
    text = tt.Record("x", np.array([1.0, np.nan, np.inf, np.nan]))._repr_html_()
    assert text is not None
    assert re.search(r'class="tt-bad">NaN</th><td>2<', text)
    assert re.search(r'class="tt-bad">Inf</th><td>1<', text)


@pytest.mark.parametrize(
    "value",
    [torch.zeros(0, 3), torch.tensor(2.5), torch.zeros(3, device="meta"), None, {"a": [1]}, "text", 3],
    ids=["empty", "no dimension", "meta", "none", "dict", "text", "number"],
)
def test_odd_values_have_a_card_too(value: Any) -> None:
    assert "x" in shown(tt.Record("x", value)).words


def test_a_sparse_tensor_is_told_in_words() -> None:
    seen = shown(tt.Record("x", torch.eye(3).to_sparse()))
    assert "img" not in seen.tags


def test_a_value_whose_repr_fails_is_named_by_its_class() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert "Broken" in shown(tt.Record("x", Broken())).words


def test_a_name_is_text_whatever_it_holds() -> None:
    seen = shown(tt.Record("<script>alert(1)</script>", torch.ones(2), site=Site("<b>", "a&b.py", 3)))
    assert "script" not in seen.tags
    assert "b" not in seen.tags
    assert "<script>alert(1)</script>" in seen.words
    assert "a&b.py:3 in <b>" in seen.words


def test_a_card_is_small_however_long_the_name_and_large_the_value() -> None:
    seen = shown(tt.Record("n" * 100_000, np.broadcast_to(np.float32(1), (1 << 15, 1 << 15))))
    assert "sampled: one in" in seen.words


def test_a_series_shows_how_it_goes_over_the_steps() -> None:
    series = tt.Series("loss", [torch.full((3,), float(at)) for at in range(20)], list(range(20)), [0] * 20)
    seen = shown(series)
    assert "20 values, steps 0 to 19, ranks 0" in seen.words
    assert {"polygon", "polyline"} <= set(seen.tags)


def test_a_series_of_many_values_stays_small() -> None:
    shown(tt.Series("loss", [np.float64(at) for at in range(50_000)], list(range(50_000)), [0] * 50_000))


def test_an_empty_series_says_so() -> None:
    assert "0 values, steps none" in shown(tt.Series("loss")).words


def test_a_record_on_disk_has_the_same_card(tmp_path: Path) -> None:
    with tt.Tap(sinks=[tt.RunDirectory(tmp_path / "run")]) as tap:
        tap.emit(tt.Record("x", torch.arange(6.0).reshape(2, 3)))
        tap.emit(tt.Record("settings", {"a": 1}))
    run = tt.Run(tmp_path / "run")
    assert "float32[2, 3] 24 B" in shown(run.find("x")).words
    assert "settings" in shown(run.find("settings")).words


def test_a_kind_that_nobody_draws_has_no_card() -> None:
    class Other: ...

    assert render_card(Other()) is None
    cards.add(Other, lambda one: "drawn")
    try:
        assert render_card(Other()) == "drawn"
    finally:
        cards.remove(Other)


def test_a_run_of_long_names_is_a_small_table(tmp_path: Path) -> None:
    with tt.Tap(sinks=[tt.RunDirectory(tmp_path / "run")]) as tap:
        for at in range(30):
            tap.emit(tt.Record(f"{at}" + "n" * 50_000, np.ones(2)))
    seen = shown(tt.Run(tmp_path / "run"))
    assert seen.tags.count("tr") == 22


def test_a_comparison_of_many_values_is_a_small_table() -> None:
    sides = [{f"layers.{at}": np.ones(4) * (1 + at * shift) for at in range(5_000)} for shift in (0.0, 0.01)]
    assert "DIFFERENT" in shown(tt.compare_runs(*sides)).words
