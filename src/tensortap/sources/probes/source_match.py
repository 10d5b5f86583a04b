"""Find the AST that a function's running code was compiled from, verified by compiling it again."""

from __future__ import annotations
import __future__

import ast
import inspect
import itertools
import linecache
import re
import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

Def = ast.FunctionDef | ast.AsyncFunctionDef
BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")  # the fields that hold statements
_STATEMENT = r"\n(?={indent}[^\s#)\]}}])"
_DEFINES = re.compile(r"\s*(@|(async\s+)?def\b|class\b)")
_DECORATED = re.compile(r"^\s*((async\s+)?def|class)\b", re.MULTILINE)
_METHOD = re.compile(r"^([ \t]+)(@|(async\s+)?def\b)", re.MULTILINE)
_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


class NoSourceError(Exception):
    """No source was found that compiles to the running code; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class FunctionDefinition:
    """A `def` in its context: the enclosing classes and functions, and the imports of its file.

    `mod.f()` compiles to other instructions if the file imports `mod`, so the imports are needed.
    """

    code: CodeType
    imports: tuple[ast.stmt, ...]
    parents: tuple[tuple[Any, str, int], ...]  # (node, field, position in it), from the top level inwards
    node: Def
    may_have_walrus: bool

    def compile_with(self, node: Def) -> CodeType | None:
        """The code of the function with this definition instead; nothing is executed."""
        statement: Any = node
        for parent, field, position in reversed(self.parents):
            statement = _replace_child(parent, field, position, statement)
        tree = ast.Module([*self.imports, statement], [])
        flags = self.code.co_flags & _FUTURES
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the file's own warnings were shown when it was imported
            module_code = compile(tree, self.code.co_filename, "exec", flags=flags, dont_inherit=True)
        return _find_code(module_code, self.code)


def find_definition(function: FunctionType, code: CodeType) -> FunctionDefinition:
    """The verified definition of `code`, which is or was the code of `function`."""
    if code.co_name == "<lambda>":
        raise NoSourceError("a lambda has no statements")
    linecache.lazycache(code.co_filename, function.__globals__)
    return _find_definition(code, code.co_filename)


# Small: each holds a part of a syntax tree. Keyed by file too: codes that differ only in it compare equal.
@lru_cache(maxsize=16)
def _find_definition(code: CodeType, file: str) -> FunctionDefinition:
    text = "".join(linecache.getlines(file))
    definition = _find_in_source(text, code)
    if definition is None:
        linecache.checkcache(file)
        newer = "".join(linecache.getlines(file))
        definition = _find_in_source(newer, code) if newer != text else None
    if definition is None:
        raise NoSourceError(_explain_no_source(code, text))
    return definition


def _find_in_source(text: str, code: CodeType) -> FunctionDefinition | None:
    # Parsing takes most of the time, so a source without the other definitions is tried first.
    for source in (_prune(text, code.co_firstlineno), text):
        definition = _parse_definition(source, code)
        if definition is not None and _matches_running_code(definition):
            return definition
    return None


def _explain_no_source(code: CodeType, text: str) -> str:
    if not text:
        return f"there is no source of {code.co_filename}"
    if "@pytest_ar" in code.co_names:
        return "pytest rewrote its assertions"
    return "the file was edited since it was imported, or another tool changed the code"


def _prune(text: str, line: int, first_line: int = 1, indent: str = "") -> str:
    """The source with blank lines in place of the definitions, at this indentation and then within the
    class, that do not contain `line`."""
    starts = [match.end() for match in re.finditer(_STATEMENT.format(indent=indent), text)]
    chunks, chunk, chunk_line = [], text[: starts[0]] if starts else text, first_line
    for start, end in itertools.pairwise([*starts, len(text)]):
        if not _is_unfinished(chunk):
            chunks.append(_keep_or_blank(chunk, chunk_line, line, indent))
            chunk, chunk_line = "", chunk_line + chunk.count("\n")
        chunk += text[start:end]
    return "".join([*chunks, _keep_or_blank(chunk, chunk_line, line, indent)])


def _is_unfinished(chunk: str) -> bool:
    """Whether a chunk needs the next: a decorator without its def, or an open triple-quoted string."""
    return (chunk.lstrip(" \t").startswith("@") and not _DECORATED.search(chunk)) or any(
        chunk.count(quotes) % 2 for quotes in ('"""', "'''")
    )


def _keep_or_blank(chunk: str, first_line: int, line: int, indent: str) -> str:
    lines = chunk.count("\n")
    if not (chunk.startswith(indent) and _DEFINES.match(chunk)):
        return chunk
    if not first_line <= line <= first_line + lines:
        return "\n" * lines
    defined, method = _DECORATED.search(chunk), _METHOD.search(chunk)
    if indent or method is None or defined is None or defined[1] != "class":
        return chunk
    return _prune(chunk, line, first_line, method[1])


def _parse_definition(source: str, code: CodeType) -> FunctionDefinition | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    path = next(_paths_to(tree, code), None)
    if path is None:
        return None
    (_, _, top_position), *parents = path
    parent, field, position = path[-1]
    imports = (
        statement for at, statement in enumerate(tree.body) if at != top_position and _has_imports(statement)
    )
    node = getattr(parent, field)[position]
    return FunctionDefinition(code, tuple(imports), tuple(parents), node, ":=" in source)


def _paths_to(node: Any, code: CodeType) -> Iterator[list[tuple[Any, str, int]]]:
    """Paths from a node down to a definition of that name on that line."""
    for field in BLOCKS:
        for position, child in enumerate(getattr(node, field, ())):
            first, last = _line_range(child)
            if isinstance(child, Def) and (child.name, first) == (code.co_name, code.co_firstlineno):
                yield [(node, field, position)]
            elif first <= code.co_firstlineno <= last:
                for rest in _paths_to(child, code):
                    yield [(node, field, position), *rest]


def _line_range(node: Any) -> tuple[int, int]:
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, _line_range(node.body[-1])[1]
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    return min([node.lineno, *(decorator.lineno for decorator in decorators)]), node.end_lineno


def _has_imports(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    if not isinstance(statement, ast.If | ast.Try | ast.TryStar | ast.With | ast.For | ast.While):
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(statement))


def _replace_child(parent: Any, field: str, position: int, child: Any) -> Any:
    """A copy of a node with another child; of a class only this child: methods do not see the others."""
    parent_copy = copy(parent)
    siblings = getattr(parent, field)
    is_class = isinstance(parent, ast.ClassDef)
    setattr(
        parent_copy, field, [child] if is_class else [*siblings[:position], child, *siblings[position + 1 :]]
    )
    return parent_copy


def _find_code(outer: CodeType, wanted: CodeType) -> CodeType | None:
    for constant in outer.co_consts:
        if isinstance(constant, CodeType):
            if _code_location(constant) == _code_location(wanted):
                return constant
            inner = _find_code(constant, wanted)
            if inner is not None:
                return inner
    return None


def _code_location(code: CodeType) -> tuple[Any, ...]:
    return code.co_name, code.co_firstlineno, code.co_qualname


def _matches_running_code(definition: FunctionDefinition) -> bool:
    compiled = definition.compile_with(definition.node)
    return compiled is not None and _comparable(compiled) == _comparable(definition.code)


def _comparable(constant: Any) -> Any:
    """A key by which equal constants or codes behave the same; `==` equates True with 1 and 0.0 with -0.0."""
    if isinstance(constant, CodeType):
        body = constant.co_code, constant.co_exceptiontable, constant.co_names, tuple(constant.co_lines())
        return _signature(constant), body, _comparable(constant.co_consts)
    if isinstance(constant, tuple):
        return tuple(map(_comparable, constant))
    if isinstance(constant, frozenset):
        return frozenset(map(_comparable, constant))
    return type(constant), repr(constant)


def _signature(code: CodeType) -> tuple[Any, ...]:
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    return *counts, code.co_varnames, code.co_freevars, code.co_cellvars


def is_compatible(new: CodeType, old: CodeType) -> bool:
    """Whether the new code may replace the old: same signature, same closure cells."""
    *counts, names, free, cells = _signature(new)
    *old_counts, old_names, old_free, old_cells = _signature(old)
    argument_total = argument_count(old)
    same_names = names[:argument_total] == old_names[:argument_total]
    return same_names and (counts, free, cells) == (old_counts, old_free, old_cells)


def argument_count(code: CodeType) -> int:
    starred = (code.co_flags & inspect.CO_VARARGS > 0) + (code.co_flags & inspect.CO_VARKEYWORDS > 0)
    return code.co_argcount + code.co_kwonlyargcount + starred
