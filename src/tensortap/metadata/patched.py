"""Find functions, methods and classes that were replaced after their module was imported."""

import inspect
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from tensortap.metadata.definitions import Definition, Definitions, definitions_of
from tensortap.metadata.owners import Owners
from tensortap.metadata.suspects import Look, Suspect

BUDGET = 0.3


@dataclass
class Modifications:
    """What was replaced, and how much of the process was looked at."""

    found: dict[str, dict[str, str]] = field(default_factory=dict)
    looked_at: int = 0
    not_looked_at: int = 0


def runtime_modifications(budget: float = BUDGET) -> Modifications:
    """Compare what each imported module's code defines with what is there now, in `budget` seconds."""
    # Of this thread's own work, so that a busy machine does not shorten the look.
    deadline = time.thread_time() + budget
    look, result = Look(), Modifications()
    for module in look.modules():
        if time.thread_time() > deadline:
            result.not_looked_at += 1
            continue
        result.looked_at += 1
        result.found |= _replaced(module, look)
    result.found = dict(sorted(result.found.items()))
    return result


def _replaced(module: ModuleType, look: Look) -> dict[str, dict[str, str]]:
    suspects = list(look.suspects(module))
    definitions = definitions_of(module) if suspects else None
    judged = ((suspect, _original(suspect, definitions, look.owners)) for suspect in suspects)
    return {suspect.path: original | _replacement(suspect) for suspect, original in judged if original}


def _original(suspect: Suspect, definitions: Definitions | None, owners: Owners) -> dict[str, str] | None:
    """What stood there before; None when the value is there by right: imported, decorated, added."""
    body = _body(suspect, definitions)
    definition = body.find(suspect.name) if body is not None else None
    # A library cannot have imported, nor been decorated with, what the program defines.
    if suspect.target.kind != "program" and (suspect.definer.kind == "program" or _is_mock(suspect.value)):
        return _written(suspect, definition) or _inherited(suspect) or _known(suspect, body, owners)
    if definition is None or not definition.is_plain or _is_shaped(suspect, definitions, owners):
        return None
    return _written(suspect, definition)


def _body(suspect: Suspect, definitions: Definitions | None) -> Definitions | None:
    if definitions is None or suspect.holder is None:
        return definitions
    return definitions.inside(suspect.holder.__qualname__)


def _is_shaped(suspect: Suspect, definitions: Definitions | None, owners: Owners) -> bool:
    """Whether a class decorator, a metaclass or a base may have put it there as the class was made."""
    if suspect.holder is None or definitions is None:
        return False
    makers = [*suspect.holder.__mro__[1:], *type.mro(type(suspect.holder))]
    if any(owners.of_module(maker.__module__).top == suspect.definer.top for maker in makers):
        return True
    outermost = definitions.find(suspect.holder.__qualname__.partition(".")[0])
    return outermost is None or not outermost.is_plain


def _is_mock(value: Any) -> bool:
    return type(value).__module__ == "unittest.mock"


def _written(suspect: Suspect, definition: Definition | None) -> dict[str, str] | None:
    if definition is None:
        return None
    place = f"{suspect.module.__file__}:{definition.line}"
    return {"original": suspect.path, "original_defined_in": place}


def _inherited(suspect: Suspect) -> dict[str, str] | None:
    """Of a class, the base that still has what the replacement shadows."""
    for base in (suspect.holder.__mro__ if suspect.holder is not None else ())[1:-1]:
        if suspect.name in vars(base):
            return {"original": f"{base.__module__}.{base.__qualname__}.{suspect.name}"}
    return None


def _known(suspect: Suspect, body: Definitions | None, owners: Owners) -> dict[str, str] | None:
    """A name that the module is known to have had, though its code does not define it."""
    if suspect.holder is not None:
        return {"original": suspect.path} if body is not None and body.mentions(suspect.name) else None
    is_public = suspect.name in (suspect.module.__dict__.get("__all__") or ())
    if body is None or is_public or body.mentions(suspect.name):
        return {"original": suspect.path}
    namesake = _namesake(suspect, owners)
    return {"original": namesake} if namesake else None


def _namesake(suspect: Suspect, owners: Owners) -> str | None:
    """The function or class that the rest of the package still has under that name."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != suspect.target.top or not isinstance(module, ModuleType):
            continue
        value = module.__dict__.get(suspect.name)
        qualname = getattr(value, "__qualname__", None) if value is not suspect.value else None
        if isinstance(qualname, str) and owners.of(value).kind != "program":
            return f"{getattr(value, '__module__', None) or name}.{qualname}"
    return None


def _replacement(suspect: Suspect) -> dict[str, str]:
    value = suspect.value.func if type(suspect.value) is partial else suspect.value
    named = value if hasattr(value, "__qualname__") else type(value)
    return {"replacement": _own_name(named), "defined_in": _place(named)}


def _own_name(named: Any) -> str:
    # functools.wraps gives a replacement the name of the original; its code keeps its own.
    if isinstance(named, FunctionType):
        return f"{named.__globals__.get('__name__')}.{named.__code__.co_qualname}"
    return f"{named.__module__}.{named.__qualname__}"


def _place(named: Any) -> str:
    code = getattr(named, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(named)}:{inspect.getsourcelines(named)[1]}"
    except (OSError, TypeError):
        return "unknown"
