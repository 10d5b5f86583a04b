"""Pieces of several ranks are compared with a whole, by what they say or by what explains their numbers."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.comparison.alignment.align import assemble_pair
from tensortap.comparison.matching.match import match
from tensortap.comparison.sharding.group_ranks import group_ranks
from tensortap.comparison.sides.load import load_side
from tensortap.core.record import Placement, Record

RANDOM = np.random.default_rng(8)
EMB, UP, DOWN, OUT = (
    RANDOM.standard_normal(s).astype(np.float32) for s in ((6, 16), (6, 32), (6, 16), (6, 8))
)
HALF = RANDOM.standard_normal(DOWN.shape).astype(np.float32)
WHOLE = {"emb": EMB, "up": UP, "down": DOWN, "out": OUT}
PIECES = {"emb": [EMB] * 2, "up": np.split(UP, 2, 1), "down": [HALF, DOWN - HALF], "out": np.split(OUT, 2)}


def one(values=WHOLE):
    return [Record(name, value, "output", order=n) for n, (name, value) in enumerate(values.items())]


def ranks(pieces=PIECES, placements=None, **changed):
    return [
        Record(name, piece, "output", rank=rank, order=n, placement=(placements or {}).get((name, rank)))
        for n, (name, held) in enumerate({**pieces, **changed}.items())
        for rank, piece in enumerate(held)
    ]


def shard(rank, dim, shape, ranks=2):
    offset = [0] * len(shape)
    offset[dim] = rank * shape[dim] // ranks
    return Placement((ranks,), (rank,), (f"shard({dim})",), shape, tuple(offset))


@pytest.mark.parametrize("is_swapped", [False, True], ids=["whole-pieces", "pieces-whole"])
def test_ranks_are_compared_with_one_process(is_swapped):
    sides = (ranks(), one()) if is_swapped else (one(), ranks())
    found = tt.compare_runs(*sides)
    assert (found.first, found.exit_code) == (None, 0)
    words = {plan.name: plan.summary for plan in found.plans}
    assert words == {"emb": "replicate", "up": "shard(1)", "down": "partial(sum)", "out": "shard(0)"}
    assert "put together: 1 replicate, 1 shard(1), 1 partial(sum), 1 shard(0)" in str(found)


def test_the_plan_is_in_the_story():
    told = tt.compare_runs(one(), ranks()).explain("up")
    assert "  B: 2 pieces of ranks 0, 1 are shard(1) (leaves 0 of the whole; next shard(1) fused" in told


def test_a_wrong_shard_is_the_origin_and_named():
    halves = np.split(UP, 2, 1)
    found = tt.compare_runs(one(), ranks(up=[halves[0], halves[1] * np.float32(1.5)]))
    assert found.first.seen_at == "up"
    told = found.explain("up")
    assert "the piece of rank 1 does not fit, the others do" in told
    assert "the difference: only the tail: 16 to 31 of 32 along axis 1, part 2 of 2" in told


def test_a_copy_that_differs_is_not_hidden_by_a_good_one():
    found = tt.compare_runs(one(), ranks(emb=[EMB, EMB * np.float32(1.01)]))
    assert found.first.seen_at == "emb"
    assert "its 2 copies are not equal: copy 1, the farthest, is compared" in found.explain("emb")


def test_pieces_of_shapes_that_make_no_whole_are_unaligned_and_never_green():
    found = tt.compare_runs(one(), ranks(emb=[EMB[:2], EMB[:2]]))
    assert (found.first, found.exit_code) == (None, 3)
    assert found.counts["unaligned"] == 1
    assert "the pieces of ranks 0, 1: no way explains the numbers" in found.explain("emb")


def test_what_no_way_explains_is_a_difference():
    found = tt.compare_runs(one(), ranks(emb=[HALF * 3, EMB[::-1]]))
    assert found.first.seen_at == "emb"
    assert "are replicate, by the shapes alone: no way explains the numbers" in found.explain("emb")


def test_an_ambiguous_placement_is_named_with_both():
    row = 1 + 0.01 * RANDOM.standard_normal(16)
    held = [row[:8] + 0.02 * RANDOM.standard_normal(8), row[8:] + 0.02 * RANDOM.standard_normal(8)]
    found = tt.compare_runs(one({"x": row}), ranks({"x": held}))
    assert found.exit_code == 3
    assert "ambiguous: shard(0)" in found.explain("x")
    assert all(f"{way} leaves" in found.explain("x") for way in ("zigzag", "shard(0)"))


def test_what_pieces_say_of_themselves_comes_first():
    placements = {("up", rank): shard(rank, 1, UP.shape) for rank in (0, 1)}
    found = tt.compare_runs(one({"up": UP}), ranks({"up": PIECES["up"]}, placements))
    assert found.counts == {"identical": 1}
    assert "2 pieces of ranks 0, 1 are shard(1), as they say themselves" in found.explain("up")


def test_placements_that_contradict_each_other_are_named():
    placements = {("up", 0): shard(0, 1, UP.shape), ("up", 1): shard(1, 0, UP.shape)}
    found = tt.compare_runs(one({"up": UP}), ranks({"up": PIECES["up"]}, placements))
    assert found.counts == {"identical": 1}
    told = found.explain("up")
    assert "what the pieces say of themselves is not so: the ranks place 'up' differently" in told


def test_placements_that_contradict_each_other_and_explain_nothing_are_left_out():
    placements = {("up", 0): shard(0, 1, UP.shape), ("up", 1): shard(1, 0, UP.shape)}
    pieces = {"up": [UP[:2], UP[:3, :5]], "emb": [EMB, EMB]}
    found = tt.compare_runs(one({"up": UP, "emb": EMB}), ranks(pieces, placements))
    assert (found.counts, found.exit_code) == ({"unaligned": 1, "identical": 1}, 3)
    (told,) = found.coverage.unaligned
    assert told.startswith("up: the pieces of ranks 0, 1: no way explains the numbers; what the pieces say")
    assert "the ranks place 'up' differently" in told
    assert "; ;" not in told


def test_one_rank_alone_beside_a_whole_is_no_padding():
    placements = {("up", rank): shard(rank, 1, UP.shape) for rank in (0, 1)}
    found = tt.compare_runs(one({"up": UP}), ranks({"up": PIECES["up"]}, placements), rank=0)
    assert found.counts == {"unaligned": 1}


def test_one_rank_alone_that_says_nothing_beside_a_whole_is_a_gap():
    found = tt.compare_runs(one({"up": UP}), one({"up": PIECES["up"][0]}))
    assert (found.first, found.exit_code) == (None, 3)
    assert "only A has: " in found.coverage.problems[0]


TEXTS = {"text": np.array(["a", "b"]), "object": {"rate": 0.1}, "string": "bf16"}


@pytest.mark.parametrize("case", TEXTS)
def test_what_is_no_numbers_and_equal_on_every_rank_is_replicate(case):
    value = TEXTS[case]
    many = [Record("x", value, rank=rank) for rank in (0, 1)]
    found = tt.compare_runs([Record("x", value)], many)
    assert (found.exit_code, [one.verdict for one in found.table]) == (0, ["identical"])
    assert found.plans[0].summary == "replicate"
    assert tt.compare_runs(many, [Record("x", value, rank=rank) for rank in range(4)]).exit_code == 0
    apart = tt.compare_runs([Record("x", value)], [many[0], Record("x", "other", rank=1)])
    assert (apart.exit_code, len(apart.coverage.unaligned)) == (3, 1)


def test_two_sides_on_other_numbers_of_ranks_meet():
    found = tt.compare_runs(ranks({"x": np.split(UP, 2, 1)}), ranks({"x": np.split(UP, 4, 1)}))
    assert found.counts == {"identical": 1}
    assert found.plans[0].summary == "shard(1)"


def test_the_same_ranks_that_cut_otherwise_meet():
    ways = [
        ranks(
            {"x": np.split(UP, 2, dim), "same": [EMB, EMB]},
            {("x", rank): shard(rank, dim, UP.shape) for rank in (0, 1)},
        )
        for dim in (0, 1)
    ]
    found = tt.compare_runs(*ways)
    assert found.exit_code == 0
    assert sorted(one.name for one in found.table) == ["same", "same", "x"]


def test_stages_of_a_pipeline_meet_the_whole_model():
    staged = [record._replace(rank=n // 2) for n, record in enumerate(one())]
    found = tt.compare_runs(one(), staged)
    assert (found.exit_code, found.counts) == (0, {"identical": 4})


def test_the_same_ranks_are_compared_one_by_one():
    found = tt.compare_runs(ranks(), ranks())
    assert (len(found.table), found.plans) == (8, ())


def test_bfloat16_pieces_of_torch_are_joined_bit_for_bit():
    value = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = tt.compare_runs(one({"x": value}), ranks({"x": list(value.chunk(4, 1))}))
    assert found.counts == {"identical": 1}


def test_other_number_types_are_joined_too():
    found = tt.compare_runs(one(), ranks(up=[half.astype(np.float16) for half in PIECES["up"]]))
    assert {plan.summary for plan in found.plans if plan.name == "up"} == {"shard(1)"}


def test_a_worker_can_join_pieces_itself():
    pair = tt.compare_runs(one(), ranks()).table[1].pair
    again = pickle.loads(pickle.dumps(pair.b.reference))
    assert np.array_equal(again.load(), UP)


def written(folder, records):
    sink = tt.RunDirectory(folder)
    for record in records:
        sink.write(record)
    sink.close()
    return folder


def test_workers_find_how_pieces_sit(tmp_path):
    class Counting(ThreadPoolExecutor):
        asked: ClassVar = []

        def submit(self, fn, /, *given, **named):
            self.asked.append(fn.__name__)
            return super().submit(fn, *given, **named)

    a, b = written(tmp_path / "one", one()), written(tmp_path / "two", ranks())
    with Counting(2) as executor:
        found = tt.compare_runs(a, b, executor=executor)
    assert Counting.asked.count("assemble_pair") == 4
    assert [str(plan) for plan in found.plans] == [str(plan) for plan in tt.compare_runs(a, b).plans]


def test_a_pair_can_be_settled_by_another_process(tmp_path):
    a, b = written(tmp_path / "one", one()), written(tmp_path / "two", ranks())
    (pair, *_) = match(*group_ranks(load_side(a), load_side(b))).pairs
    again = assemble_pair(pickle.loads(pickle.dumps(pair)))
    assert pickle.loads(pickle.dumps(again)).alignment == assemble_pair(pair).alignment


def test_a_worker_that_is_lost_costs_no_placement(tmp_path, caplog):
    class Broken(ThreadPoolExecutor):
        def submit(self, fn, /, *given, **named):
            raise RuntimeError("gone")

    a, b = written(tmp_path / "one", one()), written(tmp_path / "two", ranks())
    found = tt.compare_runs(a, b, executor=Broken(1))
    assert (found.exit_code, len(found.plans)) == (0, 4)
    assert "a worker was lost" in caplog.text


def test_runs_on_disk_of_two_ranks_meet_that_of_one(tmp_path):
    for name, records in (("one", one()), ("two", ranks())):
        written(tmp_path / name, records)
    found = tt.compare_runs(tmp_path / "one", tmp_path / "two")
    assert (found.first, found.exit_code) == (None, 0)
    assert len(found.plans) == 4


def test_a_rank_that_is_missing_accuses_nobody(tmp_path):
    whole = written(tmp_path / "whole", ranks())
    cut_off = written(tmp_path / "cut off", [record for record in ranks() if record.rank == 0])
    for run in (whole, cut_off):
        (run / "runtime_info.json").write_text('{"environment_variables": {"WORLD_SIZE": "2"}}')
    for sides in ((whole, cut_off), (cut_off, whole)):
        found = tt.compare_runs(*sides)
        assert (found.first, found.exit_code, found.counts) == (None, 3, {"identical": 4})
        assert "rank 1 has no records" in str(found)
        assert len(found.coverage.only_a) + len(found.coverage.only_b) == 4
