"""What the functions of the page call."""

import torch
from torch import nn

from tensortap import h4logger, log2file, logger

said = h4logger, log2file, logger


def normalised(video):
    return video / 255


model, x, xxx = nn.Linear(4, 4), torch.randn(2, 4), 3
