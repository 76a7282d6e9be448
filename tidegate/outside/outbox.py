"""All durable subscriptions and deliveries of one engine: made, ended, logged, saved in checkpoints and restored."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.changelogs import SNAPSHOT
from tidegate.dataflows.definitions import Stream
from tidegate.errors import CursorGone, DeclarationError, TidegateError
from tidegate.outside.changelog import Changelog, changelogs
from tidegate.outside.durable import DROPPED_AT_ONCE, Acknowledged, DurableSubscription, OnLag, Start, checked_on_lag
from tidegate.outside.feedback import caused_by, changed_by
from tidegate.outside.sources import check_stored_name
from tidegate.outside.topics.kept import Topics
from tidegate.outside.topics.topic import Topic
from tidegate.storage.codec import from_json
from tidegate.storage.halfway import DELIVERING
from tidegate.streams.batch import Batch
from tidegate.streams.emitted import Blocks, Chain
from tidegate.txn.log.record import Delivered, Moved, Subscribed, from_us, to_us
from tidegate.txn.transaction import Transaction

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine
    from tidegate.outside.delivery import Delivery

log = logging.getLogger("tidegate")


class Outbox:
    """All durable subscriptions of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.subscriptions: dict[str, DurableSubscription] = {}
        self.deliveries: dict[str, Delivery] = {}
        self.topics = Topics(engine)
        self._leads: dict[str, set[str]] = {}  # border stream or procedure -> the streams that it leads to
        self._sending: set[int] = set()  # threads
        runtime = engine.runtime
        runtime.changelogs = found = changelogs(engine.app, engine.database)
        runtime.snapshots = {SNAPSHOT + table: self._beginner(changelog) for table, changelog in found.items()}

    def subscribe(
        self, name: str, stream: str, snapshot: bool = True, start: Start = "now", on_lag: Any = None
    ) -> DurableSubscription:
        """The subscription ``name``: as it was left, or new from ``start`` on; of a changelog, with what its table holds."""
        table = self._engine.app.streams[stream].changelog_of
        check_stored_name("the name of a subscription or delivery", name)
        chosen = checked_on_lag(on_lag, self._engine.directory is not None)
        known = self.subscriptions.get(name)
        if known is None:
            known = self._begin(name, stream, table is None or not snapshot, start, chosen)
        with self._engine.lock:
            if known.stream != stream:
                raise TidegateError(
                    f"subscription {name!r} follows stream {known.stream}, not {stream}; use another name",
                    stream=stream,
                )
            if on_lag is not None and chosen != known.on_lag:
                self._change_lag(known, chosen)
            ask = not known.begun and not known.asked  # asking again after a crash is harmless: the first one counts
            known.asked |= ask
        if ask:
            try:
                self._engine.submit(f"{SNAPSHOT}{table}", name)
            except BaseException:
                known.asked = False
                raise
        return known

    def _begin(self, name: str, stream: str, begun: bool, start: Start, on_lag: OnLag) -> DurableSubscription:
        """It is ordered after everything accepted so far; the turn keeps that from proceeding meanwhile."""
        with self._engine.turn, self._engine.lock:
            if name in self.subscriptions:
                return self.subscriptions[name]
            declared = self._engine.app.streams[stream]
            since = self._engine.sequence if begun and start == "now" else 0 if not begun else -1
            if start != "now" and (declared.changelog_of is not None or declared.keep is None):
                raise _not_kept(declared, start)
            topic = self.topics.shared.get(stream)
            at = 0 if topic is None else self._offset(topic, start)
            with self.step():
                id = (
                    topic.id
                    if topic is not None
                    else self.topics.new_id(stream, name if declared.changelog_of else None)
                )
                self.log(Subscribed(name, stream, snapshot=not begun, since=since, start=at, on_lag=on_lag, topic=id))
                return self._add(name, stream, begun, since, at, on_lag, id)

    def _offset(self, topic: Topic, start: Start) -> int:
        """The offset that a reader means; under the lock."""
        if start == "now":
            return topic.end
        if start == "earliest":
            return topic.begin
        if isinstance(start, dt.datetime):
            self._settle_topic(topic)
            return topic.offset_at(to_us(start.replace(tzinfo=None) if start.tzinfo is None else _utc(start)))
        if type(start) is not int:
            raise DeclarationError(
                f"start={start!r}: give 'earliest', 'now', a datetime, or an offset", stream=topic.stream
            )
        if not topic.begin <= start <= topic.end:
            raise CursorGone(
                f"topic {topic.stream} has no offset {start}: it keeps {topic.begin} to {topic.end}; begin with 'earliest'",
                stream=topic.stream,
                cursor=start,
            )
        return start

    def seek(self, subscription: DurableSubscription, to: Start) -> None:
        """See :meth:`DurableSubscription.seek`."""
        self._engine.check_open()
        self.settle(subscription.topic)  # an offset that is logged stays what it is
        with self._engine.lock:
            at = self._offset(subscription.topic, to)
            with self.step():
                self.log(Moved(subscription.name, at))
                subscription.moved(at, lost=False)
                self.made_room(subscription.topic)

    def drop_oldest(self, subscription: DurableSubscription) -> None:
        """It lags more than it may. Called inside the commit of one batch too many; a replay goes by the record."""
        if self._engine.durable is None and self._engine.directory is not None:
            return
        assert type(subscription.on_lag) is tuple
        limit = subscription.on_lag[1]
        at = subscription.topic.end - max(limit - max(limit // DROPPED_AT_ONCE, 1), 0)
        if at > subscription.done.next:
            self.log(Moved(subscription.name, at, lost=True))
            subscription.moved(at, lost=True)
            log.warning(
                "subscription %s lags more than %d batches behind: those up to offset %d are dropped",
                *(subscription.name, limit, at),
            )

    def _change_lag(self, subscription: DurableSubscription, on_lag: OnLag) -> None:
        record = Subscribed(subscription.name, subscription.stream, on_lag=on_lag)
        with self.step():
            self.log(record)
            subscription.on_lag = on_lag

    def _beginner(self, changelog: Changelog) -> Callable[[Transaction], None]:
        """What the call for a snapshot does when it commits."""

        def begin(txn: Transaction) -> None:
            subscription = self.subscriptions.get(txn.arguments[0][0])
            if subscription is not None and subscription.stream == changelog.stream and not subscription.begun:
                txn.access = txn.unit.members[0].access  # its procedure is over: this is a part of its commit
                subscription.begin(changelog.snapshot(txn), txn.time)

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

    def _add(
        self, name: str, stream: str, begun: bool, since: int, start: int, on_lag: OnLag, id: str
    ) -> DurableSubscription:
        if self._engine.app.streams[stream].changelog_of is not None:
            topic = self.topics.own(name, stream, -1, id)
            topic.restore(None)
        else:
            topic = self.topics.follow(stream, max(since, 0), id)
        return self._put(name, topic, begun, since, Acknowledged(start), on_lag)

    def _put(
        self, name: str, topic: Topic, begun: bool, since: int, done: Acknowledged, on_lag: OnLag
    ) -> DurableSubscription:
        told = self._fingerprint(topic.stream)
        subscription = DurableSubscription(self, name, topic, begun, since, told, done, on_lag)
        self.subscriptions[name] = subscription
        topic.followers.append(subscription)
        if topic.private:
            self._engine.runtime.topics.setdefault(topic.stream, []).append(subscription.receive)
        return subscription

    def _fingerprint(self, stream: str) -> Chain | Blocks | None:
        """For all that a follower of a changelog gets; that of a table with partitions is keyed by them."""
        table = self._engine.app.streams[stream].changelog_of
        if table is None or self._engine.directory is None:
            return None
        return Blocks() if self._engine.app.tables[table].partition_by else Chain()

    def _drop(self, name: str) -> None:
        subscription = self.subscriptions.pop(name)
        topics = self._engine.runtime.topics
        if subscription.topic.private:
            topics[subscription.stream].remove(subscription.receive)
            if not topics[subscription.stream]:
                del topics[subscription.stream]
        self.topics.leave(subscription.topic, subscription, name)

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

    def full(self, border: str) -> DurableSubscription | None:
        """A subscription that asks for it (``on_lag="block"``) and has as much waiting as it may, of streams that ``border``
        leads to; while there is one, no new work of that kind is accepted.
        """
        if self._sending and threading.get_ident() in self._sending:
            return None
        backlog = self._engine.config.backlog
        for subscription in self.subscriptions.values():
            full = subscription.on_lag == "block" and len(subscription) >= backlog
            if full and subscription.stream in self._led_to(border):
                return subscription
        return None

    def _led_to(self, name: str) -> set[str]:
        """The streams that may have batches because of work of this name: a border stream, or a procedure that is called."""
        found = self._leads.get(name)
        if found is None:
            unit = self._engine.graph.oltp.get(name)
            found = self._leads[name] = (
                caused_by(self._engine, name) if unit is None else changed_by(self._engine, [unit])
            )
        return found

    def made_room(self, topic: Topic) -> None:
        if topic.files is None and topic.keep is None:
            needed = [follower.needs for follower in topic.followers]
            topic.forget(min([topic.end, *(offset for offset in needed if offset is not None)]))
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

    def settle(self, topic: Topic | None = None) -> None:
        """Return when everything committed so far is on disk, and so what is in ``topic`` may be shown.

        The end of the log is read under the lock, so that it includes the record of a commit under way.
        """
        with self._engine.lock:
            lsn = self.lsn()
        self.wait(lsn)
        if topic is not None:
            self._settle_topic(topic)

    def _settle_topic(self, topic: Topic) -> None:
        topic.settle(self.topics.ready)

    def log(self, record: Any) -> None:
        if self._engine.durable is not None:
            with self._engine.lock:
                self._engine.durable.append(record)

    def apply_delivered(self, record: Delivered) -> None:
        subscription = self.subscriptions.get(record.subscription)
        if subscription is None:
            return
        offsets = [at for told in record.batches if (at := self._offset_told(subscription, *told)) is not None]
        if record.refused is not None:
            for batch in subscription.at(offsets).values():
                self.dead_letter(subscription.name, batch, record.refused, from_us(record.time_us))
        subscription.forget(offsets)

    def _offset_told(
        self, subscription: DurableSubscription, key: Any, batch_id: int, offset: int | None = None
    ) -> int | None:
        """The offset of what was acknowledged; a log from before there were offsets does not say it."""
        key = from_json(key)
        if offset is None:
            return subscription.find(key, batch_id)
        return self.topics.offset_of(subscription.topic, key, batch_id, offset)

    def apply_moved(self, record: Moved) -> None:
        subscription = self.subscriptions.get(record.subscription)
        if subscription is not None:
            subscription.moved(record.to, record.lost)

    def apply_subscribed(self, record: Subscribed) -> None:
        known = self.subscriptions.get(record.subscription)
        on_lag = checked_on_lag(record.on_lag, durable=True)
        if record.closed:
            self._drop(record.subscription)
        elif known is None:
            facts = (not record.snapshot, record.since, record.start, on_lag)
            id = record.topic or self.topics.new_id(record.stream, record.subscription)
            self._add(record.subscription, record.stream, *facts, id)
        else:
            known.on_lag = on_lag

    def replayed(self) -> list[str]:
        """The replay is over; returns what is to be told."""
        told = self.topics.replayed()
        for subscription in self.subscriptions.values():
            subscription.replayed()
        return told

    # ---- the checkpoint

    def saved(self) -> list[Any]:
        return [subscription.saved() for subscription in self.subscriptions.values()]

    def restore(self, saved: list[Any]) -> None:
        for name, stream, _, begun, told, since, id, next, above, on_lag, lost in saved:
            topic = self.topics.restored(name, stream, id)
            done, lag = Acknowledged(next, above), checked_on_lag(on_lag, durable=True)
            subscription = self._put(name, topic, begun, since, done, lag)
            subscription.lost = None if lost is None else tuple(lost)
            if subscription.told is not None and told is not None:
                subscription.told.restore(told)
            else:
                subscription.told = None  # not kept from the start


def _not_kept(stream: Stream, start: Start) -> DeclarationError:
    if stream.changelog_of is not None:
        return DeclarationError(
            f"subscribe_durably({stream.name!r}, …, start={start!r}): a changelog begins with what its table holds "
            f"(snapshot=True) or with the next change (snapshot=False); leave out start=",
            stream=stream.name,
        )
    return DeclarationError(
        f"subscribe_durably({stream.name!r}, …, start={start!r}): nothing of {stream.name} is kept from before. Declare it with "
        f"keep=, for example app.stream({stream.name!r}, …, keep='7d'), or begin with start='now'",
        stream=stream.name,
    )


def _utc(time: dt.datetime) -> dt.datetime:
    return time.astimezone(dt.UTC).replace(tzinfo=None)
