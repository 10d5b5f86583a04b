"""The .safetensors format: the bytes as the reference library wrote them, and one sentence for a bad file."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import CorruptRunError
from tensortap.formats.safetensors import file_stamp, map_tensor, read_entries

DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    "float8_e4m3fn", "float8_e5m2", "complex64",
]  # fmt: skip


def written(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def loaded(path):
    found, problems = read_entries(path)
    assert problems == []
    when = file_stamp(path)
    return {
        one.name: map_tensor(str(path), when, one.offset, one.nbytes, one.dtype, one.shape) for one in found
    }


def row(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_reference_library_writes_is_read_bit_for_bit(tmp_path, dtype):
    value = torch.randint(0, 2, (3, 5)).to(getattr(torch, dtype))
    save_file({"x": value, "empty": value[:0].clone()}, tmp_path / "x.safetensors")
    found, problems = read_entries(tmp_path / "x.safetensors")
    assert ({(one.name, one.dtype, one.shape) for one in found}, problems) == (
        {("x", dtype, (3, 5)), ("empty", dtype, (0, 5))},
        [],
    )
    read = loaded(tmp_path / "x.safetensors")
    assert read["x"].tobytes() == value.view(torch.uint8).numpy().tobytes()
    assert read["empty"].shape == (0, 5)


def test_tensors_come_in_the_order_of_their_bytes(tmp_path):
    path = written(
        tmp_path / "x.safetensors", {"b": row(begin=8, end=16), "a": row(), "__metadata__": {}}, bytes(16)
    )
    assert [one.name for one in read_entries(path)[0]] == ["a", "b"]


def test_numbers_that_begin_at_an_odd_byte_are_read(tmp_path):
    data = b"\7" + np.array([1.5, -2.0], np.float32).tobytes()
    path = written(
        tmp_path / "x.safetensors", {"odd": row("U8", (1,), 0, 1), "x": row("F32", (2,), 1, 9)}, data
    )
    assert loaded(path)["x"].tolist() == [1.5, -2.0]


def test_writing_to_a_tensor_leaves_the_file_as_it_is(tmp_path):
    path = written(tmp_path / "x.safetensors", {"x": row()}, bytes(8))
    loaded(path)["x"][:] = 7
    assert path.read_bytes().endswith(bytes(8))


def test_a_type_that_cannot_be_compared_is_named_and_the_others_are_read(tmp_path):
    path = written(
        tmp_path / "x.safetensors", {"small": row("F4", (16,), 0, 8), "x": row(begin=8, end=16)}, bytes(16)
    )
    found, problems = read_entries(path)
    assert [one.name for one in found] == ["x"]
    assert problems == ["small is of the type F4, which cannot be compared"]


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (b"{", "its header is not JSON"),
        (b"[" * 10_000, "its header is not JSON"),
        (b"\xff\xfe", "its header is not JSON"),
        ([], "its header names no tensors"),
        ({"x": 3}, "its header tells too little of 'x': TypeError"),
        ({"x": {"dtype": "F32"}}, "its header tells too little of 'x': KeyError 'shape'"),
        ({"x": row(end=80)}, "'x' does not lie within it"),
        ({"x": row(begin=8, end=0)}, "'x' does not lie within it"),
        ({"x": row(shape=(-2,))}, "'x' does not lie within it"),
        ({"x": row(shape=(2.0,))}, "'x' does not lie within it"),
        ({"x": row(shape=(3,))}, r"'x' has 8 bytes, which are no F32 of \[3\]"),
    ],
    ids=lambda one: None if not isinstance(one, str) else "",
)
def test_a_damaged_header_is_one_sentence(tmp_path, header, told):
    path = written(tmp_path / "x.safetensors", header, bytes(8))
    with pytest.raises(CorruptRunError, match=told) as caught:
        read_entries(path)
    assert str(caught.value).startswith(f"{path} is not a whole .safetensors file (")
    assert str(caught.value).endswith("; save it again")


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 8, (2**40).to_bytes(8, "little") + bytes(100)])
def test_a_file_that_is_something_else_is_not_read_into_memory(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(CorruptRunError, match="its header should take"):
        read_entries(path)


def test_a_file_that_was_written_again_is_not_taken_for_the_one_before(tmp_path):
    path = written(tmp_path / "x.safetensors", {"x": row()}, bytes(8))
    (one,), _ = read_entries(path)
    when = file_stamp(path)
    written(tmp_path / "y", {"x": row()}, b"\1" * 8)
    os.utime(tmp_path / "y", ns=(0, when[0] + 1))
    (tmp_path / "y").replace(path)
    with pytest.raises(CorruptRunError, match="has been written again meanwhile; compare it once more"):
        map_tensor(str(path), when, one.offset, one.nbytes, one.dtype, one.shape)


def test_every_number_type_of_the_format_is_one_of_ours():
    from tensortap.formats import safetensors

    assert set(safetensors._DTYPES.values()) <= set(DTYPE_TABLE)
