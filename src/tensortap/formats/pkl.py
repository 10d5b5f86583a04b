"""Pickles: written so that a failure names the attribute, read without running strangers' code."""

import io
import pickle
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from tensortap.core.errors import CorruptRunError, UnsupportedValueError, UntrustedFileError
from tensortap.formats.careful import CarefulUnpickler
from tensortap.formats.payload import Payload, from_bytes

SUFFIX = ".pkl"
_PROTOCOL = 4
_DEEPEST = 6

# What a stream that is no pickle, or only half of one, makes the interpreter stumble over.
_DAMAGE = (
    pickle.UnpicklingError,
    EOFError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    OverflowError,
    MemoryError,
    RuntimeError,
    AssertionError,
    struct.error,
)


def encode(value: Any) -> Payload:
    stream = io.BytesIO()
    try:
        _Pickler(stream, _PROTOCOL).dump(value)
    except RecursionError:
        raise UnsupportedValueError(
            f"{_called(value)} is nested too deeply to be pickled; dump its parts"
        ) from None
    except Exception as error:
        raise UnsupportedValueError(_cannot(value, error)) from error
    return from_bytes(SUFFIX, stream.getvalue())


def read(stream: BinaryIO, label: str, is_trusted: bool) -> Any:
    """The object in an open file."""
    return _read_trusted(stream, label) if is_trusted else _read_careful(stream, label)


def _read_trusted(stream: BinaryIO, label: str) -> Any:
    try:
        return pickle.load(stream)
    except (pickle.UnpicklingError, EOFError, IndexError, ValueError) as error:
        raise _damaged(label, error) from None
    except (ImportError, AttributeError) as error:
        raise UnsupportedValueError(
            f"{label} needs a class that is not here ({error}); define or import it, then load again"
        ) from error


def _read_careful(stream: BinaryIO, label: str) -> Any:
    try:
        return CarefulUnpickler(stream, label).load()
    except UntrustedFileError:
        raise
    except _DAMAGE as error:
        raise _damaged(label, error) from None


def _damaged(label: str, error: BaseException) -> CorruptRunError:
    reason = str(error).split("\n")[0] or type(error).__name__
    return CorruptRunError(f"{label} is not a whole pickle ({reason}); dump it again")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or not _is_plain(torch, value):
            return NotImplemented
        if _is_wasteful(value):
            value = value.detach().cpu().clone()
        function, (storage, *rest), *state = value.__reduce_ex__(_PROTOCOL)
        if isinstance(storage, torch.UntypedStorage):
            # Storages of fp8 and uint16: torch pickles them in a form that it cannot read back.
            storage = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.uint8, _internal=True)
        return function, (storage, *rest), *state


def _is_plain(torch: Any, value: Any) -> bool:
    is_dense = value.layout == torch.strided and not (value.is_meta or value.is_quantized or value.is_nested)
    return type(value) is torch.Tensor and is_dense


def _is_wasteful(value: Any) -> bool:
    """A view would drag its whole storage along; a device may not be there when it is read."""
    return bool(
        value.device.type != "cpu"
        or value.untyped_storage().nbytes() > value.numel() * value.element_size()
        or (value.requires_grad and not value.is_leaf)
    )


def _cannot(value: Any, error: Exception) -> str:
    culprit = next(_culprits(value, _called(value), 0, set()), _called(value))
    return (
        f"{culprit} cannot be pickled ({error}); dump the parts you need, or register_serializer for its type"
    )


def _culprits(value: Any, label: str, depth: int, above: set[int]) -> Iterator[str]:
    """Parts that fail on their own, the deepest first."""
    if depth > _DEEPEST or id(value) in above or _pickles(value):
        return
    for name, part in _parts(value):
        yield from _culprits(part, f"{label}{name}", depth + 1, {*above, id(value)})
    yield f"{label} of type {type(value).__name__}"


def _pickles(value: Any) -> bool:
    try:
        pickle.dumps(value, _PROTOCOL)
    except Exception:  # noqa: BLE001 - only asked whether
        return False
    return True


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, (list, tuple)):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    held = [*getattr(value, "__dict__", {}), *_slots(type(value))]
    return [(f".{name}", getattr(value, name)) for name in held if hasattr(value, name)]


def _slots(kind: type) -> Iterator[str]:
    for parent in kind.__mro__:
        slots = parent.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _called(value: Any) -> str:
    return f"the {type(value).__name__}"
