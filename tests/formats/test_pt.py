"""The .pt files: torch reads them without us, with weights_only and memory-mapped."""

import io
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proof import examples

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.core.errors import CorruptRunError, UnsupportedValueError, UntrustedFileError
from tensortap.formats import pt
from tensortap.formats.serializers import encode, load

pytestmark = pytest.mark.filterwarnings("ignore:.*(deprecated|beta|prototype|experimental)")
BASE = torch.arange(12).reshape(3, 4)
FORMS = {
    "zero dimensions": lambda: torch.tensor(1.5),
    "empty": lambda: torch.empty(0, 3, 0),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3)),
    "of a graph": lambda: torch.ones(2, requires_grad=True) * 2,
    "transposed": lambda: BASE.t(),
    "sliced": lambda: BASE[1:, ::2],
    "expanded": lambda: torch.arange(3).expand(4, 3),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j]).conj().imag,
    "subclass": lambda: torch.ones(3).as_subclass(_Plain),
}


class _Plain(torch.Tensor):
    pass


class Pickled:
    """A class that weights_only refuses."""

    def __eq__(self, other):
        return isinstance(other, Pickled)

    __hash__ = None


def _every_reader(path):
    yield torch.load(path, weights_only=True)
    yield torch.load(path, weights_only=True, mmap=True)
    yield load(path)


@pytest.mark.parametrize("name", DTYPE_TABLE)
def test_torch_reads_every_number_type(saved, name):
    value = torch.randint(0, 2, (3, 4), dtype=torch.uint8).to(getattr(torch, name))
    for back in _every_reader(saved(value)):
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert _bytes(back) == _bytes(value)


@pytest.mark.parametrize("form", FORMS)
def test_torch_reads_every_form_of_tensor(saved, form):
    value = FORMS[form]()
    for back in _every_reader(saved(value)):
        assert type(back) is torch.Tensor
        assert torch.equal(back, value.detach().as_subclass(torch.Tensor))


def test_any_zip_reader_finds_the_file_sound(saved):
    for value in (torch.ones(1000), torch.empty(0), torch.tensor(1, dtype=torch.uint64)):
        with zipfile.ZipFile(saved(value)) as file:
            assert file.testzip() is None
            assert {info.compress_type for info in file.infolist()} == {zipfile.ZIP_STORED}


def test_the_numbers_begin_aligned(saved):
    value = torch.rand(100)
    head = encode(value).payload.head
    assert len(head) % 64 == 0
    assert saved(value).read_bytes()[len(head) :].startswith(value.numpy().tobytes())


def test_a_view_stores_its_own_bytes(saved):
    storage = torch.zeros(10_000_000)
    for view in (storage[5:9], torch.nn.Parameter(storage)[5:9], storage.view(2, -1)[:, :2]):
        assert saved(view).stat().st_size < 2000


@pytest.mark.parametrize("layout", ["sparse", "sparse_csr"])
def test_a_sparse_tensor_comes_back_sparse(saved, layout):
    value = getattr(torch.eye(3), f"to_{layout}")()
    for back in _every_reader(saved(value)):
        assert back.layout == value.layout
        assert torch.equal(back.to_dense(), torch.eye(3))


def test_a_quantized_tensor_keeps_its_scale(saved):
    value = torch.quantize_per_tensor(torch.tensor([0.5, 1.0]), 0.5, 0, torch.qint8)
    back = load(saved(value))
    assert back.q_scale() == 0.5
    assert torch.equal(back.dequantize(), value.dequantize())


def test_a_nested_tensor_comes_back_in_pieces_of_their_own_length(saved):
    value = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    back = load(saved(value))
    assert [len(piece) for piece in back.unbind()] == [2, 3]


@pytest.mark.parametrize("small", ["quantized", "rare type"])
def test_a_view_that_only_torch_can_save_stores_its_own_bytes(saved, small):
    if small == "quantized":
        whole = torch.quantize_per_tensor(torch.zeros(1_000_000), 0.5, 0, torch.qint8)
    else:
        whole = torch.zeros(1_000_000, dtype=torch.uint8).view(torch.bits8)
    assert saved(whole[:16]).stat().st_size < 5000


def test_a_tensor_without_values_is_refused_with_a_remedy(saved):
    with pytest.raises(UnsupportedValueError, match=r"a meta tensor of shape \[2\] has no values"):
        saved(torch.ones(2, device="meta"))


def test_writing_to_a_loaded_tensor_does_not_reach_the_file(saved):
    path = saved(torch.arange(1000.0))
    before = path.read_bytes()
    load(path).fill_(-1)
    assert path.read_bytes() == before


def test_files_of_old_torch_versions_load(tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert torch.equal(load(tmp_path / "old.pt")["w"], torch.ones(3))


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickled_class_wants_trust(tmp_path, is_zip):
    path = tmp_path / "x.pt"
    torch.save({"a": Pickled()}, path, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(UntrustedFileError, match=r"holds more than tensors \(\S+Pickled\).*pass trust=True"):
        load(path)
    assert load(path, trust=True) == {"a": Pickled()}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_newer_pickle_inside_wants_trust_and_is_not_called_damaged(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a": Pickled()}, path, pickle_protocol=4)
    with pytest.raises(UntrustedFileError, match="holds more than tensors"):
        load(path)
    assert load(path, trust=True) == {"a": Pickled()}


def test_a_shorter_file_is_named_in_one_sentence(saved):
    path = saved(torch.arange(100))
    whole = path.read_bytes()
    for length in (0, 3, 10, 200, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:length])
        for trust in (False, True):
            with pytest.raises(CorruptRunError, match=r"is not a whole \.pt file \([^\n]*\); dump it again$"):
                load(path, trust=trust)


@pytest.mark.parametrize("text", [b"hello world " * 9, b"\x80\x02garbage", b"PK\3\4" + bytes(100), b"{}"])
def test_something_else_under_that_suffix_is_a_damaged_file(tmp_path, text):
    (tmp_path / "x.pt").write_bytes(text)
    for trust in (False, True):
        with pytest.raises(CorruptRunError, match=r"x\.pt is not a whole \.pt file"):
            load(tmp_path / "x.pt", trust=trust)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_give_a_sentence(data):
    with pytest.raises((CorruptRunError, UntrustedFileError)):
        pt.read(io.BytesIO(data), "x", False)


def test_a_large_tensor_gets_sizes_of_64_bits():
    _, make_tail = pt._head_and_tail("uint8", (5 << 30,), 5 << 30)
    tail = make_tail(7)
    assert b"PK\6\6" in tail
    assert (5 << 30).to_bytes(8, "little") in tail


def _bytes(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_a_numpy_bool_is_not_a_tensor(saved):
    assert saved(np.bool_(True)).suffix == ".npy"


@pytest.mark.parametrize("name", ["uint1", "int4"])
def test_a_type_that_torch_cannot_save_is_refused_with_a_remedy(saved, name):
    with pytest.raises(UnsupportedValueError, match=rf"cannot save a Tensor of torch\.{name} .*convert it"):
        saved(torch.zeros(8, dtype=torch.uint8).view(getattr(torch, name)))


@pytest.mark.parametrize("name", ["bits8", "bits16", "float4_e2m1fn_x2"])
def test_a_type_that_torch_can_hardly_use_is_saved_by_torch(saved, name):
    value = torch.arange(8, dtype=torch.uint8).view(getattr(torch, name))
    assert _bytes(load(saved(value))) == _bytes(value)
