"""One model in two implementations: right ones are the same within noise, all of it; a fault is located."""

import copy

import pytest
import torch
from tests.comparison.implementations import (
    captured,
    example,
    fused,
    interleaved,
    row_by_row,
    sharper,
    token_by_token,
    weaker,
    with_heads_elsewhere,
    wrong_compiler,
)

import tensortap as tt

V_PROJ = "model.layers.1.self_attn.v_proj"
UP_PROJ = "model.layers.2.mlp.up_proj"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small models gain nothing by more, and beside other tests they lose."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def own():
    return example()


@pytest.fixture(scope="module")
def rows(own):
    return torch.cat([own.TOKENS, own.TOKENS.flip(1)])


class Trusted:
    """The model of transformers, what was captured of it, and its noise."""

    def __init__(self, own, rows, attention):
        self.model = own.trusted(attention)
        self.batch = {"input_ids": rows}
        self.run, self.floor = captured(self.model, self.batch), tt.floor(self.model, self.batch)

    def copy(self):
        return copy.deepcopy(self.model)

    def against(self, other, **options):
        return tt.compare_runs(self.run, other, floor=self.floor, **options)


@pytest.fixture(scope="module")
def trusted(own, rows):
    return Trusted(own, rows, "sdpa")


@pytest.fixture(scope="module")
def eager(own, rows):
    return Trusted(own, rows, "eager")


def names(found):
    return [origin.name for origin in found.origins]


# An own Llama against the one of transformers.


def test_an_own_llama_is_the_one_of_transformers_in_all_its_values(own, trusted, rows):
    mine = own.ported(trusted.model)
    compared = trusted.against(captured(mine, lambda model: model(rows)), map=own.MAP)
    assert compared.is_green
    assert (compared.coverage.pairs, compared.notes) == (80, ())
    assert tt.align(trusted.model, mine, (rows,), map=own.MAP).is_green


def test_a_fault_of_an_own_llama_is_located(own, trusted, rows):
    mine = own.ported(trusted.model)
    mine.layers[1].attention.theta = 9_000.0
    compared = trusted.against(captured(mine, lambda model: model(rows)), map=own.MAP)
    assert (compared.first.name, compared.first.kind) == ("model.layers.1.self_attn", "own code")
    mine.layers[2].norm1.eps = 1e-2
    assert names(tt.align(trusted.model, mine, (rows,), map=own.MAP)) == [
        "model.layers.1.self_attn",
        "model.layers.2.input_layernorm",
    ]


def test_rotary_pairs_that_are_neighbours_are_a_layout(own, trusted, rows):
    mine = interleaved(own.ported(trusted.model))
    words = "halves (A) against turns (B) in rotary heads of 16, along axis 2"
    compared = trusted.against(captured(mine, lambda model: model(rows)), map=own.MAP)
    replayed = tt.align(trusted.model, mine, (rows,), map=own.MAP)
    for found in (compared, replayed):
        assert found.is_green
        assert {plan.summary for plan in found.plans} == {words}
        assert f"equal up to {words}" in found.explain("model.layers.1.self_attn.q_proj")


def test_faults_are_located_beside_another_layout(own, trusted, rows):
    mine = interleaved(own.ported(trusted.model))
    weaker(mine, "layers.1.attention.wq")
    mine.layers[2].attention.theta = 9_000.0
    compared = trusted.against(captured(mine, lambda model: model(rows)), map=own.MAP)
    assert compared.first.name == "model.layers.1.self_attn.q_proj"
    assert names(tt.align(trusted.model, mine, (rows,), map=own.MAP)) == [
        "model.layers.1.self_attn.q_proj",
        "model.layers.2.self_attn",
    ]


# Heads in another order.


def test_heads_in_another_order_are_a_layout_where_attention_gives_the_same(trusted):
    found = trusted.against(captured(with_heads_elsewhere(trusted.copy(), 1, is_fault=False), trusted.batch))
    assert (found.first, found.exit_code) == (None, 0)
    told = "equal up to heads of 32 in another order, along axis 2"
    assert told in found.explain("model.layers.1.self_attn.q_proj")


def test_queries_in_another_order_alone_are_a_fault(trusted):
    found = trusted.against(captured(with_heads_elsewhere(trusted.copy(), 1, is_fault=True), trusted.batch))
    assert found.first.name == "model.layers.1.self_attn.q_proj"
    assert "blocks of 16 of B stand elsewhere along axis 2" in found.explain(found.first.seen_at)


# Compiled against eager.


def compiled(model, backend):
    torch._dynamo.reset()
    return torch.compile(model, backend=backend)


@pytest.fixture
def no_graphs():
    yield
    torch._dynamo.reset()


@pytest.mark.compile
@pytest.mark.usefixtures("no_graphs")
def test_a_compiled_model_is_the_eager_one_in_all_its_values(eager):
    other = compiled(eager.copy(), "aot_eager")
    found = eager.against(captured(other, eager.batch, compiled="graph"))
    assert found.is_green
    assert found.coverage.pairs == len(eager.run.records)


@pytest.mark.compile
@pytest.mark.usefixtures("no_graphs")
def test_a_mask_that_only_the_compiled_model_is_given_is_said(trusted):
    other = compiled(trusted.copy(), "eager")
    found = trusted.against(captured(other, trusted.batch, compiled="graph"))
    assert (found.first, found.exit_code) == (None, 3)
    assert {entry.name.rpartition(".")[2] for entry in found.coverage.only_b} == {"attention_mask"}


@pytest.mark.compile
@pytest.mark.usefixtures("no_graphs")
def test_a_fault_of_the_compiler_is_located_and_is_none_of_the_code(eager):
    other = compiled(eager.copy(), wrong_compiler)
    found = eager.against(captured(other, eager.batch, compiled="graph"))
    assert found.first.name == "model.layers.1.mlp.act_fn"
    replayed = tt.align(eager.model, other, eager.batch)
    assert replayed.is_green
    assert any("this judges its code" in note for note in replayed.notes)


@pytest.mark.compile
@pytest.mark.usefixtures("no_graphs")
def test_a_fault_of_compiled_code_is_located_by_both(eager):
    other = compiled(sharper(eager.copy(), 1), "eager")
    found = eager.against(captured(other, eager.batch, compiled="graph"))
    assert found.first.name == "model.layers.1.self_attn"
    assert names(tt.align(eager.model, other, eager.batch)) == ["model.layers.1.self_attn"]


# Query, key and value in one product against three.


def test_a_fused_projection_is_the_three_in_all_their_values(trusted):
    other = fused(trusted.model)
    found = trusted.against(captured(other, trusted.batch))
    assert found.is_green
    assert found.coverage.pairs == len(trusted.run.records)
    assert not any("no name is on both sides" in note or "guess" in note for note in found.notes)
    back = tt.compare_runs(captured(other, trusted.batch), trusted.run, floor=trusted.floor)
    assert (back.first, back.exit_code) == (None, 0)


def test_a_fault_of_a_fused_projection_is_that_of_its_part(trusted):
    other = fused(trusted.model)
    with torch.no_grad():
        other.model.layers[1].self_attn.qkv_proj.weight[-3] *= 1.2
    found = trusted.against(captured(other, trusted.batch))
    assert (found.first.name, found.first.kind) == (V_PROJ, "output")


def test_a_replay_finds_what_is_fused_by_itself(trusted):
    other = fused(trusted.model)
    clean = tt.align(trusted.model, other, trusted.batch)
    assert clean.is_green
    assert "qkv_proj is taken for q_proj, k_proj, v_proj in one" in clean.notes
    with torch.no_grad():
        other.model.layers[1].self_attn.qkv_proj.weight[-3] *= 1.2
    weaker(other, UP_PROJ)
    found = tt.align(trusted.model, other, trusted.batch)
    assert names(found) == ["model.layers.1.self_attn.qkv_proj", UP_PROJ]
    assert "its weights differ" not in found.first.note


def test_a_replay_finds_what_is_split_by_itself(trusted):
    reference, other = fused(trusted.model), trusted.copy()
    clean = tt.align(reference, other, trusted.batch)
    assert clean.is_green
    assert "qkv_proj is taken for q_proj, k_proj, v_proj in one" in clean.notes
    weaker(other, V_PROJ)
    assert names(tt.align(reference, other, trusted.batch)) == [V_PROJ]


# Batch 4 against 1.


@pytest.mark.parametrize("order", [None, (2, 0, 3, 1)], ids=["in-order", "mixed"])
def test_a_batch_is_its_rows_one_after_another(trusted, rows, order):
    run = captured(trusted.model, row_by_row(rows, order))
    found = trusted.against(run)
    assert found.is_green
    assert found.coverage.pairs == len(trusted.run.records)
    assert "B does in 4 steps what the other does in one: 110 of its values are put together" in found.notes
    assert tt.compare_runs(run, trusted.run, floor=trusted.floor).is_green


def test_a_fault_of_a_run_row_by_row_is_located_by_both(trusted, rows):
    other = weaker(trusted.copy(), V_PROJ)
    found = trusted.against(captured(other, row_by_row(rows)))
    assert (found.first.name, len(found.origins)) == (V_PROJ, 1)
    assert "B: 4 steps, put together along axis 0" in found.explain(V_PROJ)
    weaker(other, UP_PROJ)
    assert names(tt.align(trusted.run, other, row_by_row(rows))) == [V_PROJ, UP_PROJ]


def test_rows_that_go_wrong_on_the_way_are_told_from_the_right_ones(trusted, rows):
    other = trusted.copy()

    def run(model):
        for at, row in enumerate(rows):
            if at == 2:
                weaker(model, V_PROJ)
            model(input_ids=row[None])

    found = trusted.against(captured(other, run))
    assert found.first.name == V_PROJ
    assert "only the tail: 2 to 3 of 4 along axis 0" in found.explain(V_PROJ)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_one_row_of_a_batch_is_compared_and_the_others_are_a_gap(request, rows, attention):
    known = request.getfixturevalue("trusted" if attention == "sdpa" else "eager")
    found = known.against(captured(known.model, {"input_ids": rows[2:3]}))
    assert (found.first, found.exit_code, found.is_green) == (None, 3, False)
    assert set(found.counts) <= {"identical", "within noise"}
    assert found.coverage.problems == ("3 of the 4 sequences of step 0 are only in A; 1 was compared",)
    assert "INCOMPLETE" in str(found)
    wrong = captured(weaker(known.copy(), V_PROJ), {"input_ids": rows[2:3]})
    assert known.against(wrong).first.name == V_PROJ
    with pytest.raises(AssertionError, match="3 of the 4 sequences"):
        tt.assert_runs_match(known.run, captured(known.model, {"input_ids": rows[2:3]}), floor=known.floor)


# Prefill against decode.


@pytest.mark.parametrize("prompt", [1, 7])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_tokens_one_by_one_are_all_tokens_at_once(request, rows, attention, prompt):
    known = request.getfixturevalue("trusted" if attention == "sdpa" else "eager")
    found = known.against(captured(known.model, token_by_token(rows, prompt)))
    assert found.first is None
    gaps = {entry.name.rpartition(".")[2] for entry in (*found.coverage.only_a, *found.coverage.only_b)}
    assert gaps <= {"attention_mask"}
    assert set(found.counts) <= {"identical", "within noise"}
    assert found.coverage.pairs >= 104


def test_a_fault_of_a_decode_is_located_by_both(trusted, rows):
    other = weaker(trusted.copy(), V_PROJ)
    found = trusted.against(captured(other, token_by_token(rows)))
    assert (found.first.name, len(found.origins)) == (V_PROJ, 1)
    weaker(other, UP_PROJ)
    assert names(tt.align(trusted.run, other, token_by_token(rows))) == [V_PROJ, UP_PROJ]


def test_positions_that_slip_in_a_decode_are_located(trusted, rows):
    def run(model):
        past = None
        for at in range(rows.shape[1]):
            where = torch.tensor([[at + (at > 9)]])
            made = model(rows[:, at : at + 1], past_key_values=past, position_ids=where, use_cache=True)
            past = made.past_key_values

    first = trusted.against(captured(trusted.model, run)).first
    assert first.seen_at == "model.rotary_emb.in.position_ids"


def test_a_run_of_other_tokens_is_not_put_together(trusted, rows):
    other = trusted.against(captured(trusted.model, row_by_row((rows + 1) % 96)))
    assert not any("steps what the other does in one" in note for note in other.notes)
    assert other.exit_code == 1
