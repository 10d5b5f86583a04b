"""Small random models of transformers: of which class, with which configuration, and what they are fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import transformers

Inputs = dict[str, torch.Tensor]
_WORDS = 40

_WORDED = {"vocab_size": _WORDS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_NARROW: dict[str, Any] = {
    **_WORDED,
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "max_position_embeddings": 32},
}
_GROUPED = {**_NARROW, "num_key_value_heads": 1}
_ATTENTIONS: dict[str, Any] = {
    "attn_implementation": "eager",
    "output_attentions": True,
    "output_hidden_states": True,
}
_EXPERTS = {**_GROUPED, "moe_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 2}
_LATENT = {
    **{**_NARROW, "num_key_value_heads": 2, "kv_lora_rank": 8, "q_lora_rank": 8},
    **{"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8},
    **{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1},
    **{"moe_intermediate_size": 12, "first_k_dense_replace": 1},
}
_STATE_SPACE = {**_WORDED, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "use_mambapy": False}
_ALTERNATING: dict[str, Any] = {
    **{"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    **{"mamba_d_state": 4, "mamba_dt_rank": 4},
}
_SHARED_BLOCK: dict[str, Any] = {
    **{"num_key_value_heads": 2, "num_hidden_layers": 4, "num_mem_blocks": 1, "use_mem_rope": False},
    **{"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 4, "mamba_ngroups": 1},
    **{"mamba_headdim": 8, "n_mamba_heads": 4, "chunk_size": 4},
}
_DELTA_RULE: dict[str, Any] = {
    **{"linear_num_value_heads": 2, "linear_num_key_heads": 1, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]},
    **{"shared_expert_intermediate_size": 12},
}
_RELATIVE: dict[str, Any] = {
    **{"relative_attention": True, "position_buckets": 4, "pos_att_type": ["p2c", "c2p"]},
    **{"conv_kernel_size": 3},
}
_TWO_STACKS = {
    **{"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 32},
    **{
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
    },
    **{"decoder_ffn_dim": 24, "pad_token_id": 0, "decoder_start_token_id": 2},
}
_IMAGES = {"image_size": 16, "patch_size": 4, "num_channels": 3}
_BACKBONE = {
    **{"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    **{"out_features": ["stage2"]},
}
_PYRAMID = {
    **{"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "num_attention_heads": [1, 2]},
    **{"sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2]},
    **{"decoder_hidden_size": 16},
}
_WAVES = {
    **{**_NARROW, "conv_dim": (16, 16), "conv_kernel": (8, 4), "conv_stride": (4, 2)},
    **{"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2},
    **{"apply_spec_augment": False, "mask_time_prob": 0.0},
}


def _words(*shape: int) -> torch.Tensor:
    return torch.randint(3, _WORDS, shape, generator=_generator())


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=_generator())


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def text() -> Inputs:
    mask = torch.ones(2, 6, dtype=torch.long)
    mask[1, 4:] = 0
    return {"input_ids": _words(2, 6), "attention_mask": mask}


def unmasked_text() -> Inputs:
    return {"input_ids": _words(2, 6)}


def two_texts() -> Inputs:
    return {**text(), "decoder_input_ids": _words(2, 5)}


def image() -> Inputs:
    return {"pixel_values": _numbers(1, 3, 16, 16)}


def large_image() -> Inputs:
    return {"pixel_values": _numbers(1, 3, 32, 32)}


def image_and_text() -> Inputs:
    return {**text(), **image()}


def spectrum() -> Inputs:
    return {"input_features": _numbers(1, 8, 20), "decoder_input_ids": _words(1, 5)}


def wave() -> Inputs:
    return {"input_values": _numbers(1, 160)}


class Architecture(NamedTuple):
    """How a model is made, and what it is fed."""

    model: str
    configuration: str
    settings: dict[str, Any]
    inputs: Callable[[], Inputs]


def _of(
    model: str,
    configuration: str,
    common: Mapping[str, Any],
    inputs: Callable[[], Inputs] = text,
    **settings: Any,
) -> Architecture:
    return Architecture(model, configuration, {**common, **settings}, inputs)


_DENSE = {
    "llama": _of("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "llama_with_attentions": _of(
        "LlamaForCausalLM", "LlamaConfig", _GROUPED, attention_dropout=0.1, **_ATTENTIONS
    ),
    "qwen3": _of("Qwen3ForCausalLM", "Qwen3Config", _GROUPED, head_dim=8),
    "gpt2": _of("GPT2LMHeadModel", "GPT2Config", _WORDED, n_embd=16, n_layer=2, n_head=2, n_positions=32),
    "gpt_neox": _of("GPTNeoXForCausalLM", "GPTNeoXConfig", _NARROW, hidden_dropout=0.1),
    "gemma2": _of("Gemma2ForCausalLM", "Gemma2Config", _GROUPED, head_dim=8),
    "gemma3": _of("Gemma3ForCausalLM", "Gemma3TextConfig", _GROUPED, head_dim=8, sliding_window=4),
    "opt": _of("OPTForCausalLM", "OPTConfig", _NARROW, ffn_dim=24, word_embed_proj_dim=16),
    "bloom": _of(
        "BloomForCausalLM", "BloomConfig", _WORDED, hidden_size=16, n_layer=2, n_head=2, hidden_dropout=0.1
    ),
    "phi3": _of("Phi3ForCausalLM", "Phi3Config", _GROUPED, resid_pdrop=0.1),
    "falcon": _of("FalconForCausalLM", "FalconConfig", _NARROW),
}
_MIXTURES = {
    "mixtral": _of("MixtralForCausalLM", "MixtralConfig", _GROUPED, num_local_experts=4, head_dim=8),
    "qwen3_moe": _of("Qwen3MoeForCausalLM", "Qwen3MoeConfig", _EXPERTS, head_dim=8),
    "olmoe": _of("OlmoeForCausalLM", "OlmoeConfig", _EXPERTS),
    "deepseek_v2": _of("DeepseekV2ForCausalLM", "DeepseekV2Config", _LATENT),
    "deepseek_v3": _of("DeepseekV3ForCausalLM", "DeepseekV3Config", _LATENT),
}
_STATEFUL = {
    "mamba": _of("MambaForCausalLM", "MambaConfig", _STATE_SPACE),
    "falcon_mamba": _of("FalconMambaForCausalLM", "FalconMambaConfig", _STATE_SPACE),
    "mamba2": _of(
        "Mamba2ForCausalLM", "Mamba2Config", _STATE_SPACE, num_heads=4, head_dim=8, n_groups=1, chunk_size=4
    ),
    "rwkv": _of(
        "RwkvForCausalLM",
        "RwkvConfig",
        {"vocab_size": _WORDS, "hidden_size": 16, "num_hidden_layers": 2, "context_length": 32},
        unmasked_text,
    ),
    "jamba": _of("JambaForCausalLM", "JambaConfig", _EXPERTS, **_ALTERNATING),
    "zamba2": _of("Zamba2ForCausalLM", "Zamba2Config", _NARROW, **_SHARED_BLOCK),
    "qwen3_next": _of("Qwen3NextForCausalLM", "Qwen3NextConfig", _EXPERTS, head_dim=8, **_DELTA_RULE),
}
_ENCODERS = {
    "bert": _of("BertForMaskedLM", "BertConfig", _NARROW),
    "roberta": _of("RobertaForSequenceClassification", "RobertaConfig", _NARROW),
    "deberta_v2": _of("DebertaV2ForMaskedLM", "DebertaV2Config", _NARROW, **_RELATIVE),
    "modernbert": _of(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        _NARROW,
        cls_token_id=1,
        sep_token_id=2,
        local_attention=4,
    ),
    "albert": _of("AlbertForMaskedLM", "AlbertConfig", _NARROW, embedding_size=8),
}
_PAIRS = {
    "t5": _of(
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": _WORDS, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2},
        two_texts,
        decoder_start_token_id=0,
    ),
    "bart": _of("BartForConditionalGeneration", "BartConfig", {**_WORDED, **_TWO_STACKS}, two_texts),
    "marian": _of("MarianMTModel", "MarianConfig", {**_WORDED, **_TWO_STACKS}, two_texts),
}
_VISION = {
    "vit": _of(
        "ViTForImageClassification", "ViTConfig", {**_NARROW, **_IMAGES}, image, hidden_dropout_prob=0.1
    ),
    "swin": _of(
        "SwinForImageClassification",
        "SwinConfig",
        {**_IMAGES, "image_size": 32, "window_size": 4},
        large_image,
        embed_dim=8,
        depths=[1, 2],
        num_heads=[1, 2],
    ),
    "convnext": _of(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "drop_path_rate": 0.2},
        large_image,
    ),
    "segformer": _of("SegformerForSemanticSegmentation", "SegformerConfig", _PYRAMID, large_image),
    "clip": _of(
        "CLIPModel",
        "CLIPConfig",
        {"text_config": {**_NARROW, "projection_dim": 8}, "projection_dim": 8},
        image_and_text,
        vision_config={**_NARROW, **_IMAGES, "projection_dim": 8},
    ),
    "detr": _of(
        "DetrForObjectDetection",
        "DetrConfig",
        {**_TWO_STACKS, "num_queries": 3, "use_timm_backbone": False, "backbone": None},
        large_image,
        backbone_config=_BACKBONE,
    ),
    "yolos": _of(
        "YolosForObjectDetection",
        "YolosConfig",
        {**_NARROW, **_IMAGES, "image_size": [16, 16], "num_detection_tokens": 3},
        image,
    ),
}
_AUDIO = {
    "whisper": _of(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**_WORDED, **_TWO_STACKS, "num_mel_bins": 8},
        spectrum,
        max_source_positions=10,
        max_target_positions=12,
    ),
    "wav2vec2": _of("Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVES, wave),
    "hubert": _of("HubertForSequenceClassification", "HubertConfig", _WAVES, wave),
}
ARCHITECTURES: dict[str, Architecture] = {
    **_DENSE,
    **_MIXTURES,
    **_STATEFUL,
    **_ENCODERS,
    **_PAIRS,
    **_VISION,
    **_AUDIO,
}


@lru_cache(maxsize=4)
def built(name: str) -> torch.nn.Module:
    """The model with random weights, always the same ones, in train mode."""
    made = ARCHITECTURES[name]
    torch.manual_seed(5)
    configuration = getattr(transformers, made.configuration)(**made.settings)
    model: torch.nn.Module = getattr(transformers, made.model)(configuration)
    return model.train()
