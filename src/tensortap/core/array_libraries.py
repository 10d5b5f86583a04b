"""Which array libraries there are; each has its home in `frameworks/`, under the same name."""

from typing import NamedTuple


class ArrayLibrary(NamedTuple):
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
