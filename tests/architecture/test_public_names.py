"""The public names: each in its home, the same for people, programs and type checkers."""

import ast
import builtins
import importlib
import inspect
import pickle

import pytest

import tensortap
from tensortap.core import errors

PUBLIC = [
    "Capture",
    "Comparison",
    "CorruptRunError",
    "Difference",
    "Floor",
    "GatherError",
    "H5PYSaverCallback",
    "HDF5",
    "Listener",
    "Memory",
    "MissingExtraError",
    "ModelTracer",
    "NoRunError",
    "NotInitialisedError",
    "NotServingError",
    "NotWholeError",
    "Record",
    "RefusedError",
    "Run",
    "RunDirectory",
    "Series",
    "Sink",
    "Source",
    "Stage",
    "Stream",
    "Tap",
    "TensortapError",
    "TraceFile",
    "UnknownFormatError",
    "UnknownModuleError",
    "UnknownNameError",
    "UnsupportedValueError",
    "UntrustedFileError",
    "WriteFailedError",
    "align",
    "assert_runs_match",
    "attach",
    "auto_diff",
    "capture",
    "catch",
    "changed",
    "close",
    "compare",
    "compare_runs",
    "describe",
    "difference",
    "disable",
    "disable_tensor_capture",
    "dump",
    "edit",
    "enable",
    "enable_tensor_capture",
    "every",
    "export",
    "expose",
    "first",
    "floor",
    "flush",
    "get",
    "get_all",
    "get_available_modules",
    "get_captured_tensors_dict",
    "h4logger",
    "ingest_all",
    "init",
    "jobs",
    "listen",
    "load",
    "load_ipython_extension",
    "log2file",
    "logger",
    "nonfinite",
    "pin",
    "register_comparator",
    "register_framework",
    "register_serializer",
    "register_sink",
    "register_tensor",
    "serve",
    "sites",
    "stack_padded_tensors",
    "stack_tensors",
    "status",
    "step",
    "stop_serving",
    "summary",
    "tap",
    "trace_model",
    "unload_ipython_extension",
    "unpin",
    "update_metadata",
    "var_tracker",
    "view",
    "watch",
    "whole",
]
# Imported by programs under these paths: the READMEs and the guide say so.
DEEP = {
    "tensortap.compat.tensor_dumper": ["init", "dump", "compare", "enable", "disable", "update_metadata"],
    "tensortap.compat.tensortrace": [
        "ModelTracer",
        "H5PYSaverCallback",
        "stack_padded_tensors",
        "trace_model",
    ],
    "tensortap.compat.ttracker": [
        "auto_diff",
        "var_tracker",
        "log2file",
        "h4logger",
        "logger",
        "_log_change",
    ],
    "tensortap.compat.thing": ["catch", "serve", "get", "get_all", "summary", "status", "help"],
    "tensortap.compat.tensor_capture": [
        "enable_tensor_capture",
        "disable_tensor_capture",
        "get_available_modules",
        "register_tensor",
        "get_captured_tensors_dict",
    ],
    "tensortap.stages.reduce": ["cast", "histogram", "mean", "norm", "slice_of"],
    "tensortap.testing": ["SinkContract", "SerializerContract", "ComparatorContract", "FrameworkContract"],
    "tensortap.cli.main": ["main"],
}
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


def test_the_public_names_are_these_and_no_others():
    """A name is added here on purpose, and removed only after it has been deprecated."""
    assert tensortap.__all__ == PUBLIC


@pytest.mark.parametrize("module", DEEP)
def test_documented_deep_imports_hold(module):
    home = importlib.import_module(module)
    assert [name for name in DEEP[module] if not hasattr(home, name)] == []


@pytest.mark.process
def test_import_star_hides_no_builtin(ask):
    done = ask("from tensortap import *; assert help.__class__.__name__ == '_Helper'; print(Tap, Sink)")
    assert done.returncode == 0, done.stderr
    assert set(dir(builtins)) & set(tensortap.__all__) == set()


@pytest.mark.parametrize("name", ["help", "_log_change"])
def test_names_that_import_star_leaves_out_can_be_imported(name):
    assert getattr(tensortap, name) is getattr(importlib.import_module(tensortap._HOMES[name]), name)
    assert name not in tensortap.__all__


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


@pytest.mark.process
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
