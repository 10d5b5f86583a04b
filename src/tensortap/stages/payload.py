"""What a rank sends when records are gathered: array bytes as they are, the rest pickled."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of

_PROTOCOL = 5


class ArraySlot(NamedTuple):
    """Framework, dtype and shape of an array whose bytes are sent outside the header."""

    framework: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


class Problem(NamedTuple):
    """An error message, and its traceback if there is one."""

    sentence: str
    trace: str = ""

    def from_rank(self, rank: int) -> Problem:
        return Problem(f"on rank {rank}: {self.sentence}", self.trace)


@dataclass(frozen=True, slots=True)
class RefusedValues:
    """Values that cannot be sent: the reason by name, and how many."""

    reasons: dict[str, str] = field(default_factory=dict)
    count: int = 0

    def __add__(self, other: RefusedValues) -> RefusedValues:
        return RefusedValues({**self.reasons, **other.reasons}, self.count + other.count)

    def from_rank(self, rank: int) -> RefusedValues:
        return RefusedValues(
            {name: f"on rank {rank}: {reason}" for name, reason in self.reasons.items()}, self.count
        )


class GatherPayload(NamedTuple):
    """What one rank sends: each record as a pickle that refers to arrays by slot number."""

    records: list[tuple[str, bytes]]
    slots: list[ArraySlot]
    refused: RefusedValues
    problems: list[Problem]

    def header(self) -> bytes:
        return pickle.dumps(tuple(self), _PROTOCOL)


def payload_from_header(header: bytes) -> GatherPayload:
    # The ranks of a group run one program for one user and trust each other, as in torch's gather_object.
    return GatherPayload(*pickle.loads(header))


def pack_records(
    records: Iterable[Record], problems: Sequence[Problem] = ()
) -> tuple[GatherPayload, list[Any]]:
    """The payload of these records, and the arrays of its slots."""
    packed, refused, arrays = [], RefusedValues(), _ArrayTable()
    for record in records:
        before = len(arrays.values)
        try:
            packed.append((record.name, _pickle_record(record, arrays)))
        except UnsupportedValueError as error:
            arrays.truncate(before)
            refused += RefusedValues({record.name: str(error)}, 1)
    return GatherPayload(packed, arrays.slots, refused, list(problems)), arrays.values


def unpack_records(payload: GatherPayload, arrays: Sequence[Any]) -> tuple[list[Record], RefusedValues]:
    """The records, and those that failed to unpickle."""
    records, refused = [], RefusedValues()
    for name, data in payload.records:
        try:
            records.append(_RecordUnpickler(data, arrays).load())
        except Exception as error:  # noqa: BLE001 - a user class may raise anything
            refused += RefusedValues(
                {name: f"it cannot be made again on rank 0 ({error}); trace its parts"}, 1
            )
    return records, refused


class _ArrayTable:
    """The distinct arrays of the records pickled so far."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.slots: list[ArraySlot] = []
        self._numbers: dict[int, int] = {}

    def slot_number(self, value: Any) -> int | None:
        """The slot number of an array; None for values that are pickled inline."""
        framework = framework_of(value)
        if framework.name == "python":
            return None
        number = self._numbers.get(id(value))
        return number if number is not None else self._add(value, framework)

    def truncate(self, length: int) -> None:
        del self.values[length:], self.slots[length:]
        self._numbers = {key: number for key, number in self._numbers.items() if number < length}

    def _add(self, value: Any, framework: Any) -> int | None:
        description = framework.describe(value)
        if description.layout != "strided" or description.dtype not in DTYPE_TABLE or _needs_pickle(value):
            return None
        if description.device == "meta" or not _is_plain_array(value, framework.name):
            framework.bits(value)  # raises for values without data, before their bytes are announced
        nbytes = DTYPE_TABLE[description.dtype].itemsize
        for size in description.shape:
            nbytes *= size
        self._numbers[id(value)] = len(self.values)
        self.values.append(value)
        self.slots.append(ArraySlot(framework.name, description.dtype, description.shape, nbytes))
        return len(self.values) - 1


def _is_plain_array(value: Any, framework: str) -> bool:
    if framework != "torch":
        return framework == "numpy"
    from tensortap.frameworks.torch import PLAIN_TENSOR_TYPES  # installed: the value is one of its tensors

    return type(value) in PLAIN_TENSOR_TYPES


def _needs_pickle(value: Any) -> bool:
    """Whether only a pickle preserves it: numpy scalars, subclasses and non-native byte order."""
    if framework_of(value).name != "numpy":
        return False
    return type(value).__name__ != "ndarray" or not value.dtype.isnative


class _RecordPickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, arrays: _ArrayTable) -> None:
        super().__init__(stream, _PROTOCOL)
        self._arrays = arrays

    def persistent_id(self, value: Any) -> int | None:
        return self._arrays.slot_number(value)


class _RecordUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arrays: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._arrays = arrays

    def persistent_load(self, number: int) -> Any:
        array = self._arrays[number]
        if isinstance(array, Exception):
            raise array
        return array


def _pickle_record(record: Record, arrays: _ArrayTable) -> bytes:
    stream = io.BytesIO()
    try:
        _RecordPickler(stream, arrays).dump(record)
    except UnsupportedValueError:
        raise
    except Exception as error:  # a user class may raise anything
        type_name = type(record.value).__name__
        raise UnsupportedValueError(
            f"a {type_name} cannot be sent to rank 0 ({error}); trace the arrays and numbers inside of it"
        ) from error
    return stream.getvalue()
