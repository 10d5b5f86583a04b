"""The public names: each in its home, the same for people, programs and type checkers."""

import ast
import importlib
import inspect
import pickle

import pytest

import tensortap
from tensortap.core import errors

DOCUMENTED = ["init", "dump", "compare", "enable", "disable", "update_metadata"]
BUILT_INS = {
    "NotInitialisedError": RuntimeError,
    "UnknownModuleError": ValueError,
    "UnknownNameError": KeyError,
    "UnknownFormatError": ValueError,
    "UnsupportedValueError": TypeError,
    "UntrustedFileError": PermissionError,
    "CorruptRunError": ValueError,
    "NoRunError": FileNotFoundError,
    "WriteFailedError": OSError,
    "NotWholeError": ValueError,
    "GatherError": RuntimeError,
    "NotServingError": RuntimeError,
    "RefusedError": PermissionError,
    "MissingExtraError": ImportError,
}


@pytest.mark.parametrize("name", sorted(tensortap._HOMES))
def test_a_public_name_is_the_object_of_its_home(name):
    assert getattr(tensortap, name) is getattr(importlib.import_module(tensortap._HOMES[name]), name)
    assert name in dir(tensortap)
    assert inspect.getdoc(getattr(tensortap, name))


def test_type_checkers_see_exactly_the_public_names_in_their_homes():
    tree = ast.parse(inspect.getsource(tensortap))
    (block,) = [
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert seen == tensortap._HOMES


def test_an_unknown_name_is_refused_like_any_modules():
    with pytest.raises(AttributeError, match="module 'tensortap' has no attribute 'nonsense'"):
        _ = tensortap.nonsense


@pytest.mark.parametrize("name", DOCUMENTED)
def test_documented_names_are_in_the_front_door_and_in_the_face(name):
    face = importlib.import_module("tensortap.compat.tensor_dumper")
    assert getattr(face, name) is getattr(tensortap, name)
    assert name in tensortap.__all__
    assert name in face.__all__


def test_an_old_script_runs_with_one_import_line_changed(ask):
    done = ask("""
        import tensortap as tensor_dumper
        import numpy as np
        tensor_dumper.init("experiments")
        tensor_dumper.dump(np.ones((10, 10)), "layer1_output")
        print(tensor_dumper.compare(np.ones(3), np.ones(3), atol=1e-5, rtol=1e-5))
        tensor_dumper.disable(); tensor_dumper.enable(); tensor_dumper.update_metadata()
        from tensortap.compat.tensor_dumper import init, dump, compare, enable, disable, update_metadata
    """)
    assert done.stdout == "True\n", done.stderr


def test_the_error_tree_is_the_one_on_the_page():
    classes = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and name != "Any"}
    assert classes == {"TensortapError", *BUILT_INS}


@pytest.mark.parametrize("name", BUILT_INS)
def test_an_error_is_also_the_built_in_that_fits_and_can_travel(name):
    kind = getattr(errors, name)
    assert issubclass(kind, BUILT_INS[name])
    assert issubclass(kind, errors.TensortapError)
    told = kind("what happened; what to do")
    assert str(told) == str(pickle.loads(pickle.dumps(told))) == "what happened; what to do"


def test_a_failed_write_keeps_its_number_when_it_travels():
    told = errors.WriteFailedError("cannot write")
    told.errno = 28
    assert pickle.loads(pickle.dumps(told)).errno == 28
