"""What a line changed.

What each line of a running call has changed: its variables, what they hold, and arrays in place.

What a line may change: the variables it binds, the objects it hands out, what it stores to.

What an object holds under an attribute or a key, without running a line of its own.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
from collections import UserDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from types import CodeType, FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

from tensortap.frameworks.equality import (
    change_token,
    contents_equal,
    is_array,
    names_with_new_version,
    shallow_change_token,
    share_memory,
    tensor_version,
)
from tensortap.frameworks.pytree import is_container
from tensortap.sources.probes.bytecode import Instructions, instructions_of

# Ways to the memory of an array that its version counter does not tell of.
_ALIASING = {"data", "numpy", "from_numpy", "asarray", "as_tensor", "frombuffer", "from_dlpack", "__array__"}
_IN_PLACE_FROM = 13  # the arguments of BINARY_OP from here on are `+=` and the like
_SHARED = ("LOAD_DEREF", "LOAD_CLASSDEREF")


class Step(NamedTuple):
    """From an object to what it holds: an attribute, or an item whose key is a constant or a variable."""

    kind: str  # "attribute", "constant", "variable"
    key: str | int


class Target(NamedTuple):
    """An attribute or item that is stored to, `self.cache` or `batch['mask']`, from a variable on."""

    root: str
    steps: tuple[Step, ...]


class Touched(NamedTuple):
    """Of one run, from an event of a trace up to the next."""

    bound: tuple[str, ...] = ()
    worldwide: tuple[str, ...] = ()  # bound too, as globals
    handed: tuple[str, ...] = ()  # variables whose objects may be changed by what is called or stored
    targets: tuple[Target, ...] = ()
    may_change: bool = False  # anything that is reached otherwise
    is_in_place: bool = False  # it shows that it changes arrays
    is_aliasing: bool = False  # it may make memory known under a second name
    reraises: bool = False


class Lines:
    """The runs of a code object, and how a call of it ends."""

    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._instructions: Instructions = instructions_of(code, code.co_filename)
        self._all = list(dis.get_instructions(code))
        self._touched: dict[int, Touched] = {}
        self._inner = tuple(name for name in (*code.co_cellvars, *code.co_freevars) if name != "__class__")
        self.first = self._instructions.first
        self.arguments = self._instructions.arguments
        self.returns = self._instructions.returns
        self.yields = frozenset(_yields(self._all, code))
        self.waits = frozenset(instruction.offset for instruction in self._all if instruction.opname == "YIELD_VALUE") - self.yields

    def touched(self, start: int) -> Touched:
        effects = self._touched.get(start)
        if effects is None:
            effects = self._touched[start] = self._find(start)
        return effects

    def _find(self, start: int) -> Touched:
        offsets = self._instructions.reached(start)
        run = [instruction for instruction in self._all if instruction.offset in offsets]
        bound = dict.fromkeys(name for instruction in sorted(run, key=_place) for name in _bound(instruction))
        changes = any(_may_change(instruction) for instruction in run)
        exposed = dict.fromkeys(name for instruction in run for name in _loaded(instruction)) if changes else {}
        if changes:  # an inner function may bind what it shares
            bound.update(dict.fromkeys(self._inner))
        return Touched(
            tuple(bound),
            tuple(dict.fromkeys(instruction.argval for instruction in run if instruction.opname == "STORE_GLOBAL")),
            tuple(exposed),
            tuple(dict.fromkeys(_targets(run, self._code))),
            changes,
            any(_is_in_place(instruction) for instruction in run),
            any(instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval in _ALIASING for instruction in run),
            any(instruction.opname == "RAISE_VARARGS" and not instruction.arg for instruction in run),
        )


def _place(instruction: dis.Instruction) -> tuple[int, int]:
    """As it is read; several targets are not stored in that order."""
    positions = instruction.positions
    return ((positions.lineno or 0), (positions.col_offset or 0)) if positions else (0, 0)


def _yields(instructions: list[dis.Instruction], code: CodeType) -> Iterator[int]:
    """Where a value goes out; `await` gives the loop what is no value of the function."""
    waits = bool(code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))
    for before, instruction in pairwise(instructions):
        if instruction.opname == "YIELD_VALUE" and not (waits and before.opname == "SEND"):
            yield instruction.offset


def _bound(instruction: dis.Instruction) -> list[str]:
    opname = instruction.opname
    if opname == "STORE_DEREF":
        return [instruction.argval]
    if not opname.startswith("STORE_FAST"):
        return []
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return [name for name in names[: opname.count("STORE_FAST")] if name.isidentifier()]


def _loaded(instruction: dis.Instruction) -> list[str]:
    if instruction.opname in _SHARED:
        return [instruction.argval]
    if not instruction.opname.startswith("LOAD_FAST"):
        return []
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    return [name for name in names if name.isidentifier()]


def _may_change(instruction: dis.Instruction) -> bool:
    opname = instruction.opname
    if opname.startswith(("CALL", "STORE_SUBSCR", "STORE_ATTR", "STORE_SLICE", "DELETE_SUBSCR", "DELETE_ATTR")):
        return True
    return opname in ("FOR_ITER", "SEND", "YIELD_VALUE", "BEFORE_WITH") or _is_in_place_operator(instruction)


def _is_in_place(instruction: dis.Instruction) -> bool:
    if instruction.opname in ("STORE_SUBSCR", "STORE_SLICE") or _is_in_place_operator(instruction):
        return True
    if instruction.opname == "KW_NAMES":
        return "out" in instruction.argval if isinstance(instruction.argval, tuple) else False
    is_attribute = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and isinstance(instruction.argval, str)
    return is_attribute and instruction.argval.endswith("_") and not instruction.argval.endswith("__")


def _is_in_place_operator(instruction: dis.Instruction) -> bool:
    return instruction.opname == "BINARY_OP" and (instruction.arg or 0) >= _IN_PLACE_FROM


def _targets(run: list[dis.Instruction], code: CodeType) -> Iterator[Target]:
    for instruction in run:
        if instruction.opname in ("STORE_ATTR", "STORE_SUBSCR") and instruction.positions:
            target = _target(_text(code.co_filename, instruction.positions), code)
            if target is not None:
                yield target


def _text(file: str, positions: dis.Positions) -> str:
    """The source of an instruction, where there is one on one line."""
    if positions.lineno is None or positions.lineno != positions.end_lineno or positions.col_offset is None:
        return ""
    line = linecache.getline(file, positions.lineno).encode()
    return line[positions.col_offset : positions.end_col_offset].decode(errors="replace")


def _target(source: str, code: CodeType) -> Target | None:
    try:
        node = ast.parse(source, mode="eval").body if source else None
    except SyntaxError:
        return None
    steps: list[Step] = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        step = _step(node, code)
        if step is None:
            return None
        steps.append(step)
        node = node.value
    # A file that was edited since it was imported shows other names than the code uses.
    if not steps or not isinstance(node, ast.Name) or node.id not in _known(code):
        return None
    return Target(node.id, tuple(reversed(steps)))


def _step(node: ast.Attribute | ast.Subscript, code: CodeType) -> Step | None:
    if isinstance(node, ast.Attribute):
        return Step("attribute", node.attr)
    key = node.slice
    if (
        isinstance(key, ast.UnaryOp)
        and isinstance(key.op, ast.USub)
        and isinstance(key.operand, ast.Constant)
    ):
        value = key.operand.value
        return Step("constant", -value) if type(value) is int else None
    if isinstance(key, ast.Constant):
        value = key.value
        return Step("constant", value) if isinstance(value, str | int) else None
    return Step("variable", key.id) if isinstance(key, ast.Name) and key.id in _known(code) else None


def _known(code: CodeType) -> tuple[str, ...]:
    return (*code.co_varnames, *code.co_cellvars, *code.co_freevars)


Tell = Callable[[str, Any, int], None]  # the variable or path, its value, the line that changed it
_NOTHING = Touched()


class Changes:
    """Looks before and after each line, at no more than what the line can have changed."""

    __slots__ = (
        "_attributes", "_before", "_deep", "_has_aliases", "_line", "_lines", "_states", "_stored", "_tell",
        "_versions", "_wants", "touched",
    )  # fmt: skip

    def __init__(self, lines: Lines, tell: Tell, wants: Callable[[str], bool] | None) -> None:
        self._lines, self._tell, self._wants = lines, tell, wants
        self.touched = _NOTHING
        self._line = 0
        self._before: dict[str, Any] = {}
        self._states: dict[str, Hashable] = {}
        self._deep: frozenset[str] = frozenset()  # of the states, those of numbers
        self._attributes: dict[str, dict[str, Hashable]] = {}
        self._stored: dict[Target, tuple[str, Hashable]] = {}
        self._versions: dict[str, int] = {}  # of every variable that is a tensor which counts its changes
        self._has_aliases = False  # a version counter may not tell everything any more

    def know(self, name: str, value: Any) -> None:
        """A variable has this value now."""
        version = tensor_version(value)
        if version is not None:
            self._versions[name] = version
        elif name in self._versions:
            del self._versions[name]

    def begin(self, frame: FrameType, variables: Mapping[str, Any]) -> None:
        """A run of instructions begins."""
        effects = self.touched = self._lines.touched(frame.f_lasti)
        self._line = frame.f_lineno
        self._before = {name: variables.get(name, MISSING) for name in effects.bound}
        if effects.may_change:
            self._before.update({name: frame.f_globals.get(name, MISSING) for name in effects.worldwide})
            self._has_aliases = self._has_aliases or effects.is_aliasing
            self._look_at_handed(effects, variables)
            self._stored = {target: _stored(target, variables) for target in effects.targets}

    def _is_wanted(self, path: str) -> bool:
        return self._wants is None or self._wants(path)

    def _look_at_handed(self, effects: Touched, variables: Mapping[str, Any]) -> None:
        arrays = []
        reads_arrays = effects.is_in_place or self._has_aliases
        for name in effects.handed:
            if name in self._versions and not reads_arrays:
                continue
            value = variables.get(name, MISSING)
            if value is MISSING or not self._is_wanted(name):
                continue
            if is_array(value):
                arrays.append(value)
            elif (tokens := attributes(value)) is not None:
                self._attributes[name] = tokens
            else:
                self._states[name] = change_token(value, deep=effects.is_aliasing)
        if arrays:
            self._look_at_memory(arrays, variables)

    def _look_at_memory(self, arrays: list[Any], variables: Mapping[str, Any]) -> None:
        """Whatever lies where these lie may change with them, and nothing else."""
        deep_names = set()
        for name, value in variables.items():
            if is_array(value) and self._is_wanted(name) and any(_overlap(value, array) for array in arrays):
                self._states[name] = change_token(value, deep=True)
                deep_names.add(name)
        self._deep = frozenset(deep_names)

    def settle(self, frame: FrameType, variables: Mapping[str, Any], has_called: bool) -> None:
        """It is over: tell what differs. What a followed call did to attributes was told there."""
        reported: set[str] = set()
        effects = self.touched
        for name, before in self._before.items():
            current = variables.get(name, MISSING)
            if current is MISSING and name in effects.worldwide:
                current = frame.f_globals.get(name, MISSING)
            if current is not before and self._is_rebound(name, before, current):
                reported.add(name)
        if effects.may_change:
            self._tell_touched(variables, reported, has_called)
        self._before = {}

    def _tell_touched(self, variables: Mapping[str, Any], reported: set[str], has_called: bool) -> None:
        if self._stored:
            reported.update(self._tell_stored(variables))
        if self._states:
            self._tell_states(variables, reported)
        if self._attributes and not has_called:
            self._tell_attributes(variables, reported)
        for name in names_with_new_version(self._versions, variables) if self._versions else ():
            if name not in reported and self._is_wanted(name):
                self._tell(name, variables[name], self._line)
        self._states, self._attributes, self._stored, self._deep = {}, {}, {}, frozenset()

    def _is_rebound(self, name: str, before: Any, current: Any) -> bool:
        """Told as a change unless the content is what it was when the line began."""
        if current is MISSING:
            self._versions.pop(name, None)
            return False
        self.know(name, current)
        if name in self._deep:
            is_unchanged = type(before) is type(current) and self._states[name] == change_token(current, deep=True)
        else:
            is_unchanged = before is not MISSING and contents_equal(before, current)
        self._states.pop(name, None)
        self._attributes.pop(name, None)
        if is_unchanged or not self._is_wanted(name):
            return False
        self._tell(name, current, self._line)
        return True

    def _tell_stored(self, variables: Mapping[str, Any]) -> set[str]:
        roots = set()
        for target, (_, before) in self._stored.items():
            path, value = reach(target, variables)
            if value is MISSING or path == target.root:
                continue
            roots.add(target.root)
            if change_token(value, deep=True) != before and self._is_wanted(path):
                self._tell(path, value, self._line)
        return roots

    def _tell_states(self, variables: Mapping[str, Any], reported: set[str]) -> None:
        for name, before in self._states.items():
            value = variables.get(name, MISSING)
            if value is MISSING or name in reported:
                continue
            reported.add(name)
            self.know(name, value)
            if change_token(value, deep=name in self._deep or self.touched.is_aliasing) != before:
                self._tell(name, value, self._line)

    def _tell_attributes(self, variables: Mapping[str, Any], reported: set[str]) -> None:
        for name, before in self._attributes.items():
            value = variables.get(name, MISSING)
            if name in reported:  # by the very attribute that was stored to, or as another object
                continue
            for attribute_name, token in (attributes(value) or {}).items():
                if before.get(attribute_name) != token and self._is_wanted(f"{name}.{attribute_name}"):
                    self._tell(f"{name}.{attribute_name}", attribute(value, attribute_name), self._line)


def _stored(target: Target, variables: Mapping[str, Any]) -> tuple[str, Hashable]:
    path, value = reach(target, variables)
    return path, change_token(value, deep=True)


def _overlap(a: Any, b: Any) -> bool:
    return a is b or share_memory(a, b)


MISSING: Any = type("_Missing", (), {"__slots__": ()})()
_MOST_ATTRIBUTES = 32
_OPAQUE = (type, ModuleType, FunctionType)
_ITEM_KEYS = (str, int)
_NO_DICT: dict[str, Any] = {}


def reach(target: Target, variables: Mapping[str, Any]) -> tuple[str, Any]:
    """How far the way to it can be gone, up to an array whose numbers are stored to, and what is there."""
    path, value = target.root, variables.get(target.root, MISSING)
    for step in target.steps:
        if value is MISSING or is_array(value):
            break
        if step.kind == "attribute":
            path, value = f"{path}.{step.key}", attribute(value, str(step.key))
        else:
            key = variables.get(str(step.key), MISSING) if step.kind == "variable" else step.key
            path, value = f"{path}[{_shown(step, key)}]", _item(value, key)
    return path, value


def _shown(step: Step, key: Any) -> str:
    return repr(key) if type(key) in _ITEM_KEYS else str(step.key)


def _item(value: Any, key: Any) -> Any:
    if type(key) not in _ITEM_KEYS:
        return MISSING
    if isinstance(value, UserDict):
        value = value.data
    if isinstance(value, dict):
        return dict.get(value, key, MISSING)
    if isinstance(value, list) and type(key) is int and -len(value) <= key < len(value):
        return list.__getitem__(value, key)
    return MISSING


def attribute(value: Any, name: str) -> Any:
    """From the instance, a slot, or what a module of torch keeps apart; properties are left alone."""
    instance_dict = _dict(value)
    if name in instance_dict:
        return instance_dict[name]
    for base in type(value).__mro__:
        slot = base.__dict__.get(name)
        if isinstance(slot, MemberDescriptorType):
            return _slot(slot, value)
    for registry_name in ("_parameters", "_buffers", "_modules"):
        registry = instance_dict.get(registry_name)
        if isinstance(registry, dict) and name in registry:
            return registry[name]
    return MISSING


def _slot(slot: MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISSING


def attributes(value: Any) -> dict[str, Hashable] | None:
    """The surface of each public attribute of a small object, slots too; None for what is no such thing."""
    if isinstance(value, _OPAQUE) or is_container(value):
        return None
    value_class: type = type(value)
    attributes_by_name, slots = _dict(value), _slots_of(value_class)
    if attributes_by_name is _NO_DICT and not slots:
        return None
    if slots:
        attributes_by_name = {**attributes_by_name, **_filled(slots, value)}
    if len(attributes_by_name) > _MOST_ATTRIBUTES or "_modules" in attributes_by_name:
        return None
    return {
        name: shallow_change_token(one) for name, one in attributes_by_name.items() if type(name) is str and name[:1] != "_"
    }


def _filled(slots: Mapping[str, MemberDescriptorType], value: Any) -> dict[str, Any]:
    slot_values = {name: _slot(slot, value) for name, slot in slots.items()}
    return {name: slot_value for name, slot_value in slot_values.items() if slot_value is not MISSING}


@lru_cache(maxsize=1024)
def _slots_of(value_class: type) -> dict[str, MemberDescriptorType]:
    return {
        name: slot
        for base in reversed(value_class.__mro__)
        if "__slots__" in vars(base)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType)
    }


def _dict(value: Any) -> dict[str, Any]:
    try:
        instance_dict = object.__getattribute__(value, "__dict__")
    except (AttributeError, TypeError):
        return _NO_DICT
    return instance_dict if type(instance_dict) is dict else _NO_DICT


NOTHING: Any = object()  # was returned
