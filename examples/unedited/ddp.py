"""Train a small network with DistributedDataParallel: torchrun --nproc-per-node 2 ddp.py"""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the group: its defaults would hold it, past destroy
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 4)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        features = self.body(pixels)
        return self.head(features)


def main() -> None:
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()


def train() -> None:
    torch.manual_seed(0)
    pixels = torch.randn(64, 20)
    data = TensorDataset(pixels, pixels[:, :4].argmax(1))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data, seed=1))
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    loss_of = nn.CrossEntropyLoss()
    for number, (batch, labels) in enumerate(loader):
        loss = loss_of(model(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"batch {number}: loss {loss.item():.6f}", flush=True)


if __name__ == "__main__":
    main()
