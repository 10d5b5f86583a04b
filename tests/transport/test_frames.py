"""Frames: their bytes are as specified, and nothing but a sound frame within the limits gets through."""

import json
import random
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensortap.core.errors import TensortapError, UnsupportedValueError
from tensortap.transport.frames import (
    HEADER_NBYTES,
    WIRE_VERSION,
    BadFrameError,
    FrameHeader,
    FrameKind,
    FrameLimits,
    encode_head,
    parse_header,
    parse_meta,
)
from tensortap.transport.schema import decode_record
from tensortap.transport.values import decode_from_wire, encode_for_wire

FIELDS = struct.Struct("<2sBBIIQQ")


def signed(fields: bytes) -> bytes:
    """A header around these 28 bytes, with a checksum that fits."""
    return fields + struct.pack("<I", zlib.crc32(fields))


def header_with(magic=b"TT", version=WIRE_VERSION, kind=FrameKind.DATA, flags=0, meta=2, data=0, seq=0):
    return signed(FIELDS.pack(magic, version, kind, flags, meta, data, seq))


def test_a_frame_has_the_bytes_of_the_specification():
    frame = encode_head(FrameKind.DATA, {"name": "é"}, 7, seq=3)
    text = b'{"name":"\\u00e9"}'
    fields = b"TT\x01\x09" + bytes(4) + bytes([len(text), 0, 0, 0]) + bytes([7, *[0] * 7, 3, *[0] * 7])
    assert frame == fields + zlib.crc32(fields).to_bytes(4, "little") + text


def test_the_numbers_of_the_kinds_never_change():
    first = ["HELLO", "AUTH", "OK", "ERR", "CATALOG", "TAP", "UNTAP", "CREDIT"]
    then = ["DATA", "BATCH", "EVENT", "STATS", "PING", "BYE"]
    assert [(kind.name, kind.value) for kind in FrameKind] == list(
        zip(first + then, range(1, 15), strict=True)
    )


def test_what_head_wrote_is_read_back():
    frame = encode_head(FrameKind.TAP, {"path": "layers.*", "every": 10}, 0, seq=2**40)
    header = parse_header(frame[:HEADER_NBYTES])
    assert header == FrameHeader(FrameKind.TAP, 0, len(frame) - HEADER_NBYTES, 0, 2**40)
    assert parse_meta(frame[HEADER_NBYTES:]) == {"path": "layers.*", "every": 10}


def test_a_frame_without_meta_has_an_empty_object():
    assert encode_head(FrameKind.PING)[HEADER_NBYTES:] == b"{}"


def test_the_number_of_a_later_kind_is_read_and_known_to_be_unknown():
    header = parse_header(header_with(kind=200))
    assert (header.kind, header.is_known) == (200, False)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"[:32], "begins with b'GE', which looks like HTTP"),
        (b"\x16\x03\x01" + bytes(29), "which looks like TLS"),
        (b"\x00" * 32, "no frame of tensortap"),
        (header_with()[:31], "a header has 32 bytes, here are 31"),
        (header_with()[:-1] + b"\x00", "checksum"),
        (header_with(version=9), "version 9"),
        (header_with(flags=1), "flags 1"),
        (header_with(meta=(1 << 20) + 1), "1048577 bytes of meta"),
        (header_with(data=(4 << 30) + 1), "4294967297 of data"),
        (header_with(data=2**64 - 1), "allowed are 1048576 and 4294967296"),
    ],
    ids=["http", "tls", "zeros", "short", "checksum", "version", "flags", "meta", "data", "most data"],
)
def test_a_header_that_is_not_sound_is_refused_with_a_sentence(raw, told):
    with pytest.raises(BadFrameError, match=told):
        parse_header(raw)


@pytest.mark.parametrize("position", range(HEADER_NBYTES))
def test_a_flipped_bit_anywhere_in_a_header_is_noticed(position):
    raw = bytearray(header_with(seq=5))
    raw[position] ^= 0x10
    with pytest.raises(BadFrameError):
        parse_header(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"a":NaN}',
        b'{"a":-Infinity}',
        b'{"a":1}x',
        b'\xff{"a":1}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 500_000,
    ],
    ids=["empty", "list", "null", "cut", "nan", "infinity", "tail", "latin", "digits", "deep"],
)
def test_a_meta_that_is_not_a_json_object_is_refused(raw):
    with pytest.raises(BadFrameError):
        parse_meta(raw)


def nest(depth):
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


def test_a_meta_may_be_nested_as_deep_as_the_limit_and_no_deeper():
    assert parse_meta(nest(32))
    with pytest.raises(BadFrameError, match="deeper than 32"):
        parse_meta(nest(33))


def test_brackets_inside_of_text_are_no_nesting():
    meta = {"a": "[{" * 100 + '\\"[' * 100, "b": [{}] * 50}
    assert parse_meta(json.dumps(meta).encode()) == meta


def test_a_meta_larger_than_the_limit_is_not_sent():
    with pytest.raises(UnsupportedValueError, match="takes 2000011 bytes, and a frame has room for 1048576"):
        encode_head(FrameKind.EVENT, {"text": "x" * 2_000_000})


def test_data_larger_than_the_limit_are_not_sent():
    with pytest.raises(UnsupportedValueError, match="send a part of it"):
        encode_head(FrameKind.DATA, {}, (4 << 30) + 1)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_meta_or_refused(raw):
    try:
        assert type(parse_meta(raw)) is dict
    except BadFrameError:
        pass


@given(st.binary(min_size=28, max_size=28))
def test_arbitrary_fields_are_a_header_within_the_limits_or_refused(fields):
    limits = FrameLimits(meta=1 << 16, data=1 << 20)
    try:
        header = parse_header(signed(b"TT\x01" + fields[3:]), limits)
    except BadFrameError:
        return
    assert header.meta_nbytes <= limits.meta
    assert header.data_nbytes <= limits.data


SMALL = FrameLimits(meta=4096, data=1 << 16, parts=1000, numbers=1000)


def take(frame: bytes) -> bool:
    """What a receiver does with a frame; whether it was taken."""
    try:
        header = parse_header(frame[:HEADER_NBYTES], SMALL)
        end = HEADER_NBYTES + header.meta_nbytes
        meta = parse_meta(frame[HEADER_NBYTES:end], SMALL)
        decode_record(meta, decode_from_wire(meta, bytearray(frame[end:]), SMALL, into="numpy"))
    except BadFrameError:
        return False
    return True


def sound_frames() -> list[bytes]:
    values = [
        np.arange(6, dtype="f4").reshape(2, 3),
        {"a": [1, 2.5, None], ("t", 1): "text", "deep": [[[{"b": (1,)}]]]},
        [float("nan"), 2**100, 1j, b"bytes", True, {1, 2}, "x" * 600],
        list(range(20)),
    ]
    return [frame_of(value) for value in values]


def frame_of(value) -> bytes:
    made = encode_for_wire(value)
    meta = {"name": "x", "step": 3, "site": ["f", "file", 1, 0, [], 0], **made.meta}
    return encode_head(FrameKind.DATA, meta, made.nbytes) + b"".join(made.buffers)


def refit(frame: bytes, meta: bytes) -> bytes:
    """The frame with another meta, and a header that fits it."""
    end = HEADER_NBYTES + struct.unpack_from("<I", frame, 8)[0]
    data = frame[end:]
    return header_with(meta=len(meta), data=len(data)) + meta + data


def random_headers(count: int, rng: np.random.Generator) -> int:
    raw = rng.bytes(count * HEADER_NBYTES)
    return sum(take(raw[at : at + HEADER_NBYTES]) for at in range(0, len(raw), HEADER_NBYTES))


def signed_headers(count: int, rng: np.random.Generator) -> int:
    """Fields at random below a sound beginning and a checksum that fits."""
    raw = rng.bytes(count * 25)
    return sum(take(signed(b"TT\x01" + raw[at : at + 25])) for at in range(0, len(raw), 25))


def flipped(count: int, rng: random.Random) -> int:
    """Whole frames with a few bytes changed anywhere."""
    frames = sound_frames()
    return sum(take(changed(rng.choice(frames), rng)) for _ in range(count))


def flipped_meta(count: int, rng: random.Random) -> int:
    """Frames with a few bytes of the meta changed, inserted or cut out, and a header that fits."""
    frames = sound_frames()
    metas = [frame[HEADER_NBYTES : HEADER_NBYTES + struct.unpack_from("<I", frame, 8)[0]] for frame in frames]
    taken = 0
    for _ in range(count):
        number = rng.randrange(len(frames))
        taken += take(refit(frames[number], changed(metas[number], rng)))
    return taken


def changed(text: bytes, rng: random.Random) -> bytes:
    raw = bytearray(text)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw))
        way = rng.random()
        if way < 0.5:
            raw[at] = rng.randrange(256)
        elif way < 0.8:
            raw[at] = rng.choice(b'0123456789[]{},":-aeltu')
        elif way < 0.9:
            raw.insert(at, rng.choice(b'0123456789[]{},":-'))
        else:
            del raw[at : at + rng.randint(1, 4)]
    return bytes(raw)


def random_trees(count: int, rng: random.Random) -> int:
    """Trees of sound and unsound nodes at random, with data of a length that may fit."""
    return sum(take(random_tree(rng)) for _ in range(count))


NODES = [
    *[["list", 1], ["dict", 1], ["tuple", 2], ["set", 1], ["frozenset", 0], ["list", -1], ["list", 10**20]],
    *[["list"], ["dict", 1, 2], [], [[]], [None], {"a": 1}, ["int", "0xzz"], ["int", "0xff"], ["int", 3]],
    *[
        ["float", "nan"],
        ["float", "1e5"],
        ["complex", 1, "inf"],
        ["complex", "x", 1],
        ["str", 4],
        ["str", -4],
    ],
    *[["bytes", 2**70], ["numbers", "list", "bool", 4], ["numbers", "set", "bool", 4], ["pickle", 4]],
    *[["array", "torch", "float32", [1]], ["array", "os", "float32", [1]], ["array", "numpy", "object", [1]]],
    *[
        ["array", "numpy", "bool", [0, 2**61]],
        ["array", "numpy", "bfloat16", [2]],
        ["array", "numpy", "int8"],
    ],
    *[["array", "numpy", "int8", [True]], ["array", "numpy", "int8", [4], {"scalar": 1}], 1, 1.5, None, "x"],
    ["array", "numpy", "int8", [1] * 40],
    ["numbers", "list", "float64", 10**9],
]


def random_tree(rng: random.Random) -> bytes:
    meta = {"name": "x", "tree": [rng.choice(NODES) for _ in range(rng.randint(1, 4))]}
    text = json.dumps(meta).encode()
    data = bytes(rng.choice((0, 4, 4, 64 + 4, 8)))
    return header_with(meta=len(text), data=len(data)) + text + data


@pytest.mark.law
def test_a_million_random_and_mutated_frames_are_taken_or_refused_and_nothing_else():
    numbers, choices = np.random.default_rng(7), random.Random(7)
    taken = {
        "random headers": random_headers(500_000, numbers),
        "signed headers": signed_headers(250_000, numbers),
        "flipped": flipped(100_000, choices),
        "flipped meta": flipped_meta(100_000, choices),
        "random trees": random_trees(50_000, choices),
    }
    assert taken["random headers"] == taken["signed headers"] == 0
    # Both ways must be walked for the test to mean something.
    assert 0 < taken["flipped meta"] < 100_000
    assert 0 < taken["random trees"] < 50_000
    assert all(take(frame) for frame in sound_frames())


def test_a_hostile_frame_makes_nobody_allocate():
    frames = [
        header_with(meta=4096, data=1 << 16) + b"[" * 4096,
        refit(frame_of(0), b'{"name":"x","tree":[["array","numpy","int8",[1000000000000]]]}'),
        refit(frame_of(0), b'{"name":"x","tree":[["list",1000000000000000]]}'),
        refit(frame_of(0), b'{"name":"x","tree":[["numbers","list","bool",60000]]}'),
        refit(frame_of(0), b'{"name":"x","tree":[' + b'["list",1],' * 300 + b"1]}"),
    ]
    tracemalloc.start()
    try:
        assert not any(take(frame) for frame in frames)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_bad_frame_is_an_error_of_ours_and_a_value_error():
    assert issubclass(BadFrameError, TensortapError)
    assert issubclass(BadFrameError, ValueError)
