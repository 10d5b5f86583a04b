"""Real transformers models, small and with random weights, and where in each of them a bug can be planted."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.pytorch_utils import Conv1D

WORDS, BATCH, LENGTH = 256, 2, 32
WIDTH, HEADS, SHARED_HEADS, INNER, LAYERS = 128, 8, 4, 256, 4
LAYER = 2  # the layer that gets the bug
Batch = dict[str, torch.Tensor]

_SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "use_cache": False,
}
_GROUPED = {**_SIZES, "num_key_value_heads": SHARED_HEADS, "head_dim": WIDTH // HEADS}
_ATTENTION = {
    "layer": "",
    "norm": "input_layernorm",
    "attention": "self_attn",
    "query": "self_attn.q_proj",
    "out": "self_attn.o_proj",
}
_FEED_FORWARD = {"activation": "mlp.act_fn", "down": "mlp.down_proj"}
_LLAMA = {"embedding": "model.embed_tokens", "position": "model.rotary_emb", "head": "lm_head"}


@dataclass(frozen=True)
class Kind:
    """One architecture: how it is made, and the path of each part by what it is for."""

    name: str
    make: Callable[[str], nn.Module]  # a new config each time: two models would share it, and its settings
    layer: str
    within: dict[str, str]  # of the layer that gets the bug
    outside: dict[str, str]
    traits: frozenset[str] = field(default_factory=frozenset)

    @property
    def parts(self) -> dict[str, str]:
        start = f"{self.layer}.{LAYER}"
        return {role: f"{start}.{path}".rstrip(".") for role, path in self.within.items()} | self.outside


def _llama(attention: str) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**_GROUPED, attention_bias=True, attn_implementation=attention))


def _qwen2(attention: str) -> nn.Module:
    sizes = {name: size for name, size in _GROUPED.items() if name != "head_dim"}
    return Qwen2ForCausalLM(Qwen2Config(**sizes, attn_implementation=attention))


def _qwen3(attention: str) -> nn.Module:
    return Qwen3ForCausalLM(Qwen3Config(**_GROUPED, attn_implementation=attention))


def _mixtral(attention: str) -> nn.Module:
    config = MixtralConfig(
        **_GROUPED,
        num_local_experts=4,
        num_experts_per_tok=2,
        attn_implementation=attention,
        experts_implementation="eager",
    )
    return MixtralForCausalLM(config)


def _gpt2(attention: str) -> nn.Module:
    config = GPT2Config(
        vocab_size=WORDS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=2 * LENGTH,
        n_inner=INNER,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        attn_implementation=attention,
    )
    return GPT2LMHeadModel(config)


def _bert(attention: str) -> nn.Module:
    sizes = {name: size for name, size in _SIZES.items() if name != "use_cache"}
    config = BertConfig(**sizes, max_position_embeddings=2 * LENGTH, attn_implementation=attention)
    return BertForMaskedLM(config)


_ROTARY = frozenset({"rotary", "grouped", "pre-norm", "dense"})
KINDS = {
    kind.name: kind
    for kind in (
        Kind("llama", _llama, "model.layers", _ATTENTION | _FEED_FORWARD, _LLAMA, _ROTARY),
        Kind("qwen2", _qwen2, "model.layers", _ATTENTION | _FEED_FORWARD, _LLAMA, _ROTARY),
        Kind("qwen3", _qwen3, "model.layers", _ATTENTION | _FEED_FORWARD, _LLAMA, _ROTARY),
        Kind(
            "mixtral",
            _mixtral,
            "model.layers",
            _ATTENTION | {"router": "mlp.gate", "experts": "mlp.experts"},
            _LLAMA,
            _ROTARY - {"dense"},
        ),
        Kind(
            "gpt2",
            _gpt2,
            "transformer.h",
            {
                "layer": "",
                "norm": "ln_1",
                "attention": "attn",
                "query": "attn.c_attn",
                "out": "attn.c_proj",
                "activation": "mlp.act",
                "down": "mlp.c_proj",
            },
            {"embedding": "transformer.wte", "position": "transformer.wpe", "head": "lm_head"},
            frozenset({"dense"}),
        ),
        Kind(
            "bert",
            _bert,
            "bert.encoder.layer",
            {
                "layer": "",
                "norm": "attention.output.LayerNorm",
                "attention": "attention.self",
                "query": "attention.self.query",
                "out": "attention.output.dense",
                "activation": "intermediate.intermediate_act_fn",
                "down": "output.dense",
            },
            {
                "embedding": "bert.embeddings.word_embeddings",
                "position": "bert.embeddings.position_embeddings",
                "head": "cls.predictions.decoder",
            },
            frozenset({"dense"}),
        ),
    )
}


def build(kind: Kind, seed: int, dtype: torch.dtype, attention: str = "eager") -> nn.Module:
    """The same seed gives the same weights, whatever else is asked for."""
    model = kind.make(attention).eval()
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not hasattr(parameter, "is_drawn"):  # tied weights come twice
                _draw(module, name, parameter, generator)
                parameter.is_drawn = True  # type: ignore[attr-defined]
    return _converted(model, dtype)


def batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(10_000 + seed)
    return {"input_ids": torch.randint(0, WORDS, (BATCH, LENGTH), generator=generator)}


def _draw(module: nn.Module, name: str, parameter: nn.Parameter, generator: torch.Generator) -> None:
    """As in a trained model: activations of the order of one, norms and biases that do something."""
    drawn = torch.randn(parameter.shape, generator=generator)
    if name == "bias":
        drawn = 0.1 * drawn
    elif parameter.ndim == 1:
        drawn = 1 + 0.1 * drawn
    elif not isinstance(module, nn.Embedding):
        drawn = drawn / math.sqrt(parameter.shape[0 if isinstance(module, Conv1D) else -1])
    with torch.no_grad():
        parameter.copy_(drawn)


def _converted(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Weights in that type; the frequencies of a rotation stay as they are, as after loading a checkpoint."""
    kept = {module: module.inv_freq for module in model.modules() if hasattr(module, "inv_freq")}
    model.to(dtype)
    for module, frequencies in kept.items():
        module.inv_freq = frequencies
    return model
