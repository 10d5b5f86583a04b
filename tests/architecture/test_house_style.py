"""What STYLE.md asks of every file, where a machine can tell."""

import ast
import itertools
from pathlib import Path

import pytest

LONGEST_FILE = 500
LONGEST_FUNCTION = 40
# Longer for a reason, given here; anything else is to be cut.
ALLOWED_FILES: dict[str, str] = {
    "testing.py": "the contracts for plug-in authors, imported from one public place",
    "frameworks/torch.py": "one home for every torch question; a cut would scatter one table of layouts",
}
ALLOWED_FUNCTIONS: dict[str, str] = {}
NO_CONCEPT = {"utils", "util", "helpers", "helper", "manager", "managers", "misc", "common", "impl"}


def functions(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.body[0].lineno + 1


def test_the_init_of_a_room_is_empty(modules):
    rooms = {name: path for name, path in modules.items() if name.endswith("/__init__.py")}
    assert rooms
    assert [name for name, path in rooms.items() if path.stat().st_size] == []


def test_no_file_is_too_long(modules):
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    assert {name for name, length in lengths.items() if length > LONGEST_FILE} <= set(ALLOWED_FILES)


def test_no_function_is_too_long(modules):
    found = itertools.chain.from_iterable(
        ((f"{name}:{function}", length) for function, length in functions(path))
        for name, path in modules.items()
    )
    too_long = {where: length for where, length in found if length > LONGEST_FUNCTION}
    assert set(too_long) <= set(ALLOWED_FUNCTIONS), too_long


def test_a_long_function_would_be_found(tmp_path):
    long = tmp_path / "long.py"
    long.write_text("def f():\n" + "    x = 1\n" * 41)
    assert list(functions(long)) == [("f", 41)]


@pytest.mark.parametrize("part", ["name", "folders"])
def test_every_module_is_named_after_a_concept(modules, part):
    words = (
        {Path(name).stem for name in modules}
        if part == "name"
        else {folder.name for name in modules for folder in Path(name).parents}
    )
    assert words & NO_CONCEPT == set()


def test_every_module_says_in_one_sentence_what_it_is_about(modules):
    silent = [
        name
        for name, path in modules.items()
        if path.stat().st_size and not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []
