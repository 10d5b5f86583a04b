"""Track tensors through a small video pipeline: what came in, what each line made of it, what went out.

python examples/track.py
"""

from __future__ import annotations

import numpy as np
import torch

import tensortap as tt


class Clips(torch.utils.data.Dataset[torch.Tensor]):
    """Clips of random frames, as a decoder gives them."""

    def __len__(self) -> int:
        return 4

    @tt.auto_diff
    def __getitem__(self, index: int) -> torch.Tensor:
        sample = {"path": f"{index}.mp4", "frames": 8}
        video = self.read(sample["path"], 8)
        return normalised(video)

    def read(self, path: str, frames: int) -> torch.Tensor:
        video = np.random.default_rng(len(path)).integers(0, 255, (frames, 24, 32, 3), dtype=np.uint8)
        video = torch.from_numpy(video)
        return video.permute(0, 3, 1, 2)


def normalised(video: torch.Tensor) -> torch.Tensor:
    video = torch.nn.functional.interpolate(video.float(), (12, 16))
    return (video - video.mean()) / video.std()


@tt.var_tracker("loss", "latents.shape", stats=True)
def train(model: torch.nn.Module, video: torch.Tensor, steps: int) -> float:
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    loss = torch.zeros(())
    for _ in range(steps):
        latents = video.flatten(1)
        loss = (model(latents) - latents.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@tt.watch
def divide(video: torch.Tensor) -> torch.Tensor:
    """The first NaN or Inf is marked where it is born."""
    scale = video.sum(dim=(1, 2, 3))
    scale = scale - scale[0]
    return video / scale[:, None, None, None]


def main() -> None:
    torch.manual_seed(0)
    clips = Clips()
    print("-- one function and all that it calls", flush=True)
    clips[0]
    print("-- of the variables only some", flush=True)
    tt.auto_diff.disable()
    plain = clips[1]
    tt.auto_diff.enable()
    train(torch.nn.Linear(576, 1), plain, 3)
    print("-- where the first NaN or Inf comes from", flush=True)
    divide(plain)
    print("-- the forward of a model with the same look", flush=True)
    model = torch.nn.Sequential(torch.nn.Linear(576, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    with tt.capture(model, to="tree"):
        model(plain.flatten(1))


if __name__ == "__main__":
    main()
