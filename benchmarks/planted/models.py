"""Real transformers models, small and with random weights, and where in each of them a bug can be planted."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

WORDS, CLASSES, BATCH, LENGTH, PADDED = 256, 8, 2, 24, 4
WIDTH, HEADS, SHARED_HEADS, INNER, LAYERS = 64, 4, 2, 128, 3
HEAD = WIDTH // HEADS
IMAGE, PATCH = 32, 8
LAYER = 1  # the layer that gets the bug
Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """One architecture: how it is made, and the path of each part by what it is for."""

    name: str
    sort: str  # dense, experts, scan, encoder-decoder, encoder, vision
    make: Callable[[str], nn.Module]  # a new config each time: two models would share it, and its settings
    layer: str
    within: dict[str, str]  # of the layer that gets the bug
    outside: dict[str, str]
    traits: frozenset[str] = field(default_factory=frozenset)

    @property
    def parts(self) -> dict[str, str]:
        start = f"{self.layer}.{LAYER}"
        inner = {role: f"{start}.{path}".rstrip(".") for role, path in self.within.items()}
        return inner | self.outside | {"model": ""}


def build(kind: Kind, seed: int, dtype: torch.dtype, attention: str = "eager") -> nn.Module:
    """The same seed gives the same weights, whatever else is asked for."""
    model = kind.make(attention if "fusable" in kind.traits else "eager").eval()
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if not hasattr(parameter, "is_drawn"):  # tied weights come twice
                _draw(module, name, parameter, generator)
                parameter.is_drawn = True  # type: ignore[attr-defined]
    return _converted(model, dtype)


def batch(kind: Kind, seed: int, dtype: torch.dtype) -> Batch:
    """Two sequences, of which the second ends in padding, or two pictures; labels where there is a loss."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    made: Batch = {}
    if kind.sort == "vision":
        made["pixel_values"] = torch.randn((BATCH, 3, IMAGE, IMAGE), generator=generator).to(dtype)
    if "spectrum" in kind.traits:
        made["input_features"] = torch.randn((BATCH, 16, 2 * LENGTH), generator=generator).to(dtype)
    elif "pixel_values" not in made or "words" in kind.traits:
        made |= _words(generator)
    if "loss" in kind.traits:
        made["labels"] = _labels(kind, made, generator)
    return made


def _words(generator: torch.Generator) -> Batch:
    mask = torch.ones((BATCH, LENGTH), dtype=torch.long)
    mask[1, LENGTH - PADDED :] = 0
    ids = torch.randint(3, WORDS, (BATCH, LENGTH), generator=generator)
    return {"input_ids": torch.where(mask.bool(), ids, 0), "attention_mask": mask}


def _labels(kind: Kind, made: Batch, generator: torch.Generator) -> torch.Tensor:
    if kind.sort == "vision":
        return torch.randint(0, CLASSES, (BATCH,), generator=generator)
    if "causal" in kind.traits:
        return made["input_ids"].masked_fill(made["attention_mask"] == 0, -100)
    labels = torch.randint(3, WORDS, (BATCH, LENGTH), generator=generator)
    labels[1, LENGTH - PADDED :] = -100
    return labels


def _draw(module: nn.Module, name: str, parameter: nn.Parameter, generator: torch.Generator) -> None:
    """As in a trained model: activations of the order of one, norms and biases that do something."""
    if name == "A_log":  # how fast a scan forgets is no matter of chance
        return
    drawn = torch.randn(parameter.shape, generator=generator)
    if name == "dt_bias":
        drawn = 0.5 * drawn - 2
    elif name.endswith("bias"):
        drawn = 0.1 * drawn
    elif parameter.ndim <= 1:
        drawn = 1 + 0.1 * drawn
    elif not isinstance(module, nn.Embedding) and "embedding" not in name:
        drawn = drawn / math.sqrt(_inputs_of(module, parameter))
    with torch.no_grad():
        parameter.copy_(drawn)


def _inputs_of(module: nn.Module, parameter: nn.Parameter) -> int:
    if isinstance(module, (nn.Conv1d, nn.Conv2d)):
        return parameter[0].numel()
    return parameter.shape[0 if isinstance(module, Conv1D) else -1]


def _converted(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Weights in that type; the frequencies of a rotation stay as they are, as after loading a checkpoint."""
    kept = {module: module.inv_freq for module in model.modules() if hasattr(module, "inv_freq")}
    model.to(dtype)
    for module, frequencies in kept.items():
        module.inv_freq = frequencies
    return model
