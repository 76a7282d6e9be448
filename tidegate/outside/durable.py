"""Durable subscriptions: a named reader of a topic, and which of its batches it has acknowledged.

Across crashes the engine remembers two things for it: the offset below which everything is acknowledged, and the few
acknowledged ones above it. A batch is handed out only when the log holds what caused it, so nothing is seen outside that a
crash could undo.
"""

from __future__ import annotations

import datetime as dt
import threading
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from tidegate.errors import CursorGone, DeclarationError, text_of
from tidegate.forking import own
from tidegate.mutex import Rank, reentrant
from tidegate.outside.topics.topic import Topic
from tidegate.storage.codec import to_json
from tidegate.streams.batch import Batch
from tidegate.streams.emitted import Blocks, Chain
from tidegate.txn.log.record import Delivered, to_us
from tidegate.txn.positions import Position, sequence_of

if TYPE_CHECKING:
    from tidegate.outside.outbox import Outbox

Address = tuple[Any, int]  # (key, batch-id)
Start = Literal["earliest", "now"] | int | dt.datetime
OnLag = Literal["keep", "block"] | tuple[Literal["drop"], int]
DROPPED_AT_ONCE = 10  # a tenth of the limit


class Acknowledged:
    """Everything below ``next``, and ``above`` it a few.

    >>> done = Acknowledged(5)
    >>> for offset in (6, 8, 5):
    ...     done.add(offset)
    >>> done.next, done.ranges()
    (7, [[8, 9]])
    """

    def __init__(self, next: int, above: Iterable[Iterable[int]] = ()) -> None:
        self.next = next
        self.above = {offset for first, end in above for offset in range(first, end)}

    def add(self, offset: int) -> None:
        if offset == self.next:
            self.next += 1
            while self.above and self.next in self.above:
                self.above.remove(self.next)
                self.next += 1
        elif offset > self.next:
            self.above.add(offset)

    def move(self, to: int) -> None:
        """Everything below ``to`` is done with."""
        self.above = {offset for offset in self.above if offset >= to}
        self.next = to
        while self.next in self.above:
            self.above.remove(self.next)
            self.next += 1

    def __contains__(self, offset: int) -> bool:
        return offset < self.next or offset in self.above

    def ranges(self) -> list[list[int]]:
        found: list[list[int]] = []
        for offset in sorted(self.above):
            if found and found[-1][1] == offset:
                found[-1][1] += 1
            else:
                found.append([offset, offset + 1])
        return found


class DurableSubscription:
    """What one named subscriber has not acknowledged of a stream, oldest first.

    ``get`` hands out each batch once per opening of the engine; ``ack`` says that it never needs to be
    handed out again. ``begun``: False while that of a changelog waits for its snapshot, see :mod:`tidegate.outside.changelog`.
    ``since``: it is about what entered the order later than this sequence number.
    ``told``: a fingerprint of everything it received, where the stream itself has none (a changelog is made for its
    followers).
    """

    def __init__(
        self,
        outbox: Outbox,
        name: str,
        topic: Topic,
        begun: bool,
        since: int,
        told: Chain | Blocks | None,
        done: Acknowledged,
        on_lag: OnLag,
    ) -> None:
        own(self)
        self._outbox = outbox
        self.name = name
        self.topic = topic
        self.stream = topic.stream
        self.begun = begun
        self.since = since
        self.told = told
        self.on_lag = on_lag
        self.done = done
        self.lost: tuple[int, int] | None = None  # offsets dropped because it lagged, first and last, still to be told
        self.asked = False  # for its snapshot, since the engine was opened
        self.notice: Callable[[], None] = lambda: None  # called after a batch has arrived
        self._end = topic.end
        self._reading = done.next  # everything below was handed out, or is in ``_again``
        self._again: list[int] = []  # put back
        self._places: dict[Address, int] = {}  # of what was handed out or shown
        self._handed: set[int] = set()  # and neither acknowledged nor put back
        self._oldest: tuple[int, dt.datetime] | None = None  # when the one at ``done.next`` was accepted
        self._guard = reentrant(Rank.LEAF)
        self._arrived = threading.Condition(self._guard)
        self._interrupted = False

    # ---- what arrives

    def receive(self, position: Position, time_us: int, batch: Batch) -> None:
        """Called inside the commit, for a topic of its own."""
        if self.begun and sequence_of(position) > self.since:
            if self.told is not None:
                self.told.add(position, batch)
            self._outbox.topics.append(self.topic, position, time_us, batch)

    def begin(self, snapshot: Iterable[Batch], time: dt.datetime) -> None:
        """Called inside the commit of the snapshot. Earlier changes are in it; later ones follow."""
        self.begun = True
        for batch in snapshot:
            self.receive(batch.id, to_us(time), batch)

    def arrived(self, offset: int, position: Position) -> None:
        """Called inside the commit."""
        with self._guard:
            self._end = max(self._end, offset + 1)
            if sequence_of(position) <= self.since:
                self.done.add(offset)
            self._arrived.notify_all()
        if type(self.on_lag) is tuple and len(self) > self.on_lag[1]:
            self._outbox.drop_oldest(self)
        self.notice()

    def void(self, offset: int) -> None:
        """It was not emitted after all."""
        with self._guard:
            self.done.add(offset)

    @property
    def needs(self) -> int | None:
        """The first offset that it must not lose."""
        return self.done.next if type(self.on_lag) is str else None

    # ---- handing out

    def get(self, timeout_s: float | None = 0) -> Batch | None:
        """The next batch that was not handed out yet; None when none arrives within ``timeout_s`` seconds."""
        return next(iter(self.take(1, timeout_s)), None)

    def take(self, limit: int, timeout_s: float | None = 0) -> list[Batch]:
        """Up to ``limit`` batches not handed out yet, waiting up to ``timeout_s`` seconds for the first.

        They are final: everything in the log so far is on disk, what caused them and earlier acknowledgements included.
        CursorGone, once, when batches were dropped because it lagged (``on_lag``); it goes on behind them.
        """
        return list(self.taken(limit, timeout_s).values())

    def taken(self, limit: int, timeout_s: float | None = 0) -> dict[int, Batch]:
        """The same, by offset."""
        if timeout_s != 0:
            self.wait(timeout_s)
        self._tell_of_lost()
        with self._guard:
            offsets = self._next(limit)
            self._handed.update(offsets)
        try:
            return self._shown(offsets)
        except BaseException:
            self._return(offsets)
            raise

    def _next(self, limit: int) -> list[int]:
        """The offsets to hand out next; under the guard."""
        found: list[int] = []
        while self._again and len(found) < limit:
            offset = self._again.pop(0)
            if offset not in self.done:
                found.append(offset)
        self._reading = max(self._reading, self.done.next)
        while self._reading < self._end and len(found) < limit:
            if self._reading not in self.done and self._reading not in self.topic.voids:
                found.append(self._reading)
            self._reading += 1
        return found

    def _shown(self, offsets: list[int]) -> dict[int, Batch]:
        """The batches at these offsets, once they are final."""
        if not offsets:
            return {}
        self._outbox.settle(self.topic)
        entries = self.topic.read(sorted(offsets), self._outbox.topics.ready)
        with self._guard:
            self._places.update(((e.batch.key, e.batch.id), e.offset) for e in entries if e.offset not in self.done)
        return {entry.offset: entry.batch for entry in entries}

    def _tell_of_lost(self) -> None:
        with self._guard:
            lost, self.lost = self.lost, None
        if lost is not None:
            first, last = lost
            raise CursorGone(
                f"subscription {self.name!r} lagged more than {self.on_lag[1]} batches behind, so those of {self.stream} at "
                f"offsets {first} to {last} that it had not acknowledged were dropped (on_lag={self.on_lag!r}); it goes on at "
                f"offset {self.done.next}",
                stream=self.stream,
                cursor=first,
                first=first,
                last=last,
            )

    def peek(self, limit: int | None = None) -> list[Batch]:
        """The oldest batches that are not acknowledged, handed out or not. They are final, as those of :meth:`take`."""
        return list(self.shown(limit).values())

    def shown(self, limit: int | None = None) -> dict[int, Batch]:
        """The same, by offset."""
        return self._shown(self._unacknowledged(limit))

    def _unacknowledged(self, limit: int | None = None) -> list[int]:
        found: list[int] = []
        with self._guard:
            for offset in range(self.done.next, self._end):
                if limit is not None and len(found) >= limit:
                    break
                if offset not in self.done and offset not in self.topic.voids:
                    found.append(offset)
        return found

    @property
    def waiting(self) -> dict[Address, Batch]:
        """Everything that is not acknowledged, by (key, batch-id). It is read for this: for small amounts, and tests."""
        entries = self.topic.read(self._unacknowledged(), self._outbox.topics.ready)
        return {(entry.batch.key, entry.batch.id): entry.batch for entry in entries}

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when there is something to take, after ``timeout_s`` seconds, or when interrupted."""
        with self._guard:
            self._arrived.wait_for(self._anything_new, timeout_s)

    def _anything_new(self) -> bool:
        return bool(self._interrupted or self._again or self._reading < self._end or self.lost)

    def put_back(self, batches: Iterable[Batch]) -> None:
        """The batches were not handled in the end: hand them out again, before later ones."""
        with self._guard:
            places = [self._places.get((batch.key, batch.id)) for batch in batches]
        self._return([offset for offset in places if offset is not None])

    def _return(self, offsets: Iterable[int]) -> None:
        with self._guard:
            for offset in offsets:
                if offset in self._handed and offset not in self.done:
                    self._handed.discard(offset)
                    insort(self._again, offset)
            self._arrived.notify_all()

    def interrupt(self) -> None:
        """Stop waiting for batches: ``take`` returns at once from now on."""
        with self._guard:
            self._interrupted = True
            self._arrived.notify_all()

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.get()) is not None:
            yield batch

    # ---- how far it is

    def __len__(self) -> int:
        return max(self._end - self.done.next - len(self.done.above), 0)

    @property
    def lag(self) -> int:
        """How many batches it has not acknowledged."""
        return len(self)

    @property
    def lag_s(self) -> float:
        """How long ago what caused the oldest of them was accepted; 0 when there is none."""
        if not len(self):
            return 0.0
        at = self.done.next
        oldest = self._oldest
        if oldest is None or oldest[0] != at:
            oldest = self._oldest = (at, self.topic.read([at], self._outbox.topics.ready)[0].time)
        return max((self._outbox.now() - oldest[1]).total_seconds(), 0.0)

    def offset_of(self, batch: Batch) -> int | None:
        """Where a batch is in the topic; None when it is acknowledged, or not of this subscription."""
        with self._guard:
            known = self._places.get((batch.key, batch.id))
        return self.find(batch.key, batch.id) if known is None else None if known in self.done else known

    def find(self, key: Any, batch_id: int) -> int | None:
        """The same, when it was not handed out since the engine was opened: what waits is searched for it."""
        for entry in self.topic.scan(self.done.next):
            if (entry.batch.key, entry.batch.id) == (key, batch_id) and entry.offset not in self.done:
                return entry.offset
        return None

    def seek(self, to: Start) -> None:
        """Go on from another place, backward or forward: ``"earliest"``, ``"now"``, a time, or an offset.

        What is in front of it counts as acknowledged, what is behind it as new.
        """
        self._outbox.seek(self, to)

    # ---- acknowledging

    def ack(self, batches: Batch | Iterable[Batch]) -> None:
        """The batches are handled for good."""
        done = self._located([batches] if isinstance(batches, Batch) else batches)
        if done:
            self.ack_at(done)

    def ack_at(self, done: dict[int, Batch]) -> None:
        """The same, by offset."""
        record = Delivered(self.name, [[to_json(batch.key), batch.id, at] for at, batch in done.items()])
        with self._outbox.step():  # atomic for a checkpoint: it falls neither before the record nor between the two
            self._outbox.log(record)
            self.forget(done)
            self._outbox.made_room(self.topic)

    def refuse(self, batch: Batch, reason: str) -> None:
        """The target refuses this batch: it becomes a dead letter, and the next one follows."""
        at = self.offset_of(batch)
        if at is None:
            return
        now, reason = self._outbox.now(), text_of(reason)
        record = Delivered(self.name, [[to_json(batch.key), batch.id, at]], reason, to_us(now))
        with self._outbox.step():
            self._outbox.log(record)
            self._outbox.dead_letter(self.name, batch, reason, now)
            self.forget([at])
            self._outbox.made_room(self.topic)

    def _located(self, batches: Iterable[Batch]) -> dict[int, Batch]:
        found = ((self.offset_of(batch), batch) for batch in batches)
        return {offset: batch for offset, batch in found if offset is not None}

    def at(self, offsets: Iterable[int]) -> dict[int, Batch]:
        """Those of these offsets that are not acknowledged."""
        wanted = sorted(
            offset for offset in offsets if self.done.next <= offset < self._end and offset not in self.done
        )
        return {entry.offset: entry.batch for entry in self.topic.read(wanted, self._outbox.topics.ready)}

    def forget(self, offsets: Iterable[int]) -> None:
        with self._guard:
            for offset in offsets:
                self.done.add(offset)
                self._handed.discard(offset)
            self._tidy()

    def _tidy(self) -> None:
        """Forget where acknowledged batches are, from time to time."""
        if len(self._places) > 2 * len(self._handed) + 1_000:
            self._places = {address: at for address, at in self._places.items() if at not in self.done}

    def moved(self, to: int, lost: bool) -> None:
        """Everything before ``to`` is done with, and nothing behind it. ``lost``: it is not there any more."""
        with self._guard:
            first = self.done.next
            if lost:
                self.done.move(to)
                self.lost = (first if self.lost is None else self.lost[0], to - 1)
            else:
                self.done = Acknowledged(to)
                self.since = -1
                self._handed.clear()
                self._again.clear()
                self._places.clear()
                self._reading = to
            self._arrived.notify_all()

    def replayed(self) -> None:
        """The replay is over: everything in the topic has arrived."""
        with self._guard:
            self._end = self.topic.end
            self._reading = self.done.next
            for offset in self.topic.voids:
                self.done.add(offset)

    def saved(self) -> list[Any]:
        told = None if self.told is None else self.told.save()
        return [
            self.name,
            self.stream,
            len(self),
            self.begun,
            told,
            self.since,
            self.topic.id,
            self.done.next,
            self.done.ranges(),
            self.on_lag,
            self.lost,
        ]


def checked_on_lag(given: Any, durable: bool) -> OnLag:
    """What ``on_lag=`` means; None: what waits is kept where there is a disk, and bounded where there is none."""
    if given is None:
        return "keep" if durable else "block"
    if given in ("keep", "block"):
        return given  # type: ignore[no-any-return]
    pair = tuple(given) if isinstance(given, (tuple, list)) else ()
    if len(pair) == 2 and pair[0] == "drop" and type(pair[1]) is int and pair[1] > 0:
        return "drop", pair[1]
    raise DeclarationError(
        f"on_lag={given!r}: give 'keep' (what waits stays), 'block' (work that leads there waits, see Config.backlog) or "
        f"('drop', 100_000): the oldest are dropped when more wait"
    )
