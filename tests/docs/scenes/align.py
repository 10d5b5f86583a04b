"""A small Llama, its copy with one wrong weight, a batch, and some tokens."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tensortap as tt  # noqa: F401

torch.manual_seed(0)
reference = model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
).eval()
candidate = copy.deepcopy(reference)
with torch.no_grad():
    candidate.model.layers[1].mlp.up_proj.weight[0, 0] += 1
ids = torch.randint(0, 32, (1, 6))
batch = {"input_ids": ids}
