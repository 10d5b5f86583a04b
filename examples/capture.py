"""Any tensor of a model by name, without editing it: python examples/capture.py"""

import torch
from torch import nn

import tensortap as tt


def main() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model=16, nhead=2, dim_feedforward=32, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=3, enable_nested_tensor=False)

    print(tt.sites(model, "layers.0.**"))  # what could be selected; nothing runs
    with tt.capture(model, "layers.*", "layers.*.linear1.in", "layers.2.grad") as cap:
        model(torch.randn(2, 5, 16)).sum().backward()
    print(cap)
    print("the outputs of all layers:", tuple(cap["layers.*"].stack().shape))

    with tt.edit(model, {"layers.1": lambda value: value * 0}):
        print("without layer 1:", float(model(torch.randn(2, 5, 16)).detach().norm()))


if __name__ == "__main__":
    main()
