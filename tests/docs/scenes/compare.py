"""A small Llama, two runs of it of which the second has one wrong weight, and a way to train it."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tensortap as tt

torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
)
other = copy.deepcopy(model)
with torch.no_grad():
    other.model.layers[1].mlp.up_proj.weight[0, 0] += 1
data = batch = {"input_ids": torch.randint(0, 32, (2, 6)), "labels": torch.randint(0, 32, (2, 6))}


def written(one, path):
    with tt.Tap(sinks=[tt.RunDirectory(path)]) as tap, tt.capture(one, "**", "**.in", to=tap):
        one(**batch)


written(model, "runs/before")
written(other, "runs/after")
written(model, "runs/reference")
tt.floor(model, batch).save("runs/floor.json")
with tt.capture(model, "**", "**.in") as cap:
    model(**batch)


def train(one, data):
    for _ in range(2):
        one(**data).loss.backward()
