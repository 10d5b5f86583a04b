"""Small random models of transformers: one line each says the class, the configuration and what it is fed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import transformers

Inputs = dict[str, torch.Tensor]
_WORDS = 40

_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_NARROW: dict[str, Any] = {
    "vocab_size": _WORDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    **_SPECIAL,
}
_GROUPED = {**_NARROW, "num_key_value_heads": 1}
_EXPERTS = {**_GROUPED, "moe_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 2}
_LATENT = {
    **_NARROW,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 12,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}
_STATE_SPACE = {
    "vocab_size": _WORDS,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "state_size": 4,
    **_SPECIAL,
    "use_mambapy": False,
}
_TWO_STACKS = {
    "vocab_size": _WORDS,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    **_SPECIAL,
    "decoder_start_token_id": 2,
}
_IMAGES = {"image_size": 16, "patch_size": 4, "num_channels": 3}
_WAVES = {
    **_NARROW,
    "conv_dim": (16, 16),
    "conv_kernel": (8, 4),
    "conv_stride": (4, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,
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
    settings: Mapping[str, Any]
    inputs: Callable[[], Inputs] = text


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", "LlamaConfig", _GROUPED),
    "llama_with_attentions": Architecture(
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            **_GROUPED,
            "attn_implementation": "eager",
            "attention_dropout": 0.1,
            "output_attentions": True,
            "output_hidden_states": True,
        },
    ),
    "qwen3": Architecture("Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 8}),
    "gpt2": Architecture(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": _WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, **_SPECIAL},
    ),
    "gpt_neox": Architecture("GPTNeoXForCausalLM", "GPTNeoXConfig", {**_NARROW, "hidden_dropout": 0.1}),
    "gemma2": Architecture("Gemma2ForCausalLM", "Gemma2Config", {**_GROUPED, "head_dim": 8}),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**_GROUPED, "head_dim": 8, "sliding_window": 4, "sliding_window_pattern": 2},
    ),
    "opt": Architecture(
        "OPTForCausalLM", "OPTConfig", {**_NARROW, "ffn_dim": 24, "word_embed_proj_dim": 16}
    ),
    "bloom": Architecture(
        "BloomForCausalLM",
        "BloomConfig",
        {"vocab_size": _WORDS, "hidden_size": 16, "n_layer": 2, "n_head": 2, "hidden_dropout": 0.1},
    ),
    "phi3": Architecture("Phi3ForCausalLM", "Phi3Config", {**_GROUPED, "resid_pdrop": 0.1}),
    "falcon": Architecture("FalconForCausalLM", "FalconConfig", _NARROW),
    "mixtral": Architecture(
        "MixtralForCausalLM", "MixtralConfig", {**_GROUPED, "num_local_experts": 4, "head_dim": 8}
    ),
    "qwen3_moe": Architecture("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**_EXPERTS, "head_dim": 8}),
    "olmoe": Architecture("OlmoeForCausalLM", "OlmoeConfig", _EXPERTS),
    "deepseek_v2": Architecture("DeepseekV2ForCausalLM", "DeepseekV2Config", _LATENT),
    "deepseek_v3": Architecture("DeepseekV3ForCausalLM", "DeepseekV3Config", _LATENT),
    "mamba": Architecture("MambaForCausalLM", "MambaConfig", _STATE_SPACE),
    "falcon_mamba": Architecture("FalconMambaForCausalLM", "FalconMambaConfig", _STATE_SPACE),
    "mamba2": Architecture(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {**_STATE_SPACE, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4},
    ),
    "rwkv": Architecture(
        "RwkvForCausalLM",
        "RwkvConfig",
        {"vocab_size": _WORDS, "hidden_size": 16, "num_hidden_layers": 2, "context_length": 32},
        unmasked_text,
    ),
    "jamba": Architecture(
        "JambaForCausalLM",
        "JambaConfig",
        {
            **_EXPERTS,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_d_state": 4,
            "mamba_dt_rank": 4,
        },
    ),
    "zamba2": Architecture(
        "Zamba2ForCausalLM",
        "Zamba2Config",
        {
            **_NARROW,
            "num_key_value_heads": 2,
            "num_hidden_layers": 4,
            "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
            "num_mem_blocks": 1,
            "mamba_d_state": 4,
            "mamba_ngroups": 1,
            "mamba_headdim": 8,
            "n_mamba_heads": 4,
            "chunk_size": 4,
            "use_mem_rope": False,
        },
    ),
    "qwen3_next": Architecture(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {
            **_EXPERTS,
            "head_dim": 8,
            "shared_expert_intermediate_size": 12,
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 1,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "bert": Architecture("BertForMaskedLM", "BertConfig", _NARROW),
    "roberta": Architecture("RobertaForSequenceClassification", "RobertaConfig", _NARROW),
    "deberta_v2": Architecture(
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {
            **_NARROW,
            "relative_attention": True,
            "position_buckets": 4,
            "pos_att_type": ["p2c", "c2p"],
            "conv_kernel_size": 3,
        },
    ),
    "modernbert": Architecture(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**_NARROW, "cls_token_id": 1, "sep_token_id": 2, "mlp_dropout": 0.1, "local_attention": 4},
    ),
    "albert": Architecture("AlbertForMaskedLM", "AlbertConfig", {**_NARROW, "embedding_size": 8}),
    "t5": Architecture(
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": _WORDS,
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
        two_texts,
    ),
    "bart": Architecture("BartForConditionalGeneration", "BartConfig", _TWO_STACKS, two_texts),
    "marian": Architecture("MarianMTModel", "MarianConfig", _TWO_STACKS, two_texts),
    "vit": Architecture(
        "ViTForImageClassification", "ViTConfig", {**_NARROW, **_IMAGES, "hidden_dropout_prob": 0.1}, image
    ),
    "swin": Architecture(
        "SwinForImageClassification",
        "SwinConfig",
        {**_IMAGES, "image_size": 32, "embed_dim": 8, "depths": [1, 2], "num_heads": [1, 2], "window_size": 4},
        large_image,
    ),
    "convnext": Architecture(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"hidden_sizes": [8, 16], "depths": [1, 2], "num_stages": 2, "drop_path_rate": 0.2},
        large_image,
    ),
    "segformer": Architecture(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "hidden_sizes": [8, 16],
            "num_attention_heads": [1, 2],
            "sr_ratios": [2, 1],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 16,
        },
        large_image,
    ),
    "clip": Architecture(
        "CLIPModel",
        "CLIPConfig",
        {
            "text_config": {**_NARROW, "projection_dim": 8},
            "vision_config": {**_NARROW, **_IMAGES, "projection_dim": 8},
            "projection_dim": 8,
        },
        image_and_text,
    ),
    "detr": Architecture(
        "DetrForObjectDetection",
        "DetrConfig",
        {
            **{name: value for name, value in _TWO_STACKS.items() if name != "vocab_size"},
            "num_queries": 3,
            "use_timm_backbone": False,
            "backbone": None,
            "backbone_config": transformers.ResNetConfig(
                embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"]
            ),
        },
        large_image,
    ),
    "yolos": Architecture(
        "YolosForObjectDetection",
        "YolosConfig",
        {**_NARROW, **_IMAGES, "image_size": [16, 16], "num_detection_tokens": 3},
        image,
    ),
    "whisper": Architecture(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**_TWO_STACKS, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 12},
        spectrum,
    ),
    "wav2vec2": Architecture("Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVES, wave),
    "hubert": Architecture("HubertForSequenceClassification", "HubertConfig", _WAVES, wave),
}


@lru_cache(maxsize=4)
def built(name: str) -> torch.nn.Module:
    """The model with random weights, always the same ones, in train mode."""
    made = ARCHITECTURES[name]
    torch.manual_seed(5)
    configuration = getattr(transformers, made.configuration)(**made.settings)
    model: torch.nn.Module = getattr(transformers, made.model)(configuration)
    return model.train()
