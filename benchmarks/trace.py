"""What variables inside functions cost, as ratios to the plain forward and to taps written by hand."""

import importlib.util
import inspect
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

import hand
import peers
import tensortap as tt
from attention import ALL, BINDINGS, ONE, TAPPED, Attention, encoder_of
from command import main
from encoder import Encoder, build
from harness import Table, tell
from rounds import Contestant, Entry, Times, compete, plain, race
from tensortap.sources.probes import install, source_match

WORDS = {ONE: "one name", ALL: "all names"}
# Small functions, and the largest forwards that transformers has.
MODELS = ["llama", "bert", "mixtral", "gpt2", "t5", "big_bird", "longformer"]
MODELS += ["flava", "grounding_dino", "xlnet", "tapas", "reformer"]
table = Table("trace")


@contextmanager
def ours(model: Encoder, run: Callable[[], object], names: tuple[str, ...]) -> Iterator[Entry]:
    with tt.capture(model, *(f"blocks.*.attn.forward.{name}" for name in names)) as cap:
        yield Entry(run, cap.clear, cap.__len__)


def variables(with_peers: bool) -> None:
    """As a model is called by default, and under no_grad, where whoever keeps values pays for new pages,
    with any tool, while the plain forward gives its memory back at once."""
    for size in ("small", "big"):
        for names in (ONE, ALL):
            for with_grad in (False, True):
                with torch.set_grad_enabled(with_grad):
                    measure(size, names, with_grad, with_peers)


def measure(size: str, names: tuple[str, ...], with_grad: bool, with_peers: bool) -> None:
    model, batch = build(size, encoder_of(Attention))
    tapped, _ = build(size, encoder_of(TAPPED[names]))
    mine = contestants(model, tapped, batch, names)
    check(mine, len(model.blocks) * BINDINGS[names])
    mine["plain"] = partial(plain, partial(model, batch))
    enlisted = peers.of_variables(names) if with_peers and not with_grad else {}
    others, absent = peers.contestants(enlisted, size, model, batch)
    slow = {name: others.pop(name) for name in peers.SLOW & others.keys()}
    times = compete(size, mine | others)
    head = f"{size}, {WORDS[names]}, {'autograd on' if with_grad else 'no_grad'}"
    show(head, times, size == "big" and with_grad)
    peers.show(head, times, list(others), absent)
    if slow:
        among = {"plain": mine["plain"], "ours": mine["ours"], **slow}
        peers.show(head, race(among, 3), list(slow), {})


def contestants(
    model: Encoder, tapped: Encoder, batch: torch.Tensor, names: tuple[str, ...]
) -> dict[str, Contestant]:
    run, run_tapped = partial(model, batch), partial(tapped, batch)
    return {
        "bare taps by hand": partial(hand.bare, tapped, run_tapped),
        "taps by hand": partial(hand.same_records, tapped, run_tapped),
        "tt.tap by hand": partial(hand.tapped, tapped, run_tapped),
        "sys.settrace": partial(hand.traced, model, run, names),
        "ours": partial(ours, model, run, names),
    }


def check(contestants: dict[str, Contestant], wanted: int) -> None:
    """Who keeps fewer values would look quick."""
    for name, contestant in contestants.items():
        with contestant() as entry:
            entry.run()
            kept = entry.kept()
            assert kept == wanted, f"{name} kept {kept} values where {wanted} were bound"
            entry.clear()


def show(head: str, times: Times, is_limited_by_plain: bool) -> None:
    tell(f"{head}: plain forward", times.median("plain") * 1e3, "ms")
    for name in ("bare taps by hand", "taps by hand", "tt.tap by hand", "sys.settrace"):
        tell(f"{head}: {name} / plain", times.ratio(name, "plain"))
    if is_limited_by_plain:
        table.add(f"{head}: ours / plain", times.ratio("ours", "plain"), 1.08)
    else:
        tell(f"{head}: ours / plain", times.ratio("ours", "plain"))
    if head.startswith("small"):
        table.add(f"{head}: ours / taps by hand", times.ratio("ours", "taps by hand"), 1.1)
    else:
        tell(f"{head}: ours / taps by hand", times.ratio("ours", "taps by hand"))
    tell(f"{head}: ours / bare taps by hand", times.ratio("ours", "bare taps by hand"))
    tell(f"{head}: sys.settrace / ours", times.ratio("sys.settrace", "ours"))


def first_rewriting(with_peers: bool) -> None:
    """Every variable and the result of every forward of some models."""
    if importlib.util.find_spec("transformers") is None:
        print("     first rewriting: not measured: transformers is not installed")
        return
    modules = [import_module(f"transformers.models.{name}.modeling_{name}") for name in MODELS]
    functions = [function for module in modules for function in forwards(module)]
    first, again = zip(*map(first_and_again, functions), strict=True)
    tell("forwards of transformers that are rewritten", len(functions), "")
    table.add("first rewriting of a function, median", statistics.median(first) * 1e3, 15, "ms")
    table.add("first rewriting of a function, slowest", max(first) * 1e3, 15, "ms")
    tell("the same function again, slowest", max(again) * 1e3, "ms")


def forwards(module: ModuleType) -> list[Any]:
    classes = [one for one in vars(module).values() if inspect.isclass(one)]
    own = [vars(one) for one in classes if one.__module__ == module.__name__]
    return [one["forward"] for one in own if "forward" in one]


def first_and_again(function: Any) -> tuple[float, float]:
    """The quickest of three: what else the machine does is not ours."""
    first = []
    for _ in range(3):
        install._instrumented.clear()
        source_match._find_definition.cache_clear()
        first.append(seconds_of(function))
    return min(first), min(seconds_of(function) for _ in range(3))


def seconds_of(function: Any) -> float:
    begin = time.process_time()
    probe = install.install_probe(function, None, lambda first: None, returns=True)
    spent = time.process_time() - begin
    probe.remove()
    assert probe.how == "rewritten", f"{function.__qualname__}: {probe.why}"
    return spent


BENCHES = {bench.__name__: bench for bench in (variables, first_rewriting)}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES, table))
