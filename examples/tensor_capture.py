"""Capture the tensors of a parallel MLP: run it, split it over two processes, export it, and compare.

python examples/tensor_capture.py demo
python examples/tensor_capture.py compile --output-path exported/ --max-tensors 3
python examples/tensor_capture.py inference --model-path exported/
"""

import argparse
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import tensortap as tt
from tensortap.compat.tensor_capture import (
    disable_tensor_capture,
    enable_tensor_capture,
    get_available_modules,
    get_captured_tensors_dict,
    register_tensor,
)

MODULES = ["up", "down"]
PROGRAM = "model.pt2"
WIDTH, HIDDEN, WORLD = 8, 32, 2


class ColumnParallelLinear(nn.Module):
    """Each rank holds some of the outputs: what it computes is a piece of the whole."""

    def __init__(self, full: nn.Linear) -> None:
        super().__init__()
        self.gather_output, self.output_size = False, full.out_features
        self.weight = nn.Parameter(piece(full.weight, 0))
        self.bias = nn.Parameter(piece(full.bias, 0))
        for parameter in (self.weight, self.bias):
            say_split(parameter, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """Each rank holds some of the inputs: what they compute is added up, so every rank has the whole."""

    def __init__(self, full: nn.Linear) -> None:
        super().__init__()
        self.input_is_parallel, self.input_size = True, full.in_features
        self.weight = nn.Parameter(piece(full.weight, 1))
        self.bias = nn.Parameter(full.bias.detach().clone())
        say_split(self.weight, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = nn.functional.linear(x, self.weight)
        if dist.is_initialized():
            dist.all_reduce(total)
        return total + self.bias


class MLP(nn.Module):
    """Hands out what was captured, if anything was: a traced model has no other way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)  # every rank splits the same weights
        self.up = ColumnParallelLinear(nn.Linear(WIDTH, HIDDEN))
        self.activation = nn.GELU()
        self.down = RowParallelLinear(nn.Linear(HIDDEN, WIDTH))

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.activation(self.up(x))
        register_tensor("after_activation", hidden)
        output = x + self.down(hidden)
        register_tensor("after_residual", output)
        captured = get_captured_tensors_dict()
        return (output, captured) if captured else output


def piece(weight: torch.Tensor, dimension: int) -> torch.Tensor:
    """This rank's part of a weight; all of it when there is one process."""
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return weight.detach().chunk(world, dimension)[rank].clone()


def say_split(parameter: nn.Parameter, dimension: int) -> None:
    """What Megatron and its heirs write on a weight; tensortap reads how its outputs are split from it."""
    parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    parameter.partition_dim = dimension  # type: ignore[attr-defined]


def example_input() -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))


def captured_on_cpu() -> dict[str, torch.Tensor]:
    """What one process captures."""
    model = enable_tensor_capture(MLP(), MODULES, capture_inputs=True)
    with torch.no_grad():
        model(example_input())
    captured = get_captured_tensors_dict()
    disable_tensor_capture(model)
    return dict(captured)


def run_rank(rank: int, folder: str) -> None:
    """One of the processes of the parallel run; what it captures also goes to a run on disk."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    with tt.Tap(sinks=[tt.RunDirectory(Path(folder) / "run")]) as tap, torch.no_grad():
        model = enable_tensor_capture(MLP(), MODULES, capture_inputs=True, tap=tap)
        model(example_input())
        disable_tensor_capture(model)
    dist.barrier()
    dist.destroy_process_group()


def captured_in_parallel() -> dict[str, list[tt.Record]]:
    """What two processes captured: one record per rank, each knowing how its piece sits in the whole."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (folder,), nprocs=WORLD)  # type: ignore[attr-defined, no-untyped-call]
        run = tt.Run(Path(folder) / "run")
        return {name: [stored.record() for stored in run.filter(name)] for name in run.names}


def demo() -> None:
    print(f"available modules: {', '.join(get_available_modules(MLP()))}\n")
    plain = captured_on_cpu()
    print("one process")
    show([["tensor", "shape", "mean", "std"]] + [describe(*one) for one in plain.items()])

    print(f"\n{WORLD} processes, the weights split between them")
    parallel = captured_in_parallel()
    rows = [["tensor", "on rank 0", "is", "whole", "largest difference"]]
    for name, value in plain.items():
        first = parallel[name][0]
        is_split = name == "after_activation"  # registered by hand, so only we know that it is a piece
        whole = tt.whole(parallel[name], dim=-1 if is_split else None)
        assert tt.compare(whole, value, atol=1e-6)
        said = first.placement.parts[0] if first.placement else f"{'piece' if is_split else 'copy'}, we know"
        rows.append([name, shape(first.value), said, shape(whole), difference(whole, value)])
    show(rows)
    print("every tensor, put together, is that of one process")


def compile_model(folder: Path, max_tensors: int) -> None:
    model = enable_tensor_capture(MLP().eval(), MODULES, max_tensors=max_tensors)
    with torch.no_grad():
        program = torch.export.export(model, (example_input(),), strict=False)
    disable_tensor_capture(model)
    folder.mkdir(parents=True, exist_ok=True)
    torch.export.save(program, folder / PROGRAM)
    print(f"exported to {folder / PROGRAM}, with {max_tensors} slots for registered tensors")


def infer(folder: Path) -> None:
    program = torch.export.load(folder / PROGRAM).module()
    output, captured = program(example_input())
    plain = captured_on_cpu()
    print(f"output {shape(output)}, and what the exported model captured:")
    rows = [["tensor", "shape", "mean", "std", "difference to the plain model"]]
    for name, value in captured.items():
        is_filled = name in plain
        assert not is_filled or tt.compare(value, plain[name], atol=1e-6)
        rows.append([*describe(name, value), difference(value, plain[name]) if is_filled else "not filled"])
    show(rows)


def describe(name: str, value: torch.Tensor) -> list[str]:
    return [name, shape(value), f"{value.mean():.4f}", f"{value.std(correction=0):.4f}"]


def shape(value: torch.Tensor) -> str:
    return f"[{', '.join(map(str, value.shape))}]"


def difference(a: torch.Tensor, b: torch.Tensor) -> str:
    return f"{(a - b).abs().max():.2g}"


def show(rows: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  " + "  ".join(map(str.ljust, row, widths)).rstrip())


def arguments() -> Mapping[str, Any]:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="capture in one process and in two, and compare")
    compiling = commands.add_parser("compile", help="export a model that returns what it captures")
    compiling.add_argument("--output-path", type=Path, required=True, help="folder for the exported model")
    compiling.add_argument("--max-tensors", type=int, default=2, help="slots for registered tensors")
    inferring = commands.add_parser("inference", help="run the exported model and compare what it captures")
    inferring.add_argument("--model-path", type=Path, required=True, help="folder of the exported model")
    given = parser.parse_args()
    if given.command == "inference" and not (given.model_path / PROGRAM).exists():
        parser.error(
            f"no {PROGRAM} in {given.model_path}; run compile --output-path {given.model_path} first"
        )
    return vars(given)


def main() -> None:
    given = arguments()
    if given["command"] == "demo":
        demo()
    elif given["command"] == "compile":
        compile_model(given["output_path"], given["max_tensors"])
    else:
        infer(given["model_path"])


if __name__ == "__main__":
    main()
