"""Small values are measured together, and come to the same as each by itself."""

import copy
import math
import pickle
import threading
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.proof import examples

import tensortap as tt
from tensortap.comparison.sides.entry import InMemoryRef, RunValueRef
from tensortap.comparison.sides.leaf import Operand
from tensortap.comparison.sides.load import load_side
from tensortap.comparison.values import measure as measuring
from tensortap.comparison.values.measure import ValueRefPair, measure_batch
from tensortap.comparison.values.metrics import Metrics, measure, measure_operands
from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.kernels import native

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=12)


class Bits:
    """Numbers of any type, as a reference."""

    def __init__(self, held):
        self.held = held

    def load(self):
        return self.held.bits

    def operand(self):
        return self.held


@st.composite
def operands(draw):
    dtypes = st.sampled_from(sorted(DTYPE_TABLE))
    a_dtype = draw(dtypes)
    b_dtype = draw(st.sampled_from([a_dtype, a_dtype, draw(dtypes)]))
    shape = draw(SHAPES)
    a, b = (draw(arrays.arrays(DTYPE_TABLE[dtype].storage, shape)) for dtype in (a_dtype, b_dtype))
    return Operand(a, a_dtype), Operand(a if a_dtype == b_dtype and draw(st.booleans()) else b, b_dtype)


def assert_same(found: Metrics, expected: Metrics) -> None:
    for field in fields(Metrics):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if field.name in ("worst_row", "worst_column"):  # of equals, rounding may choose either
            assert (one < 0) == (other < 0)
        elif isinstance(other, float):
            assert one == pytest.approx(other, rel=1e-9, abs=1e-11, nan_ok=True), field.name
        elif field.name == "norms":
            assert one == pytest.approx(other, rel=1e-12)
        else:
            assert one == other, field.name


@pytest.mark.law
@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(operands(), max_size=4))
def test_pairs_that_are_measured_together_come_to_the_same_as_each_by_itself(pairs):
    found = measure_batch([ValueRefPair(Bits(a), Bits(b)) for a, b in pairs])
    for one, (a, b) in zip(found, pairs, strict=True):
        assert_same(one, measure_operands(a, b))


def test_small_values_are_measured_in_few_calls(monkeypatch):
    calls = []
    library = native.library
    if library is None:
        pytest.skip(native.unavailable_reason)

    class Watched:
        def measured(self, pairs):
            calls.append(len(pairs))
            return library.measured(pairs)

    monkeypatch.setattr(native, "library", Watched())
    value = np.ones((128, 128), np.float32)
    found = measure_batch([ValueRefPair(InMemoryRef(value), InMemoryRef(value + 1))] * 40)
    assert calls == [16, 16, 8]
    assert {one.worst_row for one in found} == {0}


def test_what_a_worker_holds_of_small_values_is_bounded(monkeypatch):
    alive, most = set(), []

    class Counted:
        def load(self):
            raise AssertionError

        def operand(self):
            made = np.ones((256, 256), np.float32).view(Watched)
            alive.add(id(made))
            most.append(len(alive))
            return Operand(made, "float32")

    class Watched(np.ndarray):
        def __del__(self):
            alive.discard(id(self))

    measure_batch([ValueRefPair(Counted(), Counted())] * 50)
    assert max(most) * 256 * 256 * 4 <= measuring._PENDING_BYTES + 2 * 256 * 256 * 4


def test_one_odd_pair_among_others_costs_only_itself(tmp_path):
    class Broken:
        def load(self):
            raise OSError("gone")

        operand = load

    good = InMemoryRef(torch.ones(4, 4)), InMemoryRef(torch.zeros(4, 4))
    found = measure_batch(
        [
            ValueRefPair(*good),
            ValueRefPair(Broken(), good[1]),
            ValueRefPair(InMemoryRef("a"), InMemoryRef("b")),
            ValueRefPair(*good),
        ]
    )
    assert [type(one) for one in found] == [Metrics, str, Metrics, Metrics]
    assert found[1] == "OSError: gone"
    assert found[0] == found[3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64", "bool"])
def test_without_the_compiled_kernels_runs_compare_the_same(monkeypatch, dtype):
    random = torch.Generator().manual_seed(0)
    a = {f"x.{n}": torch.randn(8, 8, generator=random).to(getattr(torch, dtype)) for n in range(3)}
    b = {name: (one.float() * 1.01).to(one.dtype) for name, one in a.items()}
    with_library = tt.compare_runs(a, b)
    monkeypatch.setattr(native, "library", None)
    without = tt.compare_runs(a, b)
    assert [one.verdict for one in with_library.table] == [one.verdict for one in without.table]
    for one, other in zip(with_library.table, without.table, strict=True):
        assert_same(one.metrics, other.metrics)


def written(path, values):
    """A run of these values by name, and its references in their order."""
    sink = tt.RunDirectory(path)
    for order, (name, value) in enumerate(values.items()):
        sink.write(tt.Record(name, value, "output", order=order))
    sink.close()
    return [entry.reference for entry in load_side(path).entries]


def any_values(seed):
    random = torch.Generator().manual_seed(seed)
    made = {
        dtype: torch.randn(6, 10, generator=random) for dtype in ("float32", "float16", "bfloat16", "float64")
    }
    values = {name: value.to(getattr(torch, name)) for name, value in made.items()}
    hole = values["float32"].clone()
    hole[2, 3] = math.nan if seed else -math.inf
    return {
        **values,
        "int64": torch.randint(9, (12,), generator=random),
        "bool": torch.rand(5, generator=random) > 0.5,
        "float8_e4m3fn": made["float32"].to(torch.float8_e4m3fn),
        "one": torch.tensor(1.0 + seed),
        "tiny": torch.full((4,), 1e-200 * (1 + seed), dtype=torch.float64),
        "zeros": torch.zeros(3, 3),
        "empty": torch.zeros(0, 3),
        "hole": hole,
        "text": f"seed {seed}",
    }


def test_values_of_runs_are_measured_as_bytes_and_come_to_the_same_as_arrays(tmp_path):
    a, b = (written(tmp_path / str(seed), any_values(seed)) for seed in (0, 1))
    found = measure_batch(list(zip(a, b, strict=True)))
    for one, (x, y) in zip(found, zip(a, b, strict=True), strict=True):
        expected = measure(x.load(), y.load())
        assert_same(one, expected)
        assert one.is_nonfinite == expected.is_nonfinite


def test_no_array_is_made_of_what_the_kernels_take_as_bytes(tmp_path, monkeypatch):
    if native.library is None:
        pytest.skip(native.unavailable_reason)
    a, b = (written(tmp_path / str(seed), {"x": torch.full((4, 4), 1.0 + seed)}) for seed in (0, 1))
    monkeypatch.setattr(RunValueRef, "operand", None)
    (found,) = measure_batch([(a[0], b[0])])
    assert found.relative_l2 == 0.5


def test_a_value_that_the_index_gives_another_size_costs_only_itself(tmp_path):
    good = written(tmp_path / "a", {"x": torch.ones(4, 4), "y": torch.ones(4, 4)})
    short = good[0]._replace(nbytes=60)
    beyond = good[0]._replace(offset=1 << 40)
    found = measure_batch([(good[1], good[0]), (short, good[0]), (beyond, good[0]), (good[0], good[1])])
    assert [type(one) for one in found] == [Metrics, str, str, Metrics]
    assert "ValueError" in found[1]
    assert "ends at byte" in found[2]


def test_what_comes_back_from_a_worker_is_small_and_the_same(tmp_path):
    a, b = (written(tmp_path / str(seed), any_values(seed)) for seed in (0, 1))
    (found,) = measure_batch([(a[0], b[0])])
    sent = pickle.dumps(found)
    assert len(sent) < 500
    assert pickle.loads(sent) == found
    unfolded = replace(found, part="[0]")
    assert pickle.loads(pickle.dumps(unfolded)) == unfolded
    assert copy.copy(unfolded) == unfolded


def test_no_other_name_is_taken_for_a_fact_of_a_pair():
    assert not hasattr(Metrics(), "rows")
    with pytest.raises(AttributeError, match="no attribute 'rows'"):
        _ = Metrics().rows


def test_many_pairs_come_back_in_their_order_from_as_many_threads_as_there_are(monkeypatch):
    names = set()

    def watched(batch):
        names.add(threading.current_thread().name)
        return measure_batch(batch)

    monkeypatch.setattr(measuring, "measure_batch", watched)
    monkeypatch.setattr(measuring, "_cpu_count", lambda: 2)
    zero = np.zeros((64, 64), np.float32)
    a = {f"x.{n}": zero + 1 for n in range(1500)}
    b = {f"x.{n}": zero + (1 + n / 4096) for n in range(1500)}
    found = tt.compare_runs(a, b)
    assert [one.metrics.absolute.size if n else 0 for n, one in enumerate(found.table)] == [
        n / 4096 for n in range(1500)
    ]
    assert names <= {"tensortap-compare_0", "tensortap-compare_1"}
