"""The built-in formats and an example keep the contracts of serializers and comparators."""

import json
import subprocess
import sys
import zlib
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

import tensortap as tt
from tensortap.formats import npy, pkl, pt
from tensortap.formats.serializers import encode
from tensortap.testing import ComparatorContract, SerializerContract


@dataclass
class Points:
    xy: list = field(default_factory=list)


class PointsFormat:
    suffix = ".points"

    def save(self, value, stream):
        stream.write(json.dumps(value.xy).encode())

    def load(self, stream):
        return Points(json.load(stream))


class _BuiltIn:
    """A format of our own, as a serializer."""

    def __init__(self, module):
        self.suffix = module.SUFFIX
        self._read = module.read

    def save(self, value, stream):
        payload = encode(value).payload
        body = np.ascontiguousarray(payload.bits).tobytes()
        tail = payload.tail(zlib.crc32(body)) if payload.tail else b""
        stream.write(payload.head + body + tail)

    def load(self, stream):
        return self._read(stream, "x", False)


class TestOwn(SerializerContract):
    serializer = PointsFormat()

    def values(self):
        return [Points(), Points([[1, 2], [3, 4]])]


class TestNpy(SerializerContract):
    serializer = _BuiltIn(npy)

    def values(self):
        return [np.empty(0), np.array(1.5), np.arange(6).reshape(2, 3).T, np.array(["a", "ä"])]

    def same(self, one, other):
        return one.dtype == other.dtype and np.array_equal(one, other)


class TestPt(SerializerContract):
    serializer = _BuiltIn(pt)

    def values(self):
        return [
            torch.empty(0),
            torch.tensor(1.5),
            torch.arange(6).reshape(2, 3).t(),
            torch.eye(2).to_sparse(),
        ]

    def same(self, one, other):
        return one.dtype == other.dtype and torch.equal(one.to_dense(), other.to_dense())


class TestPkl(SerializerContract):
    serializer = _BuiltIn(pkl)

    def values(self):
        return [None, {}, {"a": [1, (2.5, "x")]}, {1, 2}, b"bytes"]


def _compare_points(a, b, atol, rtol):
    if not (isinstance(a, Points) and isinstance(b, Points)):
        return False
    return tt.compare(a.xy, b.xy, atol, rtol)


class TestComparator(ComparatorContract):
    comparator = staticmethod(_compare_points)

    def pairs(self):
        yield Points([[1.0, 2.0]]), Points([[1.0, 2.0]]), True
        yield Points(), Points(), True
        yield Points([[1.0, 2.0]]), Points([[1.0, 2.0001]]), False
        yield Points([[1.0, 2.0]]), Points(), False


class _Lossy(PointsFormat):
    def load(self, stream):
        return Points(json.load(stream)[:1])


class _LossyContract(TestOwn):
    serializer = _Lossy()


def test_a_serializer_that_loses_something_is_found_out():
    with pytest.raises(AssertionError, match="came back as"):
        _LossyContract().test_a_value_comes_back()


def test_a_comparator_that_answers_with_an_array_is_found_out():
    class Contract(TestComparator):
        comparator = staticmethod(lambda a, b, atol, rtol: np.bool_(True))

    with pytest.raises(AssertionError, match="answers True or False, not"):
        Contract().test_it_says_what_is_expected()


@pytest.mark.process
def test_contracts_need_no_pytest():
    code = "import sys, tensortap.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
