"""A .safetensors file as a side: known from its header, read by whoever measures it."""

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import tensortap as tt
from tensortap.comparison.sides.load import load_side
from tensortap.core.errors import CorruptRunError, NoRunError, UntrustedFileError


@pytest.fixture
def weights():
    random = torch.Generator().manual_seed(0)
    return {
        f"layers.{n}.weight": torch.randn(16, 16, generator=random).to(dtype)
        for n, dtype in enumerate((torch.float32, torch.bfloat16, torch.float8_e4m3fn))
    }


def test_a_file_of_tensors_is_known_by_its_header(tmp_path, weights):
    save_file(weights, tmp_path / "w.safetensors")
    side = load_side(tmp_path / "w.safetensors")
    told = {(entry.name, entry.dtype, entry.shape, entry.nbytes) for entry in side.entries}
    assert told == {
        ("layers.0.weight", "float32", (16, 16), 1024),
        ("layers.1.weight", "bfloat16", (16, 16), 512),
        ("layers.2.weight", "float8_e4m3fn", (16, 16), 256),
    }
    assert side.is_whole
    assert all(torch.equal(entry.load(), weights[entry.name]) for entry in side.entries)


def test_two_files_of_the_same_tensors_are_the_same_and_one_that_differs_is_named(tmp_path, weights):
    save_file(weights, tmp_path / "a.safetensors")
    changed = {**weights, "layers.1.weight": weights["layers.1.weight"] * 1.5}
    save_file(changed, tmp_path / "b.safetensors")
    assert tt.compare_runs(tmp_path / "a.safetensors", tmp_path / "a.safetensors").is_green
    found = tt.compare_runs(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert {one.name: one.verdict for one in found.table} == {
        "layers.0.weight": "identical",
        "layers.1.weight": "origin",
        "layers.2.weight": "identical",
    }


@pytest.mark.process
def test_a_file_is_compared_with_tensors_in_memory_and_by_other_processes(tmp_path, weights):
    save_file(weights, tmp_path / "w.safetensors")
    assert tt.compare_runs(tmp_path / "w.safetensors", weights).is_green
    side = load_side(tmp_path / "w.safetensors")
    assert len(pickle.dumps(side.entries[0])) < 1000
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = tt.compare_runs(tmp_path / "w.safetensors", tmp_path / "w.safetensors", executor=pool)
    assert found.counts == {"identical": 3}


def test_a_file_that_is_written_again_is_read_anew(tmp_path, weights):
    path = tmp_path / "w.safetensors"
    save_file(weights, path)
    assert tt.compare_runs(path, weights).is_green
    save_file({name: one.float() + 1 for name, one in weights.items()}, path)
    assert tt.compare_runs(path, weights).is_different


def test_what_cannot_be_read_keeps_a_comparison_from_being_whole(tmp_path):
    text = b'{"x":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}'
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0")
    found = tt.compare_runs(tmp_path / "x.safetensors", {"x": np.zeros(2)})
    assert found.exit_code == 3
    assert "A: x is of the type F4, which cannot be compared" in found.coverage.problems


def test_a_bad_file_and_a_missing_one_are_one_sentence(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptRunError, match=r"is not a whole \.safetensors file"):
        load_side(tmp_path / "x.safetensors")
    with pytest.raises(NoRunError):
        load_side(tmp_path / "missing.safetensors")


def test_a_file_that_would_run_code_is_refused_with_what_can_be_done(tmp_path):
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps({"x": Fraction(1, 3)}))
    with pytest.raises(UntrustedFileError) as caught:
        tt.compare_runs(path, path)
    assert str(caught.value) == (
        f"{path} wants to load fractions.Fraction, and it is not known who made the file; "
        "if you trust it, load it yourself and compare what it holds"
    )
