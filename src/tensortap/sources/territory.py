"""Which code a followed call is followed into."""

from __future__ import annotations

import inspect
import re
import sys
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

from tensortap.core.patterns import matches_pattern

_OWN = str(Path(__file__).resolve().parents[1]) + "/"
# They have no level of their own; what they call has.
_TRANSPARENT = {"<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
_MODULE_CALLS = {"_call_impl", "_wrapped_call_impl"}
# Python calls these behind the program's back, or so often that nothing else would be seen.
UNASKED = frozenset(
    ("__del__", "__repr__", "__str__", "__format__", "__getattr__", "__getattribute__", "__setattr__",
     "__delattr__", "__hash__", "__eq__", "__ne__", "__bool__", "__instancecheck__", "__subclasscheck__")
)  # fmt: skip
_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")


class Territory:
    """The program's own code, the packages of decorated functions, and the modules that were asked for."""

    def __init__(self, follow: Sequence[str] | bool | None = None) -> None:
        self._packages: set[str] = set()
        self._is_all = follow is True
        self._patterns = () if isinstance(follow, bool) or follow is None else tuple(follow)

    def add(self, module: str | None) -> None:
        """A function of it was decorated."""
        self._packages.add(package(module))

    def holds(self, frame: FrameType) -> bool:
        code = frame.f_code
        if not code.co_flags & inspect.CO_OPTIMIZED or code.co_filename.startswith(_OWN):
            return False
        if code.co_name in _TRANSPARENT or code.co_name in UNASKED or code.co_name in _MODULE_CALLS:
            return False
        module = frame.f_globals.get("__name__")
        return not is_generated(code) and self._is_inside(module if isinstance(module, str) else "", code)

    def _is_inside(self, module: str, code: CodeType) -> bool:
        root = package(module)
        if self._is_all or root in self._packages:
            return True
        if any(
            matches_pattern(pattern, module) or matches_pattern(f"{pattern}.**", module)
            for pattern in self._patterns
        ):
            return True
        return root != "tensortap" and not is_library(_file(code, root))


def package(module: str | None) -> str:
    """The outermost one."""
    return (module or "").partition(".")[0]


def is_generated(code: CodeType) -> bool:
    """As a dataclass's `__init__`: without a file, under a name that nobody calls by itself."""
    return code.co_filename.startswith("<") and code.co_name.startswith("__")


def _file(code: CodeType, root: str) -> str:
    if not code.co_filename.startswith("<"):
        return code.co_filename
    if code.co_filename.startswith("<frozen"):
        return _library()[0]
    return getattr(sys.modules.get(root), "__file__", None) or ""


@lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Whether it came with Python or was installed."""
    return bool(_INSTALLED.search(file)) or file.startswith(_library())


@lru_cache(maxsize=1)
def _library() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({f"{paths[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})
