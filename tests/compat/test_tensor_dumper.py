"""Every example of the Tensor Dumper's README, under its own names."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tensortap as tensor_dumper
from tensortap.core.errors import NotInitialisedError, UnknownFormatError, UnsupportedValueError


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tensor_dumper.init("experiments")


def test_init_makes_a_timestamped_folder_with_its_metadata(run, tmp_path):
    assert run.parent == Path("experiments")
    assert re.fullmatch(r"\d{8}_\d{6}", run.name)
    assert {"runtime_info.json", "packages.json", "git_info.json"} <= set(os.listdir(tmp_path / run))


def test_the_folder_is_named_in_shanghai_time_unless_told_otherwise(run, tmp_path):
    stamp = json.loads((run / "runtime_info.json").read_text())["timestamp"]
    assert stamp.endswith("+08:00")
    other = tensor_dumper.init(tmp_path / "utc", timezone="UTC")
    assert json.loads((other / "runtime_info.json").read_text())["timestamp"].endswith("+00:00")


def test_tensors_arrays_and_objects_get_their_own_suffix(run):
    output, hidden = torch.randn(10, 10), np.arange(3.0)
    tensor_dumper.dump(output, "layer1_output")
    tensor_dumper.dump(hidden, "hidden")
    tensor_dumper.dump({"lr": 1e-3}, "config")
    assert torch.equal(torch.load(run / "layer1_output.pt", weights_only=True), output)
    assert np.array_equal(np.load(run / "hidden.npy"), hidden)
    assert tensor_dumper.load(run / "config.pkl") == {"lr": 1e-3}


def test_ls_shows_only_what_the_readme_draws(run):
    tensor_dumper.dump(torch.ones(2), "layer1_output")
    visible = {name for name in os.listdir(run) if not name.startswith(".")}
    patch = {"project.patch"} & visible
    assert visible == {"runtime_info.json", "packages.json", "git_info.json", "layer1_output.pt"} | patch


def test_a_value_without_a_name_is_called_like_the_variable(run):
    attention_weights = torch.ones(2)
    tensor_dumper.dump(attention_weights)
    tensor_dumper.dump(attention_weights + 1)
    assert tensor_dumper.Run(run).names == ["attention_weights", "value"]


def test_the_file_is_complete_when_dump_returns(run):
    tensor_dumper.dump(np.arange(1000), "x")
    assert np.load(run / "x.npy").sum() == 499500


def test_the_same_name_again_loses_nothing(run):
    for number in range(3):
        tensor_dumper.dump(torch.tensor(number), "loss")
    assert [torch.load(run / f"loss{n}.pt").item() for n in ("", ".2", ".3")] == [0, 1, 2]
    assert [v.item() for v in tensor_dumper.Run(run).series("loss").values] == [0, 1, 2]


def test_init_again_starts_a_complete_new_run(run, tmp_path):
    tensor_dumper.dump(1, "a")
    second = tensor_dumper.init("experiments")
    tensor_dumper.dump(2, "b")
    assert second != run
    assert (second / "runtime_info.json").exists()
    assert (tensor_dumper.Run(run).names, tensor_dumper.Run(second).names) == (["a"], ["b"])


def test_dump_before_init_says_what_to_do():
    with pytest.raises(NotInitialisedError, match=r"dump\(\) needs a run: call init\('experiments'\) first"):
        tensor_dumper.dump(1, "x")
    with pytest.raises(RuntimeError):
        tensor_dumper.update_metadata()


def test_a_disabled_tool_accepts_anything_and_writes_nothing(run):
    tensor_dumper.disable()
    tensor_dumper.dump(lambda: 1, "x")
    tensor_dumper.enable()
    tensor_dumper.dump(1, "y")
    assert tensor_dumper.Run(run).names == ["y"]


def test_dump_disabled_before_init_accepts_anything():
    tensor_dumper.disable()
    assert tensor_dumper.dump(torch.empty(2, device="meta"), 3) is None


@pytest.mark.process
def test_one_environment_variable_turns_everything_off(tmp_path):
    code = "import tensortap as t; t.init('e'); t.dump(lambda: 1); t.enable(); t.dump(2); t.update_metadata()"
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "TENSORTAP": "0"}, check=True
    )
    assert os.listdir(tmp_path) == []


EVERYDAY = {
    "parameter": torch.nn.Parameter(torch.randn(3)),
    "transposed": torch.randn(4, 6).t(),
    "expanded": torch.randn(3, 1).expand(3, 5),
    "sliced": torch.randn(8)[::2],
    "zero_dimensional": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "bfloat16": torch.randn(3).bfloat16(),
    "float8": torch.randn(3).to(torch.float8_e5m2),
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "bool": torch.tensor([True, False]),
    "large_int": torch.tensor([2**60 + 1]),
    "with_graph": torch.randn(3, requires_grad=True) * 2,
}


@pytest.mark.parametrize("value", EVERYDAY.values(), ids=EVERYDAY.keys())
def test_everyday_tensors_come_back_exactly(run, value):
    tensor_dumper.dump(value, "x")
    loaded = tensor_dumper.Run(run).load("x")
    plain = torch.load(run / "x.pt", weights_only=True)
    for got in (loaded, plain):
        assert (got.dtype, got.shape) == (value.dtype, value.shape)
        assert tensor_dumper.compare(got, value, atol=0, rtol=0)


def test_a_small_view_of_a_large_tensor_writes_a_small_file(run):
    tensor_dumper.dump(torch.zeros(10_000_000)[:4], "view")
    tensor_dumper.dump({"view": torch.zeros(10_000_000)[:4]}, "inside")
    assert (run / "view.pt").stat().st_size < 4000
    assert (run / "inside.pkl").stat().st_size < 4000


def test_a_meta_tensor_is_named_and_refused(run):
    with pytest.raises(UnsupportedValueError, match=r"a meta tensor of shape \[3\] has no values"):
        tensor_dumper.dump(torch.empty(3, device="meta"), "x")
    assert tensor_dumper.Run(run).names == []


def test_what_cannot_be_pickled_is_named_down_to_the_attribute(run):
    class Holder:
        pass

    holder = {"fine": 1, "model": [2, (item for item in ())]}
    with pytest.raises(
        UnsupportedValueError, match=r"the dict\['model'\]\[1\] of type generator cannot be pickled"
    ):
        tensor_dumper.dump(holder, "x")
    assert not (run / "x.pkl").exists()


def test_a_name_that_is_no_text_says_so(run):
    with pytest.raises(TypeError, match="a name is a text, not tensor"):
        tensor_dumper.dump("layer1", torch.ones(1))


def test_compare_takes_objects_files_and_one_of_each(run):
    my_tensor = torch.randn(10, 10)
    tensor_dumper.dump(my_tensor, "output")
    tensor_dumper.dump(my_tensor.numpy(), "output")
    assert tensor_dumper.compare(my_tensor, my_tensor + 1e-9, atol=1e-5, rtol=1e-5) is True
    assert tensor_dumper.compare(str(run / "output.pt"), str(run / "output.npy")) is True
    assert tensor_dumper.compare(run / "output.pt", my_tensor.numpy()) is True
    assert tensor_dumper.compare(my_tensor, np.random.randn(10, 10)) is False


def test_shapes_that_differ_are_different_and_difference_says_why():
    assert tensor_dumper.compare(torch.ones(3, 1), torch.ones(3)) is False
    assert "shape" in str(tensor_dumper.difference(torch.ones(3, 1), torch.ones(3)))


def test_compare_of_a_path_that_is_not_a_file_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing\.pt does not exist"):
        tensor_dumper.compare(str(tmp_path / "missing.pt"), 1)
    (tmp_path / "x.txt").write_text("1")
    with pytest.raises(UnknownFormatError, match=r"no serializer reads '\.txt'"):
        tensor_dumper.compare(tmp_path / "x.txt", 1)


def test_a_dump_also_flows_into_a_tap_of_ones_own(run):
    memory = tensor_dumper.Memory()
    with tensor_dumper.Tap(sinks=[memory]) as tap:
        tensor_dumper.dump(torch.ones(2), "x", tap=tap)
    assert memory.series["x"].values[0].tolist() == [1, 1]
    assert "x" in tensor_dumper.Run(run)


def test_the_record_knows_the_line_that_dumped_it(run):
    tensor_dumper.dump(1, "x")
    site = tensor_dumper.Run(run).find("x").site
    assert Path(site.file) == Path(__file__)
    assert site.function == "test_the_record_knows_the_line_that_dumped_it"


def test_metadata_is_collected_again_only_when_the_repository_moved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.com"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    run = tensor_dumper.init(tmp_path / "experiments")
    before = json.loads((run / "git_info.json").read_text())["project_git_info"]["commit_id"]
    written = (run / "git_info.json").stat().st_mtime_ns
    tensor_dumper.dump(1, "a")
    assert (run / "git_info.json").stat().st_mtime_ns == written
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "second"], check=True)
    tensor_dumper.dump(1, "b", update_metadata=False)
    assert json.loads((run / "git_info.json").read_text())["project_git_info"]["commit_id"] == before
    tensor_dumper.dump(1, "c")
    assert json.loads((run / "git_info.json").read_text())["project_git_info"]["commit_id"] != before


def test_in_the_background_a_value_is_safe_from_later_changes(tmp_path):
    run = tensor_dumper.init(tmp_path, background=True)
    x = torch.zeros(1000)
    for step in range(20):
        x.fill_(step)
        tensor_dumper.dump(x, "x")
    tensor_dumper.flush()
    assert [v[0].item() for v in tensor_dumper.Run(run).series("x").values] == list(range(20))


def test_the_readme_commands_find_what_they_look_for(run):
    runtime = json.loads((run / "runtime_info.json").read_text())
    packages = json.loads((run / "packages.json").read_text())
    git = json.loads((run / "git_info.json").read_text())
    assert runtime["command"].keys() >= {"executable", "argv", "full_command"}
    assert packages["all_packages"]["torch"].startswith(torch.__version__.split("+")[0])
    assert packages["packages"]["torch"].keys() >= {"version", "location"}
    assert git.keys() == {"project_git_info", "packages_git_info", "runtime_modifications"}


@pytest.mark.parametrize(
    "wrong", [{"layout": "zip"}, {"on_full": "no"}, {"env": "some"}, {"budget": "1GB"}, {"budget": 0}]
)
def test_a_wrong_argument_of_init_leaves_the_run_and_the_folder_as_they_were(run, wrong):
    before = os.listdir("experiments")
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tensor_dumper.init("experiments", **wrong)
    tensor_dumper.dump(1, "still")
    assert os.listdir("experiments") == before
    assert tensor_dumper.Run(run).names == ["still"]


def test_a_tap_takes_a_value_without_a_run():
    memory = tensor_dumper.Memory()
    with tensor_dumper.Tap(sinks=[memory]) as tap:
        tensor_dumper.dump(5, "x", tap=tap)
    assert memory.series["x"].values == [5]


def test_the_first_and_the_latest_of_a_name_can_be_asked_for(run):
    for number in range(3):
        tensor_dumper.dump(number, "loss")
    stored = tensor_dumper.Run(run)
    assert [stored.load("loss"), stored.load("loss", call=0), stored.load("loss", call=1)] == [2, 0, 1]


def test_a_run_written_twice_is_read_in_the_order_of_writing(tmp_path):
    for start in (0, 10):
        with tensor_dumper.Tap(sinks=[tensor_dumper.RunDirectory(tmp_path)]) as tap:
            for number in range(start, start + 3):
                tensor_dumper.dump(number, "v", tap=tap)
    assert tensor_dumper.Run(tmp_path).series("v").values == [0, 1, 2, 10, 11, 12]


def test_turning_everything_off_before_a_second_init_is_heard(run, monkeypatch):
    monkeypatch.setenv("TENSORTAP", "0")
    assert tensor_dumper.init("experiments") is None
    assert tensor_dumper.dump(1, "x") is None


@pytest.mark.compile
def test_a_dump_in_compiled_code_is_one_clean_break_of_the_graph(tmp_path):
    import torch
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()

    @torch.compile(backend=counter)
    def step(x):
        hidden = x * 2
        tensor_dumper.dump(hidden, "hidden")
        return hidden + 1

    run = tensor_dumper.init(tmp_path)
    for _ in range(3):
        step(torch.ones(3))
    torch._dynamo.reset()
    assert counter.frame_count == 2
    assert [torch.load(file).tolist() for file in sorted(run.glob("hidden*.pt"))] == [[2.0, 2.0, 2.0]] * 3
