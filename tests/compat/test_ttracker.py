"""Tensor Tracker under its own names: the page's examples, everyday code, other processes, and bad input."""

# ruff: noqa: RET504, B007

import asyncio
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.proof import sampled

import tensortap as tt
from tensortap.compat import ttracker
from tensortap.compat.ttracker import _log_change, auto_diff, h4logger, log2file, logger, var_tracker
from tensortap.core.errors import WriteFailedError

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
# Read here because every test starts without the variables of this package.
REWRITES = os.environ.get("TENSORTAP_GOLDEN") == "write"
EXAMPLES = re.findall(
    r"^@example\ndef (\w+)", (HERE / "tracked.py").read_text(encoding="utf-8"), re.MULTILINE
)
# Lines of the standard library and of torch move with their versions.
THEIRS = re.compile(r"\b((?:events|base_events|threading|module)\.py|_run|run|_call_impl):\d+")


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture
def lines(monkeypatch):
    handler = Lines()
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    return handler.texts


@pytest.fixture(autouse=True)
def nothing_of_the_tracker_stays():
    yield
    assert sys.gettrace() is None
    assert threading.gettrace() is None
    assert [one for one in logger.handlers if not type(one).__module__.startswith("_pytest")] == []


def python(code, folder, **environment):
    """Run a few lines as a program of their own; gives what it wrote to stderr."""
    (folder / "program.py").write_text(textwrap.dedent(code), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="session")
def trees():
    """What every example has written, by its name."""
    done = subprocess.run(
        [sys.executable, "-W", "error", HERE / "tracked.py"],
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8", "TENSORTAP_STRICT": "1"},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(part.split("\n", 1) for part in done.stderr.split("== ")[1:])


@pytest.mark.process
@pytest.mark.parametrize("name", EXAMPLES)
def test_everyday_code_looks_as_it_was_approved(trees, name):
    shown, file = THEIRS.sub(r"\1:0", trees[name]), GOLDEN / "tracked" / f"{name}.txt"
    if REWRITES:
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


def test_every_golden_file_has_its_example():
    assert sorted(file.stem for file in (GOLDEN / "tracked").iterdir()) == sorted(EXAMPLES)


def test_the_names_are_in_the_front_door_and_in_the_face():
    for name in ttracker.__all__:
        assert getattr(tt, name) is getattr(ttracker, name)
    assert set(ttracker.__all__) - set(tt.__all__) == {"_log_change"}  # `import *` leaves it out


def test_the_forward_hook_of_the_page_runs_as_printed(lines, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ttracker", ttracker)
    model_executable = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.LSTM(3, 4))

    def check_hook(module, input, output):
        from ttracker import _log_change

        _log_change(f"{module.__class__.__name__}", "input", input, "", 0)
        _log_change(f"{module.__class__.__name__}", "output", output, "", 0)

    print(model_executable)
    for _name, layer in model_executable.named_modules():
        layer.register_forward_hook(check_hook)
    model_executable(torch.ones(5, 2))
    assert lines[:3] == [
        "├─ Linear [Var] input@0 len(value): 1",
        "├─ Linear [Tensor] input[0]@0 → shape=torch.Size([5, 2]) | dtype=torch.float32",
        "├─ Linear [Tensor] output@0 → shape=torch.Size([5, 3]) | dtype=torch.float32",
    ]
    assert "├─ LSTM [Tensor] output[1][0]@0 → shape=torch.Size([1, 4]) | dtype=torch.float32" in lines


def test_a_line_by_hand_takes_dictionaries_an_indent_a_line_and_statistics(lines):
    _log_change("", "batch", {"x": np.ones(2)}, "│   ", 7, stats=True)
    assert lines == [
        "│   ├─ [Var] batch@7 len(value): 1",
        "│   ├─ [Tensor] batch['x']@7 → shape=(2,) | dtype=float64 | min=1.00 max=1.00 mean=1.00 norm=1.41",
    ]


def test_the_log_file_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LTAG", "mine")
    handler, xxx = h4logger(), 5
    logger.addHandler(handler)
    try:
        log2file(f"xx is {xxx}")
        auto_diff(lambda x: x)(1)
    finally:
        logger.removeHandler(handler)
        handler.close()
    file = tmp_path / "logs" / "mine" / f"process_{os.getpid()}_thread_{threading.get_ident()}.log"
    said = file.read_text().splitlines()
    assert said[0] == "xx is 5"
    assert said[-1] == "│   └─ output value: 1"
    assert capsys.readouterr().err == ""


@pytest.mark.process
def test_log2file_makes_its_own_handler_and_leaves_the_tree_on_stderr(tmp_path):
    said = python(
        """
        from tensortap import auto_diff, log2file, logger
        log2file("hello")
        auto_diff(lambda: 1)()
        assert logger.handlers == []
        """,
        tmp_path,
    )
    assert "output value: 1" in said
    (file,) = (tmp_path / "logs" / "NOTAG").iterdir()
    assert file.read_text() == "hello\n"


def test_a_log_file_that_cannot_be_written_is_refused_at_the_door(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("logs").write_text("")
    with pytest.raises(WriteFailedError, match="cannot write log files"):
        h4logger()


WORKERS = """
    import torch
    from tensortap import auto_diff

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        @auto_diff
        def __getitem__(self, index):
            x = torch.full((2,), float(index + 1))
            x = self.double(x)
            return x

        def double(self, x):
            y = x * 2
            return y

    if __name__ == "__main__":
        loader = torch.utils.data.DataLoader(Data(), 2, num_workers=2, multiprocessing_context="METHOD")
        total = sum(batch.sum().item() for batch in loader)
        assert total == 312, total
"""


@pytest.mark.process
@pytest.mark.parametrize("method", sampled(["fork", "spawn"], ["fork"]))
def test_two_workers_of_a_loader_write_whole_blocks_with_their_pids(tmp_path, method):
    said = python(WORKERS.replace("METHOD", method), tmp_path)
    blocks = ["┌── [" + block for block in ("\n" + said).split("\n┌── [")[1:]]
    assert len(blocks) == 12
    assert len({re.search(r"  pid (\d+)", block)[1] for block in blocks}) == 2
    shapes = {re.sub(r"\d+", "0", block.split("\n", 1)[1].rstrip()) for block in blocks}
    assert len(shapes) == 1, shapes
    assert sorted(int(re.search(r"index@0 value: (\d+)", block)[1]) for block in blocks) == list(range(12))


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=50,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def test_a_generate_loop_is_followed_into_the_model_and_gives_the_same_tokens(lines):
    model, ids = llama(), torch.tensor([[3, 4, 5]])

    def generate(model, ids):
        out = model.generate(ids, max_new_tokens=3, do_sample=False)
        return out

    watched = auto_diff(follow="transformers.models.llama*", max_depth=4)(generate)
    assert torch.equal(watched(model, ids), generate(model, ids))
    text = "\n".join(lines)
    assert "function [LlamaAttention.forward]" in text
    assert "[Tensor] query_states@" in text
    assert text.count("function [LlamaForCausalLM.forward]") <= 3
    assert lines[-1].endswith("output shape=torch.Size([1, 6])")
    assert "!" not in text


def test_a_loop_written_by_hand_around_a_model_stays_outside_of_it(lines):
    model = llama()

    @auto_diff
    def generate(ids, n):
        for _ in range(n):
            logits = model(ids).logits[:, -1]
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], -1)
        return ids

    with torch.inference_mode():
        generate(torch.tensor([[3, 4]]), 2)
    assert "Llama" not in "\n".join(lines)
    assert [line.split("→ ")[1] for line in lines if " ids@" in line][-1].startswith(
        "shape=torch.Size([1, 4])"
    )


def test_trees_of_many_threads_are_whole(lines):
    barrier = threading.Barrier(4)

    @auto_diff
    def work(n):
        barrier.wait(30)
        x = torch.ones(n)
        barrier.wait(30)
        return x.sum()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    blocks = "\n".join(lines).split("┌── ")[1:]
    assert len(blocks) == 4
    for block in blocks:
        n = int(re.search(r"n@0 value: (\d)", block)[1])
        assert f"x@{work.__wrapped__.__code__.co_firstlineno + 3} → shape=torch.Size([{n}])" in block
        assert "output" in block


def test_tasks_of_an_event_loop_are_not_mixed_and_other_tasks_are_not_followed(lines):
    other = []

    async def bystander():
        for _ in range(5):
            noise = len(other)
            other.append(noise)
            await asyncio.sleep(0)

    @auto_diff
    async def work(name):
        for turn in range(2):
            await asyncio.sleep(0)
        return f"{name}{turn}"

    async def main():
        await asyncio.gather(work("a"), bystander(), work("b"))

    asyncio.run(main())
    assert "noise" not in "\n".join(lines)
    assert [line for line in lines if "output" in line] == [
        "│   └─ output value: 'a1'",
        "│   └─ output value: 'b1'",
    ]
    first = lines.index("│   └─ output value: 'a1'")
    assert all("'b'" not in line for line in lines[:first])


def test_nothing_stays_in_the_function_after_a_call(lines):
    def work(x):
        return x

    code = work.__code__
    watched = auto_diff(work)
    watched(1)
    assert (work.__code__, watched.__wrapped__, watched.__name__, watched.__doc__) == (
        code,
        work,
        "work",
        None,
    )
    assert sys.gettrace() is None


def test_a_trace_function_of_another_tool_goes_on(lines):
    seen = []

    def theirs(frame, event, argument):
        seen.append(event)
        return theirs

    @auto_diff
    def work(x):
        y = x + 1
        return y

    sys.settrace(theirs)
    try:
        work(1)
        assert sys.gettrace() is theirs
    finally:
        sys.settrace(None)
    assert "line" in seen
    assert len(lines) == 4


def test_disable_makes_decorated_functions_run_plainly_until_enable(lines):
    @auto_diff
    def work(x):
        return x

    @var_tracker("y")
    def other(x):
        y = x
        return y

    auto_diff.disable()
    try:
        assert (work(1), other(1)) == (1, 1)
        assert lines == []
    finally:
        auto_diff.enable()
    work(1)
    other(1)
    assert len(lines) == 3 + 4


def test_switched_off_the_decorator_gives_the_function_itself(lines, monkeypatch):
    monkeypatch.setenv("TENSORTAP", "0")

    def work(x):
        return x

    assert auto_diff(work) is tt.watch("x")(work) is var_tracker("x")(work) is work
    _log_change("", "x", 1)
    log2file("never")
    assert lines == []


def test_watch_is_both_decorators_under_one_name(lines):
    @tt.watch
    def plain(x):
        y = x + 1
        return y

    @tt.watch("mask.shape")
    def chosen(x):
        y = mask = x + 1
        mask = mask[None]
        return y, mask

    plain(1)
    assert "y@" in lines[2]
    lines.clear()
    chosen(torch.ones(2))
    assert [line.split("[Var] ")[1].split("@")[0] for line in lines if "mask" in line] == ["mask.shape"] * 2
    assert "torch.Size([1, 2])" in "\n".join(lines)


def test_the_records_also_flow_into_a_tap_of_the_users(lines, tmp_path):
    memory, lock = tt.Memory(), threading.Lock()

    @auto_diff(tap=(tap := tt.Tap(sinks=[memory, tt.RunDirectory(tmp_path / "run")])))
    def work(x, lock):
        y = x + 1
        parts = {"y": y, "lock": lock}
        return parts["y"]

    with tap:
        work(torch.ones(2), lock)
    found = {
        record.name.rpartition(".")[2]: record.value for record in memory.records if record.kind == "local"
    }
    assert found["y"].tolist() == [2, 2]
    assert found["parts"]["lock"] == "<unlocked _thread.lock object>"
    run = tt.Run(tmp_path / "run")
    name = next(name for name in run.names if name.endswith("work.y"))
    assert tt.compare(run.load(name), torch.full((2,), 2.0))
    assert len(lines) == 7


@pytest.mark.process
def test_a_target_that_never_appears_is_said_once_at_exit_with_the_names_that_did(tmp_path):
    said = python(
        """
        from tensortap import var_tracker
        @var_tracker("vdieo", "audio")
        def work(video):
            audio = video + 1
            return audio
        @var_tracker("nothing")
        def never_called():
            pass
        work(1), work(2)
        """,
        tmp_path,
    )
    told = [line for line in said.splitlines() if "never appeared" in line]
    assert told == [
        "'vdieo' never appeared in the watched calls; did you mean 'video'? seen were video, audio"
    ]


@pytest.mark.parametrize("given", [5, "name", None, [len]], ids=["5", "name", "none", "list"])
def test_what_cannot_be_called_is_refused(given):
    with pytest.raises(TypeError, match=r"follow|watch"):
        auto_diff()(given)


@pytest.mark.parametrize(
    "given", [len, torch.add, np.add, int.__add__], ids=["len", "torch", "ufunc", "slot"]
)
def test_what_has_no_python_code_is_refused(given):
    with pytest.raises(TypeError, match=r"Python"):
        auto_diff(given)


@pytest.mark.parametrize(
    ("make", "told"),
    {
        "depth": (lambda: auto_diff(max_depth=-1), "max_depth is a number from 0 upwards, not -1"),
        "items": (lambda: tt.watch(max_items="8"), "max_items is a number from 0 upwards, not '8'"),
        "tap": (lambda: auto_diff(tap=5), "tap is a tt.Tap, not 5"),
        "follow": (lambda: tt.watch(follow=[1]), "follow is a module name, several of them, or True"),
        "target": (lambda: auto_diff(targets=[1]), "takes names of variables such as"),
        "bare": (
            lambda: var_tracker(len),
            r"var_tracker takes names of variables, .*@var_tracker\('video'\)",
        ),
        "empty": (lambda: var_tracker(), "var_tracker needs the name of a variable"),
        "both": (lambda: tt.watch(len, "x"), "write @tt.watch above the function"),
    }.values(),
    ids=["depth", "items", "tap", "follow", "target", "bare", "empty", "both"],
)
def test_a_wrong_option_is_refused_where_it_is_written(make, told):
    with pytest.raises((TypeError, ValueError), match=told):
        make()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated:DeprecationWarning")
def test_a_program_that_torch_writes_down_has_nothing_of_ours_in_it(lines):
    def work(x):
        y = x * 2
        return y.sum()

    plain = torch.jit.trace(work, (torch.ones(3),), check_trace=False)
    watched = torch.jit.trace(auto_diff(work), (torch.ones(3),), check_trace=False)
    assert [node.kind() for node in watched.graph.nodes()] == [node.kind() for node in plain.graph.nodes()]
    assert "y@" in "\n".join(lines)


@pytest.mark.compile
def test_in_compiled_code_a_watched_function_is_run_as_it_is_written(lines):
    @auto_diff
    def inner(x):
        y = x * 2
        return y

    compiled = torch.compile(lambda x: inner(x) + 1, backend="eager")
    assert [compiled(torch.ones(2)).tolist() for _ in range(2)] == [[3, 3], [3, 3]]
    assert "\n".join(lines).count("y@") == 2


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad], ids=["vmap", "grad"])
def test_under_a_function_transform_values_are_told_as_the_function_sees_them(lines, transform):
    @auto_diff
    def work(x):
        y = x * 2
        return y.sum()

    x = torch.ones(2, 3) if transform is torch.func.vmap else torch.ones(3)
    assert torch.equal(transform(work)(x), transform(work.__wrapped__)(x))
    assert lines[2].split("→ ")[1] == "shape=torch.Size([3]) | dtype=torch.float32"


def test_a_lambda_and_a_partial_chain_can_be_watched(lines):
    assert auto_diff(lambda x: x + 1)(1) == 2
    assert "function [test_a_lambda_and_a_partial_chain_can_be_watched.<locals>.<lambda>]" in lines[0]


class Hostile:
    def __repr__(self):
        raise RuntimeError("no")

    def __eq__(self, other):
        raise RuntimeError("no")

    def __hash__(self):
        raise RuntimeError("no")

    def __bool__(self):
        raise RuntimeError("no")

    def __getattr__(self, name):
        raise RuntimeError("no")

    def __iter__(self):
        raise RuntimeError("no")


def test_hostile_objects_break_nothing(lines):
    @auto_diff
    def work(thing):
        again = thing
        box = [again, {1: thing}, {2}]
        again = 5
        return box

    found = work(Hostile())
    assert len(found) == 3
    assert "again@" in "\n".join(lines)


def test_a_repr_that_needs_a_lock_of_another_watched_thread_does_not_hang(lines):
    lock, inside = threading.Lock(), threading.Event()

    class Locked:
        def __repr__(self):
            inside.set()
            with lock:
                return "locked"

    @auto_diff
    def slow(thing):
        return 1

    @auto_diff
    def quick(x):
        y = x + 1
        return y

    with lock:
        thread = threading.Thread(target=slow, args=(Locked(),), daemon=True)
        thread.start()
        assert inside.wait(30)
        done = threading.Event()
        other = threading.Thread(target=lambda: (quick(1), done.set()), daemon=True)
        other.start()
        assert done.wait(10), "the other thread waits for the lock of the tap"
    thread.join()
    other.join()
