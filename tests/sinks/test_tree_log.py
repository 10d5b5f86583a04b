"""The tree of calls: what each line says, when it is written, and where."""

import dataclasses
import io
import logging
import multiprocessing
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.core.errors import WriteFailedError
from tensortap.core.record import Record, Site
from tensortap.core.tap import Tap
from tensortap.render.call_tree import MAX_KNOWN_NAMES, CallTree
from tensortap.render.call_tree_values import ENGLISH, ValueFormatter
from tensortap.sinks import tree_writer
from tensortap.sinks.tree_log import TreeLog
from tensortap.sinks.tree_writer import OutputScheduler, TreeFiles, logger

CALLERS = ("getitem@t2v_dataset.py:283", "run@thread.py:57", "start@thread.py:80")


class Lines(logging.Handler):
    """Keeps the text of every line."""

    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def log(**options):
    """With a desk of its own: what one test leaves open must not hold back another's lines."""
    return TreeLog(output=OutputScheduler(), **options)


class Story:
    """Followed calls, as the records of one tree."""

    def __init__(self, sink, tree=1, function="f", file="/home/user/data.py"):
        self.sink, self.tree, self.function, self.file, self.depth = sink, tree, function, file, 0

    def tell(self, kind, name="", value=None, line=0, callers=()):
        site = Site(self.function, self.file, line, self.depth, callers, self.tree)
        self.sink.write(Record(f"{self.function}.{name}" if name else self.function, value, kind, site=site))
        return self

    def call(self, line=10, callers=()):
        return self.tell("call", line=line, callers=callers)

    def input(self, name, value):
        return self.tell("input", name, value)

    def local(self, name, value, line=11):
        return self.tell("local", name, value, line)

    def leave(self, value=None):
        return self.tell("return", value=value, line=99)


@pytest.fixture(autouse=True)
def no_handlers_of_pytests(monkeypatch):
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


@pytest.fixture
def lines(no_handlers_of_pytests):
    handler = Lines()
    logger.addHandler(handler)
    return handler.texts


@pytest.fixture
def story(lines):
    return Story(log())


def values(lines):
    return [line.split("├─ ")[-1] for line in lines]


def test_the_tree_reads_as_the_page_draws_it(lines, monkeypatch):
    monkeypatch.setenv("TENSORTAP_LANG", "zh")
    outer = Story(log(), function="T2VDataset.get_merge_data", file="/x/t2v_dataset.py")
    outer.call(330, CALLERS).input("examples", [{}, {}, {}, {}]).input("index", 113)
    outer.local("sample", dict.fromkeys(range(10)), 335)
    inner = Story(outer.sink, function="Reader.read", file="/x/reader.py")
    inner.depth = 1
    inner.call(570).input("clip_total_frames", 222)
    inner.local("video", np.zeros((7, 4, 6, 3), np.uint8), 572)
    inner.local("video", torch.zeros(7, 4, 6, 3, dtype=torch.uint8), 574)
    inner.local("video", torch.zeros(3, 7, 4, 6), 588).leave(torch.zeros(3, 7, 4, 6))
    outer.leave(torch.zeros(3, 7, 4, 6))
    where = "getitem:283 (t2v_dataset.py:283 <- thread.py:57 <- thread.py:80)"
    assert lines == [
        f"┌── [t2v_dataset.py:330] 函数 [T2VDataset.get_merge_data] 被调用于 {where}",
        "├─ 输入 [Var] examples@0 len(value): 4",
        "├─ 输入 [Var] index@0 value: 113",
        "│   ├─ [Var] sample@335 len(value): 10",
        "│   ┌── [reader.py:570] 函数 [Reader.read]",
        "│   ├─ 输入 [Var] clip_total_frames@0 value: 222",
        "│   │   ├─ [Tensor] video@572 → shape=(7, 4, 6, 3) | dtype=uint8",
        "│   │   ├─ [Tensor] video@574 → shape=torch.Size([7, 4, 6, 3]) | dtype=torch.uint8  ~type",
        "│   │   ├─ [Tensor] video@588 → shape=torch.Size([3, 7, 4, 6]) | dtype=torch.float32  ~shape ~dtype",
        "│   │   └─ 输出 shape=torch.Size([3, 7, 4, 6])",
        "│   └─ 输出 shape=torch.Size([3, 7, 4, 6])",
    ]


def test_labels_are_english_unless_the_setting_or_the_locale_says_chinese(lines, monkeypatch):
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    Story(log(), 1).call().leave()
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    Story(log(), 2).call().leave()
    monkeypatch.setenv("TENSORTAP_LANG", "en")
    Story(log(), 3).call().leave()
    assert [line.split()[-2] for line in lines[::2]] == ["function", "函数", "function"]


def test_the_type_of_an_output_is_told_when_the_line_before_has_not(story, lines):
    story.call().local("x", torch.zeros(2)).leave(torch.zeros(2, dtype=torch.int64))
    assert lines[-1] == "│   └─ output shape=torch.Size([2]) | dtype=torch.int64"


def test_the_device_is_told_when_it_is_not_the_cpu(story, lines):
    story.call().local("x", torch.zeros(2, device="meta"))
    assert lines[-1].endswith("shape=torch.Size([2]) | dtype=torch.float32 | device=meta")


def test_a_change_of_the_values_alone_is_marked_so(story, lines):
    story.call().local("x", torch.zeros(2)).local("x", torch.ones(2), 12)
    assert [line.endswith("~values") for line in lines] == [False, False, True]


def test_a_list_that_grew_and_a_value_of_another_type_are_marked(story, lines):
    story.call().local("x", [{}]).local("x", [{}, {}], 12).local("x", 3.5, 13).local("x", 4.5, 14)
    assert values(lines)[1:] == [
        "[Var] x@11 len(value): 1",
        "[Var] x@12 len(value): 2  ~len",
        "[Var] x@13 value: 3.5  ~type",
        "[Var] x@14 value: 4.5",
    ]


def test_two_calls_of_a_function_are_not_held_against_each_other(story, lines):
    story.call().local("x", torch.zeros(2))
    story.sink.write(Record("f", None, "call", call=1, site=Site("f", "/f.py", 10, 1, (), 1)))
    story.sink.write(Record("f.x", torch.zeros(5), "local", call=1, site=Site("f", "/f.py", 11, 1, (), 1)))
    assert "~" not in lines[-1]


def test_the_first_nan_of_a_tree_is_marked_and_later_ones_are_counted(story, lines):
    odd = torch.zeros(6)
    odd[:3] = torch.nan
    story.call().local("x", torch.ones(6)).local("x", odd, 12).local("y", odd, 13)
    assert lines[2].endswith("| min=0 max=0 mean=0 norm=0  ~values  ! first NaN: 3 of 6")
    assert lines[3].endswith("! NaN: 3 of 6")
    Story(story.sink, 2).call().local("x", np.array([np.inf, 1.0]))
    story.leave()
    assert lines[-1].endswith("! first Inf: 1 of 2")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.complex64])
def test_numbers_whose_sum_overflows_are_finite_all_the_same(story, lines, dtype):
    story.call().local("x", torch.full((70000,), 3e38 if dtype.itemsize > 2 else 6e4, dtype=dtype))
    assert "!" not in lines[-1]


@pytest.mark.parametrize("value", [float("nan"), np.float32("inf"), torch.tensor(float("-inf"))], ids=str)
def test_a_single_number_that_is_none_is_marked_too(story, lines, value):
    story.call().local("x", value)
    assert "! first" in lines[-1]


def test_statistics_come_on_request(lines):
    Story(log(stats=True)).call().local("x", torch.tensor([3.0, 4.0])).local("i", np.arange(3), 12)
    assert lines[1].endswith("| dtype=torch.float32 | min=3.00 max=4.00 mean=3.50 norm=5.00")
    assert lines[2].endswith("| dtype=int64 | min=0 max=2 mean=1.00 norm=2.24")


@pytest.mark.parametrize(
    ("value", "told"),
    {
        "none": (None, "value: None"),
        "text": ("a\nb", r"value: 'a\nb'"),
        "long text": ("x" * 1000, f"value: '{'x' * 40}'… (1000 long)"),
        "huge number": (10**5000, "value: 2^16609+"),
        "short list": ([1, 2], "len(value): 2 | [1, 2]"),
        "short dict": ({"lr": 0.1}, "len(value): 1 | {'lr': 0.1}"),
        "long list": (list(range(73)), "len(value): 73"),
        "set": ({1, 2}, "len(value): 2"),
        "module": (torch.nn.Linear(2, 2), "value: Linear"),
        "object": (threading.Event(), "value: <threading.Event: unset>"),
        "function": (values, "value: <function values>"),
        "range": (range(3), "value: range(0, 3)"),
    }.values(),
    ids=[
        "none",
        "text",
        "long",
        "huge",
        "list",
        "dict",
        "73",
        "set",
        "module",
        "object",
        "function",
        "range",
    ],
)
def test_other_values_are_told_by_length_or_in_a_few_words(story, lines, value, told):
    story.call().local("x", value)
    assert lines[-1] == f"│   ├─ [Var] x@11 {told}"


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(2.5),
        torch.zeros(0, 3),
        torch.zeros(3).expand(2, 3),
        torch.ones(2, 3).t(),
        torch.ones(4, dtype=torch.bool),
        torch.eye(3).to_sparse(),
        torch.ones(2).to(torch.float8_e4m3fn),
        torch.nn.Parameter(torch.ones(2)),
        np.array(["a", None], dtype=object),
        np.ma.masked_array([1.0, 2.0], [True, False]),
        np.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
    ],
    ids=range(11),
)
def test_arrays_of_every_kind_are_told(story, lines, value):
    story.call().local("x", value)
    assert "[Tensor] x@11 → shape=" in lines[-1]
    assert "!" not in lines[-1]


def test_a_tensor_whose_memory_was_freed_is_told_without_touching_it(story, lines):
    freed = torch.ones(1000)
    freed.untyped_storage().resize_(0)
    story.call().local("x", freed)
    assert lines[-1].endswith("shape=torch.Size([1000]) | dtype=torch.float32")


def test_looking_at_a_tensor_leaves_no_trace_on_it(story, lines):
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    with torch.inference_mode(), torch.utils._python_dispatch._disable_current_modes():
        story.call().local("y", y)
    story.local("x", x)
    assert (y._version, x.grad, y.grad_fn.next_functions[0][0].variable is x) == (0, None, True)


def test_the_arrays_in_a_container_have_lines_of_their_own_up_to_a_limit(lines):
    batch = {"video": torch.zeros(2), "ids": [torch.zeros(3), torch.zeros(4)], "n": 5}
    Story(log(max_items=2)).call().input("batch", batch).leave((torch.zeros(1), 2))
    assert lines[1:] == [
        "├─ input [Var] batch@0 len(value): 3",
        "├─ input [Tensor] batch['video']@0 → shape=torch.Size([2]) | dtype=torch.float32",
        "├─ input [Tensor] batch['ids'][0]@0 → shape=torch.Size([3]) | dtype=torch.float32",
        "├─ input … more",
        "│   ├─ output[0] shape=torch.Size([1]) | dtype=torch.float32 | value=0",
        "│   └─ output len(value): 2",
    ]


def test_a_million_items_cost_no_more_than_a_few(story, lines):
    story.call().local("x", [0] * 1_000_000).local("y", dict.fromkeys(range(1_000_000), (1,)), 12)
    assert values(lines)[1:] == ["[Var] x@11 len(value): 1000000", "[Var] y@12 len(value): 1000000"]


class Hostile:
    asked = 0

    def __repr__(self):
        Hostile.asked += 1
        raise RuntimeError("no")

    def __len__(self):
        raise RuntimeError("no")

    __eq__ = __hash__ = None


def test_a_repr_that_raises_is_asked_once_and_breaks_nothing(story, lines):
    Hostile.asked = 0
    story.call().local("x", Hostile()).local("y", Hostile(), 12)
    assert values(lines)[1:] == [
        "[Var] x@11 value: Hostile (its repr raises RuntimeError)",
        "[Var] y@12 value: Hostile",
    ]
    assert Hostile.asked == 1


def test_a_repr_that_takes_long_is_waited_for_once(story, lines, monkeypatch):
    asked = []

    class Slow:
        def __repr__(self):
            asked.append(1)
            threading.Event().wait(0.06)
            return "x" * 1_000_000 + " at 0x7f00"

    story.call().local("x", Slow()).local("y", Slow(), 12)
    assert len(asked) == 1
    assert len(lines[1]) < 120
    assert lines[2].endswith("value: test_a_repr_that_takes_long_is_waited_for_once.<locals>.Slow")


def test_an_exception_shows_where_it_left(story, lines):
    story.call().tell("raise", value="TypeError: bad\nshape", line=41)
    assert lines[-1] == r"│   └─ error@41  ! TypeError: bad\nshape"


def test_identical_lines_are_folded_with_a_count(story, lines):
    story.call()
    for _ in range(5):
        story.local("x", torch.ones(2))
    story.leave()
    assert values(lines)[1:-1] == [
        "[Tensor] x@11 → shape=torch.Size([2]) | dtype=torch.float32",
        "[Tensor] x@11 → shape=torch.Size([2]) | dtype=torch.float32  ~values",
        "│   ⋮ the line above 3 more times",
    ]


def test_a_loop_is_folded_though_its_counter_differs(story, lines):
    story.call()
    for i in range(100):
        story.local("i", i).local("x", torch.ones(2), 12)
    story.local("done", True, 13)
    assert len(lines) == 1 + 6 + 1 + 1
    assert lines[-2] == "│   ⋮ the 2 lines above 97 more times (i 2 … 99)"
    assert lines[-1] == "│   ├─ [Var] done@13 value: True"


def test_a_loop_is_folded_though_what_its_calls_return_differs(story, lines):
    story.call()
    for i in range(100):
        story.depth = 1
        story.call(20).input("x", i).leave(i * 2)
        story.depth = 0
    story.leave()
    assert lines[-2].endswith("⋮ the 3 lines above 98 more times (x 1 … 99, output 2 … 198)")
    assert len(lines) == 1 + 6 + 1 + 1


def test_a_loop_is_folded_though_its_list_grows(story, lines):
    rows = list(range(20))
    story.call()
    for i in range(100):
        rows.append(i)
        story.local("rows", rows)
    story.leave()
    assert lines[-2] == "│   ⋮ the line above 98 more times (len(rows) 22 … 120)"


def test_a_loop_is_folded_though_it_stores_to_one_position_after_the_other(story, lines):
    story.call()
    for i in range(100):
        story.local("i", i).local(f"rows[{i}]", torch.ones(2)).local(f"sums[{i}]", i * 2)
    story.leave()
    assert lines[-2] == "│   ⋮ the 3 lines above 98 more times (i 1 … 99, sums[*] 2 … 198)"


def test_of_very_many_positions_the_latest_are_remembered():
    form, site = CallTree(ValueFormatter(), ENGLISH), Site("f", "/home/user/data.py", 11, tree=1)

    def note(position):
        return form.lines(Record(f"f.rows[{position}]", [0], "local", site=site))[0].note

    assert {note(position) for position in range(MAX_KNOWN_NAMES)} == {""}
    assert note(0) == "~values"
    assert note(MAX_KNOWN_NAMES) == ""
    assert note(0) == "~values"
    assert note(1) == ""


def test_shapes_that_differ_are_not_folded_with_the_positions(story, lines):
    story.call()
    for i in range(3):
        story.local(f"rows[{i}]", torch.ones(i))
    assert len(lines) == 1 + 3


def test_a_target_inside_of_an_argument_is_told_once_and_stands_out():
    form = CallTree(ValueFormatter(), ENGLISH, is_target="batch['mask']".__eq__)
    mask, site = torch.ones(2), Site("f", "/home/user/data.py", 0, tree=1)
    told = form.lines(Record("f.batch", {"mask": mask}, "input", site=site))
    assert [line.is_target for line in told] == [False, True]
    assert form.lines(Record("f.batch['mask']", mask, "input", site=site)) == []


def test_a_dataclass_that_was_changed_inside_is_marked(story, lines):
    batch = dataclasses.make_dataclass("Batch", ["x"])(torch.ones(2))
    story.call().input("batch", batch)
    batch.x.zero_()
    story.local("batch", batch)
    assert lines[-1] == "│   ├─ [Var] batch@11 value: Batch  ~values"


def test_what_breaks_a_repetition_off_is_written_in_full(story, lines):
    story.call()
    for i in range(7):
        story.local("i", i).local("x", torch.ones(2), 12)
    story.local("i", 7).leave()
    assert lines[-3] == "│   ⋮ the 2 lines above 4 more times (i 2 … 6)"
    assert lines[-2] == "│   ├─ [Var] i@11 value: 7"


def test_deeper_calls_than_asked_for_are_left_out(lines):
    outer = Story(log(max_depth=0)).call()
    inner = Story(outer.sink, function="g")
    inner.depth = 1
    inner.call().local("x", 1).leave()
    outer.leave()
    assert len(lines) == 2


def test_a_line_is_written_as_it_happens(story, lines):
    story.call()
    assert len(lines) == 1
    story.local("x", 1)
    assert len(lines) == 2


def test_trees_of_two_threads_never_mix(lines):
    sink = log()
    first = Story(sink, 1, "first").call()
    thread = threading.Thread(
        target=lambda: Story(sink, 2, "second").call().local("x", 1).leave(), name="other"
    )
    thread.start()
    thread.join()
    assert len(lines) == 1
    first.local("y", 2).leave()
    assert [line.split("[")[-1] for line in lines if "┌" in line] == ["first]", "second]  thread other"]
    assert "second" in lines[3]


def test_a_tree_that_waits_goes_on_live_when_it_is_alone(lines):
    sink = log()
    first, second = Story(sink, 1, "first").call(), Story(sink, 2, "second").call().local("x", 1)
    first.leave()
    assert len(lines) == 4
    second.local("x", 2, 12)
    assert len(lines) == 5
    second.leave()


def test_a_generator_that_rests_lets_others_write_and_says_when_it_goes_on(lines):
    sink = log()
    batches, step = Story(sink, 1, "batches"), Story(sink, 2, "step")
    batches.call().tell("yield", value=1, line=12)
    step.call().leave()
    batches.local("x", 2)
    assert lines == [
        "┌── [data.py:10] function [batches]",
        "│   ├─ yield@12 value: 1",
        "┌── [data.py:10] function [step]",
        "│   └─ output value: None",
        "┌── [data.py:10] function [batches] goes on",
        "│   ├─ [Var] x@11 value: 2",
    ]
    batches.leave()


def test_a_suspended_tree_does_not_hold_back_finished_ones_for_long(lines, monkeypatch):
    monkeypatch.setattr(tree_writer, "STALE_AFTER", 0.0)
    sink = log()
    waiting = Story(sink, 1, "serve").call()
    Story(sink, 2, "request").call().leave()
    assert "request" in lines[1]
    waiting.leave()


def test_a_generator_that_rests_while_another_writes_never_becomes_the_one_in_charge(lines):
    sink = log()
    first, batches = Story(sink, 1, "first").call(), Story(sink, 2, "batches").call()
    batches.tell("yield", value=1, line=12)
    first.leave()
    Story(sink, 3, "third").call().leave()
    assert [line.split("[")[-1] for line in lines if "┌" in line] == ["first]", "batches]", "third]"]


def test_a_handler_that_is_added_within_a_tree_strands_nobody(lines, tmp_path):
    sink, handler = log(), TreeFiles(tmp_path)
    first = Story(sink, 1, "first").call()
    logger.handlers[:] = [handler]
    first.leave()
    Story(sink, 2, "second").call().leave()
    logger.handlers.clear()
    handler.close()
    assert lines == ["┌── [data.py:10] function [first]"]
    assert "second" in next(tmp_path.iterdir()).read_text()


def test_a_very_long_tree_that_waits_is_written_in_blocks(lines, monkeypatch):
    monkeypatch.setattr(tree_writer, "MAX_PENDING_LINES", 5)
    sink = log()
    first, second = Story(sink, 1, "first").call(), Story(sink, 2, "second").call()
    for n in range(9):
        second.local(f"x{n}", n, 20 + n)
    assert 5 < len(lines) < 11
    second.leave()
    first.leave()
    assert len([line for line in lines if "x" in line and "@" in line]) == 9


def _in_child(path):
    handler = logging.FileHandler(path)
    logger.addHandler(handler)
    story = Story(log(), 7).call()
    before = path.read_text() if path.exists() else ""
    story.leave()
    logger.removeHandler(handler)
    handler.close()
    path.with_suffix(".before").write_text(before)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_in_another_process_a_call_is_one_block_with_the_pid(tmp_path):
    path = tmp_path / "log.txt"
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(path,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert path.with_suffix(".before").read_text() == ""
    assert path.read_text().splitlines()[0] == f"┌── [data.py:10] function [f]  pid {child.pid}"


def test_without_a_handler_lines_go_to_stderr(capsys):
    Story(log()).call().leave()
    assert capsys.readouterr().err.startswith("┌── [data.py:10] function [f]\n")


def test_with_a_handler_nothing_goes_to_stderr(story, lines, capsys):
    story.call().leave()
    assert (len(lines), capsys.readouterr().err) == (2, "")


def test_where_the_encoding_has_no_boxes_the_tree_is_ascii(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TENSORTAP_LANG", "zh")
    Story(log()).call().local("x", torch.ones(2)).local("s", "é", 12).leave()
    stream.seek(0)
    assert stream.read().splitlines() == [
        ",-- [data.py:10] function [f]",
        "|   |- [Tensor] x@11 -> shape=torch.Size([2]) | dtype=torch.float32",
        r"|   |- [Var] s@12 value: '\xe9'",
        "|   `- output value: None",
    ]


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_a_terminal_gets_colours_and_lines_that_fit_without_losing_their_notes(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    story = Story(log(is_target=lambda name: name == "x")).call()
    story.local("x", torch.ones(2)).local("x", torch.full((2, 3, 4), torch.nan), 12).leave()
    said = sys.stderr.getvalue().splitlines()
    assert said[0] == "┌── \x1b[1m[data.py:10] function [f]\x1b[0m"
    assert said[1].startswith("│   ├─ \x1b[1;33m[Tensor] x@11")
    assert said[2].endswith("…\x1b[0m  \x1b[36m~shape\x1b[0m  \x1b[1;31m! first NaN: 24 of 24\x1b[0m")
    monkeypatch.setenv("NO_COLOR", "1")
    Story(log(), 2).call().leave()
    assert sys.stderr.getvalue().splitlines()[-2] == "┌── [data.py:10] function [f]"


def test_a_closed_or_missing_stderr_breaks_nothing(monkeypatch):
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        Story(log()).call().leave()


def test_a_level_above_info_silences_the_tree(story, lines):
    logger.setLevel(logging.WARNING)
    try:
        story.call().leave()
    finally:
        logger.setLevel(logging.INFO)
    assert lines == []


@pytest.fixture
def files(tmp_path):
    handler = TreeFiles(tmp_path / "logs")
    logger.addHandler(handler)
    yield tmp_path / "logs"
    logger.removeHandler(handler)
    handler.close()


def test_each_thread_has_its_own_file_and_none_waits_for_another(files, capsys):
    sink = log()
    first = Story(sink, 1, "first").call()
    idents = []

    def work():
        idents.append(threading.get_ident())
        Story(sink, 2, "second").call().leave()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    other = files / f"process_{os.getpid()}_thread_{idents[0]}.log"
    assert "second" in other.read_text()
    first.leave()
    mine = files / f"process_{os.getpid()}_thread_{threading.get_ident()}.log"
    assert "first" in mine.read_text()
    assert "second" not in mine.read_text()
    assert capsys.readouterr().err == ""


def test_a_handler_of_the_users_own_beside_it_gets_every_line_too(files, lines):
    Story(log()).call().local("x", 1).leave()
    assert next(files.iterdir()).read_text().splitlines() == lines


def test_a_folder_that_cannot_be_written_is_refused_at_the_door(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailedError, match=r"cannot write log files in '.*file/logs': .*another folder"):
        TreeFiles(tmp_path / "file" / "logs")


def test_a_file_that_cannot_be_written_later_is_logged_once_and_the_program_goes_on(files, caplog):
    files.rmdir()
    Story(log()).call().leave()
    said = [record.message for record in caplog.records if record.name != logger.name]
    assert [text.split(":")[0] for text in said] == ["the tree is written no more"]


def test_a_log_record_points_at_the_users_line(lines):
    seen = []
    handler = logging.Handler()
    handler.emit = seen.append
    logger.addHandler(handler)
    Story(log()).call().local("x", 1, 12).leave()
    logger.removeHandler(handler)
    assert (seen[1].filename, seen[1].lineno, seen[1].levelname) == ("data.py", 12, "INFO")


def test_a_models_forward_is_shown_with_the_same_look(lines):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.ReLU()))
    with tt.capture(model, "**", "in", to="tree"):
        model(torch.ones(1, 2))
    assert lines == [
        "┌── step 0",
        "├─ input [Tensor] input@0 → shape=torch.Size([1, 2]) | dtype=torch.float32",
        "│   ├─ [Tensor] 0@0 → shape=torch.Size([1, 3]) | dtype=torch.float32",
        "│   ┌── module [1]",
        "│   │   ├─ [Tensor] 0@0 → shape=torch.Size([1, 3]) | dtype=torch.float32",
        "│   │   └─ output shape=torch.Size([1, 3]) | dtype=torch.float32",
        "│   └─ output shape=torch.Size([1, 3]) | dtype=torch.float32",
    ]


def test_values_that_come_by_hand_are_lines_too(lines, tmp_path):
    with Tap(sinks=[log()]) as tap:
        tt.dump(torch.ones(2), "x", tap=tap)
    assert lines[1].startswith("│   ├─ [Tensor] x@")


def test_a_folder_named_tree_is_still_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tt.capture(torch.nn.ReLU(), to="./tree") as cap:
        pass
    assert Path(cap.run).parent.name == "tree"
