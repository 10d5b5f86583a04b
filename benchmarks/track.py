"""What following a function costs: all its variables written to a file as a tree, next to other tools."""

import inspect
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from command import main
from harness import Table, tell
from rounds import Contestant, Entry, Times, compete, plain, race
from statements import work
from tensortap.compat.ttracker import auto_diff, h4logger, logger
from tensortap.core.record import Record
from tensortap.core.tap import Tap
from tensortap.sources.calls.functions import TracedFunctions

SHAPE = (4, 64, 256)
table = Table("track")


class Forgets:
    """A sink that does nothing: what is left is the source."""

    needs_no_lock = True

    def write(self, record: Record) -> None:
        pass

    def flush(self) -> None:
        pass

    close = flush


def fifty_statements(with_peers: bool) -> None:
    arguments = torch.randn(SHAPE), torch.randn(SHAPE), torch.randn(SHAPE)
    assert len(inspect.getsource(work).splitlines()) == 1 + 50
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        handler = h4logger(Path(folder, "ours"))
        mine: dict[str, Contestant] = {
            "plain": partial(plain, lambda: work(*arguments)),
            "ours": partial(entered, partial(ours, handler), arguments),
        }
        check(Path(folder), mine["ours"])
        others = {"off": off, "source alone": source_alone()}
        show(
            compete("small", mine | {name: partial(entered, one, arguments) for name, one in others.items()})
        )
        if with_peers:
            next_to_peers(Path(folder), mine, arguments)
        handler.close()


def next_to_peers(folder: Path, mine: dict[str, Contestant], arguments: tuple[torch.Tensor, ...]) -> None:
    able: dict[str, Contestant] = {}
    for name, peer in PEERS.items():
        try:
            able[name] = partial(entered, peer(folder), arguments)
            check(folder, able[name])
        except ImportError as error:
            print(f"     {name}: not measured: {error}")
    times = race(mine | able, rounds=5)  # a call of theirs takes seconds
    for name in able:
        tell(f"50 statements, {name} / plain", times.ratio(name, "plain"))
        table.add(f"50 statements, ours / {name}", times.ratio("ours", name), 1 / 5)


Enter = Callable[[], Any]  # gives the function to be called


@contextmanager
def entered(enter: Enter, arguments: tuple[torch.Tensor, ...]) -> Iterator[Entry]:
    with enter() as function:
        yield Entry(lambda: function(*arguments))


followed = auto_diff(work)


@contextmanager
def ours(handler: Any) -> Iterator[Any]:
    logger.addHandler(handler)
    try:
        yield followed
    finally:
        logger.removeHandler(handler)


@contextmanager
def off() -> Iterator[Any]:
    auto_diff.disable()
    try:
        yield followed
    finally:
        auto_diff.enable()


def source_alone() -> Enter:
    source = TracedFunctions()
    Tap(sinks=[Forgets()]).attach(source)
    return always(source.wrap(work))


def always(function: Any) -> Enter:
    @contextmanager
    def enter() -> Iterator[Any]:
        yield function

    return enter


def snoop(folder: Path) -> Enter:
    return always(import_module("snoop").Config(out=str(folder / "snoop.log"), color=False).snoop(work))


def torch_snooper(folder: Path) -> Enter:
    with warnings.catch_warnings(action="ignore"):
        found = import_module("torchsnooper")
    return always(found.snoop(output=str(folder / "TorchSnooper.log"))(work))


PEERS = {"snoop": snoop, "TorchSnooper": torch_snooper}


def check(folder: Path, contestant: Contestant) -> None:
    """Who writes nothing would look quick."""
    before = size_of(folder)
    with contestant() as entry:
        entry.run()
    assert size_of(folder) > before + 50 * len("clipped = "), "nothing was written"


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.log"))


def show(times: Times) -> None:
    tell("50 statements, plain", times.median("plain") * 1e3, "ms")
    table.add("50 statements, followed to a file / plain", times.ratio("ours", "plain"), 5)
    table.add("50 statements, decorated but off / plain", times.ratio("off", "plain"), 1.02)
    tell("50 statements, the source alone / plain", times.ratio("source alone", "plain"))


BENCHES = {bench.__name__: bench for bench in (fifty_statements,)}

if __name__ == "__main__":
    sys.exit(main(__doc__, BENCHES, table))
