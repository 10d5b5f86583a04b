"""Which dtypes are supported, and which array libraries; each library has its home in `frameworks/`."""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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


class ArrayLibrary(NamedTuple):
    """A library whose arrays are captured."""

    name: str  # of the module, of the framework, and of the extra that installs it
    is_optional: bool = True
    distributions: tuple[str, ...] = ()  # further ones whose version may change its numbers
    is_always_recorded: bool = False  # its version, also where the program does not import it


# The first that owns a value answers for it.
ARRAY_LIBRARIES = (
    ArrayLibrary("torch", distributions=("triton",), is_always_recorded=True),
    ArrayLibrary("jax", distributions=("jaxlib",)),
    ArrayLibrary("numpy", is_optional=False, is_always_recorded=True),
)
ARRAY_LIBRARY_NAMES = tuple(library.name for library in ARRAY_LIBRARIES)
OPTIONAL_ARRAY_LIBRARIES = tuple(library.name for library in ARRAY_LIBRARIES if library.is_optional)
