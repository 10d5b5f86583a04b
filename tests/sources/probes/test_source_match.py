"""Of a file only what a function needs is parsed, and it is found however its class is written."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tensortap.sources.probes.source_match import _prune, find_definition

SOURCE = '''
import math


def decorated(*marks):
    return lambda one: one


@decorated(
    "a",
)
class Odd(
    dict,
    metaclass=type,
):
    """Text
    def that_is_no_method(self): text
    """

    size = 3
    TEXT = """
    @also.text
"""

    @decorated("first")
    def first(self, x):
        y = x + 1
        return y

    if size:
        async def inside(self):
            z = 2
            return z

    @property
    @decorated(
        "second",
    )
    def second(self):
        """def nothing"""
        w = math.pi
        return w

    class Inner:
        def third(self):
            v = __class__
            return v
'''


@pytest.fixture
def odd(tmp_path: Path) -> ModuleType:
    file = tmp_path / "odd.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("odd", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_method_is_found_however_its_class_is_written(odd: ModuleType) -> None:
    for function in (odd.Odd.first, odd.Odd.inside, odd.Odd.second.fget, odd.Odd.Inner.third, odd.decorated):
        assert find_definition(function, function.__code__).node.name == function.__name__


def test_the_other_methods_of_a_class_are_left_out_and_no_line_moves(odd: ModuleType) -> None:
    code = odd.Odd.second.fget.__code__
    pruned = _prune(SOURCE, code.co_firstlineno)
    assert "w = math.pi" in pruned
    assert "import math" in pruned
    assert "y = x + 1" not in pruned
    assert "v = __class__" not in pruned
    lines, before = pruned.splitlines(), SOURCE.splitlines()
    assert all(now in (was, "") for now, was in zip(lines, before, strict=True))
    compile(pruned, "odd.py", "exec")
