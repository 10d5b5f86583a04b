"""What a caller's frame tells: where it stands, and what it called the value it passed."""

import ast
import linecache
from functools import lru_cache
from types import CodeType, FrameType

from tensortap.core.record import Site


def site_of(frame: FrameType) -> Site:
    # Not by the code object: two that differ in nothing but their file are equal.
    return _site(frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno)


def argument_name(frame: FrameType) -> str | None:
    """The text of the first argument of the call this frame is making, when it is a plain name or path."""
    return _argument_name(frame.f_code, frame.f_code.co_filename, frame.f_lasti)


@lru_cache(maxsize=4096)
def _site(function: str, file: str, line: int) -> Site:
    return Site(function, file, line)


@lru_cache(maxsize=1024)
def _argument_name(code: CodeType, file: str, instruction: int) -> str | None:
    source = _call_source(code, instruction)
    try:
        call = ast.parse(source, mode="eval").body if source else None
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or not call.args:
        return None
    root = _root(call.args[0])
    # A file that was edited since it was imported shows other names than the code uses.
    is_known = root in (*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    return ast.unparse(call.args[0]) if is_known else None


def _call_source(code: CodeType, instruction: int) -> str | None:
    """The source of the call, from the position that the compiler left with its instruction."""
    position = list(code.co_positions())[instruction // 2]
    line, end_line, column, end_column = position
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [linecache.getline(code.co_filename, number).encode() for number in range(line, end_line + 1)]
    if not all(lines):
        return None
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return b"".join(lines).decode()


def _root(node: ast.expr) -> str | None:
    """The first name of a plain name or a dotted path."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
