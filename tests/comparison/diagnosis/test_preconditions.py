"""Before any verdict the gate says what two runs did not have in common."""

import json
import shutil

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.comparison.diagnosis.preconditions import explain_setup_differences
from tensortap.comparison.matching.match import match
from tensortap.comparison.sides.load import load_side
from tensortap.core.record import Record

BATCH = torch.arange(8.0).reshape(2, 4)


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))


def run(folder, made, batch=BATCH, patterns=("**", "in")):
    with tt.capture(made, *patterns, to=folder) as cap:
        made(batch)
    return cap.run


def findings(a, b, rules=None):
    a, b = load_side(a), load_side(b)
    found = explain_setup_differences(a, b, match(a, b, rules))
    return {one.what: one for one in found}


def edited(run, to, file, change):
    """A copy of a run in which one of its facts is another."""
    copy = shutil.copytree(run, to)
    facts = json.loads((copy / file).read_bytes())
    change(facts)
    (copy / file).write_text(json.dumps(facts))
    return copy


def test_two_runs_of_one_program_have_everything_in_common(tmp_path):
    first, second = run(tmp_path / "a", model()), run(tmp_path / "b", model())
    found = findings(first, second)
    assert {what: one.state for what, one in found.items() if one.state != "equal"} == {}
    assert found["weights"].text == "all 4 weights are equal"
    assert found["inputs"].text == "all 1 inputs of the model are equal"


def test_a_weight_that_differs_is_named_first(tmp_path):
    other = model()
    with torch.no_grad():
        other[2].weight[0, 0] += 1
    found = findings(run(tmp_path / "a", model()), run(tmp_path / "b", other))
    assert next(iter(found)) == "weights"
    assert found["weights"].text == "1 of 4 weights differ: 2.weight"
    assert (found["weights"].names, found["weights"].differs) == (("2.weight",), True)


def test_weights_of_another_type_are_told_as_that(tmp_path):
    found = findings(run(tmp_path / "a", model()), run(tmp_path / "b", model().double(), BATCH.double()))
    assert found["weights"].text.startswith("4 of 4 weights differ in their type, float32 against float64")


def test_different_models_do_not_have_the_same_weights(tmp_path):
    other = torch.nn.Sequential(*model(), torch.nn.Linear(2, 2))
    found = findings(run(tmp_path / "a", model()), run(tmp_path / "b", other))
    assert found["weights"].text == "the models do not have the same weights: 2 only in B: 3.bias, 3.weight"
    assert found["configuration"].names == ("number of modules", "modules.3")


def test_weights_go_by_the_names_that_modules_were_paired_by(tmp_path):
    inner = model()
    wrapped = torch.nn.ModuleDict({"body": inner})
    wrapped.forward = lambda x: wrapped["body"](x)
    rules = {"rule": [{"from": "", "to": "body"}]}
    found = findings(run(tmp_path / "a", inner), run(tmp_path / "b", wrapped), rules)
    assert found["weights"].text == "all 4 weights are equal"


def test_captured_weights_are_compared_where_there_are_no_digests():
    made, other = model(), model(1)
    sides = []
    for one in (made, other):
        with tt.capture(one, "**.weight") as cap:
            one(BATCH)
        sides.append(cap)
    same, different = findings(sides[0], sides[0]), findings(*sides)
    assert same["weights"].text == "all 2 captured weights are equal"
    assert different["weights"].names == ("0.weight", "2.weight")
    assert (
        different["weights"].text == "2 of 2 captured weights differ: 0.weight (16 of 16 numbers), and 1 more"
    )


def test_weights_of_later_steps_are_a_consequence_and_not_compared():
    a = [Record("w", np.full(2, value), "param", step=step) for step, value in ((0, 1.0), (1, 2.0))]
    b = [Record("w", np.full(2, value), "param", step=step) for step, value in ((0, 1.0), (1, 3.0))]
    assert findings(a, b)["weights"].state == "equal"


def test_nothing_is_claimed_about_what_was_not_recorded():
    a = load_side({"x": np.ones(2)})
    found = findings(a, a)
    assert {what: one.state for what, one in found.items()} == dict.fromkeys(
        ("weights", "inputs", "configuration"), "unknown"
    )
    assert found["weights"].text == "weights were not recorded: nothing is claimed about them"


def test_inputs_that_differ_are_counted(tmp_path):
    other = BATCH.clone()
    other[1, 2] = float("nan")
    found = findings(run(tmp_path / "a", model()), run(tmp_path / "b", model(), other))
    assert found["inputs"].text == "1 of 1 inputs of the model differ: in.input (1 of 8 numbers)"
    found = findings(run(tmp_path / "c", model(), other), run(tmp_path / "d", model(), other))
    assert found["inputs"].state == "equal"


def test_an_input_of_another_shape_is_told(tmp_path):
    found = findings(run(tmp_path / "a", model()), run(tmp_path / "b", model(), BATCH[:1]))
    assert found["inputs"].text.endswith("in.input (shape [2, 4] against [1, 4])")


def test_an_input_that_cannot_be_read_is_no_equal_one(tmp_path):
    first, second = run(tmp_path / "a", model()), run(tmp_path / "b", model(), BATCH + 1)
    for pack in second.rglob("*.npz"):
        pack.write_bytes(b"")
    text = findings(first, second)["inputs"].text
    assert "unreadable" in text
    assert "is empty although the index lists a value in it" in text


CIRCUMSTANCES = [
    ("packages", "packages.json", lambda f: f["all_packages"].update(torch="0.1"), "torch"),
    ("packages", "packages.json", lambda f: f.update(python_version="2.7"), "python"),
    ("code", "git_info.json", lambda f: f["project_git_info"].update(commit_id="f" * 40), "project commit"),
    ("code", "git_info.json", lambda f: f["runtime_modifications"].update({"a.b": "x"}), "patched a.b"),
    (
        "code",
        ".tensortap/environment.json",
        lambda f: f.update(repositories=[{"package": "einops", "tree": "f" * 40}]),
        "einops files",
    ),
    (
        "randomness",
        ".tensortap/environment.json",
        lambda f: f["randomness"]["torch"].update(initial_seed=12345),
        "torch initial seed",
    ),
    (
        "configuration",
        ".tensortap/environment.json",
        lambda f: f["randomness"]["torch"].update(get_float32_matmul_precision="medium"),
        "torch.get_float32_matmul_precision",
    ),
    ("environment", ".tensortap/environment.json", lambda f: f["hardware"].update(cpu="abacus"), "cpu"),
    (
        "environment",
        "runtime_info.json",
        lambda f: f["environment_variables"].update(OMP_NUM_THREADS="77", USELESS="1"),
        "OMP_NUM_THREADS",
    ),
    (
        "configuration",
        "runtime_info.json",
        lambda f: f["command"].update(full_command="x.py --lr 2"),
        "command",
    ),
]


@pytest.mark.parametrize(("what", "file", "change", "name"), CIRCUMSTANCES, ids=range(len(CIRCUMSTANCES)))
def test_a_circumstance_that_differs_is_named(tmp_path, what, file, change, name):
    first = run(tmp_path / "a", model())
    found = findings(first, edited(first, tmp_path / "b", file, change))
    assert {one.what: one.names for one in found.values() if one.differs} == {what: (name,)}
    assert name in found[what].text


def test_the_generator_that_nobody_seeds_is_no_news(tmp_path):
    first = run(tmp_path / "a", model())
    file = ".tensortap/environment.json"
    other = edited(first, tmp_path / "b", file, lambda f: f["randomness"]["random"].update(state="0"))
    assert findings(first, other)["randomness"].state == "equal"


def test_a_configuration_that_differs_is_named(tmp_path):
    first, second = model(), model()
    first.config, second.config = {"norm": {"eps": 1e-5}}, {"norm": {"eps": 1e-6}}
    for one in (first, second):
        one.config = type("Config", (), {"to_dict": lambda self, held=one.config: held})()
    found = findings(run(tmp_path / "a", first), run(tmp_path / "b", second))
    assert found["configuration"].text == "configuration: 1 difference: config.norm.eps 1e-05 -> 1e-06"


def test_a_setting_of_a_module_that_differs_is_named(tmp_path):
    models = [torch.nn.Sequential(torch.nn.LayerNorm(4, eps=eps)) for eps in (1e-5, 1e-2)]
    found = findings(*(run(tmp_path / name, one) for name, one in zip("ab", models, strict=True)))
    assert found["configuration"].text == "configuration: 1 difference: modules.0 eps=1e-05 -> eps=0.01"
    assert found["weights"].state == "equal"


def test_a_run_without_facts_of_its_model_is_no_difference(tmp_path):
    first = run(tmp_path / "a", model())
    other = shutil.copytree(first, tmp_path / "b")
    (other / ".tensortap" / "model.json").unlink()
    found = findings(first, other)
    assert (found["configuration"].state, found["weights"].state) == ("equal", "unknown")


def test_ranks_that_only_one_side_has_are_told():
    a = [Record("x", np.ones(1), rank=rank) for rank in (0, 1)]
    found = findings(a, a[:1])
    assert (
        found["ranks"].text == "A has records of 2 ranks, B of rank 0: what only one side has is not compared"
    )
