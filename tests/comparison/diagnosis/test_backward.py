"""A value is measured by its own rounding only where all that it was made of is here, and identical."""

import pytest
import torch
from torch.nn import functional

import tensortap as tt

ATTENTION = ("**.self_attn", "**.self_attn.in", "!**.in.attention_mask", "!**.self_attn[1]")
NARROW = {
    "attention": ATTENTION,
    "attention and mlp": ("**.mlp", "**.mlp.in", *ATTENTION),
    "layers": ("model.layers.*", "model.layers.*.in", "!**.in.attention_mask"),
    "outputs of layers": ("model.layers.*",),
    "norms and attention": ("**.input_layernorm", "**.input_layernorm.in", *ATTENTION),
}
WHOLE = ("**", "**.in", "!**.in.attention_mask", "!**.self_attn[1]")
ONLY = [
    (),
    "**.self_attn[0]",
    ("**.self_attn[0]", "**.self_attn.in.*"),
    ("**.mlp", "**.self_attn[0]"),
    ("**.self_attn[0]", "**.in.*"),
]


def wrong_scale(model):
    model.model.layers[1].self_attn.scaling *= 1.05
    return model


@pytest.mark.parametrize("patterns", NARROW.values(), ids=NARROW.keys())
def test_another_attention_kernel_is_noise_where_less_is_compared_than_the_floor_knows(
    clean, llama, tokens, captured, patterns
):
    run = captured(clean.model, tokens, *patterns)
    found = tt.compare_runs(run, captured(llama("sdpa"), tokens, *patterns), floor=clean.floor)
    assert found.is_green, str(found)
    bug = captured(wrong_scale(clean.copy()), tokens, *patterns)
    assert tt.compare_runs(run, bug, floor=clean.floor).first.name.startswith("model.layers.1")


@pytest.mark.parametrize("only", ONLY, ids=str)
def test_another_attention_kernel_is_noise_where_only_some_of_it_is_looked_at(
    clean, llama, tokens, captured, only
):
    a, b, bug = (
        captured(model, tokens, *WHOLE) for model in (clean.model, llama("sdpa"), wrong_scale(clean.copy()))
    )
    assert tt.compare_runs(a, b, floor=clean.floor, only=only).is_green
    found = tt.compare_runs(a, bug, floor=clean.floor, only=only)
    assert found.first.name.startswith("model.layers.1.self_attn")


def test_an_input_that_is_not_compared_may_be_what_differs(clean, tokens, captured):
    patterns = ("**", "**.in.hidden_states", "**.in.input")
    model = clean.copy()
    # Rounded otherwise, as a kernel of another library may: no fault.
    model.model.rotary_emb.register_forward_hook(lambda *_: tuple(_rounded(one) for one in _[2]))
    a, b = (captured(one, tokens, *patterns) for one in (clean.model, model))
    found = tt.compare_runs(a, b, floor=clean.floor, only=("**.self_attn", "**.self_attn.in", "!**[1]"))
    assert found.is_green, str(found)


def _rounded(value):
    return torch.nextafter(value, torch.full_like(value, 2.0))


def test_where_all_of_it_is_compared_a_small_change_still_shows(llama, tokens, captured):
    base, model = (llama(dtype=torch.bfloat16) for _ in range(2))
    model.model.layers[1].mlp.up_proj.register_forward_hook(lambda module, inputs, output: output * 1.01)
    a, b = captured(base, tokens), captured(model, tokens)
    found = tt.compare_runs(a, b, floor=tt.floor(base, tokens))
    assert found.first.name == "model.layers.1.mlp.up_proj"
    assert "only its own rounding is noise" in str(found)


def test_without_inputs_nothing_is_said_of_what_came_in(clean, tokens, captured):
    model = clean.copy()
    part = model.model.layers[1].mlp.down_proj
    part.forward = lambda x: functional.linear(x.bfloat16(), part.weight.bfloat16()).to(x.dtype)
    a, b = captured(clean.model, tokens, "**"), captured(model, tokens, "**")
    found = tt.compare_runs(a, b, floor=clean.floor)
    assert found.first.name == "model.layers.1.mlp.down_proj"
    assert "its inputs were not captured" in str(found)
    assert "is identical" not in str(found)
