"""The bytes between ranks: every parcel to rank 0, over a gloo group of its own."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from tensortap.core.dtypes import NUMBER_TYPES
from tensortap.frameworks.base import framework_named, framework_of
from tensortap.frameworks.numpy import shareable
from tensortap.frameworks.torch import PLAIN, aside
from tensortap.stages.parcel import Parcel, Slot, from_header

_Flat = torch.Tensor  # of bytes, one-dimensional
_BLOCK = 4 << 20  # the quickest on loopback; smaller ones cost calls, larger ones a longer start
_SMALL = 64 << 10  # arrays below share a message
_Span = tuple[int, int, int]  # number of the slot, first and last byte


class Arrived(NamedTuple):
    rank: int
    parcel: Parcel
    arrays: list[Any]


class Round(NamedTuple):
    """What rank 0 got of the others, whether no rank will come again, and why some could not be reached."""

    arrived: list[Arrived]
    is_last: bool
    lost: str = ""


class Exchange:
    """The ranks of the default process group, who meet here at the same steps.

    The group is made when they first meet, which is a collective like every meeting. It is gloo whatever the
    program's own is, because values are sent from the host's memory, and it is of its own, because nothing
    of ours may come between the program's collectives. Its timeout is the default group's.
    """

    def __init__(self, timeout: float | None, budget: int) -> None:
        self.rank, self._world = dist.get_rank(), dist.get_world_size()
        self._budget, self._block = budget, max(1, min(_BLOCK, budget))
        self._default = dist.group.WORLD
        wait = _timeout_of(self._default) if timeout is None else timedelta(seconds=timeout)
        self._group = dist.new_group(backend="gloo", timeout=wait)

    def is_current(self) -> bool:
        """Whether the program's process group is still the one that these ranks are of."""
        return dist.is_initialized() and dist.group.WORLD is self._default

    def meet(self, parcel: Parcel, arrays: list[Any], is_last: bool) -> Round:
        """Every rank comes, with or without records. `is_last`: this rank only comes for the others now."""
        with aside(), torch.inference_mode(False):
            header = _bytes_of(parcel.header())
            try:
                lengths, lasts = self._announce(len(header), is_last)
                if self.rank == 0:
                    arrived, lost = self._receive_all(lengths)
                    return Round(arrived, all(lasts), lost)
                self._send(header, parcel.slots, arrays)
                return Round([], all(lasts))
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are out of reach after it
                return Round([], True, f"rank {self.rank} could not meet the others ({_reason(error)})")

    def close(self) -> None:
        """Part when everything has arrived; a collective."""
        if self.is_current():
            with contextlib.suppress(RuntimeError):
                dist.barrier(group=self._group)
        self.leave()

    def leave(self) -> None:
        """Let go of the group; a rank that still waits for this one learns it at once."""
        if self.is_current() and self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = None  # the last reference closes the connections

    def _announce(self, length: int, is_last: bool) -> tuple[list[int], list[bool]]:
        mine = torch.tensor([length, is_last], device="cpu")
        told = [torch.empty_like(mine) for _ in range(self._world)]
        dist.all_gather(told, mine, group=self._group)
        return [int(one[0]) for one in told], [bool(one[1]) for one in told]

    # Sending

    def _send(self, header: _Flat, slots: list[Slot], arrays: list[Any]) -> None:
        way = _Way(self._budget)
        for tag, piece in enumerate(itertools.chain([header], self._outgoing(slots, arrays))):
            way.add(dist.isend(piece, 0, group=self._group, tag=tag), len(piece), piece)
        way.finish()

    def _outgoing(self, slots: list[Slot], arrays: list[Any]) -> Iterator[_Flat]:
        """The bytes of each message, made when its turn comes."""
        last, flat = -1, None
        for spans in _messages(slots, self._block):
            if len(spans) > 1:
                yield torch.cat([_flatten(arrays[number]) for number, _, _ in spans])
                continue
            number, start, end = spans[0]
            if flat is None or number != last:
                last, flat = number, _flatten(arrays[number])
            yield flat[start:end]

    # Receiving

    def _receive_all(self, lengths: list[int]) -> tuple[list[Arrived], str]:
        """Rank by rank: what is under way at once stays within the budget."""
        arrived, lost = [], []
        for rank in range(1, self._world):
            try:
                arrived.append(self._receive(rank, lengths[rank]))
            except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks have still to be heard
                lost.append(f"rank {rank} ({_reason(error)})")
        return arrived, f"rank 0 lost {', '.join(lost)} while it was sending" if lost else ""

    def _receive(self, rank: int, length: int) -> Arrived:
        header = torch.empty(length, dtype=torch.uint8, device="cpu")
        dist.recv(header, rank, group=self._group, tag=0)
        parcel = from_header(header.numpy().tobytes())
        targets = [_target(slot) for slot in parcel.slots]
        way = _Way(self._budget)
        for tag, spans in enumerate(_messages(parcel.slots, self._block), start=1):
            buffer, arrive = _buffer(spans, targets)
            work = dist.irecv(buffer, rank, group=self._group, tag=tag)
            way.add(work, len(buffer), buffer, arrive)
        way.finish()
        made = zip(parcel.slots, targets, strict=True)
        return Arrived(rank, parcel, [_value(slot, target.held) for slot, target in made])


class _Way:
    """Messages under way, the oldest waited for when they are too many."""

    def __init__(self, budget: int) -> None:
        self._budget, self._bytes = budget, 0
        self._under: deque[tuple[Any, int, _Flat, Callable[[], object] | None]] = deque()

    def add(self, work: Any, size: int, held: _Flat, arrive: Callable[[], object] | None = None) -> None:
        self._under.append((work, size, held, arrive))
        self._bytes += size
        while self._bytes > self._budget:
            self._wait()

    def finish(self) -> None:
        while self._under:
            self._wait()

    def _wait(self) -> None:
        work, size, _, arrive = self._under.popleft()
        work.wait()
        self._bytes -= size
        if arrive is not None:
            arrive()


def _messages(slots: list[Slot], block: int) -> Iterator[list[_Span]]:
    """How arrays are cut and joined to messages; sender and receiver come to the same."""
    small: list[_Span] = []
    together = 0
    for number, slot in enumerate(slots):
        if slot.nbytes >= _SMALL:
            for start in range(0, slot.nbytes, block):
                yield [(number, start, min(start + block, slot.nbytes))]
        elif slot.nbytes:
            if small and together + slot.nbytes > block:
                yield small
                small, together = [], 0
            small.append((number, 0, slot.nbytes))
            together += slot.nbytes
    if small:
        yield small


def _flatten(value: Any) -> _Flat:
    if type(value) in PLAIN and value.is_cpu and not (value.is_conj() or value.is_neg()):
        # Not through numpy: asking for the address would part a snapshot from the original it shares with.
        tensor: torch.Tensor = value.detach().contiguous()
        return tensor.reshape(-1).view(torch.uint8)
    block = np.ascontiguousarray(framework_of(value).bits(value))
    return torch.from_numpy(shareable(block.reshape(-1).view(np.uint8)))


class _Target(NamedTuple):
    held: Any
    flat: _Flat


def _target(slot: Slot) -> _Target:
    """Memory of the value's own, and the same as bytes to receive into."""
    if slot.framework == "torch":
        tensor = _empty(slot)
        return _Target(tensor, tensor.reshape(-1).view(torch.uint8))
    array = np.empty(slot.shape, NUMBER_TYPES[slot.dtype].storage)
    return _Target(array, torch.from_numpy(array.reshape(-1).view(np.uint8)))


def _empty(slot: Slot) -> torch.Tensor:
    dtype = getattr(torch, slot.dtype)
    if dtype is torch.complex32:  # torch warns of its half complex numbers when it makes new ones
        return torch.empty(slot.shape, dtype=torch.int32, device="cpu").view(dtype)
    return torch.empty(slot.shape, dtype=dtype, device="cpu")


def _value(slot: Slot, held: Any) -> Any:
    """The value, or the error instead: what one framework cannot make must not cost the others' values."""
    if slot.framework == "torch":
        return held
    try:
        return framework_named(slot.framework).from_bits(held, slot.dtype)
    except Exception as error:  # noqa: BLE001 - told where the record is made
        return error


def _buffer(spans: list[_Span], targets: list[_Target]) -> tuple[_Flat, Callable[[], object] | None]:
    """Where a message arrives: in the array itself, or for several small ones beside them."""
    if len(spans) == 1:
        number, start, end = spans[0]
        return targets[number].flat[start:end], None
    total = sum(size for _, _, size in spans)
    buffer = torch.empty(total, dtype=torch.uint8, device="cpu")

    def share_out() -> None:
        start = 0
        for number, _, size in spans:
            targets[number].flat.copy_(buffer[start : start + size])
            start += size

    return buffer, share_out


def _bytes_of(data: bytes) -> _Flat:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _timeout_of(group: Any) -> timedelta | None:
    """How long the program's own group waits; None, which is torch's default, where it cannot be asked."""
    for device in getattr(group, "_device_types", ()):
        with contextlib.suppress(RuntimeError, AttributeError):
            found = group._get_backend(device).options._timeout
            if isinstance(found, timedelta):
                return found
    return None


def _reason(error: Exception) -> str:
    """What gloo says, without the place in its source and its advice."""
    return str(error).strip().split("\n")[0].rpartition("] ")[2].split(". ")[0][:160].rstrip(".")
