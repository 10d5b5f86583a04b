"""A short form of the benchmark of planted bugs: every bug is located, no harmless change accused."""

import importlib
import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.proof import some

pytestmark = pytest.mark.law

ROOT = Path(__file__).parents[3]
BENCHMARKS = str(ROOT / "benchmarks")
ROOMS = (
    "answers", "arrangements", "combined", "noise", "page", "parallel", "planting", "results", "score",
    "several", "shapes", "training", "units", "zoo",
)  # fmt: skip
SEED = 200  # neither calibrated on nor scored
# Everything of a dense model; of others what they have more.
ROLES = {"llama": None, "mixtral": ("router", "experts"), "mamba": ("mixer",)}
IN_HALF_PRECISION = {
    "llama": ("mask_off_by_one", "residual_dropped", "nan_in_one_row", "half_of_the_weights_is_missing"),
    "mamba": ("scan_without_skip", "scan_inputs_and_outputs_swapped"),
}
# Those whose turn it is with this seed.
ON_TOP = ("rope_interleaved", "warm_up_zeros", "residual_taken_after_the_norm", "head_is_not_tied")


@pytest.fixture(scope="module")
def planted():
    """The benchmark's own parts; one thread, as there."""
    threads = torch.get_num_threads()
    sys.path.insert(0, BENCHMARKS)
    torch.set_num_threads(1)
    try:
        rooms = {name: importlib.import_module(f"planted.{name}") for name in ROOMS}
        yield SimpleNamespace(limits=rooms["answers"].Limits(4.0, 4.0), **rooms)
    finally:
        torch.set_num_threads(threads)
        sys.path.remove(BENCHMARKS)


@pytest.fixture(scope="module", params=list(ROLES))
def base(request, planted):
    return planted.answers.clean(planted.zoo.SCORED[request.param], SEED, torch.float32)


@pytest.fixture(scope="module")
def llama(planted):
    return planted.answers.clean(planted.zoo.SCORED["llama"], SEED, torch.float32)


def missed(planted, cases):
    tools = planted.answers.OURS
    return [
        (one.what, one.scene, tool, str(one.answers[tool]))
        for one in cases
        for tool in tools
        if tool in one.answers and not one.is_hit(tool)
    ]


def accused(planted, cases):
    tools = planted.answers.OURS
    return [
        (one.what, tool, str(one.answers[tool]))
        for one in cases
        for tool in tools
        if tool in one.answers and one.is_seen(tool)
    ]


@pytest.mark.parametrize(("kind", "seed"), [("olmoe", 100), ("mistral", 101)])
def test_training_by_another_implementation_accuses_nobody(planted, kind, seed):
    chosen = planted.zoo.CALIBRATED[kind], seed, torch.float32
    clean = planted.training.clean_training(*chosen)
    other = planted.training.trained_otherwise(*chosen, clean.given)
    assert clean.against(other, planted.limits.floor).first is None


def test_every_planted_bug_is_located(base, planted):
    roles = ROLES[base.kind.name]
    chosen = [one for one in planted.planting.fitting(base.kind) if roles is None or one.role in roles]
    cases = list(planted.score.module_cases(base, planted.limits, set(), some(chosen, every=4)))
    assert len(cases) >= len(some(range(14), every=4))
    assert missed(planted, cases) == []


@pytest.mark.parametrize("name", list(IN_HALF_PRECISION))
def test_bugs_above_noise_are_located_in_half_precision(name, planted):
    half = planted.answers.clean(planted.zoo.SCORED[name], SEED, torch.bfloat16)
    chosen = [planted.planting.BUGS[bug] for bug in IN_HALF_PRECISION[name]]
    given = half.kind, SEED, half.dtype, half.batch
    assert [one.name for one in chosen if not planted.noise.is_above_noise(*given, one)] == []
    cases = list(planted.score.module_cases(half, planted.limits, set(), chosen))
    assert missed(planted, cases) == []


def test_bugs_on_top_of_each_sequence_by_itself_and_of_two_ranks_are_located(llama, planted):
    chosen = [planted.planting.BUGS[bug] for bug in ON_TOP]
    data = planted.planting.fitting_data(llama.kind, llama.batch)
    cases = list(planted.combined.combined_cases(llama, planted.limits, set(), chosen, data))
    assert len(cases) == 2 * (len(ON_TOP) + 1)
    assert {one.scene for one in cases} == {"each sequence by itself", "two ranks"}
    assert missed(planted, cases) == []


def test_every_bug_has_its_turn_on_top_with_one_seed_of_three(llama, planted):
    seeds = [replace(llama, seed=seed) for seed in (0, 1, 2)]
    turns = {
        bug: sum(planted.combined.is_its_turn(bug, one) for one in seeds) for bug in planted.planting.BUGS
    }
    assert set(turns.values()) == {1}


def test_two_ranks_leave_the_code_of_a_model_as_it_was(llama, planted):
    home = sys.modules[type(llama.build()).__module__]
    before = dict(vars(home))
    bug = planted.planting.BUGS["rope_interleaved"]
    planted.parallel.run(llama, lambda *given: bug.into(planted.parallel.divided(*given), llama.kind))
    assert vars(home) == before


def test_data_that_differs_is_named_by_the_gate(llama, planted):
    cases = list(planted.score.data_cases(llama, planted.limits))
    assert len(cases) == 8
    assert missed(planted, cases) == []


def test_no_harmless_change_is_accused(base, planted):
    cases = list(planted.score.harmless_cases(base, planted.limits))
    assert len(cases) == (8 if base.kind.sort == "experts" else 7)
    assert accused(planted, cases) == []


def test_harmless_changes_of_a_router_in_half_precision_accuse_nobody(planted):
    ties = planted.answers.clean(planted.zoo.SCORED["mixtral"], SEED, torch.bfloat16)
    cases = list(planted.score.harmless_cases(ties, planted.limits))
    assert accused(planted, cases) == []
    assert any(one.is_seen("assert_close") for one in cases)


def test_several_bugs_at_once_are_all_named_and_nobody_else(llama, planted):
    above = {one.name for one in planted.planting.fitting(llama.kind)}
    found = list(planted.several.several(llama, planted.limits, above))
    assert {len(one.bugs) for one in found} == {2, 3}
    assert [one for one in found if not one.are_found or one.others] == []


def test_bugs_of_two_ranks_are_located(llama, planted):
    cases = list(planted.parallel.parallel_cases(llama, planted.limits, set()))
    harmless, *bugs = cases
    assert accused(planted, [harmless]) == []
    # A sum that is not added up is a sum in parts: the code that takes it for a whole is blamed.
    unreduced, *others = bugs
    assert (unreduced.what, unreduced.is_seen(planted.answers.FLOOR)) == ("all_reduce_is_missing", True)
    assert missed(planted, others) == []


def test_another_arrangement_is_told_and_nobody_accused(base, planted):
    cases = list(planted.arrangements.arrangement_cases(base, planted.limits))
    assert len(cases) >= {"llama": 8, "mixtral": 2, "mamba": 3}[base.kind.name]
    assert missed(planted, cases) == []


def arranged(planted, *told):
    answers = {planted.answers.FLOOR: planted.answers.Answer(told)}
    return planted.score.Case(
        "llama", 0, "float32", "heads_apart", "arrangements", "on top", "equal up to", True, answers
    )


def test_an_arrangement_that_accuses_somebody_is_a_false_alarm(planted):
    cases = [arranged(planted, planted.answers.EQUAL_UP_TO), arranged(planted), arranged(planted, "lm_head")]
    made = planted.results.Results({}, {}, cases)
    (bar,) = [one for one in planted.results.bars(made) if one.what == "false alarms, float32, floor"]
    assert (bar.found, bar.is_met) == ("1 of 3", False)


def test_each_detector_has_its_hits_its_misses_and_what_it_told_falsely(planted):
    shapes = planted.shapes
    done = [
        shapes.Told("scaled", ("scaled",), frozenset({"scaled"})),
        shapes.Told("scaled", ("scaled",), frozenset()),
        shapes.Told("noise", (), frozenset({"scaled"})),
        shapes.Told("permuted", ("permuted", "part"), frozenset({"permuted", "part"})),
    ]
    found = shapes.by_detector(done)
    assert found["scaled"] == {shapes.RIGHT: 1, shapes.SILENT: 1, shapes.WRONG: 1}
    assert (found["permuted"], found["part"]) == ({shapes.RIGHT: 1}, {shapes.RIGHT: 1})


def test_a_wrong_learning_rate_shows_in_the_weights_after_the_first_step(planted):
    kind = planted.zoo.SCORED["gpt2"]
    cases = planted.training.training_cases(kind, SEED, torch.float32, planted.limits, set())
    harmless, *bugs = itertools.islice(cases, 3)
    assert accused(planted, [harmless]) == []
    assert {one.what for one in bugs} == {"learning_rate_off_by_a_percent"}
    assert missed(planted, bugs) == []


def test_what_rounding_hides_is_below_noise(planted):
    kind = planted.zoo.SCORED["llama"]
    above = planted.noise.above_noise(kind, SEED, torch.bfloat16, is_whole=False)
    assert {"mask_off_by_one", "residual_dropped", "nan_in_one_row"} <= set(above)
    assert not {"product_in_tf32", "product_in_bfloat16", "norm_in_half_precision"} & set(above)


@pytest.mark.process
def test_a_script_of_its_own_writes_what_is_above_noise_and_compares_nothing(tmp_path):
    command = [sys.executable, "-m", "planted.noise", "--short", "--models", "llama", "--workers", "1"]
    subprocess.run([*command, "--work", str(tmp_path)], cwd=BENCHMARKS, check=True, capture_output=True)
    (file,) = tmp_path.iterdir()
    names = json.loads(file.read_text())
    assert file.name.startswith("above-noise-")
    assert {"mask_off_by_one", "norm_eps_1e_3"} <= set(names[f"llama {SEED} float32"])
    assert "norm_eps_1e_3" not in names[f"llama {SEED} bfloat16"]


def test_limits_are_fixed_on_other_models_than_are_scored(planted):
    assert not planted.zoo.SCORED.keys() & planted.zoo.CALIBRATED.keys()
    sorts = {kind.sort for kind in planted.zoo.SCORED.values()}
    assert sorts == {"dense", "experts", "scan", "encoder", "encoder-decoder", "vision"}
    assert len(planted.zoo.SCORED) >= 12
    assert len(planted.planting.BUGS) + len(planted.planting.DATA_BUGS) >= 40


def test_of_each_number_type_there_are_a_hundred_harmless_pairs(planted):
    kinds = planted.zoo.SCORED.values()
    pairs = sum(len(planted.score.harmless(kind)) + 1 for kind in kinds)  # each batch is split as well
    pairs += sum(planted.parallel.is_divisible(kind) + planted.training.is_trainable(kind) for kind in kinds)
    assert pairs >= 100


def headings(page):
    return [line for line in page.splitlines() if line.startswith("#")]


def test_the_page_says_what_the_benchmark_would_write(planted):
    page = (ROOT / "docs" / "planted.md").read_text(encoding="utf-8")
    worst = planted.units.Worst()
    types = planted.units.DTYPES
    empty = planted.results.Results(
        dict.fromkeys(types, planted.limits), dict.fromkeys(types, (worst, worst))
    )
    assert headings(page) == headings(planted.page.written(empty))
    for text in planted.page.TEXTS:
        fixed = map(re.escape, re.split(r"\{\w+\}", planted.page.text(text).strip()))
        assert re.search(".*".join(fixed), page, re.DOTALL), f"docs/planted.md has another {text}.md"


def test_the_page_tells_of_every_bug_and_every_model(planted):
    page = (ROOT / "docs" / "planted.md").read_text(encoding="utf-8")
    bugs = planted.planting.BUGS.keys() | planted.planting.DATA_BUGS.keys()
    assert [name for name in sorted({*bugs, *planted.zoo.SCORED}) if name not in page] == []
