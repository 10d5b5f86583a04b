"""Rewrite the AST of a function so that it reports each value it binds.

The new code looks up a callback on entry, and calls it after every binding.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy, deepcopy
from types import CodeType
from typing import Any, NamedTuple

from tensortap.sources.probes.source_match import (
    BLOCKS,
    Def,
    FunctionDefinition,
    NoSourceError,
    is_compatible,
)

RETURN = "return"  # kind and name of the return value

OnValue = Callable[[int, Any], None]  # (index of the binding, value)
OnEnter = Callable[[Any], OnValue | None]  # (first argument); None: this call is not observed
BoundName = tuple[str, Any, str]  # (name, the node that binds it, kind)


class Binding(NamedTuple):
    """One binding in a function's code.

    `kind`: argument assign unpack augmented annotated walrus loop with except match import def return.
    If one statement binds a name twice (`_, _ = pair`), only the last value is reported: one binding.
    """

    name: str
    line: int
    nth: int  # n-th binding of this name in the function
    kind: str


class InstrumentedCode(NamedTuple):
    code: CodeType
    bindings: tuple[Binding, ...]


def instrument(
    definition: FunctionDefinition, names: Collection[str] | None, returns: bool
) -> InstrumentedCode:
    """The code that calls `ENTER(first argument)`, and the callback it returns with each index and value."""
    node, bindings = insert_taps(definition.node, names, returns, definition.may_have_walrus)
    code = definition.compile_with(node)
    if code is None or not is_compatible(code, definition.code):
        raise NoSourceError("taps would change what the function closes over")
    return InstrumentedCode(code, bindings)


def insert_taps(
    node: Def, names: Collection[str] | None, returns: bool, may_have_walrus: bool = True
) -> tuple[Def, tuple[Binding, ...]]:
    """A copy of the definition with a tap after every binding of these names (None: of every name)."""
    wants = (lambda name: True) if names is None else names.__contains__
    inserter = _TapInserter(node, wants, returns, may_have_walrus)
    return inserter.transformed(), tuple(inserter.bindings)


class _TapInserter(ast.NodeVisitor):
    """Each visit returns the statements that replace one; the tree itself is not modified.

    Nested functions, classes, lambdas and comprehensions have their own scopes and are not visited.
    """

    def __init__(self, node: Def, wants: Callable[[str], bool], returns: bool, may_have_walrus: bool) -> None:
        self.bindings: list[Binding] = []
        self._node, self._is_requested, self._returns = node, wants, returns
        self._counts: Counter[str] = Counter()
        self._nonlocals: set[str] = set()  # declared global or nonlocal
        # Known from the source text; walking every node would take a quarter of the time.
        self._has_walrus = may_have_walrus and any(
            isinstance(inner, ast.NamedExpr) for inner in ast.walk(node)
        )

    def transformed(self) -> Def:
        node, body = copy(self._node), self._node.body
        start = 1 if ast.get_docstring(node, clean=False) is not None else 0
        at = body[min(start, len(body) - 1)]
        taps = [enter_tap(node.args, at), *self._tap_statements(_argument_names(node.args), at)]
        node.body = [*body[:start], *taps, *self._block(body[start:]), *self._tap_implicit_return(body)]
        return node

    def _tap_implicit_return(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        if not self._returns or _never_falls_through(body):
            return []
        return [self._tap_return(none_node(body[-1]), body[-1])]

    # Statements

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [new for statement in statements for new in self.visit(statement)]

    def generic_visit(self, node: Any) -> list[ast.stmt]:
        node = self._copy_with_walrus_taps(node)
        for field in ("body", "orelse", "finalbody"):
            if hasattr(node, field):
                setattr(node, field, self._block(getattr(node, field)))
        return [node]

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        bound = [
            target_binding for target in node.targets for target_binding in _target_names(target, "assign")
        ]
        return [self._copy_with_walrus_taps(node), *self._tap_statements(bound)]

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        return [
            self._copy_with_walrus_taps(node),
            *self._tap_statements(_target_names(node.target, "augmented")),
        ]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        bound = _target_names(node.target, "annotated") if node.value is not None else ()
        return [self._copy_with_walrus_taps(node), *self._tap_statements(bound)]

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> list[ast.stmt]:
        names = [(alias.asname or alias.name.split(".")[0], alias) for alias in node.names]
        return [node, *self._tap_statements((name, alias, "import") for name, alias in names)]

    visit_ImportFrom = visit_Import

    def visit_FunctionDef(self, node: Def | ast.ClassDef) -> list[ast.stmt]:
        return [self._copy_with_walrus_taps(node), *self._tap_statements([(node.name, node, "def")])]

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_TypeAlias(self, node: Any) -> list[ast.stmt]:
        return [node, *self._tap_statements([(node.name.id, node, "def")])]

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> list[ast.stmt]:
        self._nonlocals.update(node.names)
        return [node]

    visit_Nonlocal = visit_Global

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        node = self._copy_with_walrus_taps(node)
        if not self._returns:
            return [node]
        if node.value is None:
            return [self._tap_return(none_node(node), node), node]
        store_value, node.value = store_return_value(node.value, node), load_name(VALUE, node)
        return [store_value, self._tap_return(load_name(VALUE, node), node), node]

    def visit_For(self, node: ast.For | ast.AsyncFor) -> list[ast.stmt]:
        node = self._copy_with_walrus_taps(node)
        taps = self._tap_statements(_target_names(node.target, "loop", "loop"))
        node.body = [*taps, *self._block(node.body)]
        node.orelse = self._block(node.orelse)
        return [node]

    visit_AsyncFor = visit_For

    def visit_With(self, node: ast.With | ast.AsyncWith) -> list[ast.stmt]:
        """One statement per item: the next may use or rebind what the one before bound."""
        node = self._copy_with_walrus_taps(node)
        taps = [
            self._tap_statements(_target_names(item.optional_vars, "with", "with")) for item in node.items
        ]
        body = self._block(node.body)
        for item, after in zip(reversed(node.items), reversed(taps), strict=True):
            inner = copy(node)
            inner.items, inner.body = [item], [*after, *body]
            body = [inner]
        return body

    visit_AsyncWith = visit_With

    def visit_Try(self, node: Any) -> list[ast.stmt]:
        node = copy(node)
        node.body = self._block(node.body)
        node.handlers = [self._handler(handler) for handler in node.handlers]
        node.orelse, node.finalbody = self._block(node.orelse), self._block(node.finalbody)
        return [node]

    visit_TryStar = visit_Try

    def _handler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        node = self._copy_with_walrus_taps(node)
        taps = self._tap_statements([(node.name, node, "except")] if node.name else ())
        node.body = [*taps, *self._block(node.body)]
        return node

    def visit_Match(self, node: ast.Match) -> list[ast.stmt]:
        node = self._copy_with_walrus_taps(node)
        node.cases = [self._case(case) for case in node.cases]
        return [node]

    def _case(self, case: ast.match_case) -> ast.match_case:
        case = copy(case)
        requested = self._requested(
            (name, pattern, "match") for name, pattern in _pattern_captures(case.pattern)
        )
        guard = self._tap_walruses(case.guard)
        taps: list[ast.stmt] = []
        if guard is None:
            taps = [tap_statement(*tap) for tap in requested]
        elif requested:  # the names stay bound when the guard fails
            guard = evaluate_all([*(tap_expression(*tap) for tap in requested), guard], -1, guard)
        case.guard, case.body = guard, [*taps, *self._block(case.body)]
        return case

    # Expressions

    def _copy_with_walrus_taps(self, node: Any) -> Any:
        """A copy with taps on the walruses of its own expressions, not of nested statements."""
        node = copy(node)
        for field, value in ast.iter_fields(node):
            if self._has_walrus and field not in BLOCKS:
                setattr(node, field, self._tap_walruses(value))
        return node

    def _tap_walruses(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._tap_walruses(element) for element in value]
        is_searched = self._has_walrus and isinstance(value, ast.AST)
        return _WalrusReplacer(self._tap_walrus).visit(deepcopy(value)) if is_searched else value

    def _tap_walrus(self, node: ast.NamedExpr) -> ast.expr:
        requested = self._requested([(node.target.id, node, "walrus")])
        return (
            evaluate_all([node, *(tap_expression(*tap) for tap in requested)], 0, node) if requested else node
        )

    # Spots

    def _tap_statements(self, bound: Iterable[BoundName], at: ast.stmt | None = None) -> list[ast.stmt]:
        """Taps to insert after the statement that binds these names."""
        return [tap_statement(index, value, at or node) for index, value, node in self._requested(bound)]

    def _requested(self, bound: Iterable[BoundName]) -> list[tuple[int, ast.expr, Any]]:
        """Index, value and node of each requested binding among them."""
        by_name = {name: (node, kind) for name, node, kind in bound if name not in self._nonlocals}
        requested = []
        for name, (node, kind) in by_name.items():
            nth = self._count(name)
            if self._is_requested(name):
                requested.append(
                    (self._add(Binding(name, node.lineno, nth, kind)), load_name(name, node), node)
                )
        return requested

    def _count(self, name: str) -> int:
        self._counts[name] += 1
        return self._counts[name] - 1

    def _add(self, binding: Binding) -> int:
        self.bindings.append(binding)
        return len(self.bindings) - 1

    def _tap_return(self, value: ast.expr, node: ast.stmt) -> ast.stmt:
        binding = Binding(RETURN, node.lineno, self._count(RETURN), RETURN)
        return tap_statement(self._add(binding), value, node)


class _WalrusReplacer(ast.NodeTransformer):
    """Replaces the walruses that bind in the scope of the expression itself."""

    def __init__(self, replace: Callable[[ast.NamedExpr], ast.expr]) -> None:
        self._replace = replace

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        self.generic_visit(node)
        return self._replace(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self.visit(node.args)  # its defaults
        return node

    def visit_ListComp(self, node: ast.expr) -> ast.expr:
        return node

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_ListComp


# What binds which names


def _argument_names(arguments: ast.arguments) -> list[BoundName]:
    positional = [*arguments.posonlyargs, *arguments.args]
    parameters = [*positional, arguments.vararg, *arguments.kwonlyargs, arguments.kwarg]
    return [(parameter.arg, parameter, "argument") for parameter in parameters if parameter is not None]


def _target_names(target: ast.expr | None, kind: str, unpacked: str = "unpack") -> Iterator[BoundName]:
    """The names in an assignment target; attributes and items are not local variables."""
    if isinstance(target, ast.Name):
        yield target.id, target, kind
    elif isinstance(target, ast.Starred):
        yield from _target_names(target.value, kind, unpacked)
    elif isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _target_names(element, unpacked, unpacked)


def _pattern_captures(pattern: ast.pattern) -> Iterator[tuple[str, ast.pattern]]:
    for inner in ast.iter_child_nodes(pattern):
        if isinstance(inner, ast.pattern):
            yield from _pattern_captures(inner)
    name = pattern.rest if isinstance(pattern, ast.MatchMapping) else getattr(pattern, "name", None)
    if name is not None:
        yield name, pattern


def _never_falls_through(body: Sequence[ast.stmt]) -> bool:
    """Whether the end of a block is never reached."""
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return _never_falls_through(last.body) and _never_falls_through(last.orelse)
    return isinstance(last, ast.Return | ast.Raise)


ENTER = "@tap_enter"  # the global that the new code calls on entry, to be renamed
# Local variables of the new code: not identifiers, so they cannot collide. `locals()` shows them.
TAP, VALUE = "@tap", "@value"
_LOAD, _STORE, _IS_NOT = ast.Load(), ast.Store(), ast.IsNot()


def enter_tap(arguments: ast.arguments, at: ast.stmt) -> ast.stmt:
    """The entry statement. A call or generator that begins after the probe was removed finds no global, and
    is not observed."""
    look_up = ast.Assign([store_name(TAP, at)], load_name(ENTER, at), **_location(at))
    not_observed = ast.ExceptHandler(
        None, None, [ast.Assign([store_name(TAP, at)], none_node(at), **_location(at))], **_location(at)
    )
    call_enter = ast.Call(load_name(TAP, at), [_first_argument(arguments, at)], [], **_location(at))
    assign_tap = ast.Assign([store_name(TAP, at)], call_enter, **_location(at))
    return ast.Try([look_up], [not_observed], [assign_tap], [], **_location(at))


def _first_argument(arguments: ast.arguments, at: ast.stmt) -> ast.expr:
    for argument in (*arguments.posonlyargs, *arguments.args):
        return load_name(argument.arg, at)
    if arguments.vararg is None:
        return none_node(at)
    varargs = arguments.vararg.arg
    item = ast.Subscript(load_name(varargs, at), ast.Constant(0, **_location(at)), _LOAD, **_location(at))
    return ast.IfExp(load_name(varargs, at), item, none_node(at), **_location(at))


def store_return_value(value: ast.expr, at: ast.stmt) -> ast.stmt:
    """Stores the value of a `return` statement before it returns."""
    return ast.Assign([store_name(VALUE, at)], value, **_location(at))


def tap_statement(index: int, value: ast.expr, at: Any) -> ast.stmt:
    location = _location(at)
    is_observed, report = _tap_call(index, value, location)
    return ast.If(is_observed, [ast.Expr(report, **location)], [], **location)


def tap_expression(index: int, value: ast.expr, at: Any) -> ast.expr:
    location = _location(at)
    is_observed, report = _tap_call(index, value, location)
    return ast.IfExp(is_observed, report, ast.Constant(None, **location), **location)


def _tap_call(index: int, value: ast.expr, location: dict[str, Any]) -> tuple[ast.expr, ast.expr]:
    """The test whether the call is observed, and the callback call. A large function has hundreds of these,
    so the two share a node."""
    tap = ast.Name(TAP, _LOAD, **location)
    is_observed = ast.Compare(tap, [_IS_NOT], [ast.Constant(None, **location)], **location)
    return is_observed, ast.Call(tap, [ast.Constant(index, **location), value], [], **location)


def evaluate_all(values: list[ast.expr], position: int, at: ast.expr) -> ast.expr:
    """An expression that evaluates all of them in order and has the value of one."""
    all_values = ast.Tuple(values, _LOAD, **_location(at))
    return ast.Subscript(
        all_values, ast.Constant(position % len(values), **_location(at)), _LOAD, **_location(at)
    )


def load_name(name: str, at: Any) -> ast.expr:
    return ast.Name(name, _LOAD, **_location(at))


def store_name(name: str, at: Any) -> ast.expr:
    return ast.Name(name, _STORE, **_location(at))


def none_node(at: Any) -> ast.expr:
    return ast.Constant(None, **_location(at))


def _location(node: Any) -> dict[str, Any]:
    """The start of a node: inserted nodes report its first line."""
    line, column = node.lineno, node.col_offset
    return {"lineno": line, "col_offset": column, "end_lineno": line, "end_col_offset": column}
