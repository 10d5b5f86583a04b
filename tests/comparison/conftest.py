"""A small real model, and what was captured of it."""

import copy
import types
from collections.abc import Callable
from typing import Any

import pytest

EVERYTHING = ("**", "**.in")


@pytest.fixture(scope="session")
def llama() -> Callable[..., Any]:
    """Builds the same tiny Llama each time; two models never share a configuration object."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def build(attention: str = "eager", dtype: Any = torch.float32, layers: int = 3) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            config = LlamaConfig(
                vocab_size=96,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=layers,
                num_attention_heads=4,
                num_key_value_heads=2,
                attn_implementation=attention,
            )
            return LlamaForCausalLM(config).eval().to(dtype)

    return build


@pytest.fixture(scope="session")
def tokens() -> dict[str, Any]:
    import torch

    return {"input_ids": torch.randint(0, 96, (2, 20), generator=torch.Generator().manual_seed(3))}


@pytest.fixture(scope="session")
def captured() -> Callable[..., Any]:
    """What a forward of a model gives, all inputs and outputs unless told otherwise."""
    import torch

    import tensortap as tt

    def capture(model: Any, batch: Any, *patterns: str, to: Any = None) -> Any:
        with tt.capture(model, *(patterns or EVERYTHING), to=to) as found, torch.no_grad():
            model(**batch) if isinstance(batch, dict) else model(batch)
        return found

    return capture


@pytest.fixture(scope="session")
def clean(llama: Any, tokens: Any, captured: Any) -> types.SimpleNamespace:
    """The baseline: the model, what was captured of it, and its floor."""
    import tensortap as tt

    model = llama()
    return types.SimpleNamespace(
        model=model,
        run=captured(model, tokens),
        floor=tt.floor(model, tokens),
        copy=lambda: copy.deepcopy(model),
    )
