"""What a caller's frame tells: where it stands, and what it called the value it passed."""

import ast
import linecache
import sys
from functools import lru_cache
from types import CodeType, FrameType

from tensortap.core.record import Site


def caller(depth: int) -> FrameType:
    """The frame that many calls above whoever asks."""
    return sys._getframe(depth + 1)


def site_of(frame: FrameType) -> Site:
    return _site(frame.f_code, frame.f_lineno)


def argument_name(frame: FrameType) -> str | None:
    """The text of the first argument of the call this frame is making, when it is a plain name or path."""
    return _argument_name(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=4096)
def _site(code: CodeType, line: int) -> Site:
    return Site(code.co_qualname, code.co_filename, line)


@lru_cache(maxsize=1024)
def _argument_name(code: CodeType, instruction: int) -> str | None:
    source = _call_source(code, instruction)
    try:
        call = ast.parse(source, mode="eval").body if source else None
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or not call.args:
        return None
    return ast.unparse(call.args[0]) if _is_path(call.args[0]) else None


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


def _is_path(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
