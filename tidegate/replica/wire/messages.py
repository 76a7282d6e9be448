"""The messages of the PostgreSQL protocol: reading what clients send, writing what they receive."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from tidegate.replica.wire.types import WireType

CANCEL, SSL, GSS = 80_877_102, 80_877_103, 80_877_104


class Malformed(Exception):
    """Bytes that are not a message of this protocol."""


class Fields:
    """Reads the fields of one message; running past its end, or an odd value, is Malformed."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._place = 0

    def take(self, size: int) -> bytes:
        end = self._place + size
        if size < 0 or end > len(self._body):
            raise Malformed("a message is shorter than it says")
        found = self._body[self._place : end]
        self._place = end
        return found

    def int16(self) -> int:
        return int(struct.unpack(">H", self.take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack(">i", self.take(4))[0])

    def uint32(self) -> int:
        return int(struct.unpack(">I", self.take(4))[0])

    def string(self) -> str:
        end = self._body.find(b"\0", self._place)
        if end < 0:
            raise Malformed("a string in a message does not end")
        found = self._body[self._place : end]
        self._place = end + 1
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise Malformed("a string in a message is not UTF-8") from None

    def rest(self) -> bytes:
        return self.take(len(self._body) - self._place)


def message(tag: bytes, body: bytes = b"") -> bytes:
    return tag + struct.pack(">i", len(body) + 4) + body


def _string(text: str) -> bytes:
    return text.replace("\0", "").encode(errors="replace") + b"\0"


AUTHENTICATED = message(b"R", struct.pack(">i", 0))
PARSED, BOUND, CLOSED, NO_DATA = message(b"1"), message(b"2"), message(b"3"), message(b"n")
SUSPENDED, EMPTY = message(b"s"), message(b"I")


def sasl_offer() -> bytes:
    return message(b"R", struct.pack(">i", 10) + b"SCRAM-SHA-256\0\0")


def sasl(step: int, data: bytes) -> bytes:
    return message(b"R", struct.pack(">i", step) + data)


def parameter_status(name: str, value: str) -> bytes:
    return message(b"S", _string(name) + _string(value))


def key_data(process: int, secret: int) -> bytes:
    return message(b"K", struct.pack(">II", process, secret))


def ready(status: str) -> bytes:
    return message(b"Z", status.encode())


def complete(tag: str) -> bytes:
    return message(b"C", _string(tag))


def row_description(columns: Sequence[str], types: Sequence[WireType], binary: Sequence[bool]) -> bytes:
    parts = [struct.pack(">h", len(columns))]
    for name, kind, as_binary in zip(columns, types, binary, strict=True):
        parts.append(_string(name) + struct.pack(">ihIhih", 0, 0, kind.oid, kind.size, kind.modifier, int(as_binary)))
    return message(b"T", b"".join(parts))


def parameter_description(oids: Sequence[int]) -> bytes:
    return message(b"t", struct.pack(f">H{len(oids)}I", len(oids), *oids))


def error(text: str, sqlstate: str, severity: str = "ERROR", hint: str = "") -> bytes:
    return message(b"E", _told(text, sqlstate, severity, hint))


def notice(text: str, sqlstate: str = "00000") -> bytes:
    return message(b"N", _told(text, sqlstate, "NOTICE", ""))


def _told(text: str, sqlstate: str, severity: str, hint: str) -> bytes:
    fields: Mapping[str, str] = {"S": severity, "V": severity, "C": sqlstate, "M": text, "H": hint}
    return b"".join(code.encode() + _string(value) for code, value in fields.items() if value) + b"\0"


def copy_out(columns: int) -> bytes:
    return message(b"H", struct.pack(f">bh{columns}h", 0, columns, *[0] * columns))


COPY_DONE = message(b"c")


def copy_data(data: bytes) -> bytes:
    return message(b"d", data)
