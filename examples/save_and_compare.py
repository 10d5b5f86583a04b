"""Save values of two runs, and ask what differs: python examples/save_and_compare.py [folder]"""

import sys

import torch

import tensortap as tt


def main(folder: str = "experiments") -> None:
    runs = []
    for scale in (1.0, 1.0 + 1e-3):
        run = tt.init(folder)  # a folder of its own, with command, packages, git state
        torch.manual_seed(0)
        hidden = torch.randn(4, 8) * scale
        tt.dump(hidden)  # named after the variable: hidden.pt
        tt.dump({"scale": scale}, "settings")
        tt.close()
        runs.append(run)

    first, second = (tt.Run(run) for run in runs)
    print(first)
    print("equal:", tt.compare(first.load("hidden"), second.load("hidden")))
    print(tt.difference(first.load("hidden"), second.load("hidden")))


if __name__ == "__main__":
    main(*sys.argv[1:])
