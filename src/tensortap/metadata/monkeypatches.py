"""Replaced functions.

Find functions, methods and classes that were replaced after their module was imported.

Go through loaded modules for names whose value somebody else defined, without running any code.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Literal

from tensortap.metadata.definitions import Definition, Definitions, Owner, Owners, definitions_of

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


Form = Literal["function", "class", "wrapper", "property", "stand-in", "callable", "other"]

_FORMS: dict[type, Form] = {
    FunctionType: "function",
    staticmethod: "wrapper",
    classmethod: "wrapper",
    property: "property",
    partial: "stand-in",
}


@dataclass(frozen=True, slots=True)
class Suspect:
    """A name whose present value was defined by somebody else than its module."""

    module: ModuleType
    holder: type | None
    name: str
    value: Any
    definer: Owner
    target: Owner

    @property
    def path(self) -> str:
        inner = f"{self.holder.__qualname__}." if self.holder is not None else ""
        return f"{self.module.__name__}.{inner}{self.name}"

    @property
    def is_stand_in(self) -> bool:
        """A mock or a partial: made to take a function's place."""
        return _form(type(self.value)) == "stand-in"


class Look:
    """One look at the process."""

    def __init__(self) -> None:
        self.owners = Owners()
        self._forms: dict[type, Form] = dict(_FORMS)

    def modules(self) -> list[ModuleType]:
        """The loaded modules: the program's first, then libraries', then Python's; never ours."""
        loaded = list(sys.modules.items())
        # A second name for the same module (`os.path`) is skipped: it is met under its own.
        modules = [
            m for name, m in loaded if isinstance(m, ModuleType) and m.__dict__.get("__name__") == name
        ]
        order = {"program": 0, "library": 1, "stdlib": 2, "own": 3}
        ranked = [
            (order[self.owners.of_module(m.__name__).kind], m) for m in modules if m.__name__ != "__main__"
        ]
        return [module for rank, module in sorted(ranked, key=lambda pair: pair[0]) if rank < 3]

    def suspects(self, module: ModuleType) -> Iterator[Suspect]:
        target = self.owners.of_module(module.__name__)
        return self._among(module, None, module.__dict__, target)

    def _among(self, module: ModuleType, holder: type | None, names: Any, target: Owner) -> Iterator[Suspect]:
        file = module.__dict__.get("__file__")
        forms = self._forms
        for name, entry in list(names.items()):
            # This loop sees every name of the process, hence what is inlined here.
            form = forms.get(type(entry)) or self._new_form(type(entry))
            if form == "other" or (form == "function" and entry.__code__.co_filename == file):
                continue
            value, form = self._unwrapped(entry, form)
            if self._is_foreign(value, form, file, target):
                yield Suspect(module, holder, name, value, self.owners.of(value), target)
            elif form == "class" and _is_home(value, module, holder, name):
                yield from self._among(module, value, vars(value), target)

    def _new_form(self, kind: type) -> Form:
        form = self._forms[kind] = _form(kind)
        if form == "callable" and self.owners.of_module(kind.__module__).kind != "program":
            form = self._forms[kind] = "other"
        return form

    def _unwrapped(self, entry: Any, form: Form) -> tuple[Any, Form]:
        if form not in ("wrapper", "property"):
            return entry, form
        value = entry.fget if form == "property" else entry.__func__
        return value, _form(type(value))

    def _is_foreign(self, value: Any, form: Form, file: str | None, target: Owner) -> bool:
        if form == "function":
            return value.__code__.co_filename != file and _is_stranger(self.owners.of_function(value), target)
        if form == "class":
            named = self.owners.of_module(value.__module__)
            return _is_stranger(named, target) and _is_stranger(self.owners.of_class(value), target)
        if form == "stand-in":
            return target.kind != "stdlib"
        return form == "callable" and target.kind != "program"


def _form(kind: type) -> Form:
    if kind in _FORMS:
        return _FORMS[kind]
    if issubclass(kind, type):
        return "class"
    if kind.__module__ == "unittest.mock":
        return "stand-in"
    return "callable" if hasattr(kind, "__call__") else "other"  # noqa: B004  callable() would ask the type itself


def _is_home(value: type, module: ModuleType, holder: type | None, name: str) -> bool:
    """Whether a class was made by this module under this name, so that its methods are looked at once."""
    if value.__module__ != module.__name__:
        return False
    return holder is None or value.__qualname__ == f"{holder.__qualname__}.{name}"


def _is_stranger(definer: Owner, target: Owner) -> bool:
    if definer.kind in ("stdlib", "own") or definer.top == target.top:
        return False
    # Libraries adapt Python's modules when they are imported (torch does inspect): no news of the program.
    return not (definer.kind == "library" and target.kind == "stdlib")
