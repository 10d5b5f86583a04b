"""What capturing costs, as ratios to the plain forward, to bare hooks and to other tools in the same run."""

import copy
import importlib.util
import statistics
import sys
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import peers
import tensortap as tt
from command import main
from encoder import Encoder, build, called
from harness import Table, tell
from rounds import Contestant, Entry, Times, compete, plain, race, repeats_of, rounds_of

SITE = "blocks.6"
table = Table("capture")


@contextmanager
def bare(model: Encoder, run: Callable[[], object]) -> Iterator[Entry]:
    kept: list[Tensor] = []

    def keep(module: nn.Module, args: Any, out: Tensor) -> None:
        kept.append(torch._lazy_clone(out.detach()))

    handles = [module.register_forward_hook(keep) for module in called(model).values()]
    yield Entry(run, kept.clear)
    for handle in handles:
        handle.remove()


@contextmanager
def bare_gradients(model: Encoder, run: Callable[[], object]) -> Iterator[Entry]:
    kept: list[Tensor] = []

    def keep(gradient: Tensor) -> None:
        kept.append(torch._lazy_clone(gradient))

    def attend(module: nn.Module, args: Any, out: Tensor) -> None:
        out.register_hook(keep)  # type: ignore[no-untyped-call]

    handles = [module.register_forward_hook(attend) for module in called(model).values()]
    yield Entry(run, kept.clear)
    for handle in handles:
        handle.remove()


@contextmanager
def ours(model: Encoder, run: Callable[[], object], *sites: str, keep: Any = "cow") -> Iterator[Entry]:
    with tt.capture(model, *sites, keep=keep) as cap:
        yield Entry(run, cap.clear)


def entered_each_time(model: Encoder, batch: Tensor) -> Contestant:
    def run(kept: list[object]) -> None:
        with tt.capture(model, "**") as cap:
            model(batch)
        kept.append(cap)

    return partial(peers.holding, run)


def records(model: Encoder, run: Callable[[], object], *sites: str) -> int:
    """How many records one run gives."""
    with tt.capture(model, *sites) as cap:
        run()
    return len(cap)


def outputs(with_peers: bool) -> None:
    """Under no_grad, where the plain forward gives its memory back at once and whoever keeps outputs pays for
    new pages; and as a model is called by default, where autograd keeps them anyway."""
    with torch.no_grad():
        all_outputs(with_peers)
    model, batch = build("big")
    run = partial(model, batch)
    times = compete(
        "big",
        {
            "plain": partial(plain, run),
            "bare hooks": partial(bare, model, run),
            "ours": partial(ours, model, run, "**"),
        },
    )
    head = "big, all outputs, autograd on"
    tell(f"{head}: bare hooks / plain", times.ratio("bare hooks", "plain"))
    table.add(f"{head}: ours / plain", times.ratio("ours", "plain"), 1.06)


def all_outputs(with_peers: bool) -> None:
    for size in ("small", "big"):
        model, batch = build(size)
        run = partial(model, batch)
        assert records(model, run, "**") == len(called(model)), "bare hooks would keep another number"
        others, absent = peers.contestants(peers.OF_OUTPUTS, size, model, batch) if with_peers else ({}, {})
        mine: dict[str, Contestant] = {
            "plain": partial(plain, run),
            "bare hooks": partial(bare, model, run),
            "ours": partial(ours, model, run, "**"),
            "ours, entered for each forward": entered_each_time(model, batch),
        }
        times = compete(size, mine | others)
        show_outputs(size, times, len(called(model)))
        peers.show(f"{size}, all outputs", times, list(others), absent)


def show_outputs(size: str, times: Times, count: int) -> None:
    head = f"{size}, all outputs"
    tell(f"{head}: plain forward", times.median("plain") * 1e3, "ms")
    tell(f"{head}: bare hooks / plain", times.ratio("bare hooks", "plain"))
    if size == "small":
        tell(f"{head}: ours / plain", times.ratio("ours", "plain"))
        table.add(f"{head}: ours / bare hooks", times.ratio("ours", "bare hooks"), 1.2)
        tell(f"{head}: a bare hook, each", times.excess("bare hooks", "plain") / count * 1e6, "us")
        tell(f"{head}: a record of ours, each", times.excess("ours", "plain") / count * 1e6, "us")
    else:
        tell(f"{head}: ours / plain", times.ratio("ours", "plain"))
        tell(f"{head}: ours / bare hooks", times.ratio("ours", "bare hooks"))
    tell(
        f"{head}: ours, entered for each forward / plain",
        times.ratio("ours, entered for each forward", "plain"),
    )


@torch.no_grad()
def ways_of_keeping(with_peers: bool) -> None:
    model, batch = build("big")
    run = partial(model, batch)
    times = compete(
        "big",
        {
            "plain": partial(plain, run),
            "stats": partial(ours, model, run, "**", keep="stats"),
            "clone": partial(ours, model, run, "**", keep="clone"),
            "inputs": partial(ours, model, run, "**", "**.in"),
            "one": partial(ours, model, run, SITE),
        },
    )
    table.add('big, all outputs, keep="stats": ours / plain', times.ratio("stats", "plain"), 1.15)
    tell('big, all outputs, keep="clone": ours / plain', times.ratio("clone", "plain"))
    tell("big, all inputs and outputs: ours / plain", times.ratio("inputs", "plain"))
    tell("big, one output: ours / plain", times.ratio("one", "plain"))


def gradients(with_peers: bool) -> None:
    for size in ("small", "big"):
        model, batch = build(size)
        run = backward_of(model, batch)
        assert records(model, run, "**.grad") == len(called(model)), "bare hooks would keep another number"
        times = compete(
            size,
            {
                "plain": partial(plain, run),
                "bare": partial(bare_gradients, model, run),
                "ours": partial(ours, model, run, "**.grad"),
            },
        )
        head = f"{size}, all gradients, forward and backward"
        tell(f"{head}: bare hooks / plain", times.ratio("bare", "plain"))
        if size == "small":
            tell(f"{head}: ours / plain", times.ratio("ours", "plain"))
            table.add(f"{head}: ours / bare hooks", times.ratio("ours", "bare"), 1.2)
        else:
            table.add(f"{head}: ours / plain", times.ratio("ours", "plain"), 1.06)
            tell(f"{head}: ours / bare hooks", times.ratio("ours", "bare"))


def backward_of(model: Encoder, batch: Tensor) -> Callable[[], None]:
    # Not the sum: behind a LayerNorm its gradient is nothing but rounding.
    direction = torch.randn_like(model(batch))

    def run() -> None:
        model(batch).backward(direction)

    return run


@torch.no_grad()
def left_again(with_peers: bool) -> None:
    """Every few rounds with new copies: where one of them lies in memory is worth a percent, too."""
    model, batch = build("small")
    ratios: list[float] = []
    for _ in range(rounds_of["small"]):
        before, after = copy.deepcopy(model), copy.deepcopy(model)
        traces = residue(after)
        with tt.capture(after, "**", "**.in", "**.grad"):
            after(batch)
        assert residue(after) == traces, "the capture left something behind"
        times = race(
            {
                "before": partial(plain, partial(before, batch)),
                "after": partial(plain, partial(after, batch)),
            },
            3,
            repeats_of["small"],
        )
        ratios.append(times.ratio("after", "before"))
    table.add("small, captured once and left: after / before", round(statistics.median(ratios), 2), 1.0)
    idle = min(timeit.repeat(partial(tt.tap, batch, "name"), number=10_000, repeat=7)) / 10_000
    tell("a tt.tap that nobody listens to", idle * 1e6, "us")


def residue(model: Encoder) -> list[object]:
    """All that a capture could leave: attributes, hooks on a module or on all of them, another code."""
    everywhere = vars(nn.modules.module)
    found: list[object] = [len(everywhere[name]) for name in sorted(everywhere) if name.endswith("_hooks")]
    for module in model.modules():
        own = vars(module)
        found += [sorted(own), type(module), getattr(type(module).forward, "__code__", None)]
        found += [len(own[name]) for name in sorted(own) if "_hooks" in name]
    return found


@torch.no_grad()
def compiled(with_peers: bool) -> None:
    # Instances of one class share their compiled graphs, and hooks are no reason for another one.
    (model, batch), (untouched, _) = (own_classes(name).build("big") for name in ("tapped", "untapped"))
    tapped: Any = torch.compile(model, fullgraph=True)
    untapped: Any = torch.compile(untouched, fullgraph=True)
    with tt.capture(model, SITE, compiled="graph") as cap:
        graphs = made_graphs()
        tapped(batch)
        untapped(batch)
        assert len(cap) == 1, "the tap gave no record"

        @contextmanager
        def contestant() -> Iterator[Entry]:
            yield Entry(partial(tapped, batch), cap.clear)

        times = compete("big", {"plain": partial(plain, partial(untapped, batch)), "ours": contestant})
        # None would mean that all ran as plain Python, more that something was compiled again and again.
        assert made_graphs() - graphs == 2, f"{made_graphs() - graphs} graphs were made for two models"
    tell("big, compiled: plain forward", times.median("plain") * 1e3, "ms")
    table.add("big, compiled, one output from the graph: ours / plain", times.ratio("ours", "plain"), 1.05)


def made_graphs() -> int:
    # Imported here: once it is there, a capture keeps compiled models from running, which takes time.
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def own_classes(name: str) -> Any:
    """The encoder's module a second time under another name, with classes and code of its own."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("encoder.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


BENCHES = {bench.__name__: bench for bench in (outputs, ways_of_keeping, gradients, left_again, compiled)}


if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES, table))
