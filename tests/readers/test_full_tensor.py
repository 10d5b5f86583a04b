"""Pieces of several ranks put together: exact, complete, and never by guessing."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proof import examples

import tensortap as tt
from tensortap.core.errors import NotWholeError, UnsupportedValueError
from tensortap.core.record import Placement, Record
from tensortap.frameworks.dtensor import global_indices, placement_at
from tensortap.readers.full_tensor import whole


def cut(value, mesh, *parts, name="x"):
    """One record per place of the mesh, as the ranks would have made them."""
    records = []
    for rank, coordinate in enumerate(product(*map(range, mesh))):
        placement = placement_at(mesh, coordinate, parts, tuple(value.shape))
        piece = value
        for dimension, rows in enumerate(global_indices(placement)):
            piece = piece[(slice(None),) * dimension + (rows,)]
        records.append(Record(name, piece, rank=rank, placement=placement))
    return records


def apart(*values, **facts):
    """One record per rank, without a placement."""
    return [Record("x", value, rank=rank, **facts) for rank, value in enumerate(values)]


def same_bits(one, other):
    assert type(one) is type(other)
    assert one.dtype == other.dtype
    assert tuple(one.shape) == tuple(other.shape)
    as_bytes = [
        (
            value.contiguous().reshape(-1).view(torch.uint8).numpy()
            if isinstance(value, torch.Tensor)
            else value
        )
        for value in (one, other)
    ]
    assert as_bytes[0].tobytes() == as_bytes[1].tobytes()


@pytest.mark.law
@settings(max_examples=examples(75), deadline=None)
@given(st.data())
def test_what_was_cut_in_any_way_comes_back_bit_for_bit(data):
    shape = tuple(data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=3)))
    mesh = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=2)))
    dimension = st.integers(0, len(shape) - 1)
    word = st.one_of(
        st.just("replicate"),
        dimension.map("shard({})".format),
        st.builds("strided_shard({}, {})".format, dimension, st.integers(1, 3)),
    )
    value = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    records = cut(value, mesh, *(data.draw(word) for _ in mesh))
    same_bits(whole(data.draw(st.permutations(records))), value)


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool, torch.uint8],
)
def test_every_number_type_of_torch_comes_back(dtype):
    size = dtype.itemsize
    value = torch.arange(5 * 3 * size, dtype=torch.uint8).view(dtype).reshape(5, 3)
    if dtype is torch.bool:
        value = torch.arange(15).reshape(5, 3) % 2 == 0
    same_bits(whole(cut(value, (2,), "shard(0)")), value)
    same_bits(whole(cut(value, (2,), "replicate")), value)


def test_numpy_and_jax_pieces_come_back_in_their_own_framework():
    import jax.numpy as jnp

    small = np.arange(6).astype(ml_dtypes.bfloat16)
    same_bits(whole(cut(small, (4,), "shard(0)")), small)
    value = jnp.arange(6, dtype=jnp.bfloat16)
    found = whole(cut(value, (2,), "shard(0)"))
    assert type(found) is type(value)
    assert found.dtype == value.dtype
    assert (found == value).all()


def test_nan_and_minus_zero_are_bits_like_any_other():
    value = torch.tensor([float("nan"), -0.0, 0.0, float("inf")])
    same_bits(whole(cut(value, (2,), "replicate")), value)
    same_bits(whole(apart(value, value.clone())), value)
    with pytest.raises(NotWholeError, match="1 of 2 elements"):
        whole(apart(torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])))


def test_values_without_dimensions_and_without_elements_are_whole_too():
    same_bits(whole(cut(torch.tensor(3.5), (2,), "replicate")), torch.tensor(3.5))
    same_bits(whole(cut(torch.tensor(3.5), (2,), "partial(sum)")), torch.tensor(7.0))
    same_bits(whole(cut(torch.empty(0, 4), (3,), "shard(0)")), torch.empty(0, 4))


def test_an_empty_piece_may_be_missing():
    value = torch.arange(2.0)
    records = cut(value, (4,), "shard(0)")
    same_bits(whole(records[:2]), value)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [("sum", 7.0), ("avg", 7 / 3), ("max", 4.0), ("min", 1.0), ("product", 8.0)],
)
@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_partial_results_are_reduced_in_their_own_type(operation, expected, make):
    records = [
        Record(
            "x",
            make([number]),
            rank=rank,
            placement=placement_at((3,), (rank,), (f"partial({operation})",), (1,)),
        )
        for rank, number in enumerate([1.0, 2.0, 4.0])
    ]
    found = whole(records)
    assert found.dtype == records[0].value.dtype
    assert float(found[0]) == pytest.approx(expected, rel=1e-6)


def test_partial_sums_are_added_in_the_order_of_ranks_and_rounded_each_time():
    values = [torch.tensor([number], dtype=torch.bfloat16) for number in (256.0, 1.0, 1.0)]
    records = [
        Record("x", value, rank=rank, placement=placement_at((3,), (rank,), ("partial(sum)",), (1,)))
        for rank, value in enumerate(values)
    ]
    assert whole(records).item() == 256.0  # 256 + 1 is 256 in bfloat16, 256 + 2 would be 258
    assert whole(reversed(records)).item() == 256.0


def test_a_type_that_cannot_be_added_is_refused():
    value = torch.ones(2).to(torch.float8_e4m3fn)
    with pytest.raises(
        UnsupportedValueError, match="the sum of float8_e4m3fn pieces of 'x' cannot be computed"
    ):
        whole(cut(value, (2,), "partial(sum)"))


def test_partial_results_of_a_shard_are_reduced_within_it():
    value = torch.arange(6.0)
    same_bits(whole(cut(value, (2, 3), "partial(sum)", "shard(0)")), value * 2)
    same_bits(whole(cut(value, (2, 2), "partial(sum)", "replicate")), value * 2)


def test_ranks_that_hold_the_same_piece_are_compared():
    records = cut(torch.arange(6.0), (2,), "shard(0)")
    twins = [
        Record("x", record.value, rank=record.rank + 2, placement=record.placement) for record in records
    ]
    same_bits(whole([*records, *twins]), torch.arange(6.0))
    other = Record("x", twins[1].value + 1, rank=3, placement=twins[1].placement)
    with pytest.raises(
        NotWholeError, match=r"rank 1 and rank 3 should hold the same piece of 'x'.*3 of 3 elem"
    ):
        whole([*records, twins[0], other])


def test_copies_that_differ_name_the_ranks_and_count_the_elements():
    records = cut(torch.zeros(4), (3,), "replicate")
    records[2] = Record("x", torch.tensor([0.0, 1.0, 0.0, 1.0]), rank=2, placement=records[2].placement)
    with pytest.raises(NotWholeError, match=r"rank 0 and rank 2 should .* differ in 2 of 4 elements"):
        whole(records)


def test_a_missing_piece_is_named():
    records = cut(torch.arange(8.0), (2, 2), "shard(0)", "replicate")
    with pytest.raises(
        NotWholeError, match=r"1 of 2 pieces .*at \(1, 0\) of the mesh \(2, 2\); ranks 0, 1 gave"
    ):
        whole(records[:2])
    same_bits(whole([records[0], records[3]]), torch.arange(8.0))


def test_a_missing_partial_result_is_named():
    with pytest.raises(NotWholeError, match=r"1 of 3 pieces of 'x' are missing, at \(1,\)"):
        whole(cut(torch.ones(2), (3,), "partial(sum)")[::2])


def test_values_without_a_placement_must_agree_or_be_joined():
    one, other = torch.zeros(2, 2), torch.ones(1, 2)
    same_bits(whole(apart(one, one.clone())), one)
    with pytest.raises(NotWholeError, match=r"rank 0 and rank 1 in shape: .*dim=\.\.\..* would join them"):
        whole(apart(one, other))
    same_bits(whole(reversed(apart(one, other)), dim=0), torch.cat([one, other]))
    with pytest.raises(NotWholeError, match="cannot be put together along dimension 1 from"):
        whole(apart(one, other), dim=1)


def test_joining_takes_one_piece_of_each_rank():
    with pytest.raises(NotWholeError, match="3 records of 'x' come from ranks 0, 1"):
        whole([*apart(torch.ones(1), torch.ones(1)), Record("x", torch.ones(1), rank=1)], dim=0)


def test_pieces_that_know_their_place_need_no_dimension():
    with pytest.raises(ValueError, match=r"shard\(0\) of \[4\].*leave dim out"):
        whole(cut(torch.ones(4), (2,), "shard(0)"), dim=0)


def test_the_record_of_one_rank_is_whole_as_it_is():
    value = {"anything": 1}
    assert whole(Record("x", value)) is value
    assert whole([Record("x", 3, rank=1)]) == 3


def test_plain_values_are_whole_where_they_agree():
    assert whole(apart(3, 3)) == 3
    with pytest.raises(UnsupportedValueError, match="'x' is a int on rank 0, and only ordinary arrays"):
        whole(apart(3, 4))


@pytest.mark.parametrize(
    ("fact", "told"),
    [
        ({"name": "y"}, "2 names: x, y; give those of one name"),
        ({"step": 1}, "2 steps: 0, 1"),
        ({"call": 1}, "2 calls: 0, 1"),
        ({"kind": "input"}, "2 kinds: value, input"),
    ],
)
def test_records_of_different_moments_are_not_mixed(fact, told):
    with pytest.raises(NotWholeError, match=told):
        whole([Record("x", 1), Record(**{"name": "x", "value": 1, "rank": 1, **fact})])


def test_no_records_and_no_record_are_said():
    with pytest.raises(NotWholeError, match="no records"):
        whole([])
    with pytest.raises(UnsupportedValueError, match="takes records, not a Tensor"):
        whole([torch.ones(2)])


def test_what_is_not_one_block_is_refused_in_one_sentence():
    sparse = torch.eye(2).to_sparse()
    with pytest.raises(
        UnsupportedValueError, match="'x' is a sparse_coo Tensor on rank 0, and only ordinary"
    ):
        whole(apart(sparse, sparse.clone()))


def test_pieces_of_two_types_are_refused():
    with pytest.raises(NotWholeError, match="not of one kind: torch float32, torch float64; give pieces"):
        whole(apart(torch.ones(2), torch.ones(2).double()))


def test_a_placement_that_does_not_fit_its_piece_is_refused():
    records = cut(torch.arange(6.0), (2,), "shard(0)")
    records[1] = Record("x", torch.ones(4), rank=1, placement=records[1].placement)
    with pytest.raises(
        NotWholeError, match=r"rank 1 holds \[4\] from \[3\] on of 'x'.* gives it \[3\] from \[3\]"
    ):
        whole(records)


def test_placements_that_contradict_each_other_are_refused():
    first, second = cut(torch.ones(4), (2,), "shard(0)")[0], cut(torch.ones(4), (2,), "replicate")[1]
    with pytest.raises(NotWholeError, match="the ranks place 'x' differently"):
        whole([first, second])
    with pytest.raises(NotWholeError, match="'x' of rank 1 does not say how it sits"):
        whole([first, Record("x", torch.ones(2), rank=1)])


def test_a_placement_that_pieces_cannot_undo_is_refused():
    placement = Placement((1,), (0,), ("maskpartial",), (2,), (0,))
    with pytest.raises(UnsupportedValueError, match="placed as maskpartial"):
        whole(Record("x", torch.ones(2), placement=placement))


def test_a_rank_outside_the_mesh_adds_nothing():
    outside = Record("x", torch.empty(0), rank=9, placement=placement_at((2,), (), ("shard(0)",), (4,)))
    same_bits(whole([*cut(torch.arange(4.0), (2,), "shard(0)"), outside]), torch.arange(4.0))
    with pytest.raises(NotWholeError, match="no rank of the mesh"):
        whole(outside)


@pytest.mark.parametrize("layout", ["pack", "files"])
def test_the_records_of_a_run_are_put_together(written, layout):
    value = torch.arange(15.0).reshape(5, 3).to(torch.bfloat16)
    run = tt.Run(written(*cut(value, (2,), "shard(1)"), layout=layout))
    same_bits(whole(run.filter("x")), value)
