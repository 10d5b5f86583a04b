"""A short form of the benchmark of planted bugs: every bug is located, no harmless change accused."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
SEED = 200  # neither calibrated on nor scored
# Everything of a dense model; of others what they have more.
ROLES = {"llama": None, "mixtral": ("router", "experts"), "mamba": ("mixer",)}


@pytest.fixture(scope="module")
def planted():
    """The benchmark's own parts; one thread, as there."""
    threads = torch.get_num_threads()
    sys.path.insert(0, BENCHMARKS)
    torch.set_num_threads(1)
    try:
        from planted import answers, arrangements, noise, parallel, planting, score, several, training, zoo

        rooms = (answers, arrangements, noise, parallel, planting, score, several, training, zoo)
        yield SimpleNamespace(
            limits=answers.Limits(4.0, 4.0), **{room.__name__.partition(".")[2]: room for room in rooms}
        )
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


def test_every_planted_bug_is_located(base, planted):
    roles = ROLES[base.kind.name]
    chosen = [one for one in planted.planting.fitting(base.kind) if roles is None or one.role in roles]
    cases = list(planted.score.module_cases(base, planted.limits, set(), chosen))
    assert len(cases) >= 14
    assert missed(planted, cases) == []


def test_data_that_differs_is_named_by_the_gate(llama, planted):
    cases = list(planted.score.data_cases(llama, planted.limits))
    assert len(cases) == 8
    assert missed(planted, cases) == []


def test_no_harmless_change_is_accused(base, planted):
    cases = list(planted.score.harmless_cases(base, planted.limits))
    assert len(cases) == 7
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


def test_a_script_of_its_own_writes_what_is_above_noise_and_compares_nothing(tmp_path):
    command = [sys.executable, "-m", "planted.noise", "--short", "--models", "llama", "--workers", "1"]
    subprocess.run([*command, "--work", str(tmp_path)], cwd=BENCHMARKS, check=True, capture_output=True)
    (file,) = tmp_path.iterdir()
    (names,) = json.loads(file.read_text()).values()
    assert file.name.startswith("above-noise-")
    assert {"mask_off_by_one", "norm_eps_1e_3"} <= set(names)


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
