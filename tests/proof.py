"""How much of a proof is run: a sample, or the whole with TENSORTAP_PROOF=1, as in `make proof`."""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

IS_WHOLE = os.environ.get("TENSORTAP_PROOF") == "1"
USUAL_EXAMPLES = 50
_EXAMPLES = {"fast": 15, "usual": USUAL_EXAMPLES, "proof": 500}


def register_profiles() -> None:
    """The profiles of Hypothesis; `--hypothesis-profile` may choose another than the one loaded here."""
    for name, count in _EXAMPLES.items():
        # How long one example takes says nothing on a machine that others use too.
        settings.register_profile(name, deadline=None, max_examples=count)
    settings.load_profile("proof" if IS_WHOLE else "usual")


def examples(count: int) -> int:
    """How many examples a property gets that has `count` of them in the usual tests."""
    return max(5, count * settings.default.max_examples // USUAL_EXAMPLES)


def sampled(cases: Iterable[Any], sample: Iterable[Any]) -> list[Any]:
    """Parameters of a test: those outside the sample have their turn in a whole proof only."""
    cases, sample = list(cases), list(sample)
    assert all(case in cases for case in sample), "the sample is not one of these cases"
    return [case if case in sample else _whole_only(case) for case in cases]


def some(cases: Iterable[Any], *, every: int) -> list[Any]:
    """Of many equal cases each that many-th; all in a whole proof."""
    return list(cases)[:: 1 if IS_WHOLE else every]


def _whole_only(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.proof)
