"""Log records, and how one becomes bytes.

    frame   length u32 │ crc32 u32 │ body (msgpack array, its first element the kind)

The address of a record (its LSN) is the offset of its frame in the log as one endless file; a segment's name is the
LSN it begins at.

Frames form a chain: the crc32 of a frame continues that of the frame before it, so that it is valid in its own place
and nowhere else. Every segment starts its own chain, with a header that says which directory it belongs to, its number
and LSN, and how the chain of the segment before it ended. So a frame or segment that is missing, duplicated, out of
order or from another log is detected, whatever it holds.

A ``Mark`` says up to which LSN the log is known to be on disk. It is written after every sync, unsynced itself (with
the next group, if records are waiting), so that a damaged record *below* some later mark can be told from a torn tail:
the first was acknowledged and must be reported, the second was not and is cut. After damage no frame is valid any more,
so a mark has a seal by which it is recognised there. The seal depends on the directory's identity: no pushed row looks
like a mark.
"""

from __future__ import annotations

import datetime as dt
import struct
import zlib
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any, get_args

import msgspec

from tidegate.clock import EPOCH

FORMAT = 4
READABLE = (3, FORMAT)  # 3: without columns
HEADER = struct.Struct("<II")


class Record(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """Base of the records. ``tag`` is the kind as stored."""


class Segment(Record, frozen=True, array_like=True, tag=0):
    """First record of every segment: who wrote it, with which code, and where it belongs. One app wrote all of it.

    ``opening`` is a new random value each time a directory is opened: copies of a directory, which share its identity,
    have different chains as soon as they are used separately.
    """

    format: int
    app: str
    mode: str
    fingerprint: dict[str, Any]  # of the app, see tidegate.dataflows.fingerprint
    streams: dict[str, list[list[str]]]  # name -> [[column, type], ...]
    directory: str = ""  # its identity, chosen at random when it was created
    opening: str = ""
    number: int = 0  # of this segment, counted since the directory was created
    begin: int = 0  # the LSN of this record
    previous: int = 0  # the crc32 of the last frame before this segment


class Mark(Record, frozen=True, array_like=True, tag=1):
    """Everything below ``synced`` is on disk. ``seal``: what :func:`seal` gives for it."""

    synced: int
    seal: int = 0


class Pushed(Record, frozen=True, array_like=True, tag=2):
    """A border batch was accepted. ``explicit``: its id was given by the source, so repeats of it are recognised."""

    sequence: int
    time_us: int
    stream: str
    batch_id: int
    rows: list[Any] | bytes  # bytes: columns, as an Arrow IPC stream
    explicit: bool = False
    source: str | None = None
    offset: Any = None


class Fed(Record, frozen=True, array_like=True, tag=9):
    """Many border batches were accepted at once: ``rows``, ``size`` to a batch (and split by key), numbered from
    ``sequence`` on. ``together``: all were admitted before any of them ran.
    """

    sequence: int
    time_us: int
    stream: str
    size: int
    rows: list[Any] | bytes
    source: str | None = None
    offset: Any = None
    together: bool = False
    timers: list[str] | None = None  # those that the rows come from; empty: a schedule


class RawFed(Fed, frozen=True, array_like=True, tag=9):
    """The same, as read for a replay: its rows are still bytes, to be decoded where their type is known."""

    rows: msgspec.Raw


class Called(Record, frozen=True, array_like=True, tag=3):
    """An OLTP procedure was called."""

    sequence: int
    time_us: int
    procedure: str
    arguments: list[Any]
    named: dict[str, Any]


class Executed(Record, frozen=True, array_like=True, tag=4):
    """An execution ended (modes strong and effects; failures in every mode).

    ``outcome``: committed, aborted, expired, dead_letter, halted, or failed (a call). ``writes``, ``emitted``:
    its effects (mode effects). ``parked``: positions that a halt parked. ``trace``: where in the app's code it failed,
    and ``attempts``: how often it was tried.
    """

    position: int
    outcome: str
    procedure: str = ""
    reason: str = ""
    writes: dict[str, list[Any]] | None = None  # table -> [rows written, keys deleted]
    emitted: dict[str, list[Any]] | None = None
    result: Any = None
    parked: list[int] | None = None
    trace: str = ""
    attempts: int = 0
    timers: list[Any] | None = None  # set and cancelled (mode effects), see tidegate.txn.timers


class Resumed(Record, frozen=True, array_like=True, tag=5):
    """A halted dataflow was resumed: what was parked has new positions, ``moved`` as [old, new].

    ``keys``: for these keys only. ``skipped``: positions that it was halted in front of and that became dead letters.
    """

    dataflow: str
    moved: list[list[int]]
    keys: list[Any] | None = None
    skipped: list[int] | None = None


class Requeued(Record, frozen=True, array_like=True, tag=20):
    """The batch of a dead letter was accepted again, under a new id. ``letter``: the position at which it was put aside."""

    sequence: int
    time_us: int
    stream: str
    batch_id: int
    rows: list[Any] | bytes
    letter: str


class Advanced(Record, frozen=True, array_like=True, tag=14):
    """Time has come to ``to`` on a border stream: a batch without rows for each of these ``keys``, numbered from
    ``sequence`` on. None: every key so far. ``batch_id``: if its sender chose it. ``together``: as of ``Fed``.
    """

    sequence: int
    time_us: int
    stream: str
    to: int
    batch_id: int | None = None
    keys: list[Any] | None = None
    together: bool = False


class Asked(Record, frozen=True, array_like=True, tag=12):
    """A nested transaction asked, and waits for its answer on ``stream``, which ``procedure`` takes.

    What it had done by then, so that the members in front do not run again: their names (``front``), ``writes`` (by
    table: rows written, keys deleted), ``emitted``, and the state of its random numbers. Only the digest is known of a
    question whose dataflow halted after the answer (in checkpoints).
    """

    position: int
    stream: str
    procedure: str
    digest: str
    front: list[str] = []
    writes: dict[str, list[Any]] | None = None
    emitted: dict[str, list[Any]] | None = None
    random: Any = None
    attempts: int = 0
    timers: list[Any] | None = None


class Reasked(Record, frozen=True, array_like=True, tag=13):
    """The question with this digest was withdrawn; the members in front of it run again, and perhaps ask anew."""

    position: int
    digest: str
    time_us: int


class Delivered(Record, frozen=True, array_like=True, tag=6):
    """A durable subscriber is done with these batches, each given as [key, batch-id, offset].

    ``refused``: why its target refused them; they became dead letters at ``time_us``.
    """

    subscription: str
    batches: list[Any]
    refused: str | None = None
    time_us: int = 0


class Checkpoint(Record, frozen=True, array_like=True, tag=7):
    """The base holds everything below ``lsn``, as merge ``number``. ``generation``: a copy of it was kept."""

    number: int
    lsn: int
    generation: bool = False


class Subscribed(Record, frozen=True, array_like=True, tag=8):
    """A durable subscription was created, or (``closed``) dropped. ``snapshot``: it begins with one, taken by a call.

    ``since``: it gets what executions with later sequence numbers emit. It does not get what was in progress when it
    was created, whenever that commits: a replay may have run it before it reaches this record. ``start``: the offset at
    which it begins to read ``topic``, given by its id. ``on_lag``: what becomes of what waits; said again when that changes.
    """

    subscription: str
    stream: str
    closed: bool = False
    snapshot: bool = False
    since: int = 0
    start: int = 0
    on_lag: Any = None
    topic: str = ""


class Moved(Record, frozen=True, array_like=True, tag=40):
    """A durable subscription goes on at offset ``to``: it was told to, or (``lost``) it lagged, and what was before it was
    dropped.
    """

    subscription: str
    to: int
    lost: bool = False


class Skipped(Record, frozen=True, array_like=True, tag=10):
    """The record at LSN ``record``, with what was accepted as ``sequence``, is deliberately not run: its batches (or its
    call) are dead letters, with this ``reason``. Written by ``tidegate repair``; a replay knows it before it begins.
    """

    record: int
    sequence: int
    time_us: int
    reason: str


class Upgraded(Record, frozen=True, array_like=True, tag=11):
    """From here on another version of the app writes the log. The base of merge ``number`` holds everything before it,
    up to ``lsn``, and a copy of it was kept. ``changed``: what is different, in words.
    """

    number: int
    lsn: int
    time_us: int
    before: str  # the digests of both fingerprints
    after: str
    changed: list[str]
    was: str | None = None  # the versions that the apps declare
    version: str | None = None


Any_ = (
    Segment
    | Mark
    | Pushed
    | Fed
    | Called
    | Executed
    | Resumed
    | Requeued
    | Advanced
    | Asked
    | Reasked
    | Delivered
    | Checkpoint
    | Subscribed
    | Moved
    | Skipped
    | Upgraded
)

KINDS: dict[Any, type[Record]] = {kind.__struct_config__.tag: kind for kind in get_args(Any_)}

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Any_)
_raw_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    reduce(or_, [RawFed if kind is Fed else kind for kind in get_args(Any_)])
)


body_of: Callable[[Record], bytes] = _encoder.encode
"""The record as the body of a frame."""


def framed(body: bytes, chain: int) -> tuple[bytes, int]:
    """The frame that follows one whose crc32 is ``chain``, and its own crc32."""
    crc = zlib.crc32(body, chain)
    return HEADER.pack(len(body), crc) + body, crc


def encode(record: Record, chain: int = 0) -> bytes:
    """The record as a frame, the first of a segment unless told otherwise."""
    return framed(body_of(record), chain)[0]


def seal(directory: str, synced: int) -> int:
    """The value by which a mark of this directory is recognised where its frame can't be checked."""
    return zlib.crc32(synced.to_bytes(8, "little"), zlib.crc32(directory.encode()))


def decode(body: bytes) -> Any_:
    """The record in a frame's body."""
    record: Any_ = _decoder.decode(body)
    return record


decode_raw: Callable[[bytes], Any_] = _raw_decoder.decode
"""The same, with the rows of a chunk left as bytes."""


_KIND_OF = {bytes([0x90 | width, tag]): kind for tag, kind in KINDS.items() for width in range(1, 16)}


def kind_of(body: bytes) -> type[Record] | None:
    """The kind of a record, without decoding it: all are short arrays that begin with a small number."""
    return _KIND_OF.get(body[:2])


def to_us(time: dt.datetime) -> int:
    """Microseconds since 1970, exactly."""
    since = time - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def from_us(time_us: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=time_us)
