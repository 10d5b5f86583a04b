"""The table of supported dtypes: torch's name, and the numpy dtype that stores the bytes."""

from dataclasses import dataclass, field
from typing import Literal

DTypeFamily = Literal["bool", "int", "float", "complex"]


@dataclass(frozen=True, slots=True)
class DTypeInfo:
    """A dtype under torch's name. `storage` is the numpy dtype of the same width that stores its bytes; an
    unsigned integer where numpy cannot compute with the dtype (`native` is False)."""

    name: str
    family: DTypeFamily
    storage: str
    native: bool = True
    itemsize: int = field(init=False)

    def __post_init__(self) -> None:
        # Not a property: it is read for every value.
        object.__setattr__(self, "itemsize", int(self.storage[2:]))


def _by_name(*rows: DTypeInfo) -> dict[str, DTypeInfo]:
    return {row.name: row for row in rows}


DTYPE_TABLE = _by_name(
    DTypeInfo("bool", "bool", "|b1"),
    DTypeInfo("uint8", "int", "|u1"),
    DTypeInfo("uint16", "int", "<u2"),
    DTypeInfo("uint32", "int", "<u4"),
    DTypeInfo("uint64", "int", "<u8"),
    DTypeInfo("int8", "int", "|i1"),
    DTypeInfo("int16", "int", "<i2"),
    DTypeInfo("int32", "int", "<i4"),
    DTypeInfo("int64", "int", "<i8"),
    DTypeInfo("float16", "float", "<f2"),
    DTypeInfo("float32", "float", "<f4"),
    DTypeInfo("float64", "float", "<f8"),
    DTypeInfo("complex64", "complex", "<c8"),
    DTypeInfo("complex128", "complex", "<c16"),
    DTypeInfo("bfloat16", "float", "<u2", native=False),
    DTypeInfo("float8_e4m3fn", "float", "|u1", native=False),
    DTypeInfo("float8_e4m3fnuz", "float", "|u1", native=False),
    DTypeInfo("float8_e5m2", "float", "|u1", native=False),
    DTypeInfo("float8_e5m2fnuz", "float", "|u1", native=False),
    DTypeInfo("float8_e8m0fnu", "float", "|u1", native=False),
    DTypeInfo("complex32", "complex", "<u4", native=False),
)
