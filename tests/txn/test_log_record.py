"""Records as bytes: their kind can be told without decoding them."""

from __future__ import annotations

import msgspec
import pytest

from tidegate.txn.log.record import HEADER, KINDS, Called, Executed, Mark, Record, Segment, decode, encode, kind_of

EXAMPLES: list[Record] = [
    Segment(1, "app", "weak", {"p": "0"}, {"s": [["a", "INTEGER"]]}),
    Mark(2**40),
    Called(2**40, 1, "p", [1, "x"], {"n": None}),
    Executed(2**50, "committed", "p", writes={"t": [[[1, 2]], []]}, emitted={}),
    Executed(1, "halted", "p", "x" * 100_000, parked=list(range(1_000))),
]


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_the_kind_of_a_body(record: Record) -> None:
    body = encode(record)[HEADER.size :]
    assert kind_of(body) is type(record)
    assert decode(body) == record


def test_every_kind_is_short_enough() -> None:
    assert all(len(kind.__struct_fields__) < 15 and tag < 128 for tag, kind in KINDS.items())


@pytest.mark.parametrize(
    "body", [b"", b"\x91", msgspec.msgpack.encode([99]), msgspec.msgpack.encode({"a": 1}), b"\xdc\x00\x01\x04"]
)
def test_what_is_no_kind_of_ours(body: bytes) -> None:
    assert kind_of(body) is None
