"""`%load_ext tensortap` in a real shell of IPython."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from torch import nn
from traitlets.config import Config


@pytest.fixture(scope="module")
def only_shell() -> Iterator[Any]:
    settings = Config()
    settings.HistoryManager.enabled = False
    settings.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell(config=settings)
    shell.run_line_magic("load_ext", "tensortap")
    yield shell
    shell.run_line_magic("unload_ext", "tensortap")
    shell.restore_sys_module_state()


@pytest.fixture
def shell(only_shell: Any) -> Iterator[Any]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    only_shell.user_ns.update(model=model, x=torch.ones(2, 4), box=type("Box", (), {"model": model}))
    yield only_shell
    only_shell.run_line_magic("tap", "off")
    only_shell.user_ns.pop("cap", None)


def said(shell: Any, text: str, capsys: Any) -> str:
    shell.run_cell(text)
    caught = capsys.readouterr()
    return str(caught.out + caught.err)


def test_a_tap_goes_on_from_cell_to_cell_until_it_is_off(shell: Any) -> None:
    shell.run_cell("%tap model 0 --every 2")
    for _ in range(4):
        shell.run_cell("y = model(x)")
    shell.run_cell("%tap off")
    shell.run_cell("y = model(x)")
    assert [record.step for record in shell.user_ns["cap"]] == [0, 2]
    assert not shell.user_ns["model"][0]._forward_hooks


def test_a_comment_behind_a_tap_is_no_pattern(shell: Any) -> None:
    shell.run_cell("%tap model 0  # the first layer")
    shell.run_cell("y = model(x)")
    assert shell.user_ns["cap"].names == ["0"]


def test_a_tap_of_one_cell_ends_with_the_cell(shell: Any) -> None:
    shell.run_cell("%%tap model 0 0.in\ny = model(x)\nmodel(y)")
    shell.run_cell("y = model(x)")
    assert shell.user_ns["cap"].names == ["0.in.input", "0"]
    assert len(shell.user_ns["cap"]) == 4


def test_a_cell_that_fails_shows_its_error_and_leaves_no_hook(shell: Any, capsys: Any) -> None:
    assert "ZeroDivisionError" in said(shell, "%%tap model\nmodel(x)\n1 / 0", capsys)
    assert not shell.user_ns["model"][0]._forward_hooks
    assert len(shell.user_ns["cap"]) > 0


def test_a_model_inside_of_an_object_is_found(shell: Any) -> None:
    shell.run_cell("%%tap box.model 0\nbox.model(x)")
    assert shell.user_ns["cap"].names == ["0"]


def test_the_tap_alone_shows_what_came(shell: Any, capsys: Any) -> None:
    shell.run_cell("%tap model --keep stats")
    shell.run_cell("y = model(x)")
    assert "Sequential  3 values" in said(shell, "%tap", capsys)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("%tap", "nothing is tapped; %tap MODEL [PATTERN...]"),
        ("%tap --every 2", "there is no model; %tap MODEL [PATTERN...]"),
        ("%tap modle", "no variable 'modle' in this notebook; did you mean model?"),
        ("%tap box.nothing", "'box' has no 'nothing' on the way to 'box.nothing'"),
        ("%tap model layers.*", "layers.*"),
        ("%tap model 0 --every x", "invalid int value: 'x'; %tap MODEL [PATTERN...]"),
        ("%tap model 0 --wrong", "unrecognized arguments: --wrong"),
        ("%tap x 0", "tensor"),
    ],
)
def test_a_wrong_line_gets_one_sentence(shell: Any, capsys: Any, line: str, sentence: str) -> None:
    told = said(shell, line, capsys)
    assert told.startswith("UsageError: ")
    assert sentence.lower() in told.lower()
    assert "Traceback" not in told


def test_a_second_tap_ends_the_first_and_says_so(shell: Any, capsys: Any) -> None:
    assert said(shell, "%tap model 0", capsys) == ""
    shell.run_cell("y = model(x)")
    first = shell.user_ns["cap"]
    assert "the tap that was on has ended, with 1 record; `cap` is the new one" in said(
        shell, "%tap model 1", capsys
    )
    shell.run_cell("y = model(x)")
    assert len(first) == 1
    assert shell.user_ns["cap"].names == ["1"]


def test_a_wrong_line_leaves_the_tap_on(shell: Any, capsys: Any) -> None:
    shell.run_cell("%tap model 0")
    assert "UsageError" in said(shell, "%tap model nothing", capsys)
    shell.run_cell("y = model(x)")
    assert shell.user_ns["cap"].names == ["0"]


def test_help_tells_what_can_be_written(shell: Any, capsys: Any) -> None:
    told = said(shell, "%tap --help", capsys)
    assert told.startswith("Capture what a model of this notebook computes")
    assert "--every N" in told


def test_the_names_of_a_capture_are_completed(shell: Any) -> None:
    shell.run_cell("%%tap model\nmodel(x)")
    assert shell.user_ns["cap"]._ipython_key_completions_() == shell.user_ns["cap"].names


def test_unloading_takes_the_hooks_off(shell: Any) -> None:
    shell.run_cell("%tap model 0")
    shell.run_line_magic("unload_ext", "tensortap")
    try:
        assert not shell.user_ns["model"][0]._forward_hooks
        assert "tap" not in shell.magics_manager.magics["line"]
    finally:
        shell.run_line_magic("load_ext", "tensortap")
