"""Durable subscriptions: committed output batches are kept until their subscriber has acknowledged them.

A subscriber has a name; under it the engine remembers, across crashes, which batches it has not acknowledged. A batch
is handed out only when the log holds what caused it, so nothing is seen outside that a crash could undo.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.changelogs import SNAPSHOT
from tidegate.errors import TidegateError, text_of
from tidegate.forking import own
from tidegate.mutex import Rank, reentrant
from tidegate.outside.changelog import Changelog, changelogs
from tidegate.outside.sources import check_stored_name
from tidegate.storage.codec import from_json, to_json
from tidegate.storage.halfway import DELIVERING
from tidegate.streams.batch import Batch
from tidegate.streams.emitted import Blocks, Chain
from tidegate.txn.log.record import Delivered, Subscribed, from_us, to_us
from tidegate.txn.positions import sequence_of
from tidegate.txn.transaction import Transaction

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine
    from tidegate.outside.delivery import Delivery

Address = tuple[Any, int]  # (key, batch-id)


class DurableSubscription:
    """The unacknowledged batches of one stream, for one named subscriber, oldest first.

    ``get`` hands out each batch once per opening of the engine; ``ack`` says that it never needs to be
    handed out again. ``begun``: False while that of a changelog waits for its snapshot, see :mod:`tidegate.outside.changelog`.
    ``since``: it is about what entered the order later than this sequence number.
    ``told``: a fingerprint of everything it received, where the stream itself has none (a changelog is made for its
    followers).
    """

    def __init__(
        self, outbox: Outbox, name: str, stream: str, begun: bool, since: int, told: Chain | Blocks | None
    ) -> None:
        own(self)
        self._outbox = outbox
        self.name = name
        self.stream = stream
        self.begun = begun
        self.since = since
        self.told = told
        self.asked = False  # for its snapshot, since the engine was opened
        self.notice: Callable[[], None] = lambda: None  # called after a batch has arrived
        # not acknowledged, oldest first; an OrderedDict, because taking the first of a dict that lost many is slow
        self.waiting: OrderedDict[Address, Batch] = OrderedDict()
        self._handed_out: set[Address] = set()
        self._guard = reentrant(Rank.LEAF)
        self._arrived = threading.Condition(self._guard)
        self._interrupted = False

    def receive(self, position: int, batch: Batch) -> None:
        """Called inside the commit."""
        if self.begun and sequence_of(position) > self.since:
            with self._guard:
                self.waiting[batch.key, batch.id] = batch
                self._arrived.notify_all()
            if self.told is not None:
                self.told.add(position, batch)
            self.notice()

    def begin(self, snapshot: Iterable[Batch]) -> None:
        """Called inside the commit of the snapshot. Earlier changes are in it; later ones follow."""
        self.begun = True
        for batch in snapshot:
            self.receive(batch.id, batch)

    def get(self, timeout_s: float | None = 0) -> Batch | None:
        """The next batch that was not handed out yet; None when none arrives within ``timeout_s`` seconds."""
        return next(iter(self.take(1, timeout_s)), None)

    def take(self, limit: int, timeout_s: float | None = 0) -> list[Batch]:
        """Up to ``limit`` batches not handed out yet, waiting up to ``timeout_s`` seconds for the first.

        They are final: everything in the log so far is on disk, what caused them and earlier
        acknowledgements included.
        """
        if timeout_s != 0:
            self.wait(timeout_s)
        with self._guard:
            unseen = (batch for address, batch in self.waiting.items() if address not in self._handed_out)
            batches = list(islice(unseen, limit))
            self._handed_out.update((batch.key, batch.id) for batch in batches)
        try:
            if batches:
                self._outbox.settle()
        except BaseException:
            self.put_back(batches)
            raise
        return batches

    def peek(self, limit: int | None = None) -> list[Batch]:
        """The oldest batches that are not acknowledged, handed out or not. They are final, as those of :meth:`take`."""
        with self._guard:
            batches = list(islice(self.waiting.values(), limit))
        if batches:
            self._outbox.settle()
        return batches

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when there is something to take, after ``timeout_s`` seconds, or when interrupted."""
        with self._guard:
            self._arrived.wait_for(self._anything_new, timeout_s)

    def _anything_new(self) -> bool:
        return self._interrupted or len(self.waiting) > len(self._handed_out)

    def put_back(self, batches: Iterable[Batch]) -> None:
        """The batches were not handled in the end: hand them out again, before later ones."""
        with self._guard:
            self._handed_out.difference_update((batch.key, batch.id) for batch in batches)
            self._arrived.notify_all()

    def interrupt(self) -> None:
        """Stop waiting for batches: ``take`` returns at once from now on."""
        with self._guard:
            self._interrupted = True
            self._arrived.notify_all()

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.get()) is not None:
            yield batch

    def __len__(self) -> int:
        return len(self.waiting)

    def ack(self, batches: Batch | Iterable[Batch]) -> None:
        """The batches are handled for good."""
        done = [batches] if isinstance(batches, Batch) else list(batches)
        addresses = [(batch.key, batch.id) for batch in done]
        record = Delivered(self.name, [[to_json(key), batch_id] for key, batch_id in addresses])
        with self._outbox.step():  # atomic for a checkpoint: it falls neither before the record nor between the two
            self._outbox.log(record)
            self.forget(addresses)
            self._outbox.made_room()

    def refuse(self, batch: Batch, reason: str) -> None:
        """The target refuses this batch: it becomes a dead letter, and the next one follows."""
        now, reason = self._outbox.now(), text_of(reason)
        record = Delivered(self.name, [[to_json(batch.key), batch.id]], reason, to_us(now))
        with self._outbox.step():
            self._outbox.log(record)
            self._outbox.dead_letter(self.name, batch, reason, now)
            self.forget([(batch.key, batch.id)])
            self._outbox.made_room()

    def forget(self, addresses: Iterable[Address]) -> None:
        with self._guard:
            for address in addresses:
                self.waiting.pop(address, None)
                self._handed_out.discard(address)


class Outbox:
    """All durable subscriptions of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.subscriptions: dict[str, DurableSubscription] = {}
        self.deliveries: dict[str, Delivery] = {}
        self._sending: set[int] = set()  # threads
        runtime = engine.runtime
        runtime.changelogs = found = changelogs(engine.app, engine.database)
        runtime.snapshots = {SNAPSHOT + table: self._beginner(changelog) for table, changelog in found.items()}

    def subscribe(self, name: str, stream: str, snapshot: bool = True) -> DurableSubscription:
        """The subscription ``name``: as it was left, or new from now on; of a changelog, with what its table holds."""
        table = self._engine.app.streams[stream].changelog_of
        check_stored_name("the name of a subscription or delivery", name)
        known = self.subscriptions.get(name) or self._begin(name, stream, begun=table is None or not snapshot)
        with self._engine.lock:
            if known.stream != stream:
                raise TidegateError(
                    f"subscription {name!r} follows stream {known.stream}, not {stream}; use another name",
                    stream=stream,
                )
            ask = not known.begun and not known.asked  # asking again after a crash is harmless: the first one counts
            known.asked |= ask
        if ask:
            try:
                self._engine.submit(f"{SNAPSHOT}{table}", name)
            except BaseException:
                known.asked = False
                raise
        return known

    def _begin(self, name: str, stream: str, begun: bool) -> DurableSubscription:
        """It is ordered after everything accepted so far; the turn keeps that from proceeding meanwhile."""
        with self._engine.turn, self._engine.lock:
            if name in self.subscriptions:
                return self.subscriptions[name]
            since = self._engine.sequence if begun else 0
            with self.step():
                self.log(Subscribed(name, stream, snapshot=not begun, since=since))
                return self._add(name, stream, begun, since)

    def _beginner(self, changelog: Changelog) -> Callable[[Transaction], None]:
        """What the call for a snapshot does when it commits."""

        def begin(txn: Transaction) -> None:
            subscription = self.subscriptions.get(txn.arguments[0][0])
            if subscription is not None and subscription.stream == changelog.stream and not subscription.begun:
                txn.access = txn.unit.members[0].access  # its procedure is over: this is a part of its commit
                subscription.begin(changelog.snapshot(txn))

        return begin

    def unsubscribe(self, name: str) -> None:
        """Forget the subscription and what it had not acknowledged."""
        subscription = self.subscriptions[name]
        with self.step():
            self.log(Subscribed(name, subscription.stream, closed=True))
            self._drop(name)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Record a change of subscriptions and apply it: both, or the engine stops."""
        with self._engine.lock, self._engine.database.halfway.step(DELIVERING):
            yield

    def close(self) -> None:
        """Stop delivering. What was not delivered waits for the next opening."""
        for delivery in self.deliveries.values():
            delivery.close()

    def _add(self, name: str, stream: str, begun: bool, since: int) -> DurableSubscription:
        subscription = self.subscriptions[name] = DurableSubscription(
            self, name, stream, begun, since, self._fingerprint(stream)
        )
        self._engine.runtime.listen(stream, subscription.receive)
        return subscription

    def _fingerprint(self, stream: str) -> Chain | Blocks | None:
        """For all that a follower of a changelog gets; that of a table with partitions is keyed by them."""
        table = self._engine.app.streams[stream].changelog_of
        if table is None or self._engine.directory is None:
            return None
        return Blocks() if self._engine.app.tables[table].partition_by else Chain()

    def _drop(self, name: str) -> None:
        subscription = self.subscriptions.pop(name)
        self._engine.runtime.unlisten(subscription.stream, subscription.receive)

    # ---- backlog

    @contextmanager
    def sending(self) -> Iterator[None]:
        """This thread delivers: what its sink pushes into this engine is accepted, because it makes room."""
        thread = threading.get_ident()
        self._sending.add(thread)
        try:
            yield
        finally:
            self._sending.discard(thread)

    def full(self) -> DurableSubscription | None:
        """A subscription whose backlog is full; while there is one, no new work is accepted."""
        if self._sending and threading.get_ident() in self._sending:
            return None
        backlog = self._engine.config.backlog
        return next((s for s in self.subscriptions.values() if len(s.waiting) >= backlog), None)

    def made_room(self) -> None:
        self._engine.executor.ended.notify_all()

    def dead_letter(self, subscription: str, batch: Batch, reason: str, at: dt.datetime) -> None:
        self._engine.journal.refused(subscription, batch, reason, at)

    def now(self) -> dt.datetime:
        return self._engine.clock.now()

    def listen(self, stream: str, receive: Callable[[int, Batch], None]) -> None:
        with self._engine.lock:
            self._engine.runtime.listen(stream, receive)

    def unlisten(self, stream: str, receive: Callable[[int, Batch], None]) -> None:
        with self._engine.lock:
            self._engine.runtime.unlisten(stream, receive)

    # ---- the log

    def lsn(self) -> int:
        """How far the log must be on disk before what has just been committed may be shown: without the marks at its
        end, which are never synced.
        """
        return 0 if self._engine.durable is None else self._engine.durable.writer.appended

    def wait(self, lsn: int) -> None:
        if self._engine.durable is not None:
            self._engine.durable.writer.wait(lsn)

    def settle(self) -> None:
        """Return when everything committed so far is on disk.

        The end of the log is read under the lock, so that it includes the record of a commit under way.
        """
        with self._engine.lock:
            lsn = self.lsn()
        self.wait(lsn)

    def log(self, record: Any) -> None:
        if self._engine.durable is not None:
            with self._engine.lock:
                self._engine.durable.append(record)

    def apply_delivered(self, record: Delivered) -> None:
        subscription = self.subscriptions.get(record.subscription)
        if subscription is None:
            return
        addresses = [(from_json(key), batch_id) for key, batch_id in record.batches]
        if record.refused is not None:
            for address in addresses:
                self.dead_letter(
                    subscription.name, subscription.waiting[address], record.refused, from_us(record.time_us)
                )
        subscription.forget(addresses)

    def apply_subscribed(self, record: Subscribed) -> None:
        if record.closed:
            self._drop(record.subscription)
        elif record.subscription not in self.subscriptions:
            self._add(record.subscription, record.stream, not record.snapshot, record.since)

    # ---- the checkpoint

    def saved(self) -> list[Any]:
        return [
            [
                s.name,
                s.stream,
                [
                    [to_json(key), i, to_json([tuple(row) for row in batch.rows])]
                    for (key, i), batch in s.waiting.items()
                ],
                s.begun,
                None if s.told is None else s.told.save(),
                s.since,
            ]
            for s in self.subscriptions.values()
        ]

    def restore(self, saved: list[Any]) -> None:
        for name, stream, waiting, begun, told, since in saved:
            relation = self._engine.app.streams[stream].relation
            subscription = self._add(name, stream, begun, since)
            if subscription.told is not None and told is not None:
                subscription.told.restore(told)
            else:
                subscription.told = None  # not kept from the start
            for key, batch_id, rows in waiting:
                kept = tuple(relation.row._make(from_json(row)) for row in rows)
                batch = Batch(relation, batch_id, kept, from_json(key))
                subscription.waiting[batch.key, batch_id] = batch
