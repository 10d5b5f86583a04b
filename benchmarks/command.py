"""The command line of the benchmarks that measure a model with and without something watching it."""

import argparse
from collections.abc import Callable, Mapping

import torch

import peers
from harness import Table, finish
from rounds import fewer_rounds, keep_pages

Bench = Callable[[bool], None]  # whether other tools are measured too


def main(description: str | None, benches: Mapping[str, Bench], table: Table) -> int:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "benches", nargs="*", metavar="bench", help=f"of {', '.join(benches)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--peers", action="store_true", help="other tools too, in .venv-peers")
    parser.add_argument("--keep-pages", action="store_true", help="leave the kernel's new pages out of it")
    chosen = parser.parse_args()
    if chosen.peers:
        peers.move_in()
    if chosen.keep_pages:
        keep_pages()
    if chosen.quick:
        fewer_rounds()
    torch.set_num_threads(1)
    for name in chosen.benches or benches:
        benches[name](chosen.peers)
    return finish([table])
