"""Two runs of real models: planted bugs are located, harmless changes are not alarms."""

import json
import math
import re
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

import tensortap as tt
from tensortap.core.record import Record

LAYER = 1


def layer(model):
    return model.model.layers[LAYER]


def wrong_scale(model):
    layer(model).self_attn.scaling *= 1.05


def wrong_eps(model):
    layer(model).post_attention_layernorm.variance_epsilon = 1e-4


def transposed(model):
    weight = layer(model).self_attn.q_proj.weight
    weight.data = weight.data.T.contiguous()


def leaking(model):
    part = layer(model).mlp.down_proj

    def forward(self, input):
        return functional.linear(input.bfloat16(), self.weight.bfloat16()).to(input.dtype)

    part.forward = types.MethodType(forward, part)


def poisoned(model):
    part = layer(model).mlp.up_proj

    def forward(self, input):
        made = functional.linear(input, self.weight).clone()
        made[0, 3, 5] = math.nan
        return made

    part.forward = types.MethodType(forward, part)


def dropping(model):
    layer(model).self_attn.attention_dropout = 0.1
    layer(model).self_attn.train()


def stale_row(model):
    layer(model).mlp.down_proj.weight.data[5] *= 1.01


BUGS = [
    (wrong_scale, "self_attn", "own code"),
    (wrong_eps, "post_attention_layernorm", "output"),
    (transposed, "self_attn.q_proj", "output"),
    (leaking, "mlp.down_proj", "output"),
    (poisoned, "mlp.up_proj", "output"),
    (dropping, "self_attn", "own code"),
    (stale_row, "mlp.down_proj", "output"),
]


@pytest.mark.parametrize(("bug", "module", "kind"), BUGS, ids=[bug.__name__ for bug, *_ in BUGS])
def test_a_planted_bug_is_located(clean, tokens, captured, bug, module, kind):
    model = clean.copy()
    bug(model)
    found = tt.compare_runs(clean.run, captured(model, tokens), floor=clean.floor)
    assert (found.first.name, found.first.kind) == (f"model.layers.{LAYER}.{module}", kind)
    assert found.first.verdict == ("nonfinite" if bug is poisoned else "origin")
    assert len(found.origins) == 1
    assert found.exit_code == 1


@pytest.mark.parametrize(("bug", "module", "kind"), BUGS[:3], ids=[bug.__name__ for bug, *_ in BUGS[:3]])
def test_it_is_located_under_a_harmless_change_too(clean, llama, tokens, captured, bug, module, kind):
    model = llama("sdpa")
    bug(model)
    found = tt.compare_runs(clean.run, captured(model, tokens), floor=clean.floor)
    assert (found.first.name, found.first.kind) == (f"model.layers.{LAYER}.{module}", kind)


def test_another_attention_kernel_is_noise(clean, llama, tokens, captured):
    found = tt.compare_runs(clean.run, captured(llama("sdpa"), tokens), floor=clean.floor)
    assert found.first is None
    # It has no attention weights and no mask to compare: never green.
    assert found.exit_code == 3
    assert "model.layers.0.self_attn[1]" in {entry.name for entry in found.coverage.only_a}
    assert "INCOMPLETE: within noise" in str(found)


def test_a_split_batch_is_noise(clean, tokens, captured):
    halves = [captured(clean.model, {"input_ids": half}) for half in tokens["input_ids"].split(1)]
    whole = []
    for one, other in zip(halves[0].records, halves[1].records, strict=True):
        is_shared = one.value.shape == next(r.value.shape for r in clean.run.records if r.name == one.name)
        whole.append(one if is_shared else one.with_value(torch.cat([one.value, other.value])))
    found = tt.compare_runs(clean.run, whole, floor=clean.floor)
    assert found.first is None


def test_another_number_of_threads_is_noise(clean, tokens, captured):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        run = captured(clean.model, tokens)
    finally:
        torch.set_num_threads(threads)
    assert tt.compare_runs(clean.run, run, floor=clean.floor).exit_code == 0


def test_the_same_again_is_identical(clean, tokens, captured):
    found = tt.compare_runs(clean.run, captured(clean.model, tokens), floor=clean.floor)
    assert set(found.counts) == {"identical"}
    assert found.is_green


@pytest.mark.parametrize("bug", [wrong_eps, transposed, dropping], ids=lambda bug: bug.__name__)
def test_half_precision_bugs_above_noise_are_located_and_its_noise_is_not(llama, tokens, captured, bug):
    base = llama(dtype=torch.bfloat16)
    floor, run = tt.floor(base, tokens), captured(base, tokens)
    assert tt.compare_runs(run, captured(llama("sdpa", torch.bfloat16), tokens), floor=floor).first is None
    model = llama(dtype=torch.bfloat16)
    bug(model)
    found = tt.compare_runs(run, captured(model, tokens), floor=floor)
    assert found.first.name.startswith(f"model.layers.{LAYER}.")


def test_a_change_of_one_percent_is_found_in_half_precision_where_all_before_is_identical(
    llama, tokens, captured
):
    base, model = (llama(dtype=torch.bfloat16) for _ in range(2))
    layer(model).mlp.up_proj.register_forward_hook(lambda module, inputs, output: output * 1.01)
    found = tt.compare_runs(captured(base, tokens), captured(model, tokens), floor=tt.floor(base, tokens))
    assert found.first.name == f"model.layers.{LAYER}.mlp.up_proj"


def test_without_a_floor_the_answer_says_uncalibrated(clean, llama, tokens, captured):
    found = tt.compare_runs(clean.run, captured(llama("sdpa"), tokens))
    assert found.first is None
    assert found.coverage.uncalibrated == found.coverage.pairs
    assert "uncalibrated" in str(found)
    model = clean.copy()
    wrong_eps(model)
    found = tt.compare_runs(clean.run, captured(model, tokens))
    assert found.first.name == f"model.layers.{LAYER}.post_attention_layernorm"


def test_a_repeated_run_can_be_the_floor(clean, tokens, captured, tmp_path):
    a, again = (captured(clean.model, tokens, to=tmp_path / name).run for name in ("a", "again"))
    model = clean.copy()
    stale_row(model)
    b = captured(model, tokens, to=tmp_path / "b").run
    found = tt.compare_runs(a, b, floor=[again])
    assert found.first.name == f"model.layers.{LAYER}.mlp.down_proj"
    assert found.floor.twins == ("repeat",)
    assert tt.compare_runs(a, b, floor=again).first == found.first


def test_a_floor_may_come_from_a_file(clean, tokens, captured, tmp_path):
    clean.floor.save(tmp_path / "floor.json")
    found = tt.compare_runs(clean.run, captured(clean.model, tokens), floor=tmp_path / "floor.json")
    assert found.floor == clean.floor


def test_weights_that_differ_are_named_before_anything_else(clean, tokens, captured):
    patterns = ("**", "**.in", "**.weight")
    model = clean.copy()
    stale_row(model)
    runs = [captured(one, tokens, *patterns) for one in (clean.model, model)]
    found = tt.compare_runs(*runs, floor=clean.floor)
    name = f"model.layers.{LAYER}.mlp.down_proj"
    weights = next(one for one in found.gate if one.what == "weights")
    assert weights.names == (f"{name}.weight",)
    assert (found.first.name, found.first.kind) == (name, "param")
    lines = str(found).splitlines()
    assert next(i for i, line in enumerate(lines) if line.startswith("! ")) < next(
        i for i, line in enumerate(lines) if line.startswith("DIFFERENT")
    )


def test_other_data_is_no_modules_fault(clean, tokens, captured):
    ids = tokens["input_ids"].clone()
    ids[0, 4] = (ids[0, 4] + 1) % 96
    found = tt.compare_runs(clean.run, captured(clean.model, {"input_ids": ids}), floor=clean.floor)
    assert (found.first.name, found.first.kind, found.first.verdict) == ("in.input_ids", "data", "flip")


class Gate(nn.Module):
    """A router that gives its scores and its decisions."""

    def __init__(self):
        super().__init__()
        self.push = 0.0

    def forward(self, x):
        scores = x + torch.tensor([0.0, self.push, 0.0, 0.0])
        return scores, scores.topk(2).indices


def test_a_decision_that_falls_otherwise_tells_how_narrow_it_was():
    scores = torch.tensor([[1.0, 0.9999999, 0.5, 1.5], [3.0, 1.0, 2.0, 0.0]])
    model, other = Gate(), Gate()
    other.push = 2.5e-7
    runs = []
    for one in (model, other):
        with tt.capture(one, "out", "in") as run:
            one(scores)
        runs.append(run)
    found = tt.compare_runs(*runs)
    tie = next(one for one in found.table if one.name == "out[1]")
    assert tie.verdict == "within noise"
    assert "near ties: out[0] decides by margins of 1.19e-07" in tie.note
    assert found.first is None
    other.push = 5.0
    with tt.capture(other, "out", "in") as run:
        other(scores)
    flip = next(one for one in tt.compare_runs(runs[0], run).table if one.name == "out[1]")
    assert flip.verdict == "flip"
    assert "no near ties: out[0] decides by margins" in flip.note


def test_a_backward_bug_names_the_module(captured):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 1.01

    class Act(nn.Module):
        is_wrong = False

        def forward(self, x):
            return torch.relu(Doubled.apply(x) if self.is_wrong else x)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.act, self.down = nn.Linear(8, 16), Act(), nn.Linear(16, 8)

        def forward(self, x):
            return x + self.down(self.act(self.up(x)))

    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), Block())
    x = torch.randn(6, 8)
    patterns = ("**", "**.in", "**.grad", "**.in.grad", "**.weight.grad")

    def run():
        with tt.capture(model, *patterns) as found:
            model(x).sum().backward()
        model.zero_grad()
        return found

    floor, before = tt.floor(model, x, *patterns), run()
    assert tt.compare_runs(before, run(), floor=floor).exit_code == 0
    model[1].act.is_wrong = True
    found = tt.compare_runs(before, run(), floor=floor)
    assert (found.first.name, found.first.kind) == ("1.act", "backward")
    assert len(found.origins) == 1


def test_names_that_differ_are_mapped(clean, tokens, captured):
    records = [
        one._replace(name=one.name.replace("model.layers.", "net.blocks.")) for one in clean.run.records
    ]
    rules = {"rule": [{"from": "model.layers.*", "to": "net.blocks.*"}]}
    found = tt.compare_runs(clean.run, records, floor=clean.floor, map=rules)
    assert found.is_green
    assert {one.pair.how for one in found.table} == {"name", "map"}


def test_only_some_names_and_steps_can_be_looked_at(clean, tokens, captured):
    model = clean.copy()
    wrong_eps(model)
    run = captured(model, tokens)
    found = tt.compare_runs(clean.run, run, floor=clean.floor, only="model.layers.0.**")
    assert found.is_green
    assert {one.module.split(".")[2] for one in found.table} == {"0"}


def test_a_limit_of_ones_own_counts(clean, llama, tokens, captured):
    run = captured(llama("sdpa"), tokens)
    assert tt.compare_runs(clean.run, run, floor=clean.floor, limit=1e-3).first is not None


def test_a_limit_of_ones_own_counts_without_a_floor_too():
    a, b = {"x": torch.ones(8)}, {"x": torch.ones(8) * 1.01}
    assert tt.compare_runs(a, b).is_different
    found = tt.compare_runs(a, b, limit=2000)
    assert found.is_green
    assert "beyond from 2e+03x on" in str(found)


@pytest.mark.parametrize("limit", [0, -1.0, math.nan, math.inf])
def test_a_limit_that_is_none_is_refused(limit):
    with pytest.raises(ValueError, match="limit is a number above 0"):
        tt.compare_runs({"x": 1.0}, {"x": 1.0}, limit=limit)


def test_what_chooses_nothing_is_told():
    values = {"layers.0": torch.ones(2), "layers.1": torch.ones(2)}
    text = str(tt.compare_runs(values, values, only="layer.*"))
    assert "NOTHING TO COMPARE" in text
    assert "A: none of its 2 values is 'layer.*'; it has 'layers.0', 'layers.1' in step 0 of rank 0" in text
    assert "B: none of its 2 values is of step 3" in str(tt.compare_runs(values, values, step=3))


def test_numbers_without_rows_have_no_worst_row():
    text = str(tt.compare_runs({"x": torch.ones(8)}, {"x": torch.ones(8) * 2}))
    assert "|a - b| is 0.5 of the whole\n" in text
    assert "1 pair: 1 origin" in text


def test_one_pair_has_a_whole_story(clean, tokens, captured):
    model = clean.copy()
    wrong_eps(model)
    found = tt.compare_runs(clean.run, captured(model, tokens), floor=clean.floor)
    name = f"model.layers.{LAYER}.post_attention_layernorm"
    story = found.explain(name)
    for words in (
        "origin",
        "paired by name",
        "float32 [2, 20, 64]",
        "largest",
        "noise (",
        "it shows an origin",
    ):
        assert words in story
    assert f"inherited from {name}" in found.explain(f"model.layers.{LAYER}.mlp.in.x")
    with pytest.raises(tt.UnknownNameError, match="did you mean"):
        found.explain(name + "x")


def test_the_text_fits_one_screen_and_names_everything(clean, tokens, captured):
    model = clean.copy()
    wrong_scale(model)
    text = str(tt.compare_runs(clean.run, captured(model, tokens), floor=clean.floor))
    assert len(text.splitlines()) < 30
    assert f"DIFFERENT from model.layers.{LAYER}.self_attn (LlamaAttention) on: own code" in text
    assert "noise: from repeat, ulp, float64; beyond from 4x on" in text


def test_data_has_a_stable_schema(clean, tokens, captured, tmp_path):
    model = clean.copy()
    poisoned(model)
    found = tt.compare_runs(clean.run, captured(model, tokens), floor=clean.floor)
    found.save(tmp_path / "found.json")
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["schema"] == "tensortap.comparison/1"
    assert set(told) == {
        *("schema", "a", "b", "exit_code", "headline", "first", "origins", "counts", "gate", "coverage"),
        *("floor", "notes", "pairs"),
    }
    assert told["first"]["name"] == found.first.name
    assert told["first"]["ratio"] == "inf"
    assert len(told["pairs"]) == len(found.table)
    assert set(told["pairs"][0]) == {
        *("name", "kind", "step", "rank", "call", "order", "dtype", "shape", "b_name", "how", "score"),
        *("verdict", "ratio", "axis", "note", "source", "noise"),
    }


def test_the_page_is_small_without_scripts_and_escapes_names(tmp_path):
    hostile = "<script>alert(1)</script>"
    a = {f"{hostile}.{i}": torch.full((4, 4), 1.0 + i) for i in range(2000)}
    found = tt.compare_runs(a, {name: value * 1.5 for name, value in a.items()})
    found.save(tmp_path / "found.html")
    page = (tmp_path / "found.html").read_text()
    assert len(page.encode()) <= 200_000
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"\bon\w+=|https?://(?!www\.w3\.org)", page)
    assert found._repr_html_() in page


def test_what_only_one_side_has_is_never_green(clean):
    records = [one for one in clean.run.records if one.name != "lm_head"]
    found = tt.compare_runs(clean.run, records, floor=clean.floor)
    assert found.exit_code == 3
    assert [entry.name for entry in found.coverage.only_a] == ["lm_head"]
    assert not found.is_green


def test_a_damaged_file_costs_its_pairs_and_the_green(tmp_path, clean, tokens):
    runs = []
    for name in ("a", "b"):
        tt.init(str(tmp_path / name))
        tt.dump(torch.ones(4), "good")
        tt.dump(torch.ones(4), "bad")
        tt.close()
        runs.append(next((tmp_path / name).iterdir()))
    damaged = next(runs[1].glob("bad*"))
    damaged.write_bytes(damaged.read_bytes()[:40])
    found = tt.compare_runs(*runs)
    assert {one.name: one.verdict for one in found.table} == {"good": "identical", "bad": "unreadable"}
    assert found.exit_code == 3
    assert "unreadable" in str(found)


def test_nothing_in_common_is_said(tmp_path):
    found = tt.compare_runs({"a": torch.zeros(3)}, {"b": torch.ones(5)})
    assert found.exit_code in (1, 3)
    found = tt.compare_runs({"a": torch.zeros(3)}, {})
    assert found.exit_code == 3
    assert "NOTHING TO COMPARE" in str(found)


def test_objects_without_numbers_are_counted_and_judge_nothing():
    found = tt.compare_runs({"f": print, "x": torch.ones(2)}, {"f": len, "x": torch.ones(2)})
    assert found.coverage.opaque == 1
    assert found.exit_code == 0


def test_objects_without_numbers_alone_are_never_green():
    found = tt.compare_runs({"f": print}, {"f": len})
    assert (found.exit_code, found.is_green) == (3, False)
    assert "INCOMPLETE: nothing of it could be compared" in str(found)
    assert "1 pair is of objects without numbers, and was not judged" in str(found)
    assert tt.compare_runs({"f": print}, {"f": print}).is_green


@pytest.mark.parametrize(
    ("a", "b"),
    [(2**100, 2**100 + 1), (2**100 + 1, 2.0**100), ([2**100, 1], [2**100 + 1, 1]), (5, -(10**400))],
)
def test_integers_of_any_length_are_compared_exactly(a, b):
    for one, other in ((a, b), (b, a)):
        found = tt.compare_runs({"x": one}, {"x": other})
        assert (found.exit_code, found.first.verdict) == (1, "flip")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"executor": 4}, "executor takes an executor of concurrent.futures, .* not 4; without one, threads"),
        ({"executor": "threads"}, "not 'threads'"),
        ({"only": 5}, "only takes a pattern such as .* not 5"),
        ({"only": [5]}, r"not \[5\]"),
        ({"map": lambda name: None}, "the map gives None for 'x'"),
        ({"limit": "a"}, "limit is a number above 0.* not 'a'"),
    ],
    ids=["number-for-executor", "word-for-executor", "only-number", "only-numbers", "map", "limit"],
)
def test_what_nobody_can_answer_is_refused_at_the_door(asked, words):
    with pytest.raises((TypeError, ValueError), match=words):
        tt.compare_runs({"x": torch.ones(2)}, {"x": torch.ones(2)}, **asked)


def test_many_values_that_cannot_be_read_for_one_reason_tell_it_once(tmp_path):
    runs = []
    for name in ("a", "b"):
        sink = tt.RunDirectory(tmp_path / name)
        for order in range(12):
            sink.write(Record(f"x{order}", torch.arange(50.0) + order, order=order))
        sink.close()
        runs.append(tmp_path / name)
    (pack,) = runs[1].glob(".tensortap/packs/*.npz")
    pack.write_bytes(pack.read_bytes()[:900])
    found = tt.compare_runs(*runs)
    assert found.counts["unreadable"] == len(found.coverage.unreadable) > 8
    text = str(found)
    assert text.count("packs/rank0-0000.npz") == 1
    assert re.search(r"gap: 1\d unreadable: x\d+, x\d+, .* more: CorruptRunError: ", text)


def test_records_of_some_ranks_are_not_those_of_all():
    side = [Record("x", torch.ones(2), rank=rank) for rank in (0, 2)]
    found = tt.compare_runs(side, side)
    assert found.exit_code == 3
    assert "A: rank 1 has no records; compare one rank alone by rank=... or --rank" in found.coverage.problems
    assert tt.compare_runs(side, side, rank=2).is_green
    assert tt.compare_runs(side[1:], side[1:]).is_green


def test_a_file_of_an_unknown_sort_tells_all_that_can_be_compared(tmp_path):
    (tmp_path / "a.xyz").write_bytes(b"x")
    with pytest.raises(
        tt.UnknownFormatError, match=r"known are \.pt, .*, \.safetensors, \.h5; register_serializer"
    ):
        tt.compare_runs(tmp_path / "a.xyz", {"x": 1})


def test_what_both_sides_have_to_say_is_said_once():
    model = nn.Sequential(nn.Linear(4, 4))
    sides = []
    for _ in range(2):
        with tt.capture(model, "**", "**.in.grad") as cap:
            model(torch.ones(2, 4)).sum().backward()
        sides.append(cap)
    notes = tt.compare_runs(*sides).notes
    assert any(one.startswith("in.grad was selected and gave no record") for one in notes)
    assert len(notes) == len(set(notes))


def test_a_floor_without_the_type_of_b_is_told(clean, llama, tokens, captured):
    run = captured(llama().bfloat16(), tokens)
    text = str(tt.compare_runs(clean.run, run, floor=clean.floor))
    assert "noise: from repeat, ulp, float64; beyond from 4x on; none of it is of bfloat16, as B is" in text
    floor = tt.floor(clean.copy(), tokens, twins=("ulp", "bfloat16"))
    assert "none of it" not in str(tt.compare_runs(clean.run, run, floor=floor))


def test_another_shape_is_structure():
    found = tt.compare_runs({"x": torch.ones(2, 3)}, {"x": torch.ones(3, 2)})
    assert found.first.verdict == "structure"
    assert str(found).count("shapes differ: [2, 3] against [3, 2]") == 1
