"""How kinds of models are made, and what their parts are called."""

from typing import Any

import transformers as hf
from torch import nn

from planted.models import HEAD, HEADS, INNER, LAYERS, SHARED_HEADS, WIDTH, WORDS, Kind

SIZES = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
}
DECODER = {**SIZES, "use_cache": False, "pad_token_id": 0}
GROUPED = {**DECODER, "num_key_value_heads": SHARED_HEADS, "head_dim": HEAD}
FEW_EXPERTS = {"num_experts_per_tok": 2, "experts_implementation": "eager"}
SEVERAL = {
    "vocab_size": WORDS,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def made(model: str, config: str, **settings: Any) -> Any:
    """A maker: the class, with a config of its own for each model."""

    def make(attention: str) -> nn.Module:
        own = getattr(hf, config)(**settings, attn_implementation=attention)
        return getattr(hf, model)(own)

    return make


ATTENTION = {
    "layer": "",
    "norm": "input_layernorm",
    "attention": "self_attn",
    "query": "self_attn.q_proj",
    "out": "self_attn.o_proj",
}
FEED_FORWARD = {"activation": "mlp.act_fn", "down": "mlp.down_proj"}
EXPERTS = {"router": "mlp.gate", "experts": "mlp.experts"}
LLAMA = {"embedding": "model.embed_tokens", "position": "model.rotary_emb", "head": "lm_head"}
SCAN = {"layer": "", "norm": "norm", "mixer": "mixer", "out": "mixer.out_proj", "down": "mixer.in_proj"}
BACKBONE = {"embedding": "backbone.embeddings", "head": "lm_head"}
BART = {
    "layer": "",
    "norm": "self_attn_layer_norm",
    "attention": "self_attn",
    "query": "self_attn.q_proj",
    "out": "self_attn.out_proj",
    "activation": "activation_fn",
    "down": "fc2",
}
CAUSAL = frozenset({"causal", "loss", "fusable"})
ROTARY = CAUSAL | {"rotary", "grouped", "pre-norm", "single"}


def like_llama(name: str, model: str, config: str, *traits: str, **settings: Any) -> Kind:
    make = made(model, config, **settings)
    known = (ROTARY | set(traits)) - ({"fusable"} if "capped" in traits else set())
    return Kind(name, "dense", make, "model.layers", ATTENTION | FEED_FORWARD, LLAMA, known)


def of_experts(name: str, model: str, config: str, **settings: Any) -> Kind:
    make = made(model, config, **GROUPED, **FEW_EXPERTS, **settings)
    return Kind(name, "experts", make, "model.layers", ATTENTION | EXPERTS, LLAMA, ROTARY - {"single"})


def scanning(name: str, model: str, config: str, *traits: str, **settings: Any) -> Kind:
    sizes = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "use_cache": False}
    make = made(model, config, **sizes, **settings)
    causal = frozenset({"causal", "loss", "single", *traits})
    return Kind(name, "scan", make, "backbone.layers", SCAN, BACKBONE, causal)
