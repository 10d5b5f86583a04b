"""Frames: header, JSON meta and data of every message to another process. Pure bytes, no sockets."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn
from zlib import crc32

from tensortap.core.errors import TensortapError, UnsupportedValueError

WIRE_VERSION = 1
HEADER_NBYTES = 32
MAGIC = b"TT"
_HEADER_FIELDS = struct.Struct("<2sBBIIQQ")
_CRC = struct.Struct("<I")
_HEADER = struct.Struct("<2sBBIIQQI")
_CRC_AT = _HEADER_FIELDS.size
_FOREIGN_PROTOCOLS = {
    b"\x16\x03": "TLS",
    b"GE": "HTTP",
    b"PO": "HTTP",
    b"HE": "HTTP",
    b"OP": "HTTP",
    b"SS": "SSH",
}
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)


class BadFrameError(TensortapError, ValueError):
    """Bytes that are not a valid frame, or exceed the limits."""


class FrameKind(IntEnum):
    """The purpose of a frame. Receivers skip kinds they do not know."""

    HELLO = 1
    AUTH = 2
    OK = 3
    ERR = 4
    CATALOG = 5
    TAP = 6
    UNTAP = 7
    CREDIT = 8
    DATA = 9
    BATCH = 10
    EVENT = 11
    STATS = 12
    PING = 13
    BYE = 14


_KINDS_BY_NUMBER = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What a receiver accepts; checked before anything is allocated."""

    meta: int = 1 << 20  # bytes
    data: int = 4 << 30  # bytes
    dims: int = 32
    json_depth: int = 32
    parts: int = 100_000  # nodes per value
    depth: int = 256  # nesting of containers
    numbers: int = 1 << 22  # elements of a list sent as one block


DEFAULT_LIMITS = FrameLimits()


class FrameHeader(NamedTuple):
    kind: int  # a FrameKind, or the number of one from a later version
    flags: int
    meta_nbytes: int
    data_nbytes: int
    seq: int

    @property
    def is_known(self) -> bool:
        return isinstance(self.kind, FrameKind)


def encode_head(
    kind: FrameKind,
    meta: Mapping[str, Any] | None = None,
    data_nbytes: int = 0,
    seq: int = 0,
    limits: FrameLimits = DEFAULT_LIMITS,
) -> bytes:
    """Header and meta of a frame; `data_nbytes` bytes follow."""
    text = "".join(_encode_chunks(meta, 0)).encode() if meta else b"{}"
    if len(text) > limits.meta or data_nbytes > limits.data:
        _refuse_to_send(len(text), data_nbytes, limits)
    fields = _HEADER_FIELDS.pack(MAGIC, WIRE_VERSION, kind, 0, len(text), data_nbytes, seq)
    return b"".join((fields, _CRC.pack(crc32(fields)), text))


def parse_header(raw: bytes | bytearray | memoryview, limits: FrameLimits = DEFAULT_LIMITS) -> FrameHeader:
    """The header in these 32 bytes, if it is within the limits."""
    if len(raw) != HEADER_NBYTES:
        raise BadFrameError(f"a header has {HEADER_NBYTES} bytes, here are {len(raw)}")
    magic, version, kind, flags, meta, data, seq, checksum = _HEADER.unpack(raw)
    if magic != MAGIC:
        raise BadFrameError(_describe_foreign_bytes(magic))
    if checksum != crc32(raw[:_CRC_AT]):
        raise BadFrameError("the checksum of a header is wrong; the stream is damaged or out of step")
    if version != WIRE_VERSION or flags:
        raise BadFrameError(
            f"a frame of version {version} with flags {flags}; "
            f"this tensortap reads version {WIRE_VERSION} without flags"
        )
    if meta > limits.meta or data > limits.data:
        raise BadFrameError(
            f"a frame of {meta} bytes of meta and {data} of data; allowed are {limits.meta} and {limits.data}"
        )
    return FrameHeader(_KINDS_BY_NUMBER.get(kind, kind), flags, meta, data, seq)


def parse_meta(raw: bytes | bytearray | memoryview, limits: FrameLimits = DEFAULT_LIMITS) -> dict[str, Any]:
    """The JSON object in these bytes, if it is one and not nested too deeply."""
    if len(raw) > limits.meta:
        raise BadFrameError(f"a meta of {len(raw)} bytes; allowed are {limits.meta}")
    try:
        text = str(raw, "utf-8")
        if text.count("[") + text.count("{") > limits.json_depth:  # it cannot be deeper than that
            _check_depth(text, limits.json_depth)
        meta = _decode_json(text)
    except BadFrameError:
        raise
    except (ValueError, RecursionError) as error:
        raise BadFrameError(f"the meta of a frame is not JSON: {error}") from error
    if type(meta) is not dict:
        raise BadFrameError(f"the meta of a frame is a JSON {type(meta).__name__}; it has to be an object")
    return meta


def _check_depth(text: str, most: int) -> None:
    depth = 0
    for match in _BRACKETS.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > most:
                raise BadFrameError(f"the meta of a frame is nested deeper than {most}")
        elif first in "]}":
            depth -= 1


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _decode_json(text: str) -> Any:
    try:
        meta, end = _scan(text, 0)
    except StopIteration:
        end = -1
    return meta if end == len(text) else _DECODER.decode(text)  # surrounding whitespace, or raise


# Created once: `json.dumps` and `JSONEncoder.encode` create the C encoder anew for every frame.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_scan: Any = _DECODER.scan_once  # type: ignore[attr-defined]
_make_encoder: Any = json.encoder.c_make_encoder  # type: ignore[attr-defined]
_encode_chunks: Any = (
    _make_encoder(
        None, _ENCODER.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
    )
    if _make_encoder is not None
    else lambda meta, _: _ENCODER.iterencode(meta)
)


def _refuse_to_send(meta: int, data: int, limits: FrameLimits) -> NoReturn:
    if meta > limits.meta:
        raise UnsupportedValueError(
            f"what describes the value takes {meta} bytes, and a frame has room for {limits.meta}; "
            "send fewer parts at a time, or numbers as arrays"
        )
    raise UnsupportedValueError(
        f"the value has {data} bytes, and a frame has room for {limits.data}; send a part of it"
    )


def _describe_foreign_bytes(begin: bytes) -> str:
    protocol = _FOREIGN_PROTOCOLS.get(begin)
    guess = f", which looks like {protocol}" if protocol else ""
    return f"no frame of tensortap: it begins with {begin!r}{guess}"
