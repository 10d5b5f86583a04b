"""A short form of the benchmark of planted bugs: every bug is located, no harmless change accused."""

import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
SEED = 200  # neither calibrated on nor scored
OF_EXPERTS = ("router", "experts")


@pytest.fixture(scope="module")
def planted():
    """The benchmark's own parts; one thread, as there."""
    threads = torch.get_num_threads()
    sys.path.insert(0, BENCHMARKS)
    torch.set_num_threads(1)
    try:
        from planted import score

        yield score
    finally:
        torch.set_num_threads(threads)
        sys.path.remove(BENCHMARKS)


@pytest.fixture(scope="module", params=["llama", "mixtral"])
def cases(request, planted):
    """Everything of a dense model; of a mixture of experts what it has more."""
    base = planted.clean(planted.KINDS[request.param], SEED, torch.float32)
    is_chosen = {"llama": lambda one: True, "mixtral": lambda one: one.role in OF_EXPERTS}[base.kind.name]
    chosen = filter(is_chosen, planted.fitting(base.kind))
    return [*planted.harmless_cases(base, 4.0), *planted.planted_cases(base, 4.0, chosen)]


def test_every_planted_bug_is_located(cases, planted):
    bugs = [one for one in cases if one.located is not None]
    assert len(bugs) >= 8
    missed = [one for one in bugs if not one.is_hit(planted.OURS)]
    assert [(one.what, one.scene, one.blamed[planted.OURS]) for one in missed] == []


def test_no_harmless_change_is_accused(cases, planted):
    harmless = [one for one in cases if one.located is None]
    assert len(harmless) == 7
    assert [(one.what, one.blamed[planted.OURS]) for one in harmless if one.is_seen(planted.OURS)] == []


def test_harmless_changes_of_a_router_in_half_precision_accuse_nobody(planted):
    base = planted.clean(planted.KINDS["mixtral"], 104, torch.bfloat16)  # with ties that no twin has
    found = list(planted.harmless_cases(base, limit=4.0))
    assert [(one.what, one.blamed[planted.OURS]) for one in found if one.is_seen(planted.OURS)] == []
    assert any(one.is_seen("sglang rel 1e-3") for one in found)
