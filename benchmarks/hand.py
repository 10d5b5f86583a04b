"""Variables taken without our rewriting: by taps written into the source, or by a tracer of one's own."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

import tensortap as tt
from attention import Attention, Tell
from encoder import Encoder
from rounds import Entry
from tensortap.core.record import Record
from tensortap.core.steps import next_order
from tensortap.frameworks.retention import copy_on_write
from tensortap.sinks.memory import Memory

_NOWHERE = object()


class Book:
    """Keeps by hand what a capture keeps: the same snapshot, in the same record, in the same memory."""

    def __init__(self) -> None:
        self.memory = Memory(keep=None, most_bytes=8 << 30)
        self._step, self._calls = -1, dict[str, int]()

    def begin(self, *_: object) -> None:
        self._step += 1
        self._calls.clear()

    def at(self, path: str) -> Tell:
        stem, write = f"{path}.forward.", self.memory.write

        def tell(name: str, value: Any) -> None:
            name = stem + name
            call = self._calls.get(name, 0)
            self._calls[name] = call + 1
            write(Record(name, copy_on_write(value), "local", self._step, 0, call, next_order(), time.time()))

        return tell


@contextmanager
def same_records(model: Encoder, run: Callable[[], object]) -> Iterator[Entry]:
    book = Book()
    handle = model.register_forward_pre_hook(book.begin)
    tell_from(model, book.at)
    yield Entry(run, book.memory.clear, book.memory.records.__len__)
    handle.remove()


@contextmanager
def bare(model: Encoder, run: Callable[[], object]) -> Iterator[Entry]:
    """No record, and none of the questions that make sharing memory safe."""
    kept: list[Any] = []

    def tell(name: str, value: Any) -> None:
        kept.append(torch._lazy_clone(value.detach()) if isinstance(value, Tensor) else value)

    tell_from(model, lambda path: tell)
    yield Entry(run, kept.clear, kept.__len__)


@contextmanager
def tapped(model: Encoder, run: Callable[[], object]) -> Iterator[Entry]:
    """`tt.tap`, which also says at which line it stands."""

    def at(path: str) -> Tell:
        return lambda name, value: tt.tap(value, f"{path}.forward.{name}")

    tell_from(model, at)
    with tt.capture() as cap:
        yield Entry(run, cap.clear, cap.__len__)


@contextmanager
def traced(model: Encoder, run: Callable[[], object], names: tuple[str, ...]) -> Iterator[Entry]:
    """`sys.settrace` on that function alone: what is new in a variable after each line."""
    book, code = Book(), Attention.forward.__code__
    tellers = {id(module): book.at(path) for path, module in attentions(model).items()}
    handle = model.register_forward_pre_hook(book.begin)

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not code:
            return None
        tell, last = tellers[id(frame.f_locals["self"])], dict.fromkeys(names, _NOWHERE)

        def look(frame: FrameType, event: str, argument: object) -> Any:
            bound = frame.f_locals
            for name in names:
                value = bound.get(name, _NOWHERE)
                if value is not last[name]:
                    last[name] = value
                    tell(name, value)
            return look

        return look

    def run_traced() -> None:
        before = sys.gettrace()
        sys.settrace(enter)
        try:
            run()
        finally:
            sys.settrace(before)

    yield Entry(run_traced, book.memory.clear, book.memory.records.__len__)
    handle.remove()


def tell_from(model: nn.Module, at: Callable[[str], Tell]) -> None:
    for path, module in attentions(model).items():
        module.tell = at(path)  # type: ignore[assignment]


def attentions(model: nn.Module) -> dict[str, Attention]:
    return {path: module for path, module in model.named_modules() if isinstance(module, Attention)}
