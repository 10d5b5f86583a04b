"""Capture a small Llama twice, once with a planted bug, and let the comparison name the guilty module."""

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tensortap as tt

# All inputs and outputs of all modules, but those that the fused kernel of attention does not have.
WATCHED = ("**", "**.in", "!**.in.attention_mask", "!**.self_attn[1]")
TOKENS = {"input_ids": torch.randint(0, 1000, (4, 32), generator=torch.Generator().manual_seed(0))}


def build(attention: str = "eager") -> LlamaForCausalLM:
    """The same weights each time; nothing is downloaded."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        attn_implementation=attention,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval()


def record(model: LlamaForCausalLM) -> Path:
    """One forward pass into a run of its own."""
    with tt.capture(model, *WATCHED, to="demo_runs") as cap, torch.no_grad():
        model(**TOKENS)
    assert cap.run is not None
    return cap.run


def main() -> None:
    good, other = build(), build("sdpa")
    bad = build("sdpa")
    bad.model.layers[3].self_attn.scaling = 17**-0.5  # the bug: a head is 16 wide

    floor = tt.floor(good, TOKENS)
    runs = [record(model) for model in (good, other, bad)]

    print("-- another attention kernel: every number differs a little, and nothing is wrong --\n")
    print(tt.compare_runs(runs[0], runs[1], floor=floor))
    print("\n-- the same kernel, and a bug in layer 3: its scores are 3 % too small --\n")
    found = tt.compare_runs(runs[0], runs[2], floor=floor)
    print(found)
    assert found.first is not None
    print(f"\nthe guilty module: {found.first.name}")


if __name__ == "__main__":
    main()
