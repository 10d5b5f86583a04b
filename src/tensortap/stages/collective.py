"""An all-to-one collective: every rank's payload to rank 0, over a gloo process group of our own.

A payload is the records as a small pickled header, and their arrays as raw bytes beside it.
"""

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

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.frameworks.base import framework_named, framework_of
from tensortap.frameworks.numpy import torch_compatible
from tensortap.frameworks.torch import PLAIN_TENSOR_TYPES, outside_modes
from tensortap.stages.payload import (
    ArraySlot,
    GatherPayload,
    payload_from_header,
)

_ByteTensor = torch.Tensor  # of bytes, one-dimensional
_MESSAGE_BYTES = 4 << 20  # the fastest on loopback; smaller ones cost calls, larger ones a longer start
_SMALL_ARRAY_BYTES = 64 << 10  # smaller arrays share a message
_Span = tuple[int, int, int]  # slot number, first and last byte


class ReceivedPayload(NamedTuple):
    rank: int
    payload: GatherPayload
    arrays: list[Any]


class GatherRound(NamedTuple):
    """What rank 0 received, whether this was the last round of every rank, and why some ranks failed."""

    received: list[ReceivedPayload]
    is_last: bool
    failure: str = ""


class GatherCollective:
    """Gathers from the ranks of the default process group, all of which call it at the same steps.

    Creating the group is a collective, as is every call of `gather`. The backend is gloo whatever the
    program's own is, because values are sent from host memory, and the group is separate, because nothing
    of ours may interleave with the program's collectives. Its timeout is the default group's.
    """

    def __init__(self, timeout: float | None, budget: int) -> None:
        self.rank, self._world_size = dist.get_rank(), dist.get_world_size()
        self._budget, self._block = budget, max(1, min(_MESSAGE_BYTES, budget))
        self._default_group = dist.group.WORLD
        wait = _timeout_of(self._default_group) if timeout is None else timedelta(seconds=timeout)
        self._group = dist.new_group(backend="gloo", timeout=wait)

    def is_current(self) -> bool:
        """Whether the program's default process group is still the one this was created for."""
        return dist.is_initialized() and dist.group.WORLD is self._default_group

    def gather(self, payload: GatherPayload, arrays: list[Any], is_last: bool) -> GatherRound:
        """A collective: every rank calls it, even with no records. `is_last`: this rank will send no more."""
        with outside_modes(), torch.inference_mode(False):
            header = _header_tensor(payload.header())
            try:
                lengths, lasts = self._announce(len(header), is_last)
                if self.rank == 0:
                    received, failure = self._receive_all(lengths)
                    return GatherRound(received, all(lasts), failure)
                self._send(header, payload.slots, arrays)
                return GatherRound([], all(lasts))
            except Exception as error:  # noqa: BLE001 - whatever it is, the group is unusable after it
                return GatherRound(
                    [], True, f"rank {self.rank} could not meet the others ({_shorten_gloo_error(error)})"
                )

    def close(self) -> None:
        """Wait until everything has arrived (a barrier), then destroy the group."""
        if self.is_current():
            with contextlib.suppress(RuntimeError):
                dist.barrier(group=self._group)
        self.leave()

    def leave(self) -> None:
        """Destroy the group; a rank that still waits for this one fails at once."""
        if self.is_current() and self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = None  # the last reference closes the connections

    def _announce(self, length: int, is_last: bool) -> tuple[list[int], list[bool]]:
        own = torch.tensor([length, is_last], device="cpu")
        announcements = [torch.empty_like(own) for _ in range(self._world_size)]
        dist.all_gather(announcements, own, group=self._group)
        return [int(announcement[0]) for announcement in announcements], [
            bool(announcement[1]) for announcement in announcements
        ]

    # Sending

    def _send(self, header: _ByteTensor, slots: list[ArraySlot], arrays: list[Any]) -> None:
        in_flight = _InFlight(self._budget)
        for tag, message in enumerate(itertools.chain([header], self._split_into_messages(slots, arrays))):
            in_flight.add(dist.isend(message, 0, group=self._group, tag=tag), len(message), message)
        in_flight.finish()

    def _split_into_messages(self, slots: list[ArraySlot], arrays: list[Any]) -> Iterator[_ByteTensor]:
        """The bytes of each message, created lazily."""
        last_number, flat = -1, None
        for spans in _plan_messages(slots, self._block):
            if len(spans) > 1:
                yield torch.cat([_to_byte_tensor(arrays[number]) for number, _, _ in spans])
                continue
            number, start, end = spans[0]
            if flat is None or number != last_number:
                last_number, flat = number, _to_byte_tensor(arrays[number])
            yield flat[start:end]

    # Receiving

    def _receive_all(self, lengths: list[int]) -> tuple[list[ReceivedPayload], str]:
        """Rank by rank, so that the bytes in flight stay within the budget."""
        received, failures = [], []
        for rank in range(1, self._world_size):
            try:
                received.append(self._receive(rank, lengths[rank]))
            except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks are still received
                failures.append(f"rank {rank} ({_shorten_gloo_error(error)})")
        return received, f"rank 0 lost {', '.join(failures)} while it was sending" if failures else ""

    def _receive(self, rank: int, length: int) -> ReceivedPayload:
        header = torch.empty(length, dtype=torch.uint8, device="cpu")
        dist.recv(header, rank, group=self._group, tag=0)
        payload = payload_from_header(header.numpy().tobytes())
        targets = [_allocate_target(slot) for slot in payload.slots]
        in_flight = _InFlight(self._budget)
        for tag, spans in enumerate(_plan_messages(payload.slots, self._block), start=1):
            buffer, on_arrival = _receive_buffer(spans, targets)
            work = dist.irecv(buffer, rank, group=self._group, tag=tag)
            in_flight.add(work, len(buffer), buffer, on_arrival)
        in_flight.finish()
        slot_targets = zip(payload.slots, targets, strict=True)
        return ReceivedPayload(
            rank, payload, [_to_value(slot, target.array) for slot, target in slot_targets]
        )


class _InFlight:
    """Asynchronous sends or receives; beyond the budget, waits for the oldest."""

    def __init__(self, budget: int) -> None:
        self._budget, self._bytes = budget, 0
        self._transfers: deque[tuple[Any, int, _ByteTensor, Callable[[], object] | None]] = deque()

    def add(
        self, work: Any, size: int, tensor: _ByteTensor, on_arrival: Callable[[], object] | None = None
    ) -> None:
        self._transfers.append((work, size, tensor, on_arrival))
        self._bytes += size
        while self._bytes > self._budget:
            self._wait()

    def finish(self) -> None:
        while self._transfers:
            self._wait()

    def _wait(self) -> None:
        work, size, _, on_arrival = self._transfers.popleft()
        work.wait()
        self._bytes -= size
        if on_arrival is not None:
            on_arrival()


def _plan_messages(slots: list[ArraySlot], block: int) -> Iterator[list[_Span]]:
    """How arrays are split or batched into messages; sender and receiver compute the same plan."""
    small: list[_Span] = []
    small_bytes = 0
    for number, slot in enumerate(slots):
        if slot.nbytes >= _SMALL_ARRAY_BYTES:
            for start in range(0, slot.nbytes, block):
                yield [(number, start, min(start + block, slot.nbytes))]
        elif slot.nbytes:
            if small and small_bytes + slot.nbytes > block:
                yield small
                small, small_bytes = [], 0
            small.append((number, 0, slot.nbytes))
            small_bytes += slot.nbytes
    if small:
        yield small


def _to_byte_tensor(value: Any) -> _ByteTensor:
    if type(value) in PLAIN_TENSOR_TYPES and value.is_cpu and not (value.is_conj() or value.is_neg()):
        # Not through numpy: reading data_ptr would materialise a copy-on-write snapshot.
        tensor: torch.Tensor = value.detach().contiguous()
        return tensor.reshape(-1).view(torch.uint8)
    array = np.ascontiguousarray(framework_of(value).bits(value))
    return torch.from_numpy(torch_compatible(array.reshape(-1).view(np.uint8)))


class _ReceiveTarget(NamedTuple):
    array: Any
    flat: _ByteTensor


def _allocate_target(slot: ArraySlot) -> _ReceiveTarget:
    """A new array for the slot, and a byte view of it to receive into."""
    if slot.framework == "torch":
        tensor = _empty_tensor(slot)
        return _ReceiveTarget(tensor, tensor.reshape(-1).view(torch.uint8))
    array = np.empty(slot.shape, DTYPE_TABLE[slot.dtype].storage)
    return _ReceiveTarget(array, torch.from_numpy(array.reshape(-1).view(np.uint8)))


def _empty_tensor(slot: ArraySlot) -> torch.Tensor:
    dtype = getattr(torch, slot.dtype)
    if dtype is torch.complex32:  # torch warns when it creates tensors of complex half
        return torch.empty(slot.shape, dtype=torch.int32, device="cpu").view(dtype)
    return torch.empty(slot.shape, dtype=dtype, device="cpu")


def _to_value(slot: ArraySlot, array: Any) -> Any:
    """The value, or the exception: one framework's failure must not lose the others' values."""
    if slot.framework == "torch":
        return array
    try:
        return framework_named(slot.framework).from_bits(array, slot.dtype)
    except Exception as error:  # noqa: BLE001 - reported where the record is unpacked
        return error


def _receive_buffer(
    spans: list[_Span], targets: list[_ReceiveTarget]
) -> tuple[_ByteTensor, Callable[[], object] | None]:
    """The buffer of a message: the array itself, or for several small arrays one to scatter on arrival."""
    if len(spans) == 1:
        number, start, end = spans[0]
        return targets[number].flat[start:end], None
    total = sum(size for _, _, size in spans)
    buffer = torch.empty(total, dtype=torch.uint8, device="cpu")

    def scatter() -> None:
        start = 0
        for number, _, size in spans:
            targets[number].flat.copy_(buffer[start : start + size])
            start += size

    return buffer, scatter


def _header_tensor(data: bytes) -> _ByteTensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _timeout_of(group: Any) -> timedelta | None:
    """The timeout of the program's group; None, meaning torch's default, if it cannot be read."""
    for device in getattr(group, "_device_types", ()):
        with contextlib.suppress(RuntimeError, AttributeError):
            timeout = group._get_backend(device).options._timeout
            if isinstance(timeout, timedelta):
                return timeout
    return None


def _shorten_gloo_error(error: Exception) -> str:
    """gloo's message without its source location and advice."""
    return str(error).strip().split("\n")[0].rpartition("] ")[2].split(". ")[0][:160].rstrip(".")
