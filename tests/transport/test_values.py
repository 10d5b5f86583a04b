"""Values on the wire: each kind arrives exactly as it was, in memory of the receiver's own."""

import enum
import math
import subprocess
import sys
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers.modeling_outputs import BaseModelOutput

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Placement, Record, Site
from tensortap.transport.frames import BadFrameError, FrameKind, FrameLimits, encode_head, parse_meta
from tensortap.transport.schema import decode_record, encode_record_meta
from tensortap.transport.values import decode_from_wire, encode_for_wire, original_types

Point = namedtuple("Point", "x y")


@dataclass
class Pair:
    first: object
    second: object


class Colour(enum.IntEnum):
    RED = 1


def sent(value):
    """The meta and the data as they come out of a frame."""
    made = encode_for_wire(value)
    data = bytearray(b"".join(made.buffers))
    assert len(data) == made.nbytes
    return parse_meta(encode_head(FrameKind.DATA, made.meta, made.nbytes)[32:]), data


def passed(value, **options):
    return decode_from_wire(*sent(value), **options)


def torch_of(name):
    numbers = torch.arange(24, dtype=torch.uint8) % 2 if name == "bool" else torch.arange(24) - 3
    if name == "complex32":
        return torch.arange(24, dtype=torch.int32).view(torch.complex32).reshape(4, 6)
    return numbers.to(getattr(torch, name)).reshape(4, 6)


def same_bits(one, other):
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def in_words(value):
    """Torch warns of most of what is done with half complex numbers."""
    return value.view(torch.int32) if value.dtype is torch.complex32 else value


LAYOUTS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[1:, ::2],
    "expanded": lambda x: x[:1].expand(3, -1),
    "scalar": lambda x: x[1, 2],
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPE_TABLE)
def test_a_tensor_of_every_type_and_layout_arrives_exactly(dtype, layout):
    value = LAYOUTS[layout](torch_of(dtype))
    back = passed(value)
    assert (type(back), back.dtype, back.shape) == (torch.Tensor, value.dtype, value.shape)
    assert value.numel() == 0 or same_bits(in_words(back).reshape(-1), in_words(value).reshape(-1))


@pytest.mark.parametrize("dtype", [name for name, row in DTYPE_TABLE.items() if row.native])
@pytest.mark.parametrize("order", "<>")
def test_a_numpy_array_of_either_byte_order_arrives_exactly(dtype, order):
    value = (
        np.arange(6).reshape(2, 3).astype(np.dtype(DTYPE_TABLE[dtype].storage).newbyteorder(order))[:, ::-1]
    )
    back = passed(value)
    assert type(back) is np.ndarray
    assert back.dtype.isnative
    np.testing.assert_array_equal(back, value)


def test_nan_bits_and_negative_zeros_are_kept():
    value = torch.tensor([0x7FC00001, -(2**31), 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert same_bits(passed(value), value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -1,
        2**63 - 1,
        2**63,
        -(2**63) - 1,
        10**400,
        0.1,
        -0.0,
        math.inf,
        -math.inf,
        5e-324,
        1 + 2j,
        complex(math.inf, -0.0),
        "",
        "é\x00\ud800",
        "x" * 5000,
        "\ud83d" * 600,
        b"",
        b"\x00\xff",
        bytearray(b"a"),
    ],
    ids=lambda value: ascii(value)[:25],
)
def test_a_python_value_arrives_as_itself(value):
    back = passed(value)
    assert type(back) is type(value)
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        [],
        (),
        {},
        set(),
        frozenset({1}),
        [[], [()], {"a": {}}],
        {"a": 1, 2: "b", 3.5: None, None: 4, True: [5], ("x", (1,)): 6},
        {1, "a", (2, None)},
        list(range(100)),
        tuple(x / 3 for x in range(100)),
        [True, False] * 20,
        [1, 2.0] * 20,
        [2**70, 1] * 20,
        [1, True] * 20,
    ],
    ids=lambda value: f"{type(value).__name__} {len(repr(value))}",
)
def test_a_container_arrives_with_its_types_and_order(value):
    back = passed(value)
    assert (type(back), back) == (type(value), value)
    if not isinstance(value, (set, frozenset)):
        assert repr(back) == repr(value)


def test_two_hundred_levels_arrive_though_the_json_is_flat():
    value = [1]
    for _ in range(200):
        value = {"deeper": (value,)} if len(repr(value)) % 2 else [value]
    assert passed(value) == value


def test_arrays_inside_of_containers_arrive_in_their_places():
    value = {"k": [torch.ones(3), (np.zeros(2), 1)], "v": {"w": torch.arange(5).bfloat16()}}
    back = passed(value)
    assert torch.equal(back["k"][0], value["k"][0])
    assert type(back["k"][1][0]) is np.ndarray
    assert back["v"]["w"].dtype is torch.bfloat16


def test_each_array_begins_at_a_multiple_of_64_and_lies_in_the_order_of_the_tree():
    made = encode_for_wire([torch.ones(3), b"abc", torch.full((2,), 2.0)])
    data = b"".join(made.buffers)
    assert len(data) == made.nbytes == 128 + 8
    assert data[:12] == np.ones(3, "<f4").tobytes()
    assert data[64:67] == b"abc"
    assert data[128:] == np.full(2, 2, "<f4").tobytes()


def test_a_contiguous_tensor_is_sent_from_its_own_memory():
    value = torch.zeros(1000)
    (view,) = encode_for_wire(value).buffers
    value.fill_(1)
    assert bytes(view) == np.ones(1000, "<f4").tobytes()


def test_what_arrives_is_writable_and_on_the_memory_of_the_data():
    meta, data = sent({"t": torch.zeros(4), "n": np.zeros(4)})
    back = decode_from_wire(meta, data)
    back["t"][:] = 1
    back["n"][:] = 2
    assert bytes(data[:4]) == np.float32(1).tobytes()
    assert bytes(data[64:72]) == np.float64(2).tobytes()


def test_a_parameter_a_numpy_scalar_and_a_jax_array_arrive():
    assert torch.equal(passed(torch.nn.Parameter(torch.ones(2))), torch.ones(2))
    assert type(passed(np.float32(1.5))) is np.float32
    back = passed(jnp.arange(3, dtype=jnp.int32))
    assert type(back).__module__.startswith("jax")
    assert back.tolist() == [0, 1, 2]


def test_a_conjugated_or_negated_view_is_what_it_shows():
    value = torch.tensor([1 + 2j, 3 - 1j])
    assert passed(value.conj()).tolist() == [1 - 2j, 3 + 1j]
    assert passed(value.conj().imag).tolist() == [-2, 1]


@pytest.mark.parametrize(
    ("value", "plain", "note"),
    [
        (Point(1, 2), (1, 2), "Point(x, y)"),
        (Pair(1, [2]), {"first": 1, "second": [2]}, "Pair"),
        (BaseModelOutput(last_hidden_state=(1, 2)), {"last_hidden_state": (1, 2)}, "BaseModelOutput"),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}, "OrderedDict"),
        (deque([1, 2]), [1, 2], "deque"),
        (torch.Size([2, 3]), (2, 3), "Size"),
    ],
    ids=["named tuple", "dataclass", "ModelOutput", "OrderedDict", "deque", "Size"],
)
def test_a_class_of_its_own_arrives_as_a_plain_container_with_a_note(value, plain, note):
    meta, data = sent(value)
    back = decode_from_wire(meta, data)
    assert (type(back), back) == (type(plain), plain)
    assert original_types(meta) == [note]


def test_a_subclass_of_a_number_arrives_as_the_number():
    back = passed([Colour.RED, np.float64(0.5)])
    assert (type(back[0]), back) == (int, [1, 0.5])


def test_a_distributed_tensor_arrives_as_its_piece_with_its_placement(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch installs its own and leaves it
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        value = distribute_tensor(torch.arange(12.0).reshape(4, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
        meta, data = sent(value)
        told = encode_record_meta(Record("w", value))
    finally:
        dist.destroy_process_group()
    assert type(decode_from_wire(meta, data)) is torch.Tensor
    assert decode_from_wire(meta, data).tolist() == torch.arange(12.0).reshape(4, 3).tolist()
    assert decode_record(told, None).placement == Placement((1,), (0,), ("shard(0)",), (4, 3), (0, 0))


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_a_quantized_tensor_is_refused():
    with pytest.raises(UnsupportedValueError, match="quantized"):
        encode_for_wire(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8))


CYCLE: list[object] = [1]
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": [torch.ones(2).to_sparse()]}, r"\['a'\]\[0\]: a sparse_coo tensor"),
        (torch.empty(2, device="meta"), "a meta tensor of shape .* has no values"),
        ([np.array([object()])], r"\[0\]: a numpy array"),
        (np.array(["text"]), "an array of <U4 cannot be sent; known types are bool"),
        (np.zeros(2, "M8[s]"), "datetime64"),
        ((1, object()), r"\[1\]: a builtins.object cannot be sent; arrays, numbers, text"),
        ({object(): 1}, "cannot be sent"),
        (CYCLE, "contains itself or is nested deeper than 256"),
        ([None] * 200_000, "more than 100000 parts"),
    ],
    ids=["sparse", "meta", "object", "strings", "dates", "any", "key", "cycle", "parts"],
)
def test_what_cannot_be_sent_is_refused_and_the_part_named(value, told):
    with pytest.raises(UnsupportedValueError, match=told):
        encode_for_wire(value)


@pytest.mark.parametrize(
    ("tree", "told"),
    [
        (None, "a list of 1 to"),
        ([], "a list of 1 to"),
        ([1, 2], "are 2 values; they have to be one"),
        ([["list", 2], 1], "a list of 2 nodes, and 1 follow"),
        ([["dict", 1], ["list", 0], 1], "unhashable"),
        ([{"a": 1}], "nodes are scalars and arrays"),
        ([["pickle", 4]], "a node 'pickle'; known are list, tuple"),
        ([["array", "numpy", "object", [1]]], "an array of type 'object'"),
        ([["array", "numpy", "int8", [1] * 33]], "at most 32 sizes"),
        ([["array", "numpy", "int8", [-1]]], "at most 32 sizes"),
        ([["array", "numpy", "int8", [4]]], "4 bytes came with 0"),
        ([["array", "numpy", "int8", [2**40]]], "more than 4294967296 bytes"),
        ([["array", "numpy", "int8", [0], 3, 4]], "other fields than it has"),
        ([["numbers", "list", "int64", 2**30]], "allowed are 4194304"),
        ([*[["list", 1]] * 300, 1], "nested deeper than 256"),
        ([["int", "ten"]], "cannot be made"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_tree_that_is_not_sound_is_refused(tree, told):
    with pytest.raises(BadFrameError, match=told):
        decode_from_wire({"tree": tree}, b"")


def test_a_number_type_that_is_not_in_the_table_never_reaches_numpy():
    with pytest.raises(BadFrameError):
        decode_from_wire({"tree": [["array", "numpy", "O", [1]]]}, bytearray(8))


def test_a_long_list_of_numbers_of_one_type_is_one_block():
    made = encode_for_wire([0.5] * 1_000_000)
    assert made.meta["tree"] == [["numbers", "list", "float64", 1_000_000]]
    assert made.nbytes == 8_000_000


def test_the_limits_are_the_receivers():
    meta, data = sent(list(range(100)))
    with pytest.raises(BadFrameError, match="allowed are 50"):
        decode_from_wire(meta, data, FrameLimits(numbers=50))


@pytest.mark.process
def test_without_torch_a_tensor_arrives_as_a_numpy_array_and_torch_is_not_imported():
    code = """
        import sys, numpy as np
        from tensortap.transport.values import decode_from_wire
        meta = {"tree": [["array", "torch", "float32", [2]]]}
        back = decode_from_wire(meta, bytearray(np.ones(2, "f4").tobytes()))
        assert type(back) is np.ndarray and "torch" not in sys.modules
        own = decode_from_wire(meta, bytearray(8), into="own")
        assert type(own).__module__ == "torch"
    """
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())], check=False
    )
    assert done.returncode == 0


def test_a_wanted_numpy_array_is_one_even_where_torch_is_loaded():
    back = passed(torch.ones(2, dtype=torch.bfloat16), into="numpy")
    assert isinstance(back, np.ndarray)
    assert back.astype(float).tolist() == [1, 1]


def through_json(meta):
    return parse_meta(encode_head(FrameKind.DATA, meta)[32:])


def test_a_record_arrives_with_everything_it_tells():
    site = Site("forward", "model.py", 12, 1, ("main", "train"), 3)
    placement = Placement((2,), (1,), ("shard(0)",), (4, 3), (2, 0))
    record = Record("layers.0", 1, "output", (1, 2), 3, 4, 5, 1234.5, site, placement)
    assert decode_record(through_json(encode_record_meta(record)), 1) == record


def test_a_plain_record_takes_few_bytes_and_fields_of_later_versions_are_passed_over():
    meta = encode_record_meta(Record("loss", 1.0, time=2.0))
    assert meta == {"name": "loss", "time": 2.0}
    assert decode_record({**meta, "colour": "red"}, 1.0) == Record("loss", 1.0, time=2.0)


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"name": 1},
        {"name": "x", "kind": "odd"},
        {"name": "x", "step": "1"},
        {"name": "x", "rank": [1.5]},
        {"name": "x", "site": ["f"]},
        {"name": "x", "placement": [1, 2, 3, 4, 5]},
        {"name": "x", "time": 10**400},
        {"name": "x", "call": True},
        {"name": "x", "site": ["f", "file", 1, 0, [3]]},
    ],
    ids=lambda meta: str(meta)[:40],
)
def test_a_record_of_other_types_than_its_own_is_refused(meta):
    with pytest.raises(BadFrameError):
        decode_record(meta, None)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)
values = st.recursive(
    scalars | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner),
    max_leaves=30,
)


@given(values)
def test_any_structure_of_python_values_arrives_as_it_was(value):
    back = passed(value)
    assert (type(back), repr(back)) == (type(value), repr(value))


@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, min_side=0)))
def test_any_numpy_array_arrives_exactly_or_is_refused(value):
    try:
        back = passed(value)
    except UnsupportedValueError:
        assert value.dtype.kind in "SUmM" or value.dtype.itemsize > 8
        return
    assert (back.shape, back.dtype) == (value.shape, value.dtype.newbyteorder("="))
    assert back.tobytes() == value.astype(back.dtype).tobytes()
