"""Fingerprints of everything emitted: small enough for every checkpoint, exact enough to compare a run with another.

The contract fixes which batches each stream carries, and the order of those with one key. The order in which different
keys commit is not specified, so there are two kinds:

* a stream without key commits in batch-id order in every run: a :class:`Chain`, one running checksum over all of it;
* a keyed stream commits in any order between keys: :class:`Blocks`, the sum of a checksum for every batch.

Both get each batch when it commits, and process many at a time: where the cuts are makes no difference. Both keep
intermediate results, ever further apart, so that a comparison can say where two runs diverge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

import msgspec

from tidegate.streams.batch import Batch

KEPT = 64  # intermediate results for a stream; the more batches, the further apart
TOGETHER = 64  # batches are processed this many at a time

_encoder = msgspec.msgpack.Encoder()
_pack, _pack_into = _encoder.encode, _encoder.encode_into


class Chain:
    """A stream without key: a checksum of its batches, ids and rows, in the order of their ids.

    On the path of every commit: a batch is packed right away, which costs less than keeping it for later.
    """

    __slots__ = ("_due", "_marks", "_packed", "_step", "count", "crc", "last", "restored")

    def __init__(self) -> None:
        self.count = self.crc = 0
        self.last: int | None = None  # batch-id
        self.restored = 0  # how many of them an earlier run has emitted
        self._due = self._step = 1
        self._marks: list[list[Any]] = []  # [count, last, crc] at multiples of the step
        self._packed = bytearray()  # what the checksum does not cover yet

    def add(self, position: int, batch: Batch) -> None:
        self.last = batch.id
        self.count = count = self.count + 1
        _pack_into((batch.id, batch.rows), self._packed, len(self._packed))
        if count >= self._due:
            self.settle()

    def settle(self) -> None:
        """Process what was added; a mark is due at every multiple of the step."""
        self.crc = crc32(self._packed, self.crc)
        self._packed.clear()
        if self.count and self.count % self._step == 0 and (not self._marks or self._marks[-1][0] < self.count):
            self._mark()
        self._due = self.count + min(TOGETHER, self._step - self.count % self._step)

    def _mark(self) -> None:
        self._marks.append([self.count, self.last, self.crc])
        if len(self._marks) > KEPT:
            self._step *= 2
            self._marks = [mark for mark in self._marks if mark[0] % self._step == 0]

    def save(self) -> list[Any]:
        self.settle()
        return [self.count, self.last, self.crc, self._step, self._marks[:]]

    def restore(self, saved: list[Any]) -> None:
        self.count, self.last, self.crc, self._step, marks = saved
        self._marks = [list(mark) for mark in marks]
        self.restored = self.count
        self.settle()

    def difference(self, again: Chain) -> str | None:
        """How another run's batches differ from these; None when they do not."""
        ours, theirs = self._known(), again._known()
        if (self.count, self.crc) == (again.count, again.crc):
            return None
        known, id_known = 0, None
        for count in sorted(ours.keys() & theirs.keys()):
            if ours[count] != theirs[count]:
                place = _between(known, id_known, count, ours[count][0], theirs[count][0])
                break
            known, id_known = count, ours[count][0]
        else:
            place = _after(id_known)
        return f"{place} differs" + _counts(self.count, again.count)

    def _known(self) -> dict[int, tuple[Any, int]]:
        self.settle()
        return {count: (last, crc) for count, last, crc in [*self._marks, [self.count, self.last, self.crc]]}


class Blocks:
    """A keyed stream: sums of a checksum for every batch, over ranges of positions.

    The checksums are squared: they are linear, so swapping rows between two batches could leave a plain sum unchanged.
    """

    __slots__ = ("_blocks", "_shift", "_waiting", "count", "restored")

    def __init__(self) -> None:
        self.count = 0
        self.restored = 0  # how many of them an earlier run has emitted
        self._shift = 0
        self._blocks: dict[
            int, list[Any]
        ] = {}  # position >> shift: [count, sum, lowest id, highest id, their key or None]
        self._waiting: list[tuple[int, Batch]] = []

    def add(self, position: int, batch: Batch) -> None:
        self._waiting.append((position, batch))
        if len(self._waiting) >= TOGETHER:
            self.settle()

    def settle(self) -> None:
        """Process what was added."""
        waiting, self._waiting = self._waiting, []
        self.count += len(waiting)
        for position, batch in waiting:
            code = crc32(_pack((batch.key, batch.id, batch.rows)))
            self._put(position >> self._shift, [1, code * code, batch.id, batch.id, str(batch.key)])
        self._coarsen(KEPT)

    def _put(self, place: int, more: list[Any]) -> None:
        block = self._blocks.get(place)
        if block is None:
            self._blocks[place] = more
            return
        count, total, low, high, key = more
        block[0] += count
        block[1] = (block[1] + total) & 0xFFFF_FFFF_FFFF_FFFF
        block[2:] = min(block[2], low), max(block[3], high), key if key == block[4] else None

    def _coarsen(self, kept: int, shift: int = 0) -> None:
        """Until there are no more blocks than ``kept``, and they are no finer than ``shift``."""
        while len(self._blocks) > kept or self._shift < shift:
            self._shift += 1
            fine, self._blocks = self._blocks, {}
            for place, block in fine.items():
                self._put(place >> 1, block)

    def save(self) -> list[Any]:
        self.settle()
        return [self.count, self._shift, [[place, *block] for place, block in self._blocks.items()]]

    def restore(self, saved: list[Any]) -> None:
        self.count, self._shift, blocks = saved
        self._blocks = {place: block for place, *block in blocks}
        self.restored = self.count

    def difference(self, again: Blocks) -> str | None:
        """How another run's batches differ from these; None when they do not."""
        for one, other in ((self, again), (again, self)):
            one.settle()
            other.settle()
            one._coarsen(KEPT, other._shift)
        ours, theirs = self._blocks, again._blocks
        places = sorted(place for place in ours.keys() | theirs.keys() if ours.get(place) != theirs.get(place))
        if not places:
            return None
        found = [blocks[places[0]] for blocks in (ours, theirs) if places[0] in blocks]
        low, high = min(block[2] for block in found), max(block[3] for block in found)
        keys = {block[4] for block in found}
        key = keys.pop() if len(keys) == 1 else None
        of_key = "" if key is None else f" of key {key}"
        number = max(block[0] for block in found)
        place = f"batch {low}{of_key}" if low == high and number == 1 else (
            f"one of {number} batches{of_key} with batch-ids from {low} to {high}"
        )  # fmt: skip
        return f"{place} differs" + _counts(self.count, again.count)


class Emitted:
    """Everything emitted on interior streams; ``since``: the sequence number from which it is counted."""

    def __init__(self, keyed: Mapping[str, bool]) -> None:
        self.streams: dict[str, Chain | Blocks] = {name: Blocks() if key else Chain() for name, key in keyed.items()}
        self.since = 0

    def save(self) -> dict[str, Any]:
        return {"since": self.since, "streams": {name: marks.save() for name, marks in self.streams.items()}}

    def restore(self, saved: Mapping[str, Any] | None, sequence: int) -> None:
        """What was saved at ``sequence``; None: saved by a release that did not keep it."""
        if saved is None:
            self.since = sequence
            return
        self.since = saved["since"]
        for name, marks in saved["streams"].items():
            if _kind(marks) is type(self.streams[name]):  # keyed as it was
                self.streams[name].restore(marks)

    def differences(self, again: Emitted) -> Iterable[str]:
        """How another run's batches differ from these, a line for each stream."""
        for name, marks in self.streams.items():
            told = marks.difference(again.streams[name])  # type: ignore[arg-type]
            if told is not None:
                yield f"stream {name}: {told}"


def _kind(saved: list[Any]) -> type[Chain | Blocks]:
    return Chain if len(saved) == 5 else Blocks


def _between(known: int, id_known: int | None, count: int, ours: Any, theirs: Any) -> str:
    if count == known + 1:
        return f"batch {ours}" if ours == theirs else f"batch {ours} (re-executed: batch {theirs})"
    begin = "" if id_known is None else f"after batch {id_known} "
    return f"one of the {count - known} batches {begin}up to batch {ours}"


def _after(id_known: int | None) -> str:
    return "a batch" if id_known is None else f"a batch after batch {id_known}"


def _counts(stored: int, again: int) -> str:
    return "" if stored == again else f" (stored {stored} batches, re-executed {again})"
