"""Go through loaded modules for names whose value somebody else defined, without running any code."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Literal

from tensortap.metadata.owners import Owner, Owners

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
