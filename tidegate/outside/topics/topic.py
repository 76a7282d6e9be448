"""A topic: the batches of one stream in the order in which they committed, each at its offset.

Appending is a part of the commit (of a border stream: of the acceptance). With a directory the batches are in files
(:mod:`tidegate.outside.topics.segments`), the newest in memory, too; without one they are in memory only.

After a crash the replay commits them again. What the files already hold is recognised by its position and keeps its
offset, so offsets never change once they were seen: a stream that commits in the same order in every run is written in
the same order again, and of the others nothing is shown that is not on disk.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from tidegate.dataflows.keeping import Retention
from tidegate.errors import CursorGone
from tidegate.mutex import Rank, reentrant
from tidegate.outside.topics.segments import Place, Segments
from tidegate.storage.codec import RowCodec, from_json, to_json
from tidegate.storage.schema import Relation
from tidegate.streams.batch import Batch, batch_of
from tidegate.txn.log.record import from_us
from tidegate.txn.positions import Position, sequence_of

RECENT = 1_000  # batches kept in memory next to the files
RECENT_ROWS = 20_000
VALUE_BYTES = 32  # about what a value takes in memory

_pack = msgspec.msgpack.Encoder().encode


class Entry(NamedTuple):
    """A batch of a topic: its offset, the position that emitted it, and when what caused it was accepted."""

    offset: int
    position: Position
    time_us: int
    batch: Batch

    @property
    def time(self) -> dt.datetime:
        return from_us(self.time_us)


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    position: int
    time_us: int
    key: Any
    id: int
    rows: msgspec.Raw


_decode = msgspec.msgpack.Decoder(_Stored).decode


class Follower(Protocol):
    """Who is told of every batch, inside its commit."""

    def arrived(self, offset: int, position: Position) -> None: ...
    def void(self, offset: int) -> None: ...
    @property
    def needs(self) -> int | None:
        """The first offset that it must not lose; None: it has said that it may lose any."""


class Topic:
    """See the module. ``append`` is called under the engine's lock.

    ``id``: chosen when it begins; the name of its directory. ``private``: it belongs to one subscription (of a changelog).
    ``since``: it holds what entered the order later than this sequence number. ``ordered``: it is in the same order in every run.
    """

    def __init__(
        self,
        id: str,
        relation: Relation,
        keep: Retention | None,
        since: int,
        ordered: bool,
        files: Segments | None,
        private: bool = False,
    ) -> None:
        self.id = id
        self.relation = relation
        self.stream = relation.name
        self.keep = keep
        self.since = since
        self.ordered = ordered
        self.private = private
        self.files = files
        self.begin = 0
        self.end = 0
        self.followers: list[Follower] = []
        self.voids: set[int] = set()  # emitted once, but not by the replay: a repair has skipped them
        self._codec = RowCodec(relation)
        self._recent: dict[int, Entry] = {}
        self._recent_from = self._recent_rows = 0
        self._ahead: dict[tuple[int, Any, int], int] = {}  # in the files, and still to be emitted again
        self._guard = reentrant(Rank.LEAF)

    # ---- appending

    def append(self, position: Position, time_us: int, batch: Batch, lsn: int, ready: int) -> int | None:
        """The batch commits; returns its offset, None if it does not belong here. ``lsn``: how far the log must be on disk
        before that is certain; ``ready``: how far it is.
        """
        if sequence_of(position) <= self.since:
            return None
        offset = self._ahead.pop((position, batch.key, batch.id), None) if self._ahead else None
        if offset is None:
            offset = self.end
            if self.files is not None:
                self.files.append(_body(position, time_us, batch), lsn, ready)
            with self._guard:
                self._remember(Entry(offset, position, time_us, batch))
                self.end = offset + 1
        for follower in self.followers:
            follower.arrived(offset, position)
        return offset

    def _remember(self, entry: Entry) -> None:
        recent = self._recent
        recent[entry.offset] = entry
        self._recent_rows += len(entry.batch)
        if self.files is not None:
            while len(recent) > RECENT or (self._recent_rows > RECENT_ROWS and len(recent) > 1):
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        entry = self._recent.pop(self._recent_from, None)
        self._recent_from += 1
        if entry is not None:
            self._recent_rows -= len(entry.batch)

    # ---- reading

    def read(self, offsets: Sequence[int], ready: int = 1 << 62) -> list[Entry]:
        """The batches at these ascending offsets. ``ready``: how far the log is on disk."""
        with self._guard:
            found = {offset: self._recent[offset] for offset in offsets if offset in self._recent}
        missing = [offset for offset in offsets if offset not in found]
        if missing:
            if self.files is None or missing[0] < self.begin:
                raise self._gone(missing[0])
            if self.files.written <= missing[-1]:
                self.files.flush(ready)
            for first, count in _runs(missing):
                for entry in self._from_files(first, count):
                    found[entry.offset] = entry
        if len(found) < len(offsets):
            raise self._gone(min(set(offsets) - found.keys()))
        return [found[offset] for offset in offsets]

    def _from_files(self, offset: int, limit: int) -> Iterator[Entry]:
        assert self.files is not None
        for raw in self.files.read(offset, limit):
            stored = _decode(raw.body)
            rows = self._codec.read(stored.rows)
            width = len(self.files.columns_of(raw.offset))
            if width < len(self.relation.columns):
                rows = tuple(self.relation.named([*row[:width], *self._fills(width)]) for row in rows)
            batch = batch_of(self.relation, stored.id, rows, from_json(stored.key))
            yield Entry(raw.offset, stored.position, stored.time_us, batch)

    def _fills(self, width: int) -> list[Any]:
        """What a row has that was written before columns were added at the end of its stream."""
        return [self.relation.fills.get(column.name) for column in self.relation.columns[width:]]

    def _gone(self, offset: int) -> CursorGone:
        return CursorGone(
            f"topic {self.stream} no longer has offset {offset}: it keeps {self.begin} to {self.end} "
            f"({'keep=' + str(self.keep) if self.keep is not None else 'what its subscriptions have not acknowledged'})",
            stream=self.stream,
            cursor=offset,
        )

    def scan(self, offset: int, at_once: int = 500) -> Iterator[Entry]:
        """All batches from ``offset`` on, up to its present end."""
        end = self.end
        while offset < end:
            some = list(range(offset, min(offset + at_once, end)))
            yield from self.read(some)
            offset += at_once

    def offset_at(self, time_us: int) -> int:
        """The offset of the first batch whose cause was accepted at this time or later."""
        start = self.begin
        if self.files is not None:
            for first in self.files.firsts[1:]:
                if first >= self.end or self.read([first])[0].time_us >= time_us:
                    break
                start = first
        return next((entry.offset for entry in self.scan(start) if entry.time_us >= time_us), self.end)

    # ---- durability

    def settle(self, ready: int) -> None:
        """Return when what was appended may be shown: see the module."""
        if self.files is not None and not self.ordered and self.files.on_disk < self.end:
            self.files.sync(ready)

    def stands(self) -> dict[str, Any]:
        """What a checkpoint says of it."""
        oldest = self.end if self.files is None or not self.files.firsts else self.files.firsts[0]
        place = Place(self.end, -1, 0, 0) if self.files is None else self.files.stands
        return {
            "id": self.id,
            "stream": self.stream,
            "private": self.private,
            "kept": self.keep is not None,
            "since": self.since,
            "place": list(place),
            "oldest": oldest,
            "voids": sorted(self.voids),
            "ahead": [[at, to_json(key), batch_id, offset] for (at, key, batch_id), offset in self._ahead.items()],
        }

    def restore(self, saved: dict[str, Any] | None) -> None:
        """Go on where a checkpoint says that it stood (None: from its beginning); what the files hold beyond is to come again."""
        if self.files is None:
            return
        place = Place(0, -1, 0, 0) if saved is None else Place(*saved["place"])
        self.voids = set() if saved is None else set(saved["voids"])
        ahead = self.files.begin(place, 0 if saved is None else saved["oldest"])
        for at, key, batch_id, offset in () if saved is None else saved["ahead"]:
            self._ahead[at, from_json(key), batch_id] = offset
        for raw in ahead:
            stored = _decode(raw.body)
            self._ahead[stored.position, from_json(stored.key), stored.id] = raw.offset
        self.begin = self.files.firsts[0] if self.files.firsts else place.offset
        self.end = self._recent_from = place.offset + len(ahead)

    def replayed(self, unfinished: set[int]) -> int:
        """The replay is over: what it did not emit again has not happened; returns how many batches that are. What is
        ``unfinished`` (sequence numbers) runs only now, and emits it.
        """
        lost = sorted(offset for (at, _, _), offset in self._ahead.items() if sequence_of(at) not in unfinished)
        self._ahead = {place: o for place, o in self._ahead.items() if sequence_of(place[0]) in unfinished}
        assert not lost or self.files is not None
        for offset in lost:
            self.voids.add(offset)
            for follower in self.followers:
                follower.void(offset)
        return len(lost)

    # ---- forgetting

    def let_go(self, expired: int, floor: int) -> None:
        """What is below ``expired`` need not be kept any more: it is gone, unless somebody needs it. Under the engine's lock.
        ``floor``: a base that may be fallen back to needs the rest.
        """
        needed = [follower.needs for follower in self.followers]
        limit = min([expired, floor, self.end, *(offset for offset in needed if offset is not None)])
        if self.files is None:
            self.forget(limit)
        elif limit > self.begin:
            self.begin = max(self.begin, self.files.left(limit))
        self.voids = {offset for offset in self.voids if offset >= self.begin}

    def remove_files(self) -> None:
        """Those of what was let go."""
        if self.files is not None:
            self.files.forget(self.begin)

    def forget(self, limit: int) -> None:
        """Drop batches below ``limit`` from memory."""
        with self._guard:
            while self._recent_from < limit:
                self._drop_oldest()
            self.begin = max(self.begin, self._recent_from)

    def expired(self, now_us: int) -> int:
        """The offset below which nothing is kept for its own sake."""
        if self.keep is None:
            return self.end
        if self.keep.us is not None:
            return self.offset_at(now_us - self.keep.us)
        if self.keep.bytes is not None:
            return self._beyond(self.keep.bytes)
        return self.begin

    def _beyond(self, size: int) -> int:
        """The offset from which on the topic takes ``size`` bytes, in whole segments; in memory it is an estimate."""
        if self.files is not None:
            sizes = self.files.sizes()
            while sizes and sum(sizes.values()) - sizes[min(sizes)] >= size:
                del sizes[min(sizes)]
            return min(sizes, default=self.begin)
        width, total = VALUE_BYTES * len(self.relation.columns), 0
        for offset in range(self.end - 1, self.begin - 1, -1):
            total += width * len(self._recent[offset].batch)
            if total > size:
                return offset
        return self.begin

    def bytes(self) -> int:
        """How much room it takes: in files, or about so much in memory."""
        if self.files is not None:
            return sum(self.files.sizes().values()) + self.files.unwritten
        return VALUE_BYTES * len(self.relation.columns) * self._recent_rows


def _body(position: Position, time_us: int, batch: Batch) -> bytes:
    rows: Any = list(batch.rows) if type(batch) is Batch else batch.given.packed()  # type: ignore[union-attr]
    return _pack((position, time_us, to_json(batch.key), batch.id, rows))


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as (first, how many) of those that follow each other."""
    first = count = 0
    for offset in offsets:
        if count and offset == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = offset, 1
    if count:
        yield first, count
