"""Pickles: a failure names the attribute, strangers' code never runs, and ours needs no questions."""

import collections
import contextlib
import datetime
import io
import os
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proof import examples

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import CorruptRunError, UnsupportedValueError, UntrustedFileError
from tensortap.core.record import Record
from tensortap.formats import pkl
from tensortap.formats.serializers import load
from tensortap.readers.run import Run
from tensortap.sinks.run_directory import RunDirectory

pytestmark = pytest.mark.filterwarnings("ignore:.*(deprecated|beta|prototype|experimental)")
FLAG = "TENSORTAP_TEST_PICKLE_RAN"
REFUSED = r"wants to load .*, and it is not known who made the file; pass trust=True if you do$"
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


class Holder:
    def __init__(self, **parts):
        self.__dict__.update(parts)


@dataclass(slots=True)
class Slotted:
    good: int
    bad: object


class Calls:
    """Pickles as a call of any function with any arguments, then any state."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def _untrusted(value, protocol=4):
    return pkl.read(io.BytesIO(pickle.dumps(value, protocol)), "x.pkl", False)


# Writing


@pytest.mark.parametrize(
    ("value", "culprit"),
    [
        (Holder(model={"hooks": [1, lambda: 0]}), "the Holder.model['hooks'][1] of type function"),
        (Slotted(1, threading.Lock()), "the Slotted.bad of type lock"),
        ([{"a": (1, threading.Lock())}], "the list[0]['a'][1] of type lock"),
        (threading.Lock(), "the lock of type lock"),
    ],
)
def test_the_part_that_cannot_be_pickled_is_named(value, culprit):
    with pytest.raises(UnsupportedValueError) as caught:
        pkl.encode(value)
    assert str(caught.value).startswith(f"{culprit} cannot be pickled (")
    assert str(caught.value).endswith("dump the parts you need, or register_serializer for its type")


def test_an_object_that_contains_itself_does_not_hide_the_culprit():
    value = Holder()
    value.itself, value.lock = value, threading.Lock()
    with pytest.raises(UnsupportedValueError, match=r"^the Holder\.lock of type lock cannot"):
        pkl.encode(value)


def test_what_is_nested_too_deeply_is_said_so():
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(UnsupportedValueError, match="the list is nested too deeply to be pickled"):
        pkl.encode(value)


def test_a_view_inside_a_container_does_not_drag_its_storage():
    storage = torch.zeros(1_000_000)
    value = {"view": storage[:4], "parameter": torch.nn.Parameter(storage[4:8]), "grad": storage[:2]}
    assert pkl.encode(value).bits.nbytes < 5000


def test_a_tensor_of_a_graph_inside_a_container_comes_back_without_it():
    value = {"x": torch.ones(2, requires_grad=True) * 3}
    back = pkl.read(io.BytesIO(pkl.encode(value).bits.tobytes()), "x", True)
    assert torch.equal(back["x"], torch.full((2,), 3.0))
    assert not back["x"].requires_grad


# Reading without trust: what loads


@settings(deadline=None)
@given(plain)
def test_plain_containers_need_no_trust(value):
    assert pkl.read(io.BytesIO(pkl.encode(value).bits.tobytes()), "x", False) == value


@pytest.mark.parametrize("protocol", range(2, 6))
def test_arrays_need_no_trust(protocol):
    values = [
        np.arange(6.0).reshape(2, 3),
        np.array(1, ">i4"),
        np.asfortranarray(np.ones((2, 3))),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8", (2,))]),
        np.array(["2025-10-28T12:00"], "M8[s]"),
        np.array(["ab", "c"]),
        np.array([None, {"a": 1}], object),
        np.empty((0, 3), "c8"),
    ]
    expected = pickle.loads(pickle.dumps(values, protocol))
    for value, back in zip(expected, _untrusted(values, protocol), strict=True):
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(back, value)


def test_scalars_of_numpy_need_no_trust():
    values = [np.float32(1.5), np.int64(-3), np.datetime64(5, "s"), np.bool_(True), np.complex64(1j)]
    back = _untrusted(values)
    assert back == values
    assert [type(value) for value in back] == [type(value) for value in values]


def test_tensors_need_no_trust():
    values = {
        "float": torch.rand(2, 3),
        "view": torch.arange(10)[2:4],
        "bf16": torch.ones(2, dtype=torch.bfloat16),
        "conj": torch.tensor([1 + 2j]).conj(),
    }
    back = pkl.read(io.BytesIO(pkl.encode(values).bits.tobytes()), "x", False)
    for name, value in values.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name].to(torch.complex64), value.to(torch.complex64))


@pytest.mark.parametrize("name", DTYPE_TABLE)
@pytest.mark.parametrize("trust", [False, True])
def test_tensors_of_every_number_type_come_back_from_a_container(name, trust):
    value = torch.arange(6, dtype=torch.uint8).reshape(2, 3).to(getattr(torch, name))[:, 1:]
    (back,) = pkl.read(io.BytesIO(pkl.encode([value]).bits.tobytes()), "x", trust)
    assert back.dtype == value.dtype
    assert back.contiguous().view(torch.uint8).tolist() == value.contiguous().view(torch.uint8).tolist()


def test_other_things_of_torch_need_no_trust():
    sparse = torch.eye(2).to_sparse()
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
    value = [torch.float32, torch.device("cpu"), torch.Size([1]), torch.nn.Parameter(torch.ones(1)), sparse]
    back = pkl.read(io.BytesIO(pkl.encode([*value, quantized]).bits.tobytes()), "x", False)
    assert back[:3] == value[:3]
    assert isinstance(back[3], torch.nn.Parameter)
    assert torch.equal(back[4].to_dense(), torch.eye(2))
    assert torch.equal(back[5].dequantize(), torch.ones(2))


def test_a_state_dict_needs_no_trust():
    state = torch.nn.Linear(2, 3).state_dict()
    back = pkl.read(io.BytesIO(pkl.encode(state).bits.tobytes()), "x", False)
    assert isinstance(back, collections.OrderedDict)
    assert back._metadata == state._metadata
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_common_objects_of_the_standard_library_need_no_trust():
    value = [
        collections.Counter("aab"),
        collections.defaultdict(list, a=[1]),
        collections.deque([1], 3),
        datetime.datetime(2025, 10, 28, tzinfo=datetime.UTC),
        Path("a/b"),
        range(3),
        slice(1, 2),
        {1, 2},
        1 + 2j,
    ]
    assert _untrusted(value) == value


# Reading without trust: what never runs


@pytest.fixture
def unharmed(monkeypatch):
    monkeypatch.delenv(FLAG, raising=False)
    yield
    assert FLAG not in os.environ


ATTACK = f"__import__('os').environ.update({{{FLAG!r}: '1'}})"


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    "attack",
    [
        Calls(os.system, ("exit 3",)),
        Calls(eval, (ATTACK,)),
        Calls(exec, (ATTACK,)),
        Calls(getattr, (getattr, ("x", "upper"))),
        Calls(__import__, ("os",)),
        Calls(subprocess.Popen, (["false"],)),
        Calls(torch.load, ("x",)),
        Calls(np.load, ("x",)),
        Calls(torch.hub.load, ("x", "y")),
        Calls(collections.namedtuple, ("a", ATTACK)),
        Calls(pickle.loads, (pickle.dumps(Calls(eval, (ATTACK,))),)),
        Holder(a=1),
    ],
)
def test_a_call_outside_the_list_is_refused(attack):
    for protocol in range(2, 6):
        with pytest.raises(UntrustedFileError, match=REFUSED):
            _untrusted(attack, protocol)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize(
    "stream",
    [
        b"cos\nsystem\n(S'exit 3'\ntR.",
        b"(S'exit 3'\nios\nsystem\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x04\x8c\x0bcollections\x8c\x1dOrderedDict.fromkeys.__func__\x93.",
        b"\x80\x04\x8c\x05numpy\x8c\x11ndarray.__class__\x93.",
        b"cnumpy.testing\nrunstring\n.",
        b"ccopyreg\n_reconstructor\n.",
    ],
)
def test_a_name_by_any_opcode_is_refused(stream):
    with pytest.raises(UntrustedFileError, match=REFUSED):
        pkl.read(io.BytesIO(stream), "x.pkl", False)


@pytest.mark.usefixtures("unharmed")
@pytest.mark.parametrize("is_zip", [True, False])
def test_a_payload_inside_a_tensors_storage_never_runs(is_zip):
    inner = io.BytesIO()
    torch.save(Calls(eval, (ATTACK,)), inner, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(UntrustedFileError, match=REFUSED):
        _untrusted(Calls(torch.storage._load_from_bytes, (inner.getvalue(),)))


def test_a_dtype_that_lies_about_its_objects_is_made_honest():
    state = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
    dtype = _untrusted(Calls(np.dtype, ("V8", False, True), state))
    assert dtype.hasobject


def test_a_dtype_changed_behind_an_arrays_back_leaves_the_array_alone():
    dtype = np.dtype("V8")
    state = (1, (1,), dtype, False, b"A" * 8)
    array = Calls(np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), state)
    stream = pickle.dumps([array, dtype], 4)
    build = b"(K\x03\x8c\x01|NN" + b"J\xff\xff\xff\x7f"  # another size: numpy would read past the end
    assert len(pkl.read(io.BytesIO(stream), "x", False)[0].tobytes()) == 8
    with pytest.raises((CorruptRunError, UntrustedFileError)):
        pkl.read(io.BytesIO(stream[:-1] + build + b"tb."), "x", False)


@pytest.mark.parametrize(
    "target",
    [torch.Tensor, collections.Counter, torch._utils._rebuild_tensor_v2, torch.nn.Parameter],
)
def test_no_state_is_put_into_a_class_or_a_function(target):
    stream = pickle.dumps(target, 4)[:-1] + pickle.dumps((None, {"evil": 1}), 4)[2:-1] + b"b."
    with pytest.raises((UntrustedFileError, CorruptRunError)):
        pkl.read(io.BytesIO(stream), "x", False)
    assert not hasattr(target, "evil")


def test_an_array_is_filled_once():
    array = np._core.multiarray._reconstruct
    state = (1, (1,), np.dtype("u1"), False, b"A")
    stream = pickle.dumps(Calls(array, (np.ndarray, (0,), b"b"), state), 4)
    assert pkl.read(io.BytesIO(stream), "x", False).tobytes() == b"A"
    with pytest.raises(UntrustedFileError, match="a state for ndarray"):
        pkl.read(io.BytesIO(stream[:-1] + pickle.dumps(state, 4)[11:-1] + b"b."), "x", False)


def test_a_scalar_is_made_of_bytes_only():
    scalar, dtype = np._core.multiarray.scalar, np.dtype([("a", "O")])
    with pytest.raises(UntrustedFileError, match="a scalar that is not made of bytes"):
        _untrusted(Calls(scalar, (dtype, np.zeros(8, np.uint8))))


@pytest.mark.law
@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_give_a_value_or_a_sentence(data):
    with contextlib.suppress(CorruptRunError, UntrustedFileError):
        pkl.read(io.BytesIO(data), "x.pkl", False)


@pytest.mark.parametrize("trust", [False, True])
def test_a_shorter_file_is_named_in_one_sentence(saved, trust):
    path = saved({"a": list(range(100)), "b": np.arange(10)})
    whole = path.read_bytes()
    for length in (0, 1, 15, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptRunError, match=r"\.pkl is not a whole pickle \([^\n]*\); dump it again$"):
            load(path, trust=trust)


# Reading with trust


def test_a_file_that_lies_in_no_run_wants_trust(saved):
    path = saved(Slotted(1, 2))
    with pytest.raises(UntrustedFileError, match=REFUSED):
        load(path)
    assert load(path, trust=True) == Slotted(1, 2)


@pytest.mark.parametrize("layout", ["files", "pack"])
def test_the_files_of_an_own_run_are_trusted(tmp_path, layout):
    sink = RunDirectory(tmp_path, layout=layout)
    sink.write(Record("x", Slotted(1, 2)))
    sink.close()
    assert Run(tmp_path).load("x") == Slotted(1, 2)


@pytest.mark.skipif(os.getuid() != 0, reason="giving a file to another user needs root")
@pytest.mark.parametrize("layout", ["files", "pack"])
def test_a_file_of_another_user_is_not_trusted(tmp_path, layout):
    sink = RunDirectory(tmp_path, layout=layout)
    sink.write(Record("x", Slotted(1, 2)))
    sink.close()
    os.chown(tmp_path / Run(tmp_path).find("x").file, 12345, -1)
    with pytest.raises(UntrustedFileError, match=REFUSED):
        Run(tmp_path).load("x")
    assert Run(tmp_path).load("x", trust=True) == Slotted(1, 2)


def test_a_folder_called_packs_is_a_folder_like_any_other(saved, tmp_path, monkeypatch):
    path = saved({"a": 1})
    (tmp_path / "packs").mkdir()
    path.rename(tmp_path / "packs" / "x.pkl")
    monkeypatch.chdir(tmp_path)
    assert load("packs/x.pkl") == {"a": 1}


@pytest.mark.process
def test_a_class_of_the_main_script_loads_there_and_is_named_elsewhere(tmp_path):
    code = (
        "from tensortap.core.record import Record\n"
        "from tensortap.readers.run import Run\n"
        "from tensortap.sinks.run_directory import RunDirectory\n"
        "class Mine: x = 1\n"
        f"sink = RunDirectory({str(tmp_path)!r}, layout='files')\n"
        "sink.write(Record('x', Mine()))\n"
        "sink.close()\n"
        f"assert type(Run({str(tmp_path)!r}).load('x')) is Mine\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(UnsupportedValueError, match=r"needs a class that is not here \(.*Mine.*define"):
        Run(tmp_path).load("x")
