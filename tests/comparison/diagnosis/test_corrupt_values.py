"""Bytes that are not those that were written: such a value is unreadable, accuses nobody, is never green."""

import numpy as np
import pytest

import tensortap as tt
from tensortap.core.record import Record

NAMES = ["k", "l", "m", "n"]


def written(path, gain=1.0, noise=0.0, wrong=""):
    random = np.random.default_rng(0)
    sink = tt.RunDirectory(path)
    for order, name in enumerate(NAMES):
        value = random.standard_normal((8, 16)) * (1 + noise)
        sink.write(Record(name, value * (gain if name >= wrong else 1), "value", order=order))
    sink.close()
    return path


def damage(path, name, change):
    """Change the bytes of one value, and none of their number."""
    raw = tt.Run(path).load(name).tobytes()
    (pack,) = path.glob(".tensortap/packs/*.npz")
    held = pack.read_bytes()
    at = held.index(raw)
    pack.write_bytes(held[:at] + bytes(change(bytearray(raw))) + held[at + len(raw) :])
    return path


def a_bit(raw):
    raw[64] ^= 1
    return raw


def at_random(raw):
    raw[8:308] = np.random.default_rng(1).bytes(300)
    return raw


DAMAGES = [a_bit, at_random]


@pytest.mark.parametrize("change", DAMAGES)
@pytest.mark.parametrize("floor", [None, "first"])
def test_of_two_values_that_were_equal_a_damaged_one_is_unreadable(tmp_path, change, floor):
    a, b, again = (written(tmp_path / name) for name in "abc")
    damage(b, "m", change)
    found = tt.compare_runs(a, b, floor=again if floor else None)
    assert {one.name: one.verdict for one in found.table if one.verdict != "identical"} == {"m": "unreadable"}
    assert (found.first, found.exit_code) == (None, 3)
    (told,) = found.coverage.unreadable
    assert "rank0-0000.npz is damaged: bytes" in told
    assert "b/.tensortap" in told


@pytest.mark.parametrize("side", "ab")
def test_what_would_be_accused_is_checked_before(tmp_path, side):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", noise=1e-13)
    damage(tmp_path / side, "l", at_random)
    found = tt.compare_runs(a, b)
    assert (found.first, found.exit_code) == (None, 3)
    assert found.counts == {"within noise": 3, "unreadable": 1}


def test_behind_a_damaged_value_the_fault_is_found(tmp_path):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", gain=1.1, wrong="m")
    damage(b, "l", at_random)
    damage(b, "n", at_random)
    found = tt.compare_runs(a, b)
    assert [one.name for one in found.origins] == ["m"]
    assert found.counts["unreadable"] == 2


def test_without_damage_nothing_is_doubted(tmp_path):
    a, b = written(tmp_path / "a"), written(tmp_path / "b", gain=1.1, wrong="m")
    found = tt.compare_runs(a, b)
    assert [one.name for one in found.origins] == ["m"]
    assert not found.coverage.unreadable
