"""A Python module by its name, imported if need be."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from typing import Any

from tensortap.core.errors import UnknownModuleError
from tensortap.core.patterns import closest_names


def python_module(name: str) -> Any:
    """The module of that name; one that the program has not imported yet is imported."""
    found = sys.modules.get(name)
    if found is not None:
        return found
    try:
        return _imported(name)
    except UnknownModuleError:
        raise
    except Exception as error:  # the module's own, told to whoever asked for it
        is_absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        raise UnknownModuleError(_unknown(name) if is_absent else _failed(name, error)) from error


def _imported(name: str) -> Any:
    spec = importlib.util.find_spec(name)  # imports the packages above it
    if spec is None:
        raise UnknownModuleError(_unknown(name))
    if _is_the_program(spec):
        raise UnknownModuleError(
            f"{name!r} is the program itself, which must not run twice; write '__main__:...'"
        )
    return importlib.import_module(name)


def _is_the_program(spec: Any) -> bool:
    main = sys.modules.get("__main__")
    files = [getattr(main, "__file__", None), spec.origin]
    return all(file and os.path.exists(file) for file in files) and os.path.samefile(*files)


def _failed(name: str, error: Exception) -> str:
    first_line = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"the module {name!r} could not be imported: {first_line}"


def _unknown(name: str) -> str:
    above = name.rpartition(".")[0]
    beside = pkgutil.iter_modules(getattr(sys.modules.get(above), "__path__", ()))
    near = closest_names(name, [f"{above}.{one.name}" for one in beside] or sys.modules)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
    return f"there is no Python module {name!r}{hint} 'pkg.mod:func.var' begins with what is imported"
