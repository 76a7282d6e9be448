"""Durable subscriptions: committed output batches are kept until their subscriber has dealt with them.

A subscriber has a name; under it the engine remembers, across crashes, which batches it has not acknowledged. A batch is
handed out only when the log holds what caused it, so nothing is seen outside that a crash could take back.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.errors import TidegateError
from tidegate.storage.codec import from_json, to_json
from tidegate.streams.batch import Batch
from tidegate.txn.log.record import Delivered, Subscribed

if TYPE_CHECKING:
    from tidegate.engine import Engine

Address = tuple[Any, int]  # (key, batch-id)


class DurableSubscription:
    """The unacknowledged batches of one stream, for one named subscriber, oldest first.

    ``get`` hands out each batch once per opening of the engine; ``ack`` says that it never needs to be handed out again.
    """

    def __init__(self, outbox: Outbox, name: str, stream: str) -> None:
        self._outbox = outbox
        self.name = name
        self.stream = stream
        self.waiting: dict[Address, tuple[int, Batch]] = {}  # not acknowledged: (LSN that makes it final, batch)
        self._handed_out: set[Address] = set()
        self._arrived = threading.Condition()

    def receive(self, position: int, batch: Batch) -> None:
        """Called inside the commit."""
        with self._arrived:
            self.waiting[batch.key, batch.id] = (self._outbox.lsn(), batch)
            self._arrived.notify_all()

    def get(self, timeout_s: float | None = 0) -> Batch | None:
        """The next batch that was not handed out yet; None when there is none within ``timeout_s`` seconds."""
        with self._arrived:
            if timeout_s != 0:
                self._arrived.wait_for(lambda: len(self.waiting) > len(self._handed_out), timeout_s)
            found = next((item for item in self.waiting.items() if item[0] not in self._handed_out), None)
            if found is None:
                return None
            address, (lsn, batch) = found
            self._handed_out.add(address)
        self._outbox.wait(lsn)
        return batch

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.get()) is not None:
            yield batch

    def __len__(self) -> int:
        return len(self.waiting)

    def ack(self, batches: Batch | Iterable[Batch]) -> None:
        """The batches are dealt with for good."""
        done = [batches] if isinstance(batches, Batch) else list(batches)
        addresses = [(batch.key, batch.id) for batch in done]
        self._outbox.log(Delivered(self.name, [[to_json(key), batch_id] for key, batch_id in addresses]))
        self.forget(addresses)

    def forget(self, addresses: Iterable[Address]) -> None:
        with self._arrived:
            for address in addresses:
                self.waiting.pop(address, None)
                self._handed_out.discard(address)


class Outbox:
    """All durable subscriptions of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.subscriptions: dict[str, DurableSubscription] = {}

    def subscribe(self, name: str, stream: str) -> DurableSubscription:
        """The subscription ``name``: as it was left, or new from now on."""
        with self._engine.lock:
            known = self.subscriptions.get(name)
            if known is None:
                self.log(Subscribed(name, stream))
                return self._add(name, stream)
            if known.stream != stream:
                raise TidegateError(
                    f"subscription {name!r} follows stream {known.stream}, not {stream}; use another name", stream=stream
                )
            return known

    def unsubscribe(self, name: str) -> None:
        """Forget the subscription and what it had not acknowledged."""
        with self._engine.lock:
            subscription = self.subscriptions[name]
            self.log(Subscribed(name, subscription.stream, closed=True))
            self._drop(name)

    def _add(self, name: str, stream: str) -> DurableSubscription:
        subscription = self.subscriptions[name] = DurableSubscription(self, name, stream)
        self._engine.runtime.listeners.setdefault(stream, []).append(subscription.receive)
        return subscription

    def _drop(self, name: str) -> None:
        subscription = self.subscriptions.pop(name)
        self._engine.runtime.listeners[subscription.stream].remove(subscription.receive)

    # ---- the log

    def lsn(self) -> int:
        return 0 if self._engine.durable is None else self._engine.durable.writer.end

    def wait(self, lsn: int) -> None:
        if self._engine.durable is not None:
            self._engine.durable.writer.wait(lsn)

    def log(self, record: Any) -> None:
        if self._engine.durable is not None:
            with self._engine.lock:
                self._engine.durable.append(record)

    def apply_delivered(self, record: Delivered) -> None:
        if record.subscription in self.subscriptions:
            self.subscriptions[record.subscription].forget((from_json(key), i) for key, i in record.batches)

    def apply_subscribed(self, record: Subscribed) -> None:
        if record.closed:
            self._drop(record.subscription)
        elif record.subscription not in self.subscriptions:
            self._add(record.subscription, record.stream)

    # ---- the checkpoint

    def saved(self) -> list[Any]:
        return [
            [s.name, s.stream, [[to_json(key), i, to_json([tuple(row) for row in batch.rows])]
                                for (key, i), (_, batch) in s.waiting.items()]]
            for s in self.subscriptions.values()
        ]

    def restore(self, saved: list[Any]) -> None:
        for name, stream, waiting in saved:
            if stream not in self._engine.app.streams:
                continue
            relation = self._engine.app.streams[stream].relation
            subscription = self._add(name, stream)
            for key, batch_id, rows in waiting:
                batch = Batch(relation, batch_id, [relation.row._make(from_json(row)) for row in rows], from_json(key))
                subscription.waiting[batch.key, batch_id] = (0, batch)
