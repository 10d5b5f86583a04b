"""Forwards that nobody here wrote: each is rewritten, and is its own self again without the taps."""

import ast
import importlib
import pkgutil
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers

from tensortap.sources.function_names import unwrap_function
from tensortap.sources.probes.bytecode import code_instructions
from tensortap.sources.probes.rewrite import RETURN, insert_taps, instrument
from tensortap.sources.probes.source_match import find_definition, is_compatible

pytestmark = pytest.mark.law

EVERY = 6  # of the files of transformers, enough for more than a thousand forwards


def modules():
    """All of torch.nn, and every sixth file with models of transformers."""
    for found in pkgutil.walk_packages(torch.nn.__path__, "torch.nn."):
        yield found.name
    files = sorted(Path(transformers.__path__[0], "models").glob("*/modeling_*.py"))
    for file in files[::EVERY]:
        yield f"transformers.models.{file.parent.name}.{file.stem}"


def imported(name):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:  # an optional library is missing
        return None


def forwards():
    found = {}
    for name in modules():
        module = imported(name)
        classes = [one for one in vars(module or object).values() if isinstance(one, type)]
        for owner in classes:
            if owner.__module__ == name and "forward" in vars(owner):
                function = unwrap_function(vars(owner)["forward"])
                found[function] = None
    return list(found)


class Unwoven(ast.NodeTransformer):
    """Takes the taps out again."""

    def visit_If(self, node):
        return None if is_asked(node.test) else self.generic_visit(node)

    def visit_Try(self, node):
        return None if is_ours(getattr(node.body[0], "targets", [None])[0]) else self.generic_visit(node)

    def visit_Assign(self, node):
        if is_ours(node.targets[0]):
            self.value = node.value
            return None
        return self.generic_visit(node)

    def visit_Return(self, node):
        if is_ours(node.value):
            node.value = self.value
        return self.generic_visit(node)

    def visit_Subscript(self, node):
        every = getattr(node.value, "elts", [])
        own = [one for one in every if not (isinstance(one, ast.IfExp) and is_asked(one.test))]
        return self.visit(own[0]) if len(own) < len(every) else self.generic_visit(node)

    def visit_With(self, node):
        node = self.generic_visit(node)
        (inner, *rest) = node.body
        if isinstance(inner, ast.With) and not rest and inner.lineno == node.lineno:
            node.items, node.body = [*node.items, *inner.items], inner.body
        return node


def is_ours(node):
    return isinstance(node, ast.Name) and node.id.startswith("@")


def is_asked(test):
    return isinstance(test, ast.Compare) and is_ours(test.left)


def text_of(node):
    """All that there is to a tree, positions too."""
    return ast.dump(node, include_attributes=True)


@pytest.fixture(scope="module")
def census():
    """How many there are, the kinds of their spots, and those that went wrong."""
    every, kinds = forwards(), Counter()
    wrong = [function.__qualname__ for function in every if not is_right(function, kinds)]
    return len(every), kinds, wrong


def is_right(function, kinds):
    code = function.__code__
    definition = find_definition(function, code)
    before = text_of(definition.node)
    rewritten = instrument(definition, None, True)
    woven, spots = insert_taps(definition.node, None, True)
    kinds.update(spot.kind for spot in spots)
    return (
        text_of(definition.node) == before == text_of(Unwoven().visit(woven))
        and spots == rewritten.bindings
        and is_compatible(rewritten.code, code)
        and told(spots) == stored(code)
    )


def told(spots):
    return {(spot.name, spot.line) for spot in spots if spot.kind not in (RETURN, "argument")}


def stored(code):
    """What the instructions bind, found without the source."""
    spots = code_instructions(code, code.co_filename).bindings
    return {(spot.name, spot.line) for spot in spots if spot.kind == "assign"}


def test_a_thousand_forwards_are_rewritten_and_none_is_wrong(census, record_property):
    count, kinds, wrong = census
    record_property("forwards", count)
    record_property("spots", str(dict(kinds)))
    assert wrong == []
    assert count > 1000


def test_the_census_meets_the_forms_that_models_use(census):
    _, kinds, _ = census
    assert {"argument", "assign", "unpack", "loop", "annotated", "augmented", "walrus", RETURN} <= set(kinds)
