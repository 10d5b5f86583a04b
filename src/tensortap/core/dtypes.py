"""The closed table of number types: what each is called, and which numpy type holds its bytes."""

from dataclasses import dataclass, field
from typing import Literal

Family = Literal["bool", "int", "float", "complex"]


@dataclass(frozen=True, slots=True)
class NumberType:
    """A number type under torch's name. `storage` is the numpy type of the same width that keeps its
    bytes; where numpy cannot compute with the type (`native` is False) that is an unsigned integer."""

    name: str
    family: Family
    storage: str
    native: bool = True
    itemsize: int = field(init=False)

    def __post_init__(self) -> None:
        # Not a property: it is asked for with every value that is read.
        object.__setattr__(self, "itemsize", int(self.storage[2:]))


def _table(*rows: NumberType) -> dict[str, NumberType]:
    return {row.name: row for row in rows}


NUMBER_TYPES = _table(
    NumberType("bool", "bool", "|b1"),
    NumberType("uint8", "int", "|u1"),
    NumberType("uint16", "int", "<u2"),
    NumberType("uint32", "int", "<u4"),
    NumberType("uint64", "int", "<u8"),
    NumberType("int8", "int", "|i1"),
    NumberType("int16", "int", "<i2"),
    NumberType("int32", "int", "<i4"),
    NumberType("int64", "int", "<i8"),
    NumberType("float16", "float", "<f2"),
    NumberType("float32", "float", "<f4"),
    NumberType("float64", "float", "<f8"),
    NumberType("complex64", "complex", "<c8"),
    NumberType("complex128", "complex", "<c16"),
    NumberType("bfloat16", "float", "<u2", native=False),
    NumberType("float8_e4m3fn", "float", "|u1", native=False),
    NumberType("float8_e4m3fnuz", "float", "|u1", native=False),
    NumberType("float8_e5m2", "float", "|u1", native=False),
    NumberType("float8_e5m2fnuz", "float", "|u1", native=False),
    NumberType("float8_e8m0fnu", "float", "|u1", native=False),
    NumberType("complex32", "complex", "<u4", native=False),
)
