"""The models: fourteen that are scored, and six others on which thresholds are fixed."""

import transformers as hf
from torch import nn

from planted.makers import (
    BART,
    CAUSAL,
    DECODER,
    GROUPED,
    SEVERAL,
    SIZES,
    like_llama,
    made,
    of_experts,
    scanning,
)
from planted.models import CLASSES, HEAD, HEADS, IMAGE, INNER, LAYERS, LENGTH, PATCH, WIDTH, WORDS, Kind


def _t5(attention: str) -> nn.Module:
    config = hf.T5Config(
        vocab_size=WORDS,
        d_model=WIDTH,
        d_kv=HEAD,
        d_ff=INNER,
        num_layers=LAYERS,
        num_heads=HEADS,
        use_cache=False,
        decoder_start_token_id=0,
        attn_implementation=attention,
    )
    return hf.T5ForConditionalGeneration(config)


def _clip(attention: str) -> nn.Module:
    tower = {name: SIZES[name] for name in SIZES if name != "vocab_size"}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = hf.CLIPConfig(
        text_config={**SIZES, **ends, "max_position_embeddings": 2 * LENGTH},
        vision_config={**tower, "image_size": IMAGE, "patch_size": PATCH},
        projection_dim=32,
        attn_implementation=attention,
    )
    return hf.CLIPModel(config)


_GPT2 = Kind(
    "gpt2",
    "dense",
    made(
        "GPT2LMHeadModel",
        "GPT2Config",
        vocab_size=WORDS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=2 * LENGTH,
        n_inner=INNER,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    ),
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
    CAUSAL | {"single"},
)
_NEOX = Kind(
    "gpt_neox",
    "dense",
    made("GPTNeoXForCausalLM", "GPTNeoXConfig", **DECODER),
    "gpt_neox.layers",
    {
        "layer": "",
        "norm": "input_layernorm",
        "attention": "attention",
        "query": "attention.query_key_value",
        "out": "attention.dense",
        "activation": "mlp.act",
        "down": "mlp.dense_4h_to_h",
    },
    {"embedding": "gpt_neox.embed_in", "position": "gpt_neox.rotary_emb", "head": "lm_head"},
    CAUSAL | {"rotary", "single"},
)
_BERT = Kind(
    "bert",
    "encoder",
    made("BertForMaskedLM", "BertConfig", **SIZES, max_position_embeddings=2 * LENGTH),
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
    frozenset({"loss", "fusable", "single"}),
)
_T5 = Kind(
    "t5",
    "encoder-decoder",
    _t5,
    "encoder.block",
    {
        "layer": "layer.1",
        "norm": "layer.0.layer_norm",
        "attention": "layer.0.SelfAttention",
        "query": "layer.0.SelfAttention.q",
        "out": "layer.0.SelfAttention.o",
        "activation": "layer.1.DenseReluDense.act",
        "down": "layer.1.DenseReluDense.wo",
    },
    {
        "embedding": "encoder.embed_tokens",
        "relative": "encoder.block.0.layer.0.SelfAttention",
        "cross": "decoder.block.1.layer.1.EncDecAttention",
        "head": "lm_head",
    },
    frozenset({"loss", "fusable", "single"}),
)
_BART = Kind(
    "bart",
    "encoder-decoder",
    made("BartForConditionalGeneration", "BartConfig", **SEVERAL, max_position_embeddings=2 * LENGTH),
    "model.encoder.layers",
    BART,
    {
        "embedding": "model.encoder.embed_tokens",
        "position": "model.encoder.embed_positions",
        "cross": "model.decoder.layers.1.encoder_attn",
        "head": "lm_head",
    },
    frozenset({"loss", "fusable", "single"}),
)
_VIT = Kind(
    "vit",
    "vision",
    made(
        "ViTForImageClassification",
        "ViTConfig",
        **{name: SIZES[name] for name in SIZES if name != "vocab_size"},
        image_size=IMAGE,
        patch_size=PATCH,
        num_labels=CLASSES,
    ),
    "vit.layers",
    {
        "layer": "",
        "norm": "layernorm_before",
        "attention": "attention",
        "query": "attention.q_proj",
        "out": "attention.o_proj",
        "activation": "mlp.activation_fn",
        "down": "mlp.fc2",
    },
    {"patches": "vit.embeddings", "embedding": "vit.embeddings.patch_embeddings", "head": "classifier"},
    frozenset({"loss", "fusable", "single"}),
)
_CLIP = Kind(
    "clip",
    "vision",
    _clip,
    "vision_model.encoder.layers",
    {},
    {},
    frozenset({"words", "fusable", "single"}),
)
_WHISPER = Kind(
    "whisper",
    "encoder-decoder",
    made(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        **SEVERAL,
        num_mel_bins=16,
        max_source_positions=LENGTH,
        max_target_positions=2 * LENGTH,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
    "model.encoder.layers",
    BART,
    {},
    frozenset({"spectrum", "loss", "fusable", "single"}),
)
_OPT = Kind(
    "opt",
    "dense",
    made(
        "OPTForCausalLM",
        "OPTConfig",
        vocab_size=WORDS,
        hidden_size=WIDTH,
        ffn_dim=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        word_embed_proj_dim=WIDTH,
        max_position_embeddings=2 * LENGTH,
        use_cache=False,
        pad_token_id=0,
    ),
    "model.decoder.layers",
    BART,
    {},
    CAUSAL | {"single"},
)
_QWEN2 = {name: size for name, size in GROUPED.items() if name != "head_dim"}
SCORED = {
    kind.name: kind
    for kind in (
        like_llama("llama", "LlamaForCausalLM", "LlamaConfig", "split", **GROUPED, attention_bias=True),
        like_llama("qwen2", "Qwen2ForCausalLM", "Qwen2Config", "split", **_QWEN2),
        like_llama("qwen3", "Qwen3ForCausalLM", "Qwen3Config", "split", **GROUPED),
        like_llama("gemma2", "Gemma2ForCausalLM", "Gemma2Config", "capped", **GROUPED),
        _GPT2,
        _NEOX,
        of_experts("mixtral", "MixtralForCausalLM", "MixtralConfig", num_local_experts=4),
        of_experts(
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            "Qwen3MoeConfig",
            num_experts=4,
            moe_intermediate_size=INNER // 2,
            norm_topk_prob=True,
        ),
        scanning("mamba", "MambaForCausalLM", "MambaConfig", "gated", state_size=8),
        scanning(
            "mamba2",
            "Mamba2ForCausalLM",
            "Mamba2Config",
            "chunked",
            state_size=8,
            num_heads=8,
            head_dim=16,
            n_groups=1,
            chunk_size=8,
        ),
        _BERT,
        _T5,
        _BART,
        _VIT,
    )
}
CALIBRATED = {
    kind.name: kind
    for kind in (
        like_llama("mistral", "MistralForCausalLM", "MistralConfig", **GROUPED),
        _OPT,
        of_experts("olmoe", "OlmoeForCausalLM", "OlmoeConfig", num_experts=4),
        scanning("falcon_mamba", "FalconMambaForCausalLM", "FalconMambaConfig", state_size=8),
        _WHISPER,
        _CLIP,
    )
}
