"""A clean process has no modifications; a replaced function is named with both ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

FIND = """
import json
from tensortap.metadata.monkeypatches import find_modifications
print(json.dumps(find_modifications(budget=30).replaced))
"""


@pytest.fixture
def find(tmp_path: Path) -> Any:
    def find(program: str, **modules: str) -> dict[str, dict[str, str]]:
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        (tmp_path / "main.py").write_text(program + FIND)
        command = [sys.executable, "main.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))

    return find


def test_a_clean_process_has_none(find: Any) -> None:
    assert find("import numpy, torch, transformers, json, logging, unittest.mock\n") == {}


def test_replacements_in_torch_numpy_and_python_are_named(find: Any, tmp_path: Path) -> None:
    program = """\
import functools, json, time, unittest.mock
import numpy, torch
import torch.nn.functional as F
def mine(*a, **k): return None
class Mine(torch.nn.Linear): pass
@functools.wraps(F.relu)
def wrapping(*a, **k): return None
F.relu = wrapping
F.dropout = unittest.mock.MagicMock()
F.softmax = functools.partial(F.softmax, dim=1)
F.silu.__code__ = (lambda input, inplace=False: input).__code__
torch.relu = torch.Tensor.cuda = torch.nn.Module.train = numpy.mean = json.dump = time.sleep = mine
torch.nn.Linear = Mine
torch.a_new_name = torch.nn.Module.a_new_method = mine
"""
    found = find(program)
    assert set(found) == {
        "json.dump",
        "numpy.mean",
        "time.sleep",
        "torch.Tensor.cuda",
        "torch.nn.Linear",
        "torch.nn.functional.dropout",
        "torch.nn.functional.relu",
        "torch.nn.functional.silu",
        "torch.nn.functional.softmax",
        "torch.nn.modules.module.Module.train",
        "torch.relu",
    }
    relu = found["torch.nn.functional.relu"]
    assert relu["original"] == "torch.nn.functional.relu"
    assert relu["original_defined_in"].partition("functional.py:")[2].isdigit()
    assert relu["replacement"] == "__main__.wrapping"
    assert Path(relu["defined_in"]).name == "main.py:6"
    assert found["torch.Tensor.cuda"]["original"] == "torch._C.TensorBase.cuda"
    assert found["torch.nn.Linear"]["original"] == "torch.nn.modules.linear.Linear"


NET = """\
class Net:
    def forward(self, x):
        return x
    @staticmethod
    def double(x):
        return 2 * x
    class Inner:
        def method(self): pass
def helper(): pass
"""


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("net.Net.forward = mine", "net.Net.forward"),
        ("net.Net.Inner.method = mine", "net.Net.Inner.method"),
        ("net.helper = mine", "net.helper"),
        ("net.Net = Mine", "net.Net"),
    ],
)
def test_a_module_of_the_program_patched_by_another_is_named(find: Any, change: str, path: str) -> None:
    program = f"import net\ndef mine(*a): pass\nclass Mine: pass\n{change}\n"
    found = find(program, net=NET)
    assert list(found) == [path]
    assert found[path]["replacement"] == ("__main__.Mine" if path == "net.Net" else "__main__.mine")


def test_what_is_decorated_imported_or_inherited_is_no_replacement(find: Any) -> None:
    decorators = """\
import functools
def bare(f):
    def inner(*a): return f(*a)
    return inner
def wrapped(f):
    @functools.wraps(f)
    def inner(*a): return f(*a)
    return inner
def losing(f): return lambda: None
def adding(cls):
    cls.method = lambda self: 1
    return cls
class Base:
    def __init_subclass__(cls): cls.method = lambda self: 2
def helper(): pass
"""
    net = """\
import functools
from dataclasses import dataclass
from typing import NamedTuple
from decorators import *
from decorators import helper
@bare
def a(): pass
@wrapped
def b(): pass
@losing
def c(): pass
@functools.lru_cache
def d(): pass
@adding
class E:
    def method(self): pass
class F(Base):
    def method(self): pass
class G:
    @wrapped
    def method(self): pass
    @property
    @bare
    def shown(self): pass
    alias = helper
@dataclass
class H:
    x: int
class I(NamedTuple):
    x: int
try:
    from decorators import losing as k
except ImportError:
    def k(): pass
"""
    assert find("import net\n", net=net, decorators=decorators) == {}


def test_a_module_changing_itself_is_its_own_affair(find: Any) -> None:
    net = NET + "def other(*a): pass\nNet.forward = other\nhelper = other\n"
    assert find("import net\n", net=net) == {}


def test_what_a_first_scan_explained_is_named_once_it_is_replaced(find: Any) -> None:
    net = "from torch.nn.functional import relu\ndef helper(x): pass\n"
    program = """\
import net, torch
from tensortap.metadata.monkeypatches import find_modifications
assert find_modifications(budget=30).replaced == {}
assert find_modifications(budget=30).replaced == {}
net.helper = net.relu
net.relu = torch.nn.functional.silu
"""
    assert list(find(program, net=net)) == ["net.helper"]


def test_a_module_loaded_again_from_another_source_is_read_again(find: Any) -> None:
    program = """\
import importlib, net, pathlib, torch
from tensortap.metadata.monkeypatches import find_modifications
assert find_modifications(budget=30).replaced == {}
pathlib.Path("net.py").write_text("def relu(x): return max(x, 0)  # written here\\n")
importlib.reload(net)
net.relu = torch.nn.functional.relu
"""
    assert list(find(program, net="from torch.nn.functional import relu\n")) == ["net.relu"]


def test_the_look_ends_within_its_budget() -> None:
    from tensortap.metadata.monkeypatches import find_modifications

    result = find_modifications(budget=0.0)
    assert result.checked <= 1
    assert result.unchecked > 100
