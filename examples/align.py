"""Port a model: a Llama written by hand, with two mistakes in it, against the one of transformers.

python examples/align.py
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import tensortap as tt

WIDTH, HEADS, SHARED, INNER, WORDS, LAYERS = 64, 4, 2, 96, 96, 3
TOKENS = torch.randint(0, WORDS, (2, 20), generator=torch.Generator().manual_seed(3))

# What transformers calls it, and what it is called here.
MAP = {
    "ignore": [
        "model.rotary_emb**",  # a function here
        "**.in.{position_embeddings,position_ids,attention_mask}**",
        "**.act_fn**",
        "model.in**",  # a level that is not there
        "model.out**",
    ],
    "rule": [
        {"from": "out.logits", "to": "out"},
        {"from": "in.input_ids", "to": "in.tokens"},
        {"from": "model", "to": ""},
        {"from": "embed_tokens", "to": "embedding"},
        {"from": "lm_head", "to": "head"},
        {"from": "layers.*.input_layernorm", "to": "layers.*.norm1"},
        {"from": "layers.*.post_attention_layernorm", "to": "layers.*.norm2"},
        {"from": "layers.*.self_attn.{q,k,v,o}_proj", "to": "layers.*.attention.w{q,k,v,o}"},
        {"from": "layers.*.self_attn[0]", "to": "layers.*.attention"},
        {"from": "layers.*.self_attn", "to": "layers.*.attention"},
        {"from": "layers.*.mlp.{gate,up,down}_proj", "to": "layers.*.mlp.{gate,up,down}"},
        {"from": "**.in.hidden_states", "to": "**.in.x"},
    ],
}


class Norm(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.float().pow(2).mean(-1, keepdim=True) + self.eps
        return (x.float() / size.sqrt()).to(x.dtype) * self.weight


def rotated(x: torch.Tensor, theta: float) -> torch.Tensor:
    """By an angle for each position and pair of numbers, the halves of a head being the pairs."""
    half = x.shape[-1] // 2
    steps = theta ** -(torch.arange(half) / half)
    angles = torch.arange(x.shape[-2])[:, None] * steps
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(nn.Module):
    theta = 10_000.0
    rotation = staticmethod(rotated)

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.wq, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.wk, self.wv = (nn.Linear(WIDTH, SHARED * size, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = (
            made.view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for made in (self.wq(x), self.wk(x), self.wv(x))
        )
        query, key = self.rotation(query, self.theta), self.rotation(key, self.theta)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        self.attention, self.mlp = Attention(), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def trusted(attention: str = "sdpa") -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=SHARED,
        attn_implementation=attention,
        use_cache=False,
    )
    return LlamaForCausalLM(config).eval()


def ported(source: nn.Module) -> Llama:
    """With the weights of the other: they come in the same order in both, but for the attention's last."""
    model = Llama().eval()
    names = {
        "model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "head", "model.layers": "layers",
        "input_layernorm": "norm1", "post_attention_layernorm": "norm2", "self_attn": "attention",
        "q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo",
        "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
    }  # fmt: skip
    weights = {}
    for name, weight in source.state_dict().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        weights[name] = weight.clone()
    model.load_state_dict(weights)
    return model


def captured(model: nn.Module) -> object:
    with tt.capture(model, "**", "**.in") as found, torch.no_grad():
        model(TOKENS)
    return found


def main() -> None:
    source = trusted()
    mine = ported(source)
    print(tt.align(source, mine, (TOKENS,), map=MAP), "\n")

    mine.layers[0].norm2.eps = 1e-2
    mine.layers[1].attention.theta = 9_000.0
    found = tt.align(source, mine, (TOKENS,), map=MAP)
    print(found)
    print("\nall faults:", ", ".join(f"{one.name} ({one.kind})" for one in found.origins))

    # Two runs, as they may lie on disk: where they part, with the same map.
    floor = tt.floor(source, (TOKENS,))
    parted = tt.compare_runs(captured(source), captured(mine), map=MAP, floor=floor)
    print("the runs part at:", parted.first.where)


if __name__ == "__main__":
    main()
