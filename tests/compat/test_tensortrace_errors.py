"""What a ModelTracer says of wrong arguments, of paths that gave nothing, and of values it cannot keep."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import h5py
import pytest
import torch
from torch import nn

import tensortap as tt
from tensortap.compat.tensortrace import H5PYSaverCallback, ModelTracer

X = torch.ones(2, 3)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.cache = None

    def forward(self, x, masked=False):
        hidden = self.linear(x)
        if masked:
            mask = hidden > 0
            hidden = hidden * mask
        return hidden


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        odd = torch.ones(3, device="meta")
        both = (x, odd)
        lock = object()
        for layer in self.layers:
            x = layer(x)
        del both, lock
        return x


@pytest.fixture
def model():
    return Net()


def said(error, *arguments, **keywords):
    with pytest.raises(error) as caught:
        ModelTracer(*arguments, **keywords)
    return str(caught.value)


# Arguments


def test_what_is_no_model_is_refused():
    assert said(TypeError, 3, ["forward"]) == "a int is no model; give a torch.nn.Module"
    assert said(TypeError, Net, ["forward"]) == "Net is a class, not a model; give an instance of it"


@pytest.mark.parametrize("paths", [[], (), None], ids=repr)
def test_paths_that_trace_nothing_are_refused(model, paths):
    assert said(ValueError, model, paths) == (
        f"paths is {paths!r}, which traces nothing; give a list such as ['forward', 'forward.x']"
    )


def test_what_is_no_path_is_refused(model):
    assert (
        said(TypeError, model, "forward") == "paths is the text 'forward'; give a list of paths, ['forward']"
    )
    for wrong in (3, "", None):
        assert said(TypeError, model, ["forward", wrong]) == (
            f"{wrong!r} is no path; give texts such as 'forward' or 'layers.0.forward.x'"
        )


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("layers.2.forward.x", "'layers' has no '2'; it has '0', '1'."),
        ("layers.1.forwad.x", "'layers.1' has no 'forwad'; did you mean 'layers.1.forward.x'?"),
        (
            "layers.1.linear.weigth",
            "'layers.1.linear' has no 'weigth'; did you mean 'layers.1.linear.weight'?",
        ),
        ("lyers.zzzzzzzzzzzzzzzz", "the model has no 'lyers'; did you mean 'layers.zzzzzzzzzzzzzzzz'?"),
        (
            "layers.0.forward.hiden.0",
            "Block.forward has no 'hiden'; did you mean 'layers.0.forward.hidden.0'?",
        ),
        ("layers.0.forward.self.cahce", "self has no 'cahce'; did you mean 'layers.0.forward.self.cache'?"),
    ],
)
def test_a_path_that_leads_nowhere_is_answered_with_the_part_that_is_not_there(model, path, sentence):
    assert said(tt.UnknownModuleError, model, ["forward", path]) == (
        f"no site {path!r} in the model: {sentence} tt.sites(model) lists all {COUNT}"
    )


COUNT = len(tt.sites(Net()))


def test_a_binding_that_the_function_does_not_have_is_refused(model):
    words = said(tt.UnknownModuleError, model, ["layers.0.forward.x#9"])
    assert words.startswith("Block.forward binds 'x' at #0")
    assert words.endswith("there is no 'x#9'")


def test_bindings_are_asked_for_by_number(model):
    assert said(ValueError, model, ["forward.x#last"]) == (
        "'x#last' asks for binding 'last'; give a number, x#0, or x#*"
    )


@pytest.mark.parametrize("argument", ["gathering_interval", "trace_interval"])
@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, None, "2"], ids=repr)
def test_an_interval_is_a_whole_number_from_one_on(model, argument, wrong):
    assert said(ValueError, model, ["forward"], **{argument: wrong}) == (
        f"{argument} is {wrong!r}; give a whole number from 1 on"
    )


KINDS = ["pre_save", "pre_gather", "post_gather", "post_trace"]


@pytest.mark.parametrize("kind", KINDS)
def test_callbacks_are_a_list_of_functions_with_the_right_parameters(model, kind):
    argument = f"{kind}_callbacks"

    def lonely(name):
        pass

    assert said(TypeError, model, ["forward"], **{argument: lonely}) == (
        f"{argument} is lonely; give a list of functions"
    )
    assert said(TypeError, model, ["forward"], **{argument: None}) == (
        f"{argument} is None; give a list of functions"
    )
    takes = "(name, value, iteration)" if kind == "pre_save" else "(name, values, iterations, ranks)"
    assert said(TypeError, model, ["forward"], **{argument: [3]}) == (
        f"3 is no callback; give a function of {takes}"
    )
    assert takes in said(TypeError, model, ["forward"], **{argument: [lonely]})
    assert "the callback lonely" in said(TypeError, model, ["forward"], **{argument: [lonely]})


def test_what_is_no_tap_is_refused(model):
    assert said(TypeError, model, ["forward"], tap=3) == "tap is 3; give a tt.Tap(sinks=[...])"


def test_a_tracer_is_used_once(model):
    tracer = ModelTracer(model, ["forward"])
    with tracer:
        with pytest.raises(RuntimeError, match=r"this tracer is already on; make another with ModelTracer"):
            tracer.__enter__()
        model(X)
    with pytest.raises(RuntimeError, match=r"this tracer is over; make another with ModelTracer"):
        tracer.__enter__()
    assert tracer.results["forward"].iterations == [1]


# What gave nothing


def test_a_variable_that_was_never_bound_is_named_with_the_reason(model, caplog):
    with ModelTracer(model, ["layers.0.forward.mask", "layers.0.forward.hidden"]) as tracer:
        model(X)
    (found,) = tracer.missing
    line = Block.forward.__code__.co_firstlineno + 3
    assert found == (
        "layers.0.forward.mask",
        f"not bound: test_tensortrace_errors.py:{line} did not run",
    )
    assert [entry.getMessage() for entry in caplog.records] == [
        f"'layers.0.forward.mask' gave no value: {found.reason}"
    ]


def test_one_line_tells_of_all_paths_that_gave_nothing_and_wildcards_of_none(model, caplog):
    with ModelTracer(model, ["layers.0.forward.mask", "layers.1.forward.mask"]) as tracer:
        model(X)
    (line,) = caplog.records
    assert line.getMessage().endswith("tracer.missing lists all 2")
    caplog.clear()
    with ModelTracer(model, ["layers.*.forward.*"]) as tracer:
        model(X)
    assert caplog.records == []
    assert [one.name for one in tracer.missing] == ["layers.0.forward.mask", "layers.1.forward.mask"]


def test_a_model_that_was_not_called_is_told(model, caplog):
    with ModelTracer(model, ["layers.0"]) as tracer:
        pass
    assert tracer.missing == [("layers.0", "the model was not called while it was captured")]
    assert len(caplog.records) == 1


def test_a_file_that_was_edited_since_it_was_imported_is_traced_by_its_lines_and_told(tmp_path, caplog):
    source = """
        import torch
        class Edited(torch.nn.Module):
            def forward(self, x):
                doubled = x * 2
                return doubled
    """
    file = tmp_path / "edited_model.py"
    file.write_text(textwrap.dedent(source))
    spec = importlib.util.spec_from_file_location("edited_model", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    file.write_text(textwrap.dedent(source).replace("x * 2", "x * 3 + 1"))
    model = module.Edited()
    for _ in range(2):
        with ModelTracer(model, ["forward.doubled"]) as tracer:
            model(X)
        assert torch.equal(tracer.results["forward.doubled"].values[0], X * 2)
    assert [line.getMessage() for line in caplog.records] == [
        f"the lines of Edited.forward ({file}) are traced, which is slow: the file was edited since it was "
        "imported, or another tool changed the code"
    ]


# What cannot be kept


def test_a_value_that_cannot_be_gathered_is_named_once_and_the_rest_goes_on(model, caplog):
    with ModelTracer(model, ["forward.odd", "forward.x"]) as tracer:
        model(X)
        model(X + 1)
    assert tracer.results["forward.x"].iterations == [1, 2]
    (found,) = tracer.missing
    assert found.name == "forward.odd"
    assert found.reason.startswith("a meta tensor of shape [3] has no values")
    assert len(caplog.records) == 1


def test_a_value_that_cannot_be_stored_is_named_and_counted_and_the_rest_goes_on(model, tmp_path, caplog):
    saver = H5PYSaverCallback(tmp_path / "trace.h5")
    with ModelTracer(model, ["forward.lock", "forward.x"], post_gather_callbacks=[saver]) as tracer:
        model(X)
        model(X + 1)
    assert saver.skipped == {"forward.lock": 2}
    assert tracer.missing == [("forward.lock", saver.reasons["forward.lock"])]
    assert saver.datasets["forward.x"].iterations[:].tolist() == [1, 2]
    (line,) = caplog.records
    assert line.getMessage().startswith(f"'forward.lock' is not in {tmp_path / 'trace.h5'}: ")
    saver.close()


def fail(name, values, iterations, ranks=None):
    if name == "forward":
        raise ZeroDivisionError("not today")
    return values


@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_that_fails_for_one_name_costs_no_other(model, kind, monkeypatch, caplog):
    monkeypatch.setenv("TENSORTAP_STRICT", "0")
    with ModelTracer(model, ["forward", "forward.x"], **{f"{kind}_callbacks": [fail]}) as tracer:
        model(X)
        model(X + 1)
    assert tracer.results["forward.x"].iterations == [1, 2]
    (line,) = caplog.records
    sentence = "the callback fail failed for 'forward' (ZeroDivisionError: not today)"
    assert line.getMessage().startswith(sentence)
    if kind == "pre_save":  # the value itself may be far more than what the callback would have left
        assert "forward" not in tracer.results
        assert tracer.missing == [("forward", f"{sentence}; such values are left out")]
    else:
        assert tracer.results["forward"].iterations == [1, 2]


def test_in_strict_mode_a_callback_that_fails_at_the_end_is_raised_with_its_sentence(model, monkeypatch):
    monkeypatch.setenv("TENSORTAP_STRICT", "1")
    with (
        pytest.raises(tt.GatherError, match=r"^the callback fail failed for 'forward' \(ZeroDivisionError"),
        ModelTracer(model, ["forward"], post_trace_callbacks=[fail]) as tracer,
    ):
        model(X)
    assert tracer.results["forward"].iterations == [1]


# Files


def test_what_was_traced_is_in_the_file_when_the_block_ends(model, tmp_path):
    saver = H5PYSaverCallback(tmp_path / "trace.h5")
    with ModelTracer(model, ["forward.x"], post_gather_callbacks=[saver]):
        model(X)
    with h5py.File(tmp_path / "trace.h5", "r", locking=False) as file:
        assert file["forward.x"].shape == (1, 2, 3)
    saver.close()


def test_a_saver_belongs_where_all_values_are(model, tmp_path):
    saver = H5PYSaverCallback(tmp_path / "trace.h5")
    assert said(ValueError, model, ["forward"], pre_gather_callbacks=[saver]) == (
        "only rank 0 has a file; give the H5PYSaverCallback to post_gather_callbacks"
    )
    saver.close()


def test_a_value_that_comes_after_the_file_was_closed_is_counted(tmp_path):
    saver = H5PYSaverCallback(tmp_path / "trace.h5")
    saver("loss", [0.5], [1], [0])
    saver.close()
    saver("loss", [0.4], [2], [0])
    assert saver.skipped == {"loss": 1}
    assert saver.datasets["loss"][:].tolist() == [0.5]


def test_a_folder_that_is_not_there_is_made(tmp_path):
    saver = H5PYSaverCallback(tmp_path / "new" / "folder" / "trace.h5")
    saver.close()
    assert (tmp_path / "new" / "folder" / "trace.h5").is_file()


def test_a_file_that_exists_is_refused_on_demand(tmp_path):
    file = tmp_path / "trace.h5"
    H5PYSaverCallback(file).close()
    with pytest.raises(ValueError) as caught:
        H5PYSaverCallback(file, existing_ok=False)
    assert str(caught.value) == (
        f"{file} exists already, and existing_ok is False; give another name, or existing_ok=True to keep "
        "the old one as trace.h5.old"
    )


@pytest.mark.process
def test_a_file_that_another_program_writes_is_left_alone(tmp_path):
    file = tmp_path / "trace.h5"
    holder = """
        import sys
        from tensortap import H5PYSaverCallback
        saver = H5PYSaverCallback(sys.argv[1])
        print("open", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(holder), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(tt.WriteFailedError) as caught:
            H5PYSaverCallback(file)
    assert str(caught.value) == (
        f"{file} is open elsewhere, in this or another program; close it there, or give another name"
    )
    H5PYSaverCallback(file).close()


def python(code, *arguments, **variables):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        timeout=60,
        check=False,
    )


@pytest.mark.process
def test_without_h5py_models_are_traced_and_a_file_gets_the_pip_line():
    done = python(
        """
        import sys
        sys.modules["h5py"] = None
        import torch
        import tensortap as tt
        model = torch.nn.Linear(2, 2)
        with tt.ModelTracer(model, ["forward"]) as tracer:
            model(torch.ones(2))
        print(tracer.results["forward"].iterations)
        try:
            tt.H5PYSaverCallback("trace.h5")
        except tt.MissingExtraError as error:
            print(error)
        """
    )
    pip = "traces in HDF5 need h5py, so: pip install 'tensortap[hdf5]'"
    assert done.stdout == f"[1]\n{pip}\n", done.stderr


@pytest.mark.process
def test_switched_off_nothing_is_traced_opened_or_complained_about(tmp_path):
    done = python(
        """
        import sys
        from pathlib import Path
        import torch
        import tensortap as tt
        saver = tt.H5PYSaverCallback(sys.argv[1], existing_ok=False)
        model = torch.nn.Linear(2, 2)
        code = torch.nn.Linear.forward.__code__
        tracer = tt.ModelTracer(model, ["no.such.path"], post_gather_callbacks=[saver], gathering_interval=0)
        for _ in range(2):
            with tracer:
                assert torch.nn.Linear.forward.__code__ is code
                assert not model._forward_pre_hooks
                model(torch.ones(2))
        saver("x", [1], [1], [0])
        saver.flush()
        saver.close()
        assert tracer.results == saver.datasets == saver.skipped == saver.reasons == {}
        assert tracer.missing == []
        assert not Path(sys.argv[1]).exists()
        assert tt.trace_model(model, [], torch.ones(2))[0].shape == (2,)
        print("done")
        """,
        tmp_path / "trace.h5",
        TENSORTAP="0",
    )
    assert done.stdout == "done\n", done.stderr
