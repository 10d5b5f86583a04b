"""One model in several implementations: an own one, fused, compiled, in pieces, with faults to plant."""

import copy
import importlib.util
from pathlib import Path

import torch
from torch import nn

import tensortap as tt

EXAMPLE = Path(__file__).parents[2] / "examples" / "align.py"
WIDTH, HEAD, SHARED = 64, 16, 32


def example():
    """The Llama of the example, and the map to the one of transformers."""
    spec = importlib.util.spec_from_file_location("align_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FusedAttention(nn.Module):
    """Attention with query, key and value in one product."""

    def __init__(self, split):
        super().__init__()
        self.qkv_proj, self.o_proj = nn.Linear(WIDTH, WIDTH + 2 * SHARED, bias=False), split.o_proj
        parts = (split.q_proj, split.k_proj, split.v_proj)
        self.qkv_proj.weight.data = torch.cat([part.weight.data for part in parts])

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **_):
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        batch, length, _ = hidden_states.shape
        parts = self.qkv_proj(hidden_states).split([WIDTH, SHARED, SHARED], -1)
        query, key, value = (part.view(batch, length, -1, HEAD).transpose(1, 2) for part in parts)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, WIDTH)), None


def fused(model):
    model = copy.deepcopy(model)
    for layer in model.model.layers:
        layer.self_attn = FusedAttention(layer.self_attn)
    return model


def captured(model, batch, *patterns, **options):
    """What a model gives for a dict of inputs, or when a function runs it."""
    with tt.capture(model, *(patterns or ("**", "**.in")), **options) as found, torch.no_grad():
        batch(model) if callable(batch) else model(**batch)
    return found


def row_by_row(rows, order=None):
    return lambda model: [model(input_ids=rows[at][None]) for at in order or range(len(rows))]


def token_by_token(rows, prompt=1):
    """The prompt at once, and then one at a time, with a cache."""

    def run(model):
        past, start = None, 0
        for end in range(prompt, rows.shape[1] + 1):
            made = model(input_ids=rows[:, start:end], past_key_values=past, use_cache=True)
            past, start = made.past_key_values, end

    return run


def weaker(model, path):
    """A fault: one row of a weight is stale."""
    with torch.no_grad():
        model.get_submodule(path).weight[3] *= 0.5
    return model


def sharper(model, layer):
    """A fault between the parts of attention."""
    model.model.layers[layer].self_attn.scaling *= 4
    return model


def wrong_compiler(graph, given):
    """A backend that takes another function for the activation of the second layer."""
    found = [node for node in graph.graph.nodes if node.target is nn.functional.silu]
    found[1].target = nn.functional.gelu
    found[1].kwargs = {}
    graph.recompile()
    return graph.forward


def interleaved(model):
    """An own Llama whose rotary pairs are neighbours, with the weights that this needs."""
    for layer in model.layers:
        attention = layer.attention
        attention.rotation = _rotated_in_turns
        for part in (attention.wq, attention.wk):
            halves = part.weight.data.view(-1, 2, HEAD // 2, WIDTH)
            part.weight.data = halves.transpose(1, 2).reshape(part.weight.shape).contiguous()
    return model


def _rotated_in_turns(x, theta):
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * theta ** -(torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)


def with_heads_elsewhere(model, layer, *, is_fault):
    """The heads of attention in another order: all of them, which changes nothing, or the queries alone."""
    attention = model.model.layers[layer].self_attn
    with torch.no_grad():
        for part in (
            (attention.q_proj,) if is_fault else (attention.q_proj, attention.k_proj, attention.v_proj)
        ):
            rows = part.weight.shape[0] // 2
            part.weight.copy_(part.weight.roll(rows if not is_fault else HEAD, 0).clone())
        if not is_fault:
            attention.o_proj.weight.copy_(attention.o_proj.weight.roll(WIDTH // 2, 1).clone())
    return model
