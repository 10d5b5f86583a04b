"""How names are written in a trace file: as they are, where HDF5 and the layout would not misread them."""

import re
from urllib.parse import unquote

from tensortap.core.errors import UnsupportedValueError

ITERATIONS, RANKS, SHAPES, POSITIONS = "_iterations", "_ranks", "_shapes", "_positions"
COMPANIONS = (ITERATIONS, RANKS, SHAPES, POSITIONS)
_PART = re.compile(r"~(\d+)$")
_COMPANION = re.compile(rf"_(?={'|'.join(suffix[1:] + '$' for suffix in COMPANIONS)})")
_NO_KEY = re.compile(r"[%/\x00-\x1f\x7f\ud800-\udfff]|^\.{1,2}$")
_LONGEST_KEY = 30_000  # bytes; the library fails on links and attributes of 64 KiB


def key_of(name: str) -> str:
    """The name inside the file: the same for ordinary names, and `%XX` for what HDF5 or this layout
    would misread. `unquote` gives the name back."""
    key = _NO_KEY.sub(_quoted, name)
    key = _COMPANION.sub("%5F", _PART.sub(r"%7E\1", key)) or "%"
    if len(key.encode("utf-8")) > _LONGEST_KEY:
        raise UnsupportedValueError(f"a name of {len(name)} characters is too long for an HDF5 file")
    return key


def name_of(key: str) -> str:
    """The name that has this key; the number of a part is no part of it."""
    key = _PART.sub("", key)
    return "" if key == "%" else unquote(key, errors="surrogatepass")


def is_companion(key: str) -> bool:
    return key.endswith(COMPANIONS)


def part_of(key: str) -> int:
    found = _PART.search(key)
    return int(found[1]) if found else 1


def _quoted(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))
