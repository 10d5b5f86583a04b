"""Find functions, methods and classes that were replaced after their module was imported."""

from __future__ import annotations

import inspect
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Literal

from tensortap.metadata.definitions import (
    CodeOwner,
    ModuleDefinitions,
    OwnerLookup,
    WrittenDefinition,
    read_definitions,
)

TIME_BUDGET = 0.3


@dataclass
class RuntimeModifications:
    """What was replaced, and how many modules were checked."""

    replaced: dict[str, dict[str, str]] = field(default_factory=dict)
    checked: int = 0
    unchecked: int = 0


def find_modifications(budget: float = TIME_BUDGET) -> RuntimeModifications:
    """Compare what each imported module's source defines with its current values, in `budget` seconds."""
    # CPU time of this thread, so that a busy machine does not shorten the scan.
    deadline = time.thread_time() + budget
    scan, modifications = ModuleScan(), RuntimeModifications()
    for module in scan.modules():
        if time.thread_time() > deadline:
            modifications.unchecked += 1
            continue
        modifications.checked += 1
        modifications.replaced |= _find_replaced(module, scan)
    modifications.replaced = dict(sorted(modifications.replaced.items()))
    return modifications


def _find_replaced(module: ModuleType, scan: ModuleScan) -> dict[str, dict[str, str]]:
    suspects = [suspect for suspect in scan.suspects(module) if suspect not in _cleared]
    definitions = read_definitions(module) if suspects else None
    replaced = {}
    for suspect in suspects:
        original = _find_original(suspect, definitions, scan.owners)
        if original is not None:
            replaced[suspect.path] = original | _describe_replacement(suspect)
        elif not suspect.is_by_program:
            _cleared.add(suspect)
    return replaced


def _find_original(
    suspect: Suspect, definitions: ModuleDefinitions | None, owners: OwnerLookup
) -> dict[str, str] | None:
    """The original of a replaced value; None if the value is legitimate: imported, decorated, added."""
    body = _defining_body(suspect, definitions)
    definition = body.find(suspect.name) if body is not None else None
    # A library cannot have imported, nor been decorated with, what the program defines.
    if suspect.is_by_program:
        return (
            _original_in_source(suspect, definition)
            or _original_in_base(suspect)
            or _original_by_name(suspect, body, owners)
        )
    if (
        definition is None
        or not definition.is_plain
        or _may_come_from_class_creation(suspect, definitions, owners)
    ):
        return None
    return _original_in_source(suspect, definition)


def _defining_body(suspect: Suspect, definitions: ModuleDefinitions | None) -> ModuleDefinitions | None:
    if definitions is None or suspect.cls is None:
        return definitions
    return definitions.class_body(suspect.cls.__qualname__)


def _may_come_from_class_creation(
    suspect: Suspect, definitions: ModuleDefinitions | None, owners: OwnerLookup
) -> bool:
    """Whether a class decorator, a metaclass or a base may have set it when the class was created."""
    if suspect.cls is None or definitions is None:
        return False
    makers = [*suspect.cls.__mro__[1:], *type.mro(type(suspect.cls))]
    if any(owners.of_module(maker.__module__).top == suspect.value_owner.top for maker in makers):
        return True
    outermost = definitions.find(suspect.cls.__qualname__.partition(".")[0])
    return outermost is None or not outermost.is_plain


def _is_mock(value: Any) -> bool:
    return type(value).__module__ == "unittest.mock"


def _original_in_source(suspect: Suspect, definition: WrittenDefinition | None) -> dict[str, str] | None:
    if definition is None:
        return None
    location = f"{suspect.module.__file__}:{definition.line}"
    return {"original": suspect.path, "original_defined_in": location}


def _original_in_base(suspect: Suspect) -> dict[str, str] | None:
    """The attribute of a base class that the replacement shadows."""
    for base in (suspect.cls.__mro__ if suspect.cls is not None else ())[1:-1]:
        if suspect.name in vars(base):
            return {"original": f"{base.__module__}.{base.__qualname__}.{suspect.name}"}
    return None


def _original_by_name(
    suspect: Suspect, body: ModuleDefinitions | None, owners: OwnerLookup
) -> dict[str, str] | None:
    """A name that the module must have had, though its source does not define it."""
    if suspect.cls is not None:
        return {"original": suspect.path} if body is not None and body.mentions(suspect.name) else None
    is_public = suspect.name in (suspect.module.__dict__.get("__all__") or ())
    if body is None or is_public or body.mentions(suspect.name):
        return {"original": suspect.path}
    namesake = _find_namesake(suspect, owners)
    return {"original": namesake} if namesake else None


def _find_namesake(suspect: Suspect, owners: OwnerLookup) -> str | None:
    """The function or class of that name elsewhere in the package."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != suspect.name_owner.top or not isinstance(module, ModuleType):
            continue
        value = module.__dict__.get(suspect.name)
        qualname = getattr(value, "__qualname__", None) if value is not suspect.value else None
        if isinstance(qualname, str) and owners.of(value).kind != "program":
            return f"{getattr(value, '__module__', None) or name}.{qualname}"
    return None


def _describe_replacement(suspect: Suspect) -> dict[str, str]:
    value = suspect.value.func if type(suspect.value) is partial else suspect.value
    definition = value if hasattr(value, "__qualname__") else type(value)
    return {"replacement": _qualified_name(definition), "defined_in": _source_location(definition)}


def _qualified_name(definition: Any) -> str:
    # functools.wraps gives a replacement the name of the original; its code object keeps its own.
    if isinstance(definition, FunctionType):
        return f"{definition.__globals__.get('__name__')}.{definition.__code__.co_qualname}"
    return f"{definition.__module__}.{definition.__qualname__}"


def _source_location(definition: Any) -> str:
    code = getattr(definition, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(definition)}:{inspect.getsourcelines(definition)[1]}"
    except (OSError, TypeError):
        return "unknown"


ValueForm = Literal["function", "class", "wrapper", "property", "stand-in", "callable", "other"]

_FORMS: dict[type, ValueForm] = {
    FunctionType: "function",
    staticmethod: "wrapper",
    classmethod: "wrapper",
    property: "property",
    partial: "stand-in",
}


@dataclass(frozen=True, slots=True)
class Suspect:
    """A name whose current value was not defined by its module's package."""

    module: ModuleType
    cls: type | None
    name: str
    value: Any
    value_owner: CodeOwner
    name_owner: CodeOwner

    @property
    def body(self) -> ModuleType | type:
        """Whose name it is: the class, or the module."""
        return self.module if self.cls is None else self.cls

    @property
    def path(self) -> str:
        inner = f"{self.cls.__qualname__}." if self.cls is not None else ""
        return f"{self.module.__name__}.{inner}{self.name}"

    @property
    def is_by_program(self) -> bool:
        """Whether the program, or a mock, gave a library the value."""
        is_from_program = self.value_owner.kind == "program" or _is_mock(self.value)
        return self.name_owner.kind != "program" and is_from_program

    @property
    def is_stand_in(self) -> bool:
        """Whether it is a mock or a partial, which stand in for a function."""
        return _classify(type(self.value)) == "stand-in"


class ClearedSuspects:
    """Suspects whose source was read and explains them, for later scans: reading takes as long as scanning.
    Holds weak references, so values can be collected, and another at the same address is not mistaken."""

    def __init__(self) -> None:
        self._references: dict[str, tuple[weakref.ref[Any], ...]] = {}

    def __contains__(self, suspect: Suspect) -> bool:
        references = self._references.get(suspect.path)
        if references is None:
            return False
        value, body, spec = references
        return value() is suspect.value and body() is suspect.body and spec() is suspect.module.__spec__

    def add(self, suspect: Suspect) -> None:
        with suppress(TypeError):  # what has no weak references is read again at each scan
            # A module that is loaded again, perhaps from a changed source, has a new spec.
            referents = (suspect.value, suspect.body, suspect.module.__spec__)
            self._references[suspect.path] = tuple(map(weakref.ref, referents))


_cleared = ClearedSuspects()


class ModuleScan:
    """One scan of the loaded modules."""

    def __init__(self) -> None:
        self.owners = OwnerLookup()
        self._forms: dict[type, ValueForm] = dict(_FORMS)

    def modules(self) -> list[ModuleType]:
        """The loaded modules: first the program's, then libraries, then the stdlib; never ours."""
        loaded = list(sys.modules.items())
        # An alias of a module (`os.path`) is skipped: it is scanned under its own name.
        modules = [
            module
            for name, module in loaded
            if isinstance(module, ModuleType) and module.__dict__.get("__name__") == name
        ]
        order = {"program": 0, "library": 1, "stdlib": 2, "own": 3}
        ranked = [
            (order[self.owners.of_module(module.__name__).kind], module)
            for module in modules
            if module.__name__ != "__main__"
        ]
        return [module for rank, module in sorted(ranked, key=lambda pair: pair[0]) if rank < 3]

    def suspects(self, module: ModuleType) -> Iterator[Suspect]:
        name_owner = self.owners.of_module(module.__name__)
        return self._suspects_in(module, None, module.__dict__, name_owner)

    def _suspects_in(
        self, module: ModuleType, cls: type | None, names: Any, name_owner: CodeOwner
    ) -> Iterator[Suspect]:
        file = module.__dict__.get("__file__")
        forms = self._forms
        for name, entry in list(names.items()):
            # This loop visits every name of the process, hence the inlining.
            form = forms.get(type(entry)) or self._classify_type(type(entry))
            if form == "other" or (form == "function" and entry.__code__.co_filename == file):
                continue
            value, form = self._unwrap(entry, form)
            if self._is_foreign(value, form, file, name_owner):
                yield Suspect(module, cls, name, value, self.owners.of(value), name_owner)
            elif form == "class" and _is_defined_here(value, module, cls, name):
                yield from self._suspects_in(module, value, vars(value), name_owner)

    def _classify_type(self, kind: type) -> ValueForm:
        form = self._forms[kind] = _classify(kind)
        if form == "callable" and self.owners.of_module(kind.__module__).kind != "program":
            form = self._forms[kind] = "other"
        return form

    def _unwrap(self, entry: Any, form: ValueForm) -> tuple[Any, ValueForm]:
        if form not in ("wrapper", "property"):
            return entry, form
        value = entry.fget if form == "property" else entry.__func__
        return value, _classify(type(value))

    def _is_foreign(self, value: Any, form: ValueForm, file: str | None, name_owner: CodeOwner) -> bool:
        if form == "function":
            return value.__code__.co_filename != file and _is_unrelated(
                self.owners.of_function(value), name_owner
            )
        if form == "class":
            module_owner = self.owners.of_module(value.__module__)
            return _is_unrelated(module_owner, name_owner) and _is_unrelated(
                self.owners.of_class(value), name_owner
            )
        if form == "stand-in":
            return name_owner.kind != "stdlib"
        return form == "callable" and name_owner.kind != "program"


def _classify(kind: type) -> ValueForm:
    if kind in _FORMS:
        return _FORMS[kind]
    if issubclass(kind, type):
        return "class"
    if kind.__module__ == "unittest.mock":
        return "stand-in"
    return "callable" if hasattr(kind, "__call__") else "other"  # noqa: B004  callable() would ask the type itself


def _is_defined_here(value: type, module: ModuleType, cls: type | None, name: str) -> bool:
    """Whether a class was defined by this module under this name, so that its methods are scanned once."""
    if value.__module__ != module.__name__:
        return False
    return cls is None or value.__qualname__ == f"{cls.__qualname__}.{name}"


def _is_unrelated(value_owner: CodeOwner, name_owner: CodeOwner) -> bool:
    if value_owner.kind in ("stdlib", "own") or value_owner.top == name_owner.top:
        return False
    # Libraries patch the stdlib when they are imported (torch patches inspect): not the program's doing.
    return not (value_owner.kind == "library" and name_owner.kind == "stdlib")
