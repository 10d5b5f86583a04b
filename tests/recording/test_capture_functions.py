"""Variables of plain functions, without a model: `pkg.mod:func.var`."""

import copy
import functools
import subprocess
import sys
import textwrap
import threading
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tensortap as tt

HERE = f"{__name__}:"
Q = np.arange(6.0).reshape(2, 3)


class Pair(NamedTuple):
    first: object
    second: object


def attention(q, k, mask=None):
    scores = q @ k.T
    if mask is not None:
        masked = scores * mask
        scores = masked
    q = q + 1
    cache = {"k": [k, q], "n": 3}
    scores = scores / 2
    return scores, cache


def factorial(n):
    below = factorial(n - 1) if n else 1
    return max(n, 1) * below


def counted(n):
    for index in range(n):
        yield index * 2
    return "done"


def loud(function):
    def wrapper(*arguments, **keywords):
        return function(*arguments, **keywords)

    return wrapper


@functools.lru_cache(maxsize=2)
@loud
def decorated(x):
    doubled = x * 2
    return doubled  # noqa: RET504 - a variable to be seen


def pair(x):
    out = x - 1
    return Pair(x, out)


def train(steps):
    for step in range(steps):
        tt.step(step)
        loss = step * 10
    return loss


def raising(x):
    seen = x + 1
    if seen:
        raise KeyError(x)
    return seen


def copied(x):
    kept = [x]
    return kept  # noqa: RET504 - a variable to be seen


def scaled(x, w):
    product = x * w
    return product.sum()


class Base:
    def size(self, x):
        width = len(x)
        return width  # noqa: RET504 - a variable to be seen

    @classmethod
    def made(cls, x):
        name = cls.__name__ + x
        return name  # noqa: RET504 - a variable to be seen

    @staticmethod
    def plain(x):
        half = x / 2
        return half  # noqa: RET504 - a variable to be seen

    class Inner:
        def deep(self, x):
            return x


class Child(Base):
    pass


class Other(Base):
    pass


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, incoming):
        outgoing = incoming * 2
        return outgoing  # noqa: RET504 - a variable to be seen


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return attention(self.inner(x), x)[0]


def test_a_local_an_argument_and_what_is_returned_are_seen_without_a_model():
    with tt.capture(None, HERE + "attention.scores", HERE + "attention.q", HERE + "attention") as cap:
        scores, _ = attention(Q, Q)
    assert list(cap[HERE + "attention.scores"].calls) == [0, 1]
    assert np.array_equal(cap[HERE + "attention.scores"][1], scores)
    assert np.array_equal(cap[HERE + "attention.q"], Q)
    assert np.array_equal(cap[HERE + "attention[0]"], scores)
    assert cap[HERE + "attention[1]['n']"] == 3
    assert [record.kind for record in cap][:2] == ["local", "local"]
    assert {record.kind for record in cap.find(HERE + "attention")} == {"return"}
    assert cap.missing == []


def test_single_bindings_parts_and_wildcards_are_chosen_as_for_modules():
    patterns = ["q#1", "scores#-1", "cache['k'][0]", "c*.n"]
    with tt.capture(None, *(HERE + "attention." + one for one in patterns)) as cap:
        attention(Q, Q)
    assert np.array_equal(cap[HERE + "attention.q#1"], Q + 1)
    assert np.array_equal(cap[HERE + "attention.scores#-1"], Q @ Q.T / 2)
    assert np.array_equal(cap[HERE + "attention.cache['k'][0]"], Q)
    assert cap[HERE + "attention.cache['n']"] == 3
    assert len(cap) == 4


def test_all_variables_but_some_of_all_functions_that_have_one():
    with tt.capture(None, HERE + "attention.*", f"!{HERE}attention.cache") as cap:
        attention(Q, Q)
    assert [name.rpartition(".")[2] for name in cap.names] == ["q", "k", "mask", "scores"]
    with tt.capture(None, HERE + "*a*.x", HERE + "{pair,copied}.x") as cap:
        for function in (pair, copied):
            function(1)
    assert cap.names == [HERE + "pair.x", HERE + "copied.x"]
    with tt.capture(None, HERE + "pair", HERE + "pair.*", f"!{HERE}pair") as cap:
        pair(1)
    assert len(cap) == 0


def test_calls_are_counted_within_the_step_that_the_program_says():
    with tt.capture(None, HERE + "attention.k", HERE + "pair@2", f"{HERE}pair.x") as cap:
        for step in (4, 5):
            tt.step(step)
            attention(Q, Q)
            attention(Q, Q)
            for x in range(4):
                pair(x)
    assert [(one.step, one.call) for one in cap.find(HERE + "attention.k")] == [
        (4, 0),
        (4, 1),
        (5, 0),
        (5, 1),
    ]
    assert [(one.step, one.value) for one in cap.find(HERE + "pair[0]")] == []
    assert cap[HERE + "pair.return.first"].values == [2, 2]
    assert cap[HERE + "pair.x@1"].values == [1, 1]


def test_a_loop_that_lasts_for_many_steps_rests_in_some_of_them():
    with tt.capture(None, HERE + "train.loss", when=tt.every(2)) as cap:
        train(5)
    assert cap[HERE + "train.loss"].values == [0, 20, 40]
    assert cap[HERE + "train.loss"].steps == [0, 2, 4]


def test_recursion_and_generators_are_followed():
    with tt.capture(
        None, HERE + "factorial.n", HERE + "factorial", HERE + "counted.index", HERE + "counted"
    ) as cap:
        assert factorial(3) == 6
        assert list(counted(3)) == [0, 2, 4]
    assert cap[HERE + "factorial.n"].values == [3, 2, 1, 0]
    assert cap[HERE + "factorial"].values == [1, 1, 2, 6]
    assert cap[HERE + "counted.index"].values == [0, 1, 2]
    assert cap[HERE + "counted"] == "done"


def test_every_thread_is_seen_and_each_call_has_its_number():
    threads = [threading.Thread(target=lambda: [pair(x) for x in range(200)]) for _ in range(4)]
    with tt.capture(None, HERE + "pair.x") as cap:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(cap[HERE + "pair.x"].calls) == list(range(800))
    assert sorted(cap[HERE + "pair.x"].values) == sorted(list(range(200)) * 4)


def test_decorators_other_names_and_missing_source_do_not_matter():
    scope = {}
    exec("def sourceless(x):\n    y = x + 1\n    return y", scope)
    module = sys.modules[__name__]
    module.sourceless = scope["sourceless"]
    another_name = pair
    names = ["decorated.doubled", "pair.out", "sourceless.y", "sourceless"]
    with tt.capture(None, *(HERE + name for name in names)) as cap:
        decorated(21)
        another_name(5)
        scope["sourceless"](1)
    assert [cap[HERE + name] for name in names] == [42, 4, 2, 2]


def test_methods_are_seen_whatever_they_are_called_on():
    names = ["Base.size.width", "Base.made", "Base.made.name", "Base.plain.half", "Base.Inner.deep.x"]
    with tt.capture(None, *(HERE + name for name in names)) as cap:
        Child().size("abc")
        Base.made("!")
        Base.plain(3)
        Base.Inner().deep(1)
    assert [cap[HERE + name] for name in names] == [3, "Base!", "Base!", 1.5, 1]


def test_a_method_that_a_class_inherits_is_its_own_only_on_its_objects():
    with tt.capture(None, HERE + "Child.size.width", HERE + "Child.made.name", HERE + "Child.plain") as cap:
        Other().size("abcd")
        Child().size("ab")
        Other.made("?")
        Child.made("!")
        Other.plain(2)
    assert cap[HERE + "Child.size.width"] == 2
    assert cap[HERE + "Child.made.name"] == "Child!"
    assert cap[HERE + "Child.plain"] == 1


def test_all_variables_of_a_method_are_not_the_object_itself():
    assert tt.sites(None, HERE + "Base.size.*").names == [HERE + "Base.size.x", HERE + "Base.size.width"]
    assert tt.sites(None, HERE + "Base.size.self").names == [HERE + "Base.size.self"]


def test_a_field_of_what_is_returned_is_no_variable():
    with tt.capture(None, HERE + "pair", HERE + "pair.out") as cap:
        pair(3)
    assert cap.names == [HERE + "pair.out", HERE + "pair.return.first", HERE + "pair.return.second"]
    assert cap[HERE + "pair"].values == [3, 2]
    with tt.capture(None, HERE + "pair.return.second") as cap:
        pair(3)
    assert cap[HERE + "pair.return.second"] == 2


def test_gradients_come_to_variables_of_functions():
    w = torch.full((3,), 2.0, requires_grad=True)
    x = torch.arange(3.0)
    with tt.capture(
        None, *(HERE + "scaled." + one for one in ("product.grad", "w.grad")), HERE + "scaled.grad"
    ) as cap:
        for factor in (1, 10):
            (scaled(x, w) * factor).backward()
    assert [value.tolist() for value in cap[HERE + "scaled.product.grad"]] == [[1] * 3, [10] * 3]
    assert [value.tolist() for value in cap[HERE + "scaled.w.grad"]] == [[0, 1, 2], [0, 10, 20]]
    assert cap[HERE + "scaled.w.grad"].calls == [0, 1]
    assert [value.item() for value in cap[HERE + "scaled.grad"]] == [1, 10]


def test_what_a_checkpoint_computes_again_is_not_seen_twice_but_a_backward_of_ones_own_is():
    x = torch.ones(2, requires_grad=True)
    with tt.capture(None, HERE + "scaled.product", HERE + "Double.backward.*") as cap:
        for reentrant in (False, True):
            checkpoint(lambda x: scaled(Double.apply(x), x), x, use_reentrant=reentrant).backward()
    assert cap[HERE + "scaled.product"].calls == [0, 1]
    assert len(cap.find(HERE + "Double.backward.outgoing")) == 2


def test_functions_are_captured_together_with_a_model():
    model, x = Model(), torch.ones(2, 3)
    with tt.capture(model, "inner", HERE + "attention.scores#0", "out") as cap:
        attention(Q, Q)
        model(x)
        model(x)
    assert cap.names == [HERE + "attention.scores#0", "inner", "out"]
    assert cap[HERE + "attention.scores#0"].steps == [0, 0, 1]
    assert cap[HERE + "attention.scores#0"].calls == [0, 1, 0]
    with tt.capture(model, HERE + "attention.q", f"!{HERE}attention.k", "!inner") as cap:
        model(x)
    assert cap.names == [HERE + "attention.q"]


def test_a_module_of_the_model_that_is_called_so_comes_first():
    model = nn.ModuleDict({f"{HERE[:-1].rpartition('.')[2]}:pair": nn.Linear(2, 2)})
    (name,) = model
    (site,) = tt.sites(model, name)
    assert site.module is model[name]


def test_a_tracer_takes_them_too():
    model, x = Model(), torch.ones(2, 3)
    with tt.ModelTracer(model, ["forward", HERE + "attention.scores#0"]) as tracer:
        model(x)
        model(x * 2)
    assert sorted(tracer.results) == ["forward", HERE + "attention.scores#0"]
    assert len(tracer.results[HERE + "attention.scores#0"].values) == 2


@pytest.mark.compile
def test_compiled_functions_run_as_plain_python_meanwhile():
    compiled = torch.compile(scaled, backend="eager", fullgraph=True)
    x = torch.ones(3)
    compiled(x, x)
    for kind in ("eager", "error"):
        with tt.capture(None, HERE + "scaled.product", compiled=kind) as cap:
            compiled(x, x)
        assert cap[HERE + "scaled.product"].tolist() == [1, 1, 1]
    torch._dynamo.reset()


@pytest.mark.process
def test_keep_when_limit_and_to_mean_what_they_always_do(tmp_path):
    x = np.zeros(2)
    with tt.capture(None, HERE + "copied.x", keep="ref") as cap:
        copied(x)
    assert cap[HERE + "copied.x"] is x
    with tt.capture(None, HERE + "copied.x", keep="stats", limit=2, when=lambda one: one.value[0] > 0) as cap:
        for number in range(4):
            copied(x + number)
    assert [one.max for one in cap[HERE + "copied.x"]] == [2, 3]
    assert cap.dropped == 1
    with tt.capture(None, HERE + "attention.*", HERE + "attention", to=tmp_path) as cap:
        attention(Q, Q)
    run = tt.Run(cap.run)
    assert np.array_equal(run.load(HERE + "attention.k"), Q)
    assert [one.name for one in run.filter(HERE + "att*.scores")] == [HERE + "attention.scores"] * 2
    assert {one.name for one in run.filter(HERE + "attention")} >= {HERE + "attention[0]"}


def test_what_is_kept_of_a_value_is_not_changed_later():
    x = np.zeros(2)
    with tt.capture(None, HERE + "copied.x") as cap:
        copied(x)
        x += 1
    assert cap[HERE + "copied.x"].tolist() == [0, 0]


def test_a_function_that_the_capture_itself_calls_is_not_watched_meanwhile():
    class Odd:
        pass

    with tt.capture(None, "copy:deepcopy.x", HERE + "copied.x") as cap:
        copied(Odd())
        copy.deepcopy(3)
    assert cap.names == [HERE + "copied.x", "copy:deepcopy.x"]
    assert cap["copy:deepcopy.x"] == 3
    with tt.capture(None, HERE + "copied.x", keep=lambda value: copied(value)) as cap:
        copied(1)
    assert cap[HERE + "copied.x"] == [1]


def test_a_function_may_stand_in_place_of_a_model():
    def local(a, b):
        total = a + b
        return total * 2

    with tt.capture(local) as cap:
        local(1, 2)
    stem = HERE + "test_a_function_may_stand_in_place_of_a_model.local"
    assert cap.names == [f"{stem}.a", f"{stem}.b", f"{stem}.total", stem]
    assert (cap["total"], cap["return"], cap[stem]) == (3, 6, 6)
    with tt.capture(local, "b", "to*") as cap:
        local(1, b=2)
    assert (cap["b"], cap["total"], len(cap)) == (2, 3, 2)
    one, other = Child(), Child()
    with tt.capture(one.size, "x") as cap:
        other.size("abc")
        one.size("a")
    assert cap["x"] == "a"
    assert tt.sites(local).names == [stem, f"{stem}.a", f"{stem}.b", f"{stem}.total"]


def test_afterwards_the_code_is_the_very_same_and_nothing_is_left():
    before, names = pair.__code__, set(globals())
    with tt.capture(None, HERE + "pair.*"):
        assert pair.__code__ is not before
    assert pair.__code__ is before
    assert set(globals()) == names
    with pytest.raises(ZeroDivisionError), tt.capture(None, HERE + "pair.*"):
        raise ZeroDivisionError
    assert pair.__code__ is before


def test_what_did_not_come_is_told_with_the_reason():
    names = [
        "attention.masked",
        "factorial.n",
        "raising",
        "pair@3",
        "copied.kept['k']",
        "scaled.product.grad",
    ]
    with tt.capture(None, *(HERE + name for name in names)) as cap:
        attention(Q, Q)
        pair(1)
        copied(1)
        scaled(torch.ones(1), torch.ones(1))
        with pytest.raises(KeyError):
            raising(1)
    line = attention.__code__.co_firstlineno + 3
    assert [reason for _, reason in cap.missing] == [
        f"not bound: test_capture_functions.py:{line} did not run",
        "factorial() was not called while it was captured",
        "raising() was called and has not returned: it raised, or goes on",
        "it was called once in a step",
        "it has no ['k']; it has [0]",
        "nothing it was computed from requires a gradient",
    ]
    with pytest.raises(tt.UnknownNameError, match="was selected but gave no record: factorial"):
        cap[HERE + "factorial.n"]


def test_a_name_that_needs_a_model_is_missing_without_one():
    with tt.capture(None, "layers.0", "tapped") as cap:
        tt.tap(1, "tapped")
    assert cap.missing == [
        ("layers.0", "there is no model to find it in; a variable of a function is called 'pkg.mod:func.var'")
    ]


def test_sites_show_what_a_function_has_and_the_lines_that_bind_it():
    found = tt.sites(None, HERE + "attention", HERE + "attention.*")
    assert [name.removeprefix(HERE) for name in found.names] == [
        "attention", "attention.q", "attention.k", "attention.mask",
        "attention.scores", "attention.masked", "attention.cache",
    ]  # fmt: skip
    line = attention.__code__.co_firstlineno
    shown = repr(found).splitlines()
    assert shown[0] == "7 sites of 1 function"
    assert f"argument  test_capture_functions.py:{line}, {line + 5}" in shown[3]
    assert f"local     test_capture_functions.py:{line + 1}, {line + 4}, {line + 7}" in repr(found)
    assert "<td>local</td>" in found._repr_html_()
    both = repr(tt.sites(Model(), "inner", HERE + "pair.x")).splitlines()
    assert both[0] == "1 site of 1 module"
    assert "1 site of 1 function" in both
    with pytest.raises(tt.UnknownNameError, match="'layers' names no function"):
        tt.sites(None, "layers")


# Names that lead nowhere


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("atention.q", "the module '{here}' has no 'atention'; did you mean 'attention'?"),
        ("attention.score", "attention has no variable 'score'; did you mean 'scores'? It has 6"),
        ("attention.q#2", "attention binds 'q' at #0 to #1; there is no 'q#2'"),
        ("pair.x#1", "pair binds 'x' at #0 alone; there is no 'x#1'"),
        ("pair.x#last", "pair binds 'x' at #0 alone; there is no 'x#last'"),
        ("Base", "'Base' is a class; add a method of it; it has 'size', 'made', 'plain', 'Inner'"),
        ("Base.sise.x", "the class '{here}:Base' has no 'sise'; did you mean 'size'?"),
        ("np.sum", "'np' is a module; write 'numpy:...'"),
        ("Q", "'Q' is a ndarray, which has no Python code to look into"),
        ("nothing*.x", "has no 'nothing*'; it has 'Pair', 'attention', "),
        ("attention.zzz", "attention has no variable 'zzz'; it has 'q', 'k', "),
    ],
)
def test_the_part_that_is_unknown_is_named_with_the_nearest(name, told):
    for model in (None, Model()):
        with pytest.raises(tt.UnknownNameError) as failure:
            tt.capture(model, HERE + name)
        assert told.format(here=HERE[:-1]) in str(failure.value)


def test_an_unknown_module_is_told_and_one_that_fails_to_import_too(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "tapped_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "broken.py").write_text("import nowhere_to_be_found")
    (package / "whole.py").write_text("def double(x):\n    y = x * 2\n    return y\n")
    with pytest.raises(tt.UnknownModuleError, match=r"there is no Python module 'no_such\.mod'"):
        tt.capture(None, "no_such.mod:f.x")
    with pytest.raises(tt.UnknownModuleError, match=r"did you mean 'tapped_package\.whole'"):
        tt.capture(None, "tapped_package.whale:double.y")
    with pytest.raises(tt.UnknownModuleError) as failure:
        tt.capture(None, "tapped_package.broken:f.x")
    assert str(failure.value) == (
        "the module 'tapped_package.broken' could not be imported: "
        "ModuleNotFoundError: No module named 'nowhere_to_be_found'"
    )
    with tt.capture(None, "tapped_package.whole:double.y") as cap:
        sys.modules["tapped_package.whole"].double(4)
    assert cap["tapped_package.whole:double.y"] == 8
    for name in ("tapped_package.whole", "tapped_package"):
        del sys.modules[name]


def test_what_cannot_be_combined_is_refused():
    for options, told in (
        ({"stop": True}, "stop=True leaves the forward"),
        ({"compiled": "graph"}, "compiled graph"),
    ):
        for model in (None, Model()):
            with pytest.raises(ValueError, match=told):
                tt.capture(model, HERE + "pair.x", **options)
    with pytest.raises(TypeError, match="the names of variables are texts"):
        tt.capture(pair, lambda site: True)
    with pytest.raises(TypeError, match=r"a type is no model.*'pkg.mod:func.var'"):
        tt.capture(Base, "size")
    with pytest.raises(ValueError, match="is inside of a function; outputs, inputs"):
        tt.edit(Model(), {HERE + "pair.x": 3})


def run(folder, code, *options):
    (folder / "program.py").write_text(textwrap.dedent(code))
    command = [sys.executable, "-W", "error", *(options or ["program.py"])]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.process
def test_the_functions_of_the_program_itself_are_those_of_main_and_it_never_runs_twice(tmp_path):
    done = run(
        tmp_path,
        """
        import sys
        sys.modules["torch"] = None
        import numpy as np
        import tensortap as tt
        print("once")
        def double(x):
            y = x * 2
            return y
        with tt.capture(None, "__main__:double.y", "__main__:double") as cap:
            double(np.ones(2))
        assert cap["__main__:double.y"].tolist() == [2, 2]
        print(cap)
        try:
            tt.capture(None, "program:double.y")
        except tt.UnknownModuleError as error:
            print(error)
        try:
            tt.capture(None, "__main__:double.y.grad")
        except tt.MissingExtraError as error:
            print(error)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("once") == 1
    assert "'program' is the program itself, which must not run twice; write '__main__:...'" in done.stdout
    assert "'__main__:double.y.grad' is a gradient, which needs torch: pip install" in done.stdout


@pytest.mark.process
def test_capturing_a_function_imports_no_torch(tmp_path):
    done = run(
        tmp_path,
        """
        import sys, json
        import tensortap as tt
        with tt.capture(None, "json:loads.s") as cap:
            json.loads("3")
        assert cap["json:loads.s"] == "3"
        assert cap.missing == []
        print(repr(cap), tt.sites(None, "json:loads.*"))
        assert "torch" not in sys.modules
        """,
    )
    assert done.returncode == 0, done.stderr


def test_switched_off_nothing_is_looked_up(monkeypatch):
    monkeypatch.setenv("TENSORTAP", "0")
    before = pair.__code__
    with tt.capture(None, "no_such.mod:f.x") as cap, tt.capture(pair):
        assert pair.__code__ is before
    assert len(cap) == 0
