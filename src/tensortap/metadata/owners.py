"""Tell whose code a file, module or function is: Python's, a library's, the program's or ours."""

import os
import sys
import sysconfig
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

Kind = Literal["stdlib", "library", "program", "own"]

_OWN = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class Owner:
    kind: Kind
    top: str  # the top-level package


NOBODY = Owner("stdlib", "")


class Owners:
    """Answers for one look at the process, each file and module asked about once."""

    def __init__(self) -> None:
        self._files: dict[str, Owner] = {}
        self._modules: dict[str, Owner] = {}
        self._stdlib = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})

    def of(self, value: Any) -> Owner:
        """Who defined a function or class; of another callable, who defined its type."""
        kind = type(value)
        if kind is FunctionType:
            return self.of_function(value)
        if kind is partial:
            return self.of(value.func)
        return self.of_class(value if issubclass(kind, type) else kind)

    def of_function(self, function: FunctionType) -> Owner:
        filename = function.__code__.co_filename
        found = self._files.get(filename)
        if found is not None:
            return found
        module = function.__globals__.get("__name__", "")
        # Generated code has no file of its own, and a script's may be relative: the globals say whose it is.
        return self.of_file(filename, module) if os.path.isabs(filename) else self.of_module(module)

    def of_class(self, found: type) -> Owner:
        """By the code of its methods, since `__module__` is often set to where a class is shown."""
        named = self.of_module(found.__module__)
        if named.kind == "program":
            return named
        methods = (value for value in vars(found).values() if type(value) is FunctionType)
        return next((self.of_function(method) for method in methods), NOBODY)

    def of_module(self, name: Any) -> Owner:
        if not isinstance(name, str):
            return NOBODY
        if name not in self._modules:
            self._modules[name] = self._module(name)
        return self._modules[name]

    def of_file(self, filename: str, module: str) -> Owner:
        if filename not in self._files:
            self._files[filename] = self._file(filename, module)
        return self._files[filename]

    def _module(self, name: str) -> Owner:
        top = name.partition(".")[0]
        if name == "__main__":
            return Owner("program", _top_of_main())
        module = sys.modules.get(name)
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str):
            return self.of_file(file, name)
        if module is None or top in sys.stdlib_module_names:
            return NOBODY
        # Made at run time, such as torch.ops: it belongs to the package it is named after.
        return self.of_module(top) if top != name else NOBODY

    def _file(self, filename: str, module: str) -> Owner:
        if filename.startswith(_OWN):
            return Owner("own", "tensortap")
        for folder in ("/site-packages/", "/dist-packages/"):
            if folder in filename:
                return Owner("library", _first_part(filename.rpartition(folder)[2]))
        if filename.startswith(self._stdlib):
            return Owner("stdlib", module.partition(".")[0])
        return Owner("program", _top_of_main() if module == "__main__" else module.partition(".")[0])


def _first_part(path: str) -> str:
    return path.partition("/")[0].partition(".")[0]


def _top_of_main() -> str:
    """`python -m package.train` runs as `__main__`, but is the package's own code."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name.partition(".")[0] if spec is not None else "__main__"
