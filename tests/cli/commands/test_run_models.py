"""`tensortap run` of programs with models, as strangers wrote them."""

import collections
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.proof import sampled

import tensortap as tt
from tensortap.readers.listing import summarize_run

pytestmark = pytest.mark.process

TENSORTAP = str(Path(sys.executable).with_name("tensortap"))
EXAMPLES = Path(__file__).parents[3] / "examples" / "unedited"
Done = subprocess.CompletedProcess[str]

SEVERAL = """
import copy, torch
from torch import nn

def layers(narrow, wide):
    return nn.Sequential(nn.Linear(narrow, 8), nn.ReLU(), nn.Linear(8, wide))

class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = layers(2, 3)

    def forward(self, noise):
        return self.net(noise)

class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = layers(3, 1)

    def forward(self, made):
        return self.net(made)

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = layers(2, 2), layers(2, 2)

    def forward(self, x):
        return self.decoder(self.encoder(x))

torch.manual_seed(0)
generator, critic = Generator(), Critic()
optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (critic, generator)]
for number in range(3):
    for optimizer, is_fixed in zip(optimizers, (True, False)):
        made = generator(torch.randn(4, 2))
        critic(made.detach() if is_fixed else made).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
average = copy.deepcopy(generator)
average(torch.randn(1, 2))
whole = Whole()
whole.encoder(torch.randn(1, 2))
whole(torch.randn(1, 2))
compiled = torch.compile(Critic(), backend="eager", fullgraph=True)
compiled(torch.randn(2, 3))
print(sum(float(one.detach().sum()) for one in generator.parameters()), torch.rand(1).item())
"""


def run(folder: Path, *words: str, **variables: str) -> Done:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., Done]:
    def watch(code: str, *options: str, **variables: str) -> Done:
        (tmp_path / "program.py").write_text(textwrap.dedent(code))
        return run(tmp_path, TENSORTAP, "run", *options, "--", sys.executable, "program.py", **variables)

    return watch


def runs(folder: Path) -> list[tt.Run]:
    return [tt.Run(one) for one in sorted((folder / "runs").iterdir()) if not one.name.startswith(".")]


def the_run(folder: Path) -> tt.Run:
    (found,) = runs(folder)
    return found


def counts(run: tt.Run) -> dict[Any, int]:
    return dict(collections.Counter((one.name, one.step) for one in run))


def program_of(run: tt.Run) -> dict[str, Any]:
    return json.loads((run.path / ".tensortap" / "program.json").read_text())


def test_a_transformers_loop_is_captured_and_prints_what_it_prints_without(tmp_path):
    script = [sys.executable, str(EXAMPLES / "generate.py")]
    options = ["--tap", "transformer.h.*.mlp", "--locals", "transformer.h.0.forward.attn_output"]
    plain = run(tmp_path, *script)
    done = run(tmp_path, TENSORTAP, "run", "-q", *options, "--", *script)
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)
    found = counts(the_run(tmp_path))
    assert {name for name, _ in found} == {
        "transformer.h.0.mlp",
        "transformer.h.1.mlp",
        "transformer.h.0.forward.attn_output",
    }
    # Three steps of the optimizer, and five forwards after the last one.
    assert [found["transformer.h.1.mlp", step] for step in range(4)] == [1, 1, 1, 5]
    facts = json.loads((the_run(tmp_path).path / "packages.json").read_text())["packages"]
    assert {"torch", "transformers"} <= set(facts)


def test_a_trainer_of_transformers_counts_its_optimizer_steps(tmp_path):
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate, which is not installed")
    script = [sys.executable, str(EXAMPLES / "trainer.py")]
    done = run(tmp_path, TENSORTAP, "run", "--tap", "transformer.h.1.mlp", "--", *script)
    assert done.returncode == 0, done.stderr
    # Gradients of two batches are accumulated for each step.
    assert counts(the_run(tmp_path)) == {("transformer.h.1.mlp", step): 2 for step in range(3)}


def test_several_models_copies_and_wrappers_are_told_apart_and_change_nothing(watched, tmp_path):
    done = watched(SEVERAL, "-q", "--tap", "**.net", "--tap", "encoder", "--tap", "Critic.net.0")
    plain = run(tmp_path, sys.executable, "program.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)
    found = counts(the_run(tmp_path))
    assert found == {
        **{(name, step): 2 for name in ("net", "Critic.net", "Critic.net.0") for step in range(3)},
        ("Generator.net", 3): 1,  # the copy
        ("Whole.encoder", 3): 1,  # the call of the part alone came before the whole was known
        ("Critic_2.net", 3): 1,
    }
    (process,) = program_of(the_run(tmp_path))["processes"]
    assert [one["label"] for one in process["models"]] == ["", "Critic", "Generator", "Whole", "Critic_2"]
    assert process["models"][0]["called_at"].endswith("program.py:37")
    assert process["steps"] == 3


def test_without_a_tap_a_model_is_met_once_and_torch_is_left_as_it_was(watched, tmp_path):
    done = watched("""
        import sys, torch
        from torch import nn
        before = nn.Module.__call__
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        print(vars(nn.Module)["__call__"] is before, len(model._forward_pre_hooks), len(model._forward_hooks))
        print([one for one in sys.meta_path if "tensortap" in repr(type(one))])
    """)
    assert done.stdout == "True 0 0\n[]\n"
    assert "4 steps" in done.stderr
    found = program_of(the_run(tmp_path))
    assert [one["class"] for one in found["processes"][0]["models"]] == ["Linear"]
    assert len(the_run(tmp_path)) == 0
    environment = json.loads((the_run(tmp_path).path / ".tensortap" / "environment.json").read_text())
    assert "initial_seed" in environment["randomness"]["torch"]


def test_without_an_optimizer_each_forward_is_a_step_and_the_programs_own_word_is_stronger(watched, tmp_path):
    done = watched(
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        for number in range(4):
            model(torch.full((1, 2), float(number)))
        import tensortap as tt
        tt.step(70)
        model(torch.ones(1, 2))
        """,
        *("--tap", "0.in", "--every", "2"),
    )
    assert done.returncode == 0, done.stderr
    series = the_run(tmp_path).series("0.in.input")
    assert series.steps == [0, 2, 70]
    assert [float(value[0, 0]) for value in series.values] == [0, 2, 1]


def test_the_traceback_of_a_failing_forward_has_no_frame_of_ours(watched, tmp_path):
    code = """
        import torch
        class Failing(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(2, 2)
            def forward(self, x):
                return self.linear(x) + no_such_name
        Failing()(torch.ones(1, 2))
    """
    done = watched(code, "-q", "--tap", "linear")
    assert done.returncode == 1
    assert "tensortap" not in done.stderr.replace(sys.prefix, "")
    assert done.stderr.endswith("NameError: name 'no_such_name' is not defined\n")
    assert the_run(tmp_path).names == ["linear"]


def test_children_that_train_write_to_the_same_run(watched, tmp_path):
    done = watched(
        """
        import multiprocessing, torch

        def work(number):
            torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.full((1, 2), float(number)))

        if __name__ == "__main__":
            for number, way in enumerate(("spawn", "fork")):
                process = multiprocessing.get_context(way).Process(target=work, args=(number,))
                process.start()
                process.join()
        """,
        *("--tap", "0.in"),
    )
    assert done.returncode == 0, done.stderr
    found = the_run(tmp_path)
    assert sorted(float(one.load()[0, 0]) for one in found) == [0, 1]
    assert len(program_of(found)["processes"]) == 2


def test_children_forked_after_the_model_was_met_are_counted_and_end_well(watched, tmp_path):
    done = watched(
        """
        import multiprocessing, os, sys, torch
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))

        def work():
            model(torch.ones(1, 2))

        work()
        process = multiprocessing.get_context("fork").Process(target=work)
        process.start()
        process.join()
        if os.fork() == 0:
            work()
            sys.exit()
        os.wait()
        """,
        *("--tap", "0"),
    )
    assert done.returncode == 0, done.stderr
    found = the_run(tmp_path)
    assert len(found) == 3
    assert ": 3 records, " in done.stderr
    assert [one["records"] for one in program_of(found)["processes"]] == [1, 1, 1]
    assert summarize_run(found.path).state == "finished"


def test_records_of_a_child_that_tells_nothing_are_counted_with_those_of_its_parent(watched, tmp_path):
    done = watched(
        """
        import os, pathlib, torch
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        child = os.fork()
        model(torch.ones(1, 2))
        if child == 0:
            rows = 0
            while rows < 2:
                indexes = pathlib.Path("runs").glob("*/.tensortap/index-*")
                rows = sum(one.read_bytes().count(b'\\n["0"') for one in indexes)
            os._exit(3)
        os.wait()
        """,
        *("--tap", "0"),
    )
    assert len(the_run(tmp_path)) == 2
    assert ": 2 records, " in done.stderr


_JIT = ["torch.jit.script(model)", "torch.jit.trace(model, x)"]


@pytest.mark.parametrize("way", sampled(_JIT, _JIT[:1]))
@pytest.mark.parametrize("first", sampled(["", "model(x)"], ["model(x)"]))
def test_a_model_that_is_scripted_or_traced_is_let_go_of(watched, tmp_path, way, first):
    done = watched(
        f"""
        import torch
        model, x = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()), torch.ones(1, 2)
        {first}
        print({way}(x).shape)
        """,
        *("--tap", "0"),
    )
    assert (done.returncode, done.stdout) == (0, "torch.Size([1, 2])\n"), done.stderr
    assert len(the_run(tmp_path)) == bool(first)
    if first:
        assert "nothing more came from Sequential: it was given to torch.jit" in done.stderr


def test_values_that_are_none_are_told_and_cost_no_other(watched, tmp_path):
    done = watched(
        """
        import torch
        model, x = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.ones(1, 2)
        model(x)
        torch.export.export(model, (x,))
        model(x)
        """,
        *("--tap", "0"),
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "a value of 0 is left out: a fake tensor of shape [1, 2] has no values" in done.stderr
    assert len(the_run(tmp_path)) == 2


THREADS = """
    import threading, torch
    import tensortap as tt
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    together = threading.Barrier(3)

    def work():
        together.wait()
        for _ in range(20):
            %s

    threads = [threading.Thread(target=work) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
"""


@pytest.mark.parametrize("line", ["model(torch.ones(1, 2))", "tt.tap(torch.ones(2), '0')"])
def test_what_threads_begin_with_at_once_is_kept_once(line, watched, tmp_path):
    done = watched(THREADS % line, "--tap", "0")
    assert done.returncode == 0, done.stderr
    assert (len(the_run(tmp_path)), program_of(the_run(tmp_path))["records"]) == (60, 60)


_SUDDEN_ENDS = ["os.kill(os.getpid(), signal.SIGTERM)", "os._exit(3)"]


@pytest.mark.parametrize("end", sampled(_SUDDEN_ENDS, _SUDDEN_ENDS[:1]))
def test_of_a_program_that_could_tell_nothing_the_records_are_counted(watched, tmp_path, end):
    done = watched(
        f"""
        import os, pathlib, signal, torch
        torch.nn.Sequential(torch.nn.Linear(2, 2))(torch.ones(1, 2))
        runs = pathlib.Path("runs")
        while not any(b'\\n["0"' in one.read_bytes() for one in runs.glob("*/.tensortap/index-*")):
            pass
        {end}
        """,
        *("--tap", "0"),
    )
    assert done.returncode in (-15, 3)
    assert "selected nothing" not in done.stderr
    assert "ended before it could tell what was selected" in done.stderr
    assert f": {len(the_run(tmp_path))} record" in done.stderr
    assert program_of(the_run(tmp_path))["records"] == len(the_run(tmp_path))


def test_what_selects_nothing_is_told_once_with_the_nearest_names_and_what_is_missing_with_its_reason(
    watched, tmp_path
):
    done = watched(
        """
        import torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.encoder, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
            def forward(self, x):
                return self.encoder(x)
        Net()(torch.ones(1, 2))
        """,
        *("--tap", "encodr", "--tap", "unused"),
    )
    assert "'encodr' selected nothing; did you mean 'encoder'" in done.stderr
    assert done.stderr.count("encodr") == 1
    assert "nothing came from unused: not called" in done.stderr


def test_statistics_alone_can_be_kept_of_values_that_are_not_finite(watched, tmp_path):
    done = watched(
        """
        import torch
        model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Linear(2, 2))
        for value in (1.0, float("nan"), 2.0):
            model(torch.full((1, 2), value))
        """,
        *("--tap", "0", "--keep", "stats", "--when", "nonfinite"),
    )
    assert done.returncode == 0, done.stderr
    (stored,) = the_run(tmp_path)
    assert (stored.name, stored.step) == ("0", 1)
    assert stored.load().is_finite is False


def test_a_model_that_the_program_lets_go_of_is_gone(watched):
    done = watched(
        """
        import gc, torch, weakref
        for _ in range(3):
            model = torch.nn.Sequential(torch.nn.Linear(2, 2))
            gone = weakref.ref(model)
            model(torch.ones(1, 2))
            del model
            gc.collect()
            print(gone())
        """,
        *("--tap", "0"),
    )
    assert done.stdout == "None\n" * 3, done.stderr


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="tt", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def test_with_live_a_session_attaches_to_the_unedited_program(runtime, tmp_path):
    (tmp_path / "served.py").write_text("""
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(2, 2))
model(torch.ones(1, 2))
print("ready", flush=True)
for line in sys.stdin:
    model(torch.ones(1, 2))
    print("stepped", flush=True)
""")
    process = subprocess.Popen(
        [TENSORTAP, "run", "--live", "--", sys.executable, "served.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        with tt.attach("served") as session:
            tapped = session.tap("0")
            while tapped.latest is None:
                print(file=process.stdin, flush=True)
                assert process.stdout.readline() == "stepped\n"
            assert tapped.latest.name == "0"
    finally:
        process.communicate(timeout=60)
    assert process.returncode == 0
