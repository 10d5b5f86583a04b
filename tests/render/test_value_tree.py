"""How captured values are shown: the rows, the folding tree as text, and the same tree as HTML."""

import io
import os
import re
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.kernels.statistics import statistics
from tensortap.render.value_rows import ValueRow, value_row, value_rows
from tensortap.render.value_tree import MAX_LINES, render_value_tree, stream_limits
from tensortap.render.value_tree_html import render_value_tree_html

GOLDEN = Path(__file__).parent.parent / "golden"
# Read here because every test starts without the variables of this package.
REWRITES = os.environ.get("TENSORTAP_GOLDEN") == "write"
HIDDEN, WIDE = (2, 16, 64), (2, 16, 256)
CLASSES = {f"h.{layer}": "Block" for layer in range(12)}


def row(name, kind="output", shape=HIDDEN, sigma=1.0, **more):
    told = {"dtype": "float32", "device": "cpu", "count": int(np.prod(shape)), "mean": 0.0}
    numbers = {
        "low": -3.5 * sigma,
        "high": 4.25 * sigma,
        "sigma": sigma,
        "histogram": (1, 2, 4, 8, 9, 8, 4, 2, 1, 0),
    }
    return ValueRow(name, kind, shape=shape, **{**told, **numbers, **more})


def block(layer, **more):
    sigma = 1 + layer / 8
    return [
        row(f"h.{layer}.norm", **more),
        row(f"h.{layer}.attn.project", sigma=0.25 * sigma, **more),
        row(f"h.{layer}.attn[0]", sigma=0.25 * sigma, **more),
        row(f"h.{layer}.mlp.widen", shape=WIDE, **more),
        row(f"h.{layer}.mlp", sigma=0.5 * sigma, **more),
        row(f"h.{layer}", sigma=sigma, **more),
    ]


def model(layers=12):
    ids = row("in.ids", "input", (2, 16), 14.4, dtype="int64", low=3, high=4798)
    body = [each for layer in range(layers) for each in block(layer)]
    return [ids, row("embed"), *body, row("head", shape=(2, 16, 500)), row("out.logits", shape=(2, 16, 500))]


def broken(rows, names, **more):
    return [replace(each, **more) if re.fullmatch(names, each.name) else each for each in rows]


def with_nan():
    spread = broken(model(), r"h\.7\.(attn.*|mlp.*)|h\.7|h\.(8|9|1\d)\b.*|head|out\.logits", nan=64)
    return broken(spread, r"h\.7\.attn\.project", nan=3)


def training():
    rows = []
    for step in range(4):
        rows += [row("in.x", "input", (8, 4), step=step), row("in.mask", "input", (8,), inf=2, step=step)]
        rows += [
            row("encoder.out.state", shape=(8, 4), step=step),
            row("encoder.out.weights", shape=(8, 8), step=step),
        ]
        rows += [
            row("encoder.cell", shape=(8, 4), sigma=1 / (call + 1), step=step, call=call) for call in range(3)
        ]
        rows += [row("encoder.weight", "param", (4, 4), 0.02, step=step)]
        rows += [row("encoder.weight.grad", "param", (4, 4), 1e-5 / (step + 1), step=step)]
        rows += [ValueRow("loss", step=step, dtype="float", low=8 / (step + 1), high=8 / (step + 1), count=1)]
    return [*rows[:-2], replace(rows[-2], nan=5), rows[-1]]


GOLDENS = {
    "tree.txt": lambda: render_value_tree(
        model(), "Decoder", [(f"h.{i}.cross", "not called") for i in range(12)], classes=CLASSES
    ),
    "tree_nan.txt": lambda: render_value_tree(with_nan(), "Decoder", classes=CLASSES),
    "tree_nan_60_ascii.txt": lambda: render_value_tree(
        with_nan(), "Decoder", width=60, ascii=True, classes=CLASSES
    ),
    "tree_training.txt": lambda: render_value_tree(training(), "Encoder"),
    "tree_nan.html": lambda: render_value_tree_html(
        with_nan(), "Decoder", [("h.3.cross", "not called")], classes=CLASSES
    ),
}


@pytest.mark.parametrize("file", GOLDENS)
def test_what_is_meant_for_eyes_looks_as_it_was_approved(file):
    shown = GOLDENS[file]() + "\n"
    if REWRITES:
        (GOLDEN / file).write_text(shown, encoding="utf-8")
    assert shown == (GOLDEN / file).read_text(encoding="utf-8")


def line_of(text, label):
    (found,) = [
        line for line in text.splitlines() if re.search(rf"(?<![\w.]){re.escape(label)}(?![\w.\[])", line)
    ]
    return found


def test_twelve_equal_layers_are_one_line_with_the_sigma_of_the_first_and_the_last():
    text = render_value_tree(model(), classes=CLASSES)
    assert re.search(r"h\.0-11  x12 Block +-> .*s 1\.00 -> 2\.38", text)
    assert text.count("mlp") == 1


def test_layers_of_different_classes_are_not_folded():
    rows = [row(f"net.{at}") for at in range(4)]
    classes = {"net.0": "Linear", "net.1": "ReLU", "net.2": "Linear", "net.3": "ReLU"}
    text = render_value_tree(rows, classes=classes)
    assert "net.0,2  x2 Linear" in text
    assert "net.1,3  x2 ReLU" in text


def test_a_layer_with_a_nan_is_never_folded_and_the_first_one_is_named():
    text = render_value_tree(broken(model(), r"h\.7\.attn\.project", nan=3))
    assert "h.0-6,8-11  x11" in text
    assert "! attn.project: 3 NaN (first in run), -1.64 .. 1.99" in line_of(text, "h.7")
    assert text.count("first in run") == 2  # the line of the layer, and the value in it
    assert "! 1 with NaN or Inf, first h.7.attn.project" in text


def test_first_in_the_run_is_first_in_time_not_in_the_tree():
    rows = broken(model(2), r"h\.[01]\.norm", nan=1)
    text = render_value_tree([*reversed(rows)])
    assert "first in run" in line_of(text, "h.1")
    assert "first in run" not in line_of(text, "h.0")


def test_every_layer_after_the_first_nan_has_its_own_line():
    text = render_value_tree(with_nan())
    for layer in (8, 9, 10, 11):
        assert "! norm: 64 NaN, -3.50 .. 4.25; 5 more values" in line_of(text, f"h.{layer}")


def test_a_layer_with_another_shape_is_told_against_the_others():
    rows = broken(model(), r"h\.5\.mlp\.widen", shape=(2, 16, 128))
    text = render_value_tree(rows)
    assert "! mlp.widen: f32[2,16,128], others f32[2,16,256]" in line_of(text, "h.5")
    assert "h.0-4,6-11  x11" in text


def test_a_layer_of_another_type_is_told_against_the_others():
    text = render_value_tree(broken(model(), r"h\.5\.norm", dtype="bfloat16"))
    assert "! norm: bf16[2,16,64], others f32[2,16,64]" in line_of(text, "h.5")


def test_a_layer_on_another_device_is_told_against_the_others():
    text = render_value_tree(broken(model(), r"h\.5\b.*", device="cuda:1"))
    assert "! norm: f32[2,16,64] cuda:1, others f32[2,16,64] cpu" in line_of(text, "h.5")


def test_two_kinds_of_layers_in_turn_are_a_pattern_and_nothing_unusual():
    rows = broken(model(), r"h\.(1|3|5|7|9|11)\.norm", shape=(2, 64))
    text = render_value_tree(rows)
    assert "!" not in text
    assert "h.0,2,4,6,8,10  x6" in text


def test_a_mask_with_the_same_infinities_in_every_layer_does_not_unfold_them():
    masks = [row(f"h.{layer}.in.mask", "input", (16, 16), inf=120) for layer in range(12)]
    text = render_value_tree(sorted(model() + masks, key=lambda each: each.name.startswith("out")))
    assert "h.0-11  x12" in text
    assert "! <- [16,16]" in line_of(text, "mask")
    assert "120 Inf each" in line_of(text, "mask")


def test_type_and_device_are_said_only_where_they_are_not_the_usual_ones():
    text = render_value_tree([row("a"), row("b"), row("c", dtype="bfloat16"), row("d", device="cuda:1")])
    assert text.startswith("4 values, f32 on cpu\n")
    assert "-> [2,16,64]  " in line_of(text, "a")
    assert "-> bf16[2,16,64]" in line_of(text, "c")
    assert "-> [2,16,64] cuda:1" in line_of(text, "d")


def test_a_shape_is_left_out_only_below_a_neighbour_or_a_parent_with_the_same():
    text = render_value_tree([row("a.b.c"), row("a.b"), row("a"), row("d"), row("e")])
    shapes = {label: "[2,16,64]" in line_of(text, label) for label in "abcde"}
    assert shapes == {"a": True, "b": False, "c": False, "d": True, "e": False}


def test_several_calls_of_one_name_are_one_line():
    text = render_value_tree(
        [row("a"), row("b"), *(row("cell", sigma=call + 1.0, call=call) for call in range(3))]
    )
    assert re.search(r"-10\.5 \.\. 12\.8 +s 1\.00 -> 3\.00  x3 calls", line_of(text, "cell"))


def test_several_steps_of_everything_are_said_once_above():
    text = render_value_tree([row(name, step=step) for step in range(10) for name in "ab"])
    assert text.splitlines()[0] == "20 values, steps 0-9, f32 on cpu"
    assert "steps" not in line_of(text, "a")


def test_a_nan_in_one_of_many_steps_has_its_own_line_below_the_rest():
    rows = [row("a", step=step, nan=int(step == 3)) for step in range(5)]
    text = render_value_tree(rows)
    assert "step 3" in text
    assert "! 1 NaN (first in run)" in line_of(text, "step 3")


def test_shapes_that_change_from_call_to_call_are_a_range():
    rows = [row("cell", shape=(1, length, 8), call=call) for call, length in enumerate((5, 1, 1))]
    assert "[1,1..5,8]" in render_value_tree(rows)


def test_several_ranks_are_told():
    assert "ranks 0-3" in render_value_tree([row("a", rank=rank) for rank in range(4)])


def test_single_numbers_show_where_they_went():
    rows = [
        ValueRow("loss", dtype="float", low=low, high=low, count=1, step=at)
        for at, low in enumerate((8.0, 2.0))
    ]
    assert re.search(r"= +float +2\.00 \.\. 8\.00 +8\.00 -> 2\.00", render_value_tree(rows))


def test_inputs_outputs_parts_parameters_and_gradients_stand_under_their_module():
    rows = [
        row("layer.in.x", "input"),
        row("layer[0]"),
        row("layer['k']"),
        row("layer[0].grad", "grad_output"),
    ]
    rows += [row("layer.weight", "param"), row("layer.weight.grad", "param")]
    _, module, *lines = render_value_tree(rows).splitlines()
    assert module == "└─ layer"
    assert [line.strip("─├└│ ").split()[:2] for line in lines] == [
        ["x", "<-"],
        ["[0]", "->"],
        ["['k']", "->"],
        ["[0].grad", "->"],
        ["weight", "="],
        ["weight.grad", "="],
    ]


def test_a_path_without_values_is_no_line_of_its_own():
    text = render_value_tree([row(f"body.layers.{layer}.mlp") for layer in range(12)])
    assert re.fullmatch(r"12 values, .*\n└─ body\.layers\.0-11\.mlp  x12 +-> .*", text)


def test_lists_within_lists_fold_from_the_very_first_to_the_very_last():
    rows = [row(f"layers.{at}.experts.{of}", sigma=1.0 + at + of / 4) for at in range(3) for of in range(4)]
    assert re.search(r"layers\.0-2\.experts\.0-3  x12 .*s 1\.00 -> 3\.75", render_value_tree(rows))


def test_over_several_steps_folded_layers_are_compared_at_the_last():
    rows = [row(f"h.{at}", sigma=1.0 + at + 10 * step, step=step) for step in range(2) for at in range(3)]
    assert "s 11.0 -> 13.0" in render_value_tree(rows)


def test_digits_without_end_and_one_row_given_twice_are_no_trouble():
    twice = row("h.1", nan=1)
    assert "9" * 5000 in render_value_tree([row("h.0"), twice, twice, row("9" * 5000, "value")])


def test_a_module_named_out_is_a_module():
    text = render_value_tree([row("attn.out.bias_free"), row("attn.out"), row("attn")])
    assert line_of(text, "bias_free").startswith("   ")
    assert "logits" in line_of(render_value_tree([row("encoder.out.logits")]), "encoder.logits")


def test_what_a_manual_tap_calls_its_value_stays_whole():
    text = render_value_tree([row("lr = 0.1, momentum 0.9", "value")])
    assert "lr = 0.1, momentum 0.9" in text


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_shortens_names_but_no_number_of_an_unusual_line(width):
    rows = with_nan()
    whole, narrow = render_value_tree(rows).splitlines(), render_value_tree(rows, width=width).splitlines()
    for full, short in zip(whole, narrow, strict=True):
        if "! " in full and "NaN" in full:
            assert re.findall(r"\d+ NaN.*", full) == re.findall(r"\d+ NaN.*", short)
        else:
            assert len(short) <= width


def test_a_pipe_is_never_cut():
    name = "a" * 300
    assert name in render_value_tree([row(name)])
    assert name not in render_value_tree([row(name)], width=80)


def test_ascii_is_ascii_whatever_the_names_hold():
    text = render_value_tree([row("größe"), *with_nan()], "Modell Ä", ascii=True)
    assert text.isascii()
    assert "|- " in text
    assert "'- " in text


def test_a_line_break_in_a_name_does_not_break_the_line():
    assert len(render_value_tree([row("a\nb\x1b[31m", "value")]).splitlines()) == 2


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def test_the_encoding_decides_about_boxes_and_the_terminal_about_the_width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "97")
    assert stream_limits(io.TextIOWrapper(io.BytesIO(), "utf-8")) == (None, False)
    assert stream_limits(io.TextIOWrapper(io.BytesIO(), "latin-1")) == (None, True)
    assert stream_limits(Terminal(io.BytesIO(), "utf-8")) == (97, False)
    assert stream_limits(Terminal(io.BytesIO(), "ascii")) == (97, True)
    assert stream_limits(io.StringIO()) == (None, False)
    assert stream_limits(None) == (None, False)


def test_missing_names_with_one_reason_are_one_line():
    missing = [(f"h.{layer}.mlp.{part}", "not called") for layer in range(12) for part in range(2)]
    text = render_value_tree([row("a")], missing=[*missing, ("h.3.norm", "scripted")])
    assert text.splitlines()[-2:] == ["missing: h.0-11.mlp.0-1 - not called", "missing: h.3.norm - scripted"]


def test_an_empty_capture_is_one_sentence():
    assert render_value_tree([]) == "nothing was captured"
    assert render_value_tree([], "GPT2") == "GPT2: nothing was captured"
    assert "GPT2: nothing was captured" in render_value_tree_html([], "GPT2", ())


def test_the_tree_is_bounded():
    rows = [row(f"name{at}") for at in range(MAX_LINES + 10)]
    lines = render_value_tree(rows).splitlines()
    assert len(lines) == MAX_LINES + 2
    assert lines[-1] == "... 10 more lines"
    assert render_value_tree_html(rows, "", ()).count("<div>") == MAX_LINES


def test_a_very_deep_name_is_shown():
    assert ".".join("a" * 5) in render_value_tree([row(".".join("a" * 5000))])


class Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.seen.add(tag)
        assert not [name for name, _ in attributes if name.startswith("on") or name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        self.seen.add(tag)


def test_html_is_well_nested_self_contained_and_has_no_script():
    parser = Balanced()
    parser.feed(
        render_value_tree_html(
            with_nan(), "<script>alert(1)</script>", [("<img src=x>", "<b>")], classes=CLASSES
        )
    )
    assert parser.open == []
    assert parser.seen <= {"div", "style", "p", "b", "i", "details", "summary", "svg", "path"}


def test_every_text_in_html_is_escaped():
    evil = "<script>alert('&')</script>"
    rows = [row(evil, "value", dtype=evil, note=evil), row("net.0"), row("net.1")]
    page = render_value_tree_html(
        [*rows, row("x", nan=1)], evil, [(evil, evil)], classes={"net.0": evil, "net.1": evil}
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6


def test_html_has_ten_bars_and_marks_the_unusual_by_a_sign():
    full = tuple(range(1, 11))
    page = render_value_tree_html([row("a", histogram=full), row("b", nan=2)], "", ())
    (bars, *_) = re.findall(r'<path d="([^"]*)"', page)
    assert bars.count("M") == 10
    assert "<b>!</b>" in page


def test_the_html_of_a_broken_twelve_layer_model_is_small():
    assert len(render_value_tree_html(with_nan(), "Decoder", (), classes=CLASSES)) < 200_000


def told(value, **options):
    return value_row(Record("x", value), **options)


def test_a_row_has_the_statistics_of_its_tensor():
    values = torch.arange(12.0).view(3, 4)
    row = told(values, histogram=True)
    assert (row.dtype, row.shape, row.device) == ("float32", (3, 4), "cpu")
    assert (row.low, row.high, row.mean, row.count) == (0, 11, 5.5, 12)
    assert row.sigma == pytest.approx(values.std(correction=0).item())
    assert row.histogram == tuple(np.histogram(values.numpy(), 10)[0])
    assert told(values).histogram is None


def test_a_row_keeps_where_and_when():
    row = value_row(Record("x", 1.5, "local", step=3, rank=2, call=1))
    assert (row.name, row.kind, row.step, row.rank, row.call, row.low) == ("x", "local", 3, 2, 1, 1.5)


def test_kept_statistics_give_the_same_row_as_the_tensor():
    values = torch.tensor([1.0, 2.0, torch.nan, torch.inf])
    found = statistics(framework_of(values).bits(values), "float32")
    names = ("min", "max", "mean", "std", "norm", "nan", "inf", "count")
    kept = SimpleNamespace(
        **{name: getattr(found, name) for name in names}, shape=(4,), dtype="float32", device="cpu"
    )
    assert told(kept) == told(values)
    assert replace(told(found), dtype="float32", shape=(4,), device="cpu") == told(values)


def test_kept_statistics_may_be_tensors():
    kept = SimpleNamespace(
        min=torch.tensor(-1.0),
        max=torch.tensor(torch.nan),
        mean=0.0,
        std=1.0,
        norm=2.0,
        nan=0,
        inf=0,
        count=4,
    )
    assert (told(kept).low, told(kept).high) == (-1.0, None)


class Hostile:
    @property
    def min(self):
        raise RuntimeError("this object cannot be asked\nanything")


def odd_values():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the end of quantized tensors and csr's beginning
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        sparse = torch.eye(3).to_sparse_csr()
    return {
        "meta": (torch.empty(3, device="meta"), "no values (meta)"),
        "sparse": (torch.eye(3).to_sparse(), "sparse_coo"),
        "csr": (sparse, "sparse_csr"),
        "quantized": (quantized, "quantized"),
        "empty": (torch.empty(0, 3), "empty"),
        "text": (np.array(["a"]), "not numbers"),
        "objects": (np.array([None]), "object"),
        "complex": (torch.tensor([3 + 4j]), "absolute values"),
        "hostile": (Hostile(), "cannot be read: this object cannot be asked anything"),
        "nan only": (torch.full((3,), torch.nan), ""),
        "fp8": (torch.ones(3).to(torch.float8_e4m3fn), ""),
        "bool": (torch.tensor([True, False]), ""),
        "0-d": (torch.tensor(2.5), ""),
        "huge": (10**5000, ""),
        "nan number": (float("nan"), ""),
        "none": (None, ""),
        "list": ([torch.ones(3)], ""),
    }


@pytest.mark.parametrize("kind", odd_values())
def test_any_value_has_a_row_and_every_row_is_shown(kind):
    value, note = odd_values()[kind]
    row = told(value, histogram=True)
    assert row.note == note
    assert note in render_value_tree([row])
    assert "x" in render_value_tree_html([row], "", ())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (torch.full((3,), torch.nan), "! =  [3]  all NaN (first in run)"),
        (torch.tensor([True, False, True, True]), "75% true"),
        (torch.tensor(2.5), "[]  2.50"),
        (torch.zeros(4), "all 0"),
        (torch.tensor([3 + 4j]), "5.00"),
        (7, "int  7"),
        (True, "bool  True"),
        (float("inf"), "1 Inf"),
        (None, "NoneType"),
        (2**4000, "2^4000+"),
        (np.array([1, 30_000_000]), "1 .. 3.00e7"),
        (np.array([1.25e-7, 1234.5]), "1.25e-7 .. 1.23e3"),
    ],
)
def test_a_value_is_shown_by_what_matters_about_it(value, shown):
    assert shown in render_value_tree([told(value)])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64, np.uint8, np.bool_, np.complex64])
def test_a_histogram_counts_every_finite_number(dtype):
    values = np.array([0, 1, 1, 5, 9], dtype)
    assert sum(told(values, histogram=True).histogram) == 5


def test_a_histogram_survives_the_largest_numbers_and_leaves_out_what_is_not_finite():
    values = np.array([-1.7e308, 1.7e308, np.nan, np.inf])
    assert told(values, histogram=True).histogram == (1, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    assert told(np.full(4, 3.0), histogram=True).histogram == (0, 0, 0, 0, 0, 4, 0, 0, 0, 0)


def test_a_real_model_folds():
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))
    records, x = [], torch.linspace(-1, 1, 16).view(2, 8)
    for at, layer in enumerate(layers):
        x = layer(x)
        records.append(Record(f"layers.{at}", x, "output"))
    text = render_value_tree(value_rows(records))
    assert re.search(r"layers\.0-3  x4 +-> \[2,8\]", text)
