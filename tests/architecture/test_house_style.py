"""What STYLE.md asks of every file, where a machine can tell."""

import ast
import collections
import itertools
import re
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


def blind_handlers(path: Path):
    """The lines that catch everything, each with the reason that its comment gives."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler) and catches_everything(node.type):
            yield node.lineno, reason_of(lines[node.lineno - 1]) or reason_above(lines[node.lineno - 2])
        elif is_suppression(node) and any(map(catches_everything, node.args)):
            yield node.lineno, reason_of(lines[node.lineno - 1])


def is_suppression(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress")


def catches_everything(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(one is None or ast.unparse(one) in ("Exception", "BaseException") for one in kinds)


def reason_of(line: str) -> str:
    comment = line.partition("#")[2].strip()
    return re.sub(r"^noqa: BLE001( - )?", "", comment)


def reason_above(line: str) -> str:
    return reason_of(line) if line.lstrip().startswith("#") else ""


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


def test_whoever_catches_everything_says_whose_code_may_raise_it(modules):
    found = [
        (f"{name}:{line}", reason) for name, path in modules.items() for line, reason in blind_handlers(path)
    ]
    assert found
    assert [where for where, reason in found if len(reason.split()) < 3] == []


@pytest.mark.parametrize(
    "handler",
    [
        "except Exception:",
        "except BaseException as error:",
        "except (OSError, Exception):",
        "except:",
        "except Exception:  # noqa: BLE001",
    ],
)
def test_a_blind_handler_without_a_reason_would_be_found(tmp_path, handler):
    spoilt = tmp_path / "spoilt.py"
    spoilt.write_text(f"try:\n    x = 1\n{handler}\n    pass\n")
    assert list(blind_handlers(spoilt)) == [(3, "")]


def test_a_blind_suppression_without_a_reason_would_be_found(tmp_path):
    spoilt = tmp_path / "spoilt.py"
    spoilt.write_text("with contextlib.suppress(Exception):\n    x = 1\n")
    assert list(blind_handlers(spoilt)) == [(1, "")]


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


VAGUE = {"one", "found", "told", "made", "held", "given", "said", "asked"}  # what is it? the noun says it


def bound_names(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    stored = (
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    return {*stored, *(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))}


def test_variables_are_named_by_the_noun_they_hold(modules):
    vague = {name: words for name, path in modules.items() if (words := bound_names(path) & VAGUE)}
    assert vague == {}


def test_a_vague_variable_would_be_found(tmp_path):
    path = tmp_path / "vague.py"
    path.write_text("def f(given):\n    return [one for one in given]\n")
    assert bound_names(path) & VAGUE == {"one", "given"}


def test_one_class_name_means_one_thing(modules):
    names = collections.Counter(
        node.name
        for path in modules.values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
