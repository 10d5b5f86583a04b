"""Each part of a model gets what a reference had: every fault shows at once, and nothing is inherited."""

import copy
import functools
import importlib.util
import types
from pathlib import Path

import pytest
import torch
from tests.proof import sampled
from torch import nn

import tensortap as tt

EXAMPLE = Path(__file__).parents[2] / "examples" / "align.py"
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small models gain nothing by more, and beside other tests they lose."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def own():
    """The Llama of the example, and the map to the one of transformers."""
    spec = importlib.util.spec_from_file_location("align_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mixtral(attention="eager"):
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        attn_implementation=attention,
        experts_implementation="eager",
    )
    return MixtralForCausalLM(config)


def gpt2(attention="eager"):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 64}
    config = GPT2Config(vocab_size=96, bos_token_id=0, eos_token_id=0, attn_implementation=attention, **sizes)
    return GPT2LMHeadModel(config)


@pytest.fixture(scope="module")
def build(llama):
    def made(kind, dtype="float32", attention="eager"):
        if kind == "llama":
            return llama(attention, TYPES[dtype])
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return {"mixtral": mixtral, "gpt2": gpt2}[kind](attention).eval().to(TYPES[dtype])

    return made


def scaled(path, size=1.05):
    """A fault in what a module gives."""

    def plant(model):
        module = model.get_submodule(path)
        original = module.forward

        @functools.wraps(original)
        def forward(*given, **named):
            made = original(*given, **named)
            return (made[0] * size, *made[1:]) if isinstance(made, tuple) else made * size

        module.forward = forward

    return path, plant


def weaker(path):
    """A fault in a weight: one row of it is stale."""

    def plant(model):
        with torch.no_grad():
            model.get_submodule(path).weight[3] *= 0.5

    return path, plant


def sharper(path):
    """A fault between the parts of attention."""

    def plant(model):
        model.get_submodule(path).scaling *= 4

    return path, plant


BUGS = {
    "llama": [
        scaled("model.layers.0.mlp"),
        weaker("model.layers.1.self_attn.v_proj"),
        sharper("model.layers.2.self_attn"),
        scaled("model.norm"),
    ],
    "mixtral": [
        weaker("model.layers.0.self_attn.o_proj"),
        scaled("model.layers.1.mlp.experts"),
        sharper("model.layers.2.self_attn"),
    ],
    "gpt2": [
        scaled("transformer.h.0.ln_1"),
        sharper("transformer.h.1.attn"),
        scaled("transformer.h.2.mlp.c_proj"),
    ],
}


def names(found):
    return [origin.name for origin in found.origins]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", sampled([1, 2, 3], [3]))
@pytest.mark.parametrize("kind", BUGS)
def test_all_faults_are_found_at_once_and_nothing_else(build, tokens, kind, count, dtype):
    planted = BUGS[kind][:count]
    candidate = build(kind, dtype)
    for _, plant in planted:
        plant(candidate)
    found = tt.align(build(kind, dtype), candidate, tokens)
    assert names(found) == [path for path, _ in planted]
    assert found.exit_code == 1
    assert not found.coverage.uncalibrated


@pytest.mark.parametrize("kind", BUGS)
@pytest.mark.parametrize(
    ("dtype", "other", "attention"),
    [
        ("float32", "float32", "sdpa"),
        ("bfloat16", "bfloat16", "sdpa"),
        ("float32", "bfloat16", "eager"),
        ("float32", "bfloat16", "sdpa"),
        ("bfloat16", "float32", "eager"),
    ],
)
def test_harmless_changes_have_no_origin(build, tokens, kind, dtype, other, attention):
    found = tt.align(build(kind, dtype), build(kind, other, attention), tokens)
    assert names(found) == []
    assert found.coverage.pairs > 80


def test_a_model_against_itself_is_identical(build, tokens):
    found = tt.align(build("llama"), build("llama"), tokens)
    assert set(found.counts) == {"identical"}
    assert found.is_green


def test_faults_are_found_across_types(build, tokens):
    candidate = build("llama", "bfloat16")
    for _, plant in BUGS["llama"]:
        plant(candidate)
    found = tt.align(build("llama"), candidate, tokens)
    assert names(found) == [path for path, _ in BUGS["llama"]]


def test_a_fault_between_the_parts_is_told_from_one_in_a_part(build, tokens):
    candidate = build("llama")
    BUGS["llama"][1][1](candidate), BUGS["llama"][2][1](candidate)
    kinds = {origin.name: origin.kind for origin in tt.align(build("llama"), candidate, tokens).origins}
    assert kinds == {"model.layers.1.self_attn.v_proj": "output", "model.layers.2.self_attn": "own code"}


def test_weights_that_differ_are_told_beside_the_origin(build, tokens):
    candidate = build("llama")
    BUGS["llama"][1][1](candidate)
    (origin,) = tt.align(build("llama"), candidate, tokens).origins
    assert origin.note == "its weights differ: model.layers.1.self_attn.v_proj.weight"


@pytest.mark.parametrize("dtype", TYPES)
def test_a_run_on_disk_is_as_good_as_the_model(build, tokens, captured, tmp_path, dtype):
    run = captured(build("llama", dtype), tokens, to=tmp_path).run
    candidate = build("llama", dtype)
    for _, plant in BUGS["llama"]:
        plant(candidate)
    assert names(tt.align(run, candidate, tokens)) == [path for path, _ in BUGS["llama"]]
    assert tt.align(run, build("llama", dtype), tokens).is_green


def test_a_capture_can_be_the_reference(build, tokens, captured):
    candidate = build("gpt2")
    BUGS["gpt2"][1][1](candidate)
    found = tt.align(captured(build("gpt2"), tokens), candidate, tokens)
    assert names(found) == ["transformer.h.1.attn"]


def test_dropout_that_was_left_on_is_a_fault(build, tokens, captured):
    candidate = build("gpt2")
    candidate.transformer.h[1].mlp.dropout.train()
    for reference in (build("gpt2"), captured(build("gpt2"), tokens)):
        assert names(tt.align(reference, candidate, tokens)) == ["transformer.h.1.mlp.dropout"]


def test_nan_is_found_where_it_is_made(build, tokens):
    candidate = build("llama")
    scaled("model.layers.1.mlp", float("nan"))[1](candidate)
    (origin,) = tt.align(build("llama"), candidate, tokens).origins
    assert (origin.name, origin.verdict) == ("model.layers.1.mlp", "nonfinite")


def test_an_own_llama_is_the_one_of_transformers(own):
    source = own.trusted()
    found = tt.align(source, own.ported(source), (own.TOKENS,), map=own.MAP)
    assert found.is_green
    assert found.coverage.pairs == 80
    assert "uncalibrated" not in str(found)


def test_faults_of_an_own_llama_are_named_in_both_languages(own):
    source = own.trusted("eager")
    mine = own.ported(source)
    mine.layers[0].norm2.eps = 1e-3
    mine.layers[1].attention.theta = 9_000.0
    weaker("layers.2.mlp.up")[1](mine)
    found = tt.align(source, mine, (own.TOKENS,), map=own.MAP)
    assert names(found) == [
        "model.layers.0.post_attention_layernorm",
        "model.layers.1.self_attn",
        "model.layers.2.mlp.up_proj",
    ]
    assert "the candidate calls it layers.0.norm2" in found.first.note
    assert found.first.class_name == "Norm"


def test_the_same_map_serves_compare_runs(own, captured):
    source = own.trusted()
    mine = own.ported(source)
    mine.layers[1].attention.theta = 9_000.0
    floor = tt.floor(source, {"input_ids": own.TOKENS})
    runs = captured(source, {"input_ids": own.TOKENS}), captured(mine, own.TOKENS)
    assert tt.compare_runs(*runs, map=own.MAP, floor=floor).first.name == "model.layers.1.self_attn"
    assert tt.compare_runs(
        runs[0], captured(own.ported(source), own.TOKENS), map=own.MAP, floor=floor
    ).is_green


def test_names_that_differ_are_guessed_and_said_to_be(build, tokens):
    reference, candidate = build("llama"), build("llama")
    for layer in candidate.model.layers:
        layer.ffn = layer.mlp
        layer.__class__ = renamed(type(layer))
        del layer.mlp
    weaker("model.layers.1.ffn.up_proj")[1](candidate)
    found = tt.align(reference, candidate, tokens)
    assert names(found) == ["model.layers.1.mlp.up_proj"]
    assert any("these pairs are a guess" in note for note in found.notes)


@functools.cache
def renamed(kind):
    class Renamed(kind):
        @property
        def mlp(self):
            return self.ffn

        @mlp.deleter
        def mlp(self):
            del self._modules["mlp"]

    Renamed.__name__ = kind.__name__
    return Renamed


@pytest.mark.compile
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_judged_by_its_code(build, tokens, backend):
    candidate = build("llama")
    BUGS["llama"][2][1](candidate)
    found = tt.align(build("llama"), torch.compile(candidate, backend=backend), tokens)
    assert names(found) == ["model.layers.2.self_attn"]
    assert any("the candidate is compiled" in note for note in found.notes)
    assert names(tt.align(build("llama"), torch.compile(build("llama"), backend=backend), tokens)) == []


@pytest.mark.compile
@pytest.mark.parametrize("backend", sampled(["eager", "aot_eager"], ["aot_eager"]))
def test_what_a_graph_computes_is_judged_by_compare_runs(build, tokens, captured, clean, backend):
    compiled = torch.compile(build("llama"), backend=backend)
    with tt.capture(compiled, "**", compiled="graph") as graph, torch.no_grad():
        compiled(**tokens)
    found = tt.compare_runs(captured(build("llama"), tokens, "**"), graph, floor=clean.floor)
    assert (found.first, found.coverage.is_whole) == (None, True)


class Split(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.o = nn.Linear(64, 32)

    def forward(self, x):
        return x + self.o(torch.cat([self.q(x), self.k(x), self.v(x)], -1).sigmoid())


class Fused(nn.Module):
    def __init__(self, split):
        super().__init__()
        self.qkv, self.o = nn.Linear(32, 64), copy.deepcopy(split.o)
        with torch.no_grad():
            for name in ("weight", "bias"):
                parts = [getattr(part, name) for part in (split.q, split.k, split.v)]
                getattr(self.qkv, name).copy_(torch.cat(parts))

    def forward(self, x):
        return x + self.o(self.qkv(x).sigmoid())


@pytest.fixture
def layers():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        split = nn.Sequential(*(Split() for _ in range(3)))
        return split, nn.Sequential(*map(Fused, split)), (torch.randn(4, 7, 32),)


def test_modules_that_are_done_in_one_are_set_against_the_several(layers):
    split, fused, batch = layers
    whole = {"qkv": ["q", "k", "v"]}
    assert tt.align(split, fused, batch, fused=whole).is_green
    with torch.no_grad():
        fused[1].qkv.bias[-1] += 0.1
    fused[2].o.weight.data *= 1.01
    assert names(tt.align(split, fused, batch, fused=whole)) == ["1.qkv", "2.o"]


def test_a_module_without_a_counterpart_is_blamed_on_what_calls_it(layers):
    split, fused, batch = layers
    for block in fused:
        block.qkv = nn.Sequential(block.qkv, nn.Sigmoid())
        block.forward = types.MethodType(lambda self, x: x + self.o(self.qkv(x)), block)
    with torch.no_grad():
        fused[1].qkv[0].bias[-1] += 0.1
    found = tt.align(split, fused, batch, "*", "*.in", "*.*", "*.*.in")
    assert names(found) == ["1"]
    assert {entry.name for entry in found.coverage.only_b} >= {"1.qkv"}
    assert "1.qkv has no counterpart, and the fault may be there" in found.first.note
    assert "what its parts gave so far are right" not in str(found)


def in_ranks(capture, is_told):
    """What was captured, as two ranks would have it: inner widths cut in two, the rest copied."""
    from tensortap.core.record import Placement

    records = []
    for record in capture.records:
        is_cut = record.name.endswith((".up", ".down.in.input"))
        for rank in (0, 1):
            shape, parts = tuple(record.value.shape), ("shard(1)" if is_cut else "replicate",)
            piece = record.value.chunk(2, 1)[rank] if is_cut else record.value
            offset = (0, rank * shape[1] // 2) if is_cut else (0,) * len(shape)
            where = Placement((2,), (rank,), parts, shape, offset) if is_told else None
            records.append(record._replace(rank=rank, value=piece, placement=where))
    return records


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


@pytest.fixture
def wides():
    with torch.random.fork_rng():
        torch.manual_seed(6)
        return nn.Sequential(Wide(), Wide(), Wide()), (torch.randn(6, 8),)


@pytest.mark.parametrize("is_told", [True, False], ids=["placed", "inferred"])
def test_the_pieces_of_a_reference_in_ranks_are_put_together(wides, is_told):
    model, batch = wides
    with tt.capture(model, "**", "**.in") as whole, torch.no_grad():
        model(*batch)
    reference = in_ranks(whole, is_told)
    clean = tt.align(reference, copy.deepcopy(model), batch)
    assert clean.is_green
    assert any(
        note.startswith("the pieces of the reference's ranks were put together") for note in clean.notes
    )
    with torch.no_grad():
        model[1].up.bias[20] += 0.1
        model[2].down.weight[3] *= 0.5
    assert names(tt.align(reference, model, batch)) == ["1.up", "2.down"]


def test_pieces_that_nothing_explains_are_named_and_the_rest_goes_on(wides):
    model, batch = wides
    with tt.capture(model, "**", "**.in") as whole, torch.no_grad():
        model(*batch)
    reference = [
        one._replace(value=one.value[:, :5]) if one.name == "1.up" else one for one in in_ranks(whole, False)
    ]
    model[2].down.weight.data *= 1.1
    found = tt.align(reference, model, batch)
    assert names(found) == ["2.down"]
    assert any(
        note.startswith("1.up was not replaced: the pieces of ranks 0, 1: no way") for note in found.notes
    )
    assert found.coverage.is_whole is False


def test_copies_of_a_reference_that_are_not_equal_accuse_nobody_and_are_named(wides):
    model, batch = wides
    with torch.no_grad():
        right = model[0](*batch)
    reference = [tt.Record("0", right * factor, "output", rank=rank) for rank, factor in enumerate((1, 3))]
    found = tt.align(reference, model, batch)
    assert (names(found), found.counts, found.exit_code) == ([], {"unaligned": 1}, 3)
    assert "the reference has it on several ranks, and its 2 copies are not equal" in found.explain("0")
    noisy = [tt.Record("0", right * factor, "output", rank=rank) for rank, factor in enumerate((1, 1 + 1e-7))]
    near = tt.align(noisy, model, batch)
    assert near.counts.keys() <= {"identical", "within noise"}
    assert "A: 2 pieces of ranks 0, 1 are replicate" in near.explain("0")


def test_the_code_around_a_part_that_was_not_replaced_is_accused_with_a_doubt(wides):
    model, batch = wides
    with tt.capture(model, "**", "**.in") as whole, torch.no_grad():
        model(*batch)
    copies = [one._replace(rank=rank) for one in whole.records for rank in (0, 1)]
    reference = [
        one._replace(value=one.value * 3) if (one.name, one.rank) == ("1.up", 1) else one for one in copies
    ]
    model[1].up.weight.data *= 1.1
    (origin,) = tt.align(reference, model, batch).origins
    assert (origin.name, origin.kind) == ("1", "own code")
    assert "1.up was not replaced, and the fault may be there" in origin.note


class Padded(nn.Module):
    """Gives twice about what it should: which half is the value nobody can tell."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        made = self.inner(x)
        return torch.cat([made * 1.02, made * 0.98])


@pytest.mark.parametrize("rest", [lambda y: y[:1], lambda y: y[..., :3]], ids=["rows", "width"])
def test_what_a_candidate_drops_is_a_gap_and_no_padding(chains, rest):
    reference, candidate, batch = chains
    whole = type(candidate).forward
    candidate.forward = lambda x: rest(whole(candidate, x))
    found = tt.align(reference, candidate, batch)
    assert (names(found), found.exit_code) == ([], 3)
    (told,) = found.coverage.problems
    assert told.startswith("only A has: ")
    assert told.endswith(", of out; the rest was compared")


def test_a_layout_that_is_ambiguous_is_named_with_both_and_not_replaced(chains):
    reference, candidate, batch = chains
    candidate.second = Padded(candidate.second)
    candidate.forward = lambda x: candidate.third(candidate.second(candidate.first(x).relu())[:5])
    candidate.third.weight.data *= 1.1
    found = tt.align(reference, candidate, batch, map={"second": "second", "second.in.input": "second.in.x"})
    assert names(found) == ["", "third"]  # it goes on with what it made itself, and the rest is judged
    both = " or ".join(f"what only B has: 5 of 10 along axis 0 at its {end}" for end in ("end", "beginning"))
    assert f"second was not replaced: ambiguous: equal up to {both}" in found.notes
    assert found.exit_code == 1
    assert any(told.startswith("second: ") for told in found.coverage.unaligned)


@pytest.fixture
def rows(tokens):
    return torch.cat([tokens["input_ids"], tokens["input_ids"].flip(1)])


def row_by_row(rows):
    return lambda model: [model(input_ids=row[None]) for row in rows]


def token_by_token(rows):
    def run(model):
        past = None
        for at in range(rows.shape[1]):
            past = model(input_ids=rows[:, at : at + 1], past_key_values=past, use_cache=True).past_key_values

    return run


@pytest.mark.parametrize("attention", sampled(["eager", "sdpa"], ["sdpa"]))
@pytest.mark.parametrize("way", [row_by_row, token_by_token])
def test_a_run_in_pieces_is_set_against_the_whole(build, rows, captured, way, attention):
    whole = captured(build("llama", attention=attention), {"input_ids": rows})
    candidate = build("llama", attention=attention)
    harmless = tt.align(whole, candidate, way(rows))
    assert names(harmless) == []
    assert harmless.coverage.pairs > 300
    assert any("is a piece of the reference's one" in note for note in harmless.notes)
    for _, plant in BUGS["llama"][:3]:
        plant(candidate)
    assert names(tt.align(whole, candidate, way(rows))) == [path for path, _ in BUGS["llama"][:3]]


def test_a_loss_of_each_row_accuses_nobody(build, rows, captured):
    whole = captured(build("llama"), {"input_ids": rows, "labels": rows})
    found = tt.align(
        whole, build("llama"), lambda model: [model(input_ids=row[None], labels=row[None]) for row in rows]
    )
    assert (names(found), found.exit_code) == ([], 3)
    assert any(entry.name == "out.loss" for entry in found.coverage.only_b)


def masked_token_by_token(batch, prompt, order):
    """As a generation goes: the mask reaches from the first token to the last one so far."""

    def run(model):
        past, start = None, 0
        for end in range(prompt, batch["input_ids"].shape[1] + 1):
            given = {name: value[:, start:end] for name, value in batch.items()}
            given["attention_mask"] = batch["attention_mask"][:, :end]
            chosen = {name: given[name] for name in order}
            past = model(**chosen, past_key_values=past, use_cache=True).past_key_values
            start = end

    return run


def what_is_seen(model, run):
    with tt.capture(model, "**", "**.in") as found, torch.no_grad():
        run(model)
    return found


def padded_left(rows, count=3):
    mask = torch.ones_like(rows)
    mask[1, :count] = 0
    ids = torch.where(mask.bool(), rows, 0)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(-1) - 1).clamp_min(0),
    }


MASK_FIRST = ("attention_mask", "position_ids", "input_ids")


@pytest.mark.parametrize("attention", sampled(["eager", "sdpa"], ["sdpa"]))
@pytest.mark.parametrize("order", [MASK_FIRST, MASK_FIRST[::-1]], ids=["mask-first", "ids-first"])
@pytest.mark.parametrize("prompt", [1, 9])
def test_a_mask_that_grows_beside_a_cache_is_the_whole_as_far_as_it_reaches(
    build, rows, captured, prompt, order, attention
):
    batch = padded_left(rows)
    whole, model = captured(build("llama", attention=attention), batch), build("llama", attention=attention)
    scaled("model.layers.0.mlp")[1](model)
    found = tt.align(whole, model, masked_token_by_token(batch, prompt, order))
    assert names(found) == ["model.layers.0.mlp"]
    assert {one.verdict for one in found.table if "attention_mask" in one.name} == {"identical"}
    assert not any("only the first" in note for note in found.notes)
    assert found.coverage.only_b == ()


@pytest.mark.parametrize("prompt", sampled([1, 9], [9]))
def test_what_a_mask_hides_may_be_anything_where_steps_are_cut_otherwise(build, rows, captured, prompt):
    batch, model = padded_left(rows), build("llama")
    whole, floor = captured(model, batch), tt.floor(model, batch)
    decode = masked_token_by_token(batch, prompt, MASK_FIRST)
    compared = tt.compare_runs(whole, what_is_seen(model, decode), floor=floor)
    for found in (compared, tt.align(whole, model, decode)):
        assert (found.first, found.exit_code) == (None, 0)
        assert any("what attention_mask hides is not compared" in note for note in found.notes)
        assert "without the rows that attention_mask hides" in found.explain("model.layers.1.self_attn[0]")
    scaled("model.layers.1.mlp")[1](model)
    assert tt.compare_runs(whole, what_is_seen(model, decode), floor=floor).first.name == "model.layers.1.mlp"


def test_a_mask_that_hides_less_is_seen_where_steps_are_cut_otherwise(build, rows, captured):
    batch, model = padded_left(rows), build("llama")
    whole = captured(model, batch)
    wrong = batch | {"attention_mask": torch.ones_like(rows)}
    found = tt.align(whole, model, masked_token_by_token(wrong, 9, MASK_FIRST))
    assert found.first.seen_at == "in.attention_mask"


def test_a_whole_is_set_against_the_pieces_put_together(build, rows):
    with tt.capture(build("llama"), "**", "**.in") as pieces, torch.no_grad():
        row_by_row(rows)(pieces.model)
    candidate = build("llama")
    assert names(tt.align(pieces, candidate, {"input_ids": rows})) == []
    BUGS["llama"][1][1](candidate)
    assert names(tt.align(pieces, candidate, {"input_ids": rows})) == ["model.layers.1.self_attn.v_proj"]


def test_a_piece_that_is_not_the_whole_is_said(build, rows, captured):
    whole = captured(build("llama"), {"input_ids": rows})
    found = tt.align(whole, build("llama"), {"input_ids": rows[:1]})
    assert "in.input_ids: only the first 1 of 4 were compared" in found.coverage.problems
    assert (names(found), found.exit_code) == ([], 3)


def test_steps_that_are_no_piece_of_the_whole_are_named(build, rows, captured):
    whole = captured(build("llama"), {"input_ids": rows})

    def run(model):
        row_by_row(rows)(model)
        model(input_ids=rows[:1, :7])

    found = tt.align(whole, build("llama"), run)
    assert "1 of the candidate's 5 steps is no piece of the reference's one" in found.coverage.problems
    assert (names(found), found.exit_code) == ([], 3)


@pytest.mark.parametrize("way", [row_by_row, token_by_token])
def test_experts_that_sort_their_rows_are_judged_by_what_they_give(build, rows, captured, way):
    rows, model = rows[:3], build("mixtral")
    whole = captured(model, {"input_ids": rows})
    found = tt.align(whole, model, way(rows))
    assert (names(found), found.exit_code) == ([], 3)  # what is sorted is left out, and said to be
    assert all("experts.act_fn" in entry.name for entry in found.coverage.only_a)
    faults = [weaker("model.layers.0.self_attn.o_proj"), scaled("model.layers.1.mlp.experts")]
    for _, plant in faults:
        plant(model)
    assert names(tt.align(whole, model, way(rows))) == [path for path, _ in faults]


def test_experts_of_a_whole_are_set_against_the_pieces_put_together(build, rows):
    rows, model = rows[:3], build("mixtral")
    pieces = what_is_seen(model, token_by_token(rows))
    assert names(tt.align(pieces, model, {"input_ids": rows})) == []
    path, plant = scaled("model.layers.1.mlp.experts")
    plant(model)
    assert names(tt.align(pieces, model, {"input_ids": rows})) == [path]


class Sorting(nn.Module):
    """Half of the tokens of two sequences go to each of two experts: as many as a sequence has."""

    def __init__(self):
        super().__init__()
        self.embedding, self.act, self.places = nn.Embedding(32, 8), nn.Tanh(), nn.Embedding(64, 8)

    def forward(self, input_ids, position_ids):
        x = self.embedding(input_ids) + self.places(position_ids[0])
        flat = x.reshape(-1, 8)
        made = torch.zeros_like(flat)
        for expert in (0, 1):
            chosen = (input_ids.reshape(-1) % 2 == expert).nonzero()[:, 0]
            made[chosen] = self.act(flat[chosen] * (expert + 1))
        return made.reshape(x.shape)


def test_sorted_rows_that_are_by_chance_as_many_as_tokens_accuse_nobody(captured):
    with torch.random.fork_rng():
        torch.manual_seed(6)
        model = Sorting()
    ids = torch.tensor([[1, 2, 4, 6, 9, 11], [2, 8, 3, 5, 7, 10]])
    where = torch.arange(6)[None]
    whole = captured(model, {"input_ids": ids, "position_ids": where})

    def run(model):
        for at in range(6):
            model(ids[:, at : at + 1], where[:, at : at + 1])

    found = tt.align(whole, model, run)
    assert names(found) == []
    assert {one.step for one in found.table if one.name == "places"} == set(range(6))


class Hiding(nn.Module):
    """Hides padding where there is some, and calls nothing for it where there is none."""

    def __init__(self):
        super().__init__()
        self.embedding, self.hide, self.head = nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids)
        return self.head(x if attention_mask.all() else self.hide(x * attention_mask[..., None]))


def test_a_row_that_did_not_call_a_module_does_not_move_the_pieces_of_the_others(captured):
    with torch.random.fork_rng():
        torch.manual_seed(6)
        model, ids = Hiding(), torch.randint(0, 32, (3, 6))
    mask = torch.ones_like(ids)
    mask[1, 4:] = mask[2, 2:] = 0
    whole = captured(model, {"input_ids": ids, "attention_mask": mask})

    def run(model):
        for row in range(3):
            model(ids[row : row + 1], mask[row : row + 1])

    found = tt.align(whole, model, run)
    hidden = [one for one in found.table if one.name.startswith("hide")]
    assert {one.step for one in hidden} == {1, 2}
    assert {one.verdict for one in hidden} <= {"identical", "within noise"}
    assert [(origin.name, origin.step) for origin in found.origins] == [("", 0)]  # the row that goes past it


def test_a_piece_of_something_else_is_data(build, rows, captured):
    whole = captured(build("llama"), {"input_ids": rows})
    first = tt.align(whole, build("llama"), {"input_ids": rows[1:2]}).first
    assert (first.name, first.kind) == ("in.input_ids", "data")


class Chain(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(8, width), nn.Linear(width, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.third(self.second(self.first(x).relu()))


@pytest.fixture
def chains():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        chain = Chain()
        return chain, copy.deepcopy(chain), (torch.randn(5, 8),)


def test_another_shape_is_named_and_the_rest_goes_on(chains):
    reference, candidate, batch = chains
    candidate.first, candidate.second = nn.Linear(8, 6), nn.Linear(6, 8)
    candidate.third.weight.data *= 1.1
    found = tt.align(reference, candidate, batch)
    assert names(found) == ["second", "third"]
    assert found.coverage.unaligned[0].startswith("first: shape")
    assert "first was not replaced: shape [5, 8] against [5, 6]" in found.notes


def test_a_site_that_never_comes_is_named_and_the_rest_goes_on(chains):
    reference, candidate, batch = chains
    candidate.forward = lambda x: candidate.third(candidate.first(x).relu())
    candidate.third.weight.data *= 1.1
    found = tt.align(reference, candidate, batch)
    assert names(found) == ["", "third"]  # the model's own code leaves it out
    assert {entry.name for entry in found.coverage.only_a} == {"second", "second.in.input"}
    assert any(note.startswith("second was selected and never came") for note in found.notes)


def test_steps_that_only_one_side_has_are_named(chains):
    reference, candidate, batch = chains
    candidate.second.weight.data *= 1.1

    def three(model):
        for _ in range(3):
            model(*batch)

    with tt.capture(reference, "**", "**.in") as long, torch.no_grad():
        three(reference)
    found = tt.align(long, candidate, batch)
    assert names(found) == ["second"]
    assert found.coverage.problems == (
        "the reference has 3 steps, the candidate ran 1: 1, 2 were not replayed",
    )
    found = tt.align(reference, candidate, batch)
    assert found.coverage.problems == ()
    with tt.capture(reference, "**", "**.in") as short, torch.no_grad():
        reference(*batch)
    (told,) = tt.align(short, candidate, three).coverage.problems
    assert told == "the candidate ran 3 steps, the reference has 1: the others were not compared"


def test_one_step_of_many_can_be_asked_for(chains):
    reference, candidate, batch = chains
    with tt.capture(reference, "**", "**.in") as long, torch.no_grad():
        reference(batch[0] + 1), reference(*batch)
    candidate.second.weight.data *= 1.1
    found = tt.align(long, candidate, batch, step=1)
    assert (names(found), found.first.step) == (["second"], 1)
    assert found.coverage.is_whole


def test_values_without_numbers_and_complex_ones_are_replayed_too():
    class Odd(nn.Module):
        def forward(self, x):
            return x[:0], torch.complex(x, -x)

    with torch.random.fork_rng():
        torch.manual_seed(5)
        reference, batch = nn.Sequential(nn.Linear(8, 8), Odd()), (torch.randn(5, 8),)
    candidate = copy.deepcopy(reference)
    assert tt.align(reference, candidate, batch).is_green
    candidate[1].forward = lambda x: (x[:0], torch.complex(x, x))
    assert names(tt.align(reference, candidate, batch)) == ["1"]


def test_patterns_say_what_is_replaced(chains):
    reference, candidate, batch = chains
    candidate.first.weight.data *= 1.1
    found = tt.align(reference, candidate, batch, "second", "third")
    assert names(found) == ["second"]
    assert {one.name for one in found.table} == {"second", "third"}


def test_a_map_that_pairs_a_name_twice_is_refused(chains):
    reference, candidate, batch = chains
    with pytest.raises(ValueError, match=r"the map sends both 'first' and 'second' to 'third'"):
        tt.align(reference, candidate, batch, map={"first": "third", "second": "third"})


@pytest.mark.parametrize("name", ["first", "third"])
def test_a_rule_wins_over_a_name_that_both_sides_have(chains, name):
    reference, _, batch = chains
    found = tt.align(reference, reference, batch, map={name: "second"})
    paired = {one.name: one.pair.b.name for one in found.table if one.kind == "output"}
    assert paired[name] == "second"
    assert name in names(found)


def test_gradients_are_refused(chains):
    with pytest.raises(ValueError, match=r"'first.grad' is a gradient, and a replay runs forwards only"):
        tt.align(*chains, "first.grad")


def test_what_is_no_model_is_refused(chains):
    with pytest.raises(TypeError, match="a dict is no model"):
        tt.align(chains[0], {}, chains[2])


def test_a_failing_forward_raises_and_leaves_nothing_behind(chains):
    reference, candidate, _ = chains
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        tt.align(reference, candidate, (torch.randn(5, 9),))
    assert hooks(candidate) == hooks(reference) == 0


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)

    def forward(self, x):
        made = self.inner(x)
        made += 1  # in place, on what was put there
        return self.drop(self.norm(made))


def hooks(model):
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


def test_both_models_are_afterwards_what_they_were():
    with torch.random.fork_rng():
        torch.manual_seed(4)
        candidate, x = Stateful(), torch.randn(16, 8)
        reference = copy.deepcopy(candidate)
        candidate.inner.weight.grad = torch.ones(8, 8)
        before = [copy.deepcopy(one.state_dict()) for one in (reference, candidate)]
        drawn = torch.random.get_rng_state()
        found = tt.align(reference, candidate, (x,))
        assert torch.equal(torch.random.get_rng_state(), drawn)
    assert set(found.counts) == {"identical"}
    for model, state in zip((reference, candidate), before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        assert hooks(model) == 0
        assert model.training
    assert torch.equal(candidate.inner.weight.grad, torch.ones(8, 8))


def test_values_of_the_reference_are_not_written_to(captured):
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model, x = Stateful().eval(), torch.randn(16, 8)
    kept = captured(model, x)
    before = kept["inner"].clone()
    tt.align(kept, copy.deepcopy(model), (x,))
    assert torch.equal(kept["inner"], before)


def test_a_mask_of_the_lowest_number_stays_finite_in_a_narrow_type():
    from tensortap.frameworks.torch_precision import as_tensor_like

    lowest = torch.tensor([0.0, torch.finfo(torch.float32).min, float("-inf")])
    made = as_tensor_like(lowest, torch.zeros(3, dtype=torch.bfloat16))
    assert made.isfinite().tolist() == [True, True, False]


def test_a_given_floor_is_used(chains):
    reference, candidate, batch = chains
    candidate.second.weight.data *= 1.1
    floor = tt.floor(reference, batch)
    found = tt.align(reference, candidate, batch, floor=floor)
    assert found.floor == floor
    assert names(found) == ["second"]
    assert names(tt.align(reference, candidate, batch, limit=1e9)) == []


def test_nothing_runs_while_the_switch_is_off(chains, monkeypatch):
    monkeypatch.setenv("TENSORTAP", "0")
    ran = types.SimpleNamespace(times=0)
    assert tt.align(chains[0], chains[1], lambda model: setattr(ran, "times", 1)).coverage.pairs == 0
    assert ran.times == 0
