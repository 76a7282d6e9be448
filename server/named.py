"""Named subscribers: the engine keeps what one has not acknowledged, across restarts, and sends it again.

One connection at a time serves a name; a newer one takes over, because the older may be a dead connection. At most
``WINDOW`` batches are sent and not acknowledged, so the buffer is bounded; the rest waits in the engine's durable
subscription. All of it happens on the fan-out thread, in order; only :class:`NamedConnection` is touched by the event loop.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from tidegate.engine.system_views import lag_s
from tidegate.errors import CursorGone, DataError, EngineClosed, NotAllowed, TakenOver, TidegateError, unknown
from tidegate.outside.durable import DurableSubscription, Start
from tidegate.server.bodies import Acknowledged
from tidegate.server.feeds import Event, Feeds
from tidegate.server.tokens import Token
from tidegate.storage.codec import from_json, to_json
from tidegate.streams.batch import Batch
from tidegate.wire import batch_facts, speak

T = TypeVar("T")
WINDOW = 1_000  # batches sent and not acknowledged
MOST_NAMES = 1_000


class Sent(NamedTuple):
    """What a cursor says: the offset of a batch in its topic, its key and its id."""

    offset: int
    key: Any
    id: int


def cursor_of(offset: int, batch: Batch) -> str:
    """The place of a batch as an opaque cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(to_json([batch.key, batch.id, offset]))).decode().rstrip("=")


def sent_by(cursor: str) -> Sent:
    """What a cursor stands for."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        key, batch_id, offset = from_json(msgspec.json.decode(raw))
        if type(batch_id) is int and type(offset) is int:
            hash(key)
            return Sent(offset, key, batch_id)
    except (ValueError, TypeError, TidegateError, binascii.Error, msgspec.DecodeError, RecursionError):
        pass
    raise DataError(
        f"{cursor!r} is not a cursor of a named subscription; send back the cursor that came with a batch",
        cursor=cursor,
    )


class NamedConnection:
    """One connection of a named subscriber. Lives in the event loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: TidegateError | None = None
        self._events: list[Event] = []
        self._arrived = asyncio.Event()

    def put(self, events: list[Event]) -> None:
        self._events.extend(events)
        self._arrived.set()

    def end(self, error: TidegateError) -> None:
        self.error = self.error or error
        self._arrived.set()

    async def take(self, timeout_s: float) -> list[Event]:
        """What there is to send, waiting up to ``timeout_s`` seconds; raises when the connection has ended."""
        if not self._events and self.error is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        self._arrived.clear()
        if self.error is not None:
            raise self.error
        events, self._events = self._events, []
        return events


class _Served:
    """A name that was served in this run. The fan-out thread's."""

    def __init__(self, subscription: DurableSubscription) -> None:
        self.subscription = subscription
        self.connection: NamedConnection | None = None
        self.sent: OrderedDict[int, Batch] = (
            OrderedDict()
        )  # by offset; not acknowledged, in the order in which they were sent
        self.before: list[int] = []  # what the last connection had not acknowledged, in order
        self.woken = False

    def put_back(self) -> None:
        """No connection is left to acknowledge what was sent: it goes to the next one."""
        self.subscription.put_back(self.sent.values())
        self.before = list(self.sent) or self.before
        self.sent.clear()


class NamedFeeds:
    """All named subscribers of a server."""

    def __init__(self, feeds: Feeds, each: int) -> None:
        self._feeds = feeds
        self._each = each  # names for one holder
        self._engine = feeds.engine
        self._loop = asyncio.get_running_loop()
        self._served: dict[str, _Served] = {}

    async def attach(
        self, stream: str, name: str, acknowledged: str | None, holder: Token, start: Start = "now", on_lag: Any = None
    ) -> NamedConnection:
        """Serve ``name`` on a new connection. ``acknowledged``: the last batch handled, as EventSource sends it. ``start``,
        ``on_lag``: of a new name.
        """
        self._engine.check_followed(stream)
        connection = NamedConnection(name)
        last = None if acknowledged is None else sent_by(acknowledged)

        def job() -> None:
            served = self._serve(stream, name, holder, start, on_lag)
            if served.connection is not None:
                self._tell(served.connection.end, TakenOver(f"another connection serves {name!r} now", name=name))
            if last is not None:
                self._acknowledge(served, self._checked(served, [last], True))
            served.connection = connection
            served.put_back()
            self._pump(served)

        await self._ask(job)
        return connection

    async def acknowledge(self, name: str, told: Acknowledged) -> int:
        """The batches are handled; ``up_to``: and everything sent before them. Returns when that is on disk."""
        cursors = [sent_by(cursor) for cursor in told.cursors]

        def job() -> int:
            served = self._served.get(name)
            if served is None:
                served = self._known(name)
            chosen = self._checked(served, cursors, told.up_to)
            self._acknowledge(served, chosen, told.refused)
            self._engine.outbox.settle()
            self._pump(served)
            return len(chosen)

        return await self._ask(job)

    async def waiting(self, stream: str, name: str, limit: int | None, holder: Token) -> list[dict[str, Any]]:
        """The oldest batches that ``name`` has not acknowledged, to look at; they are not sent to a connection."""
        self._engine.check_followed(stream)

        def job() -> list[dict[str, Any]]:
            wire = self._feeds.wires[stream]
            found = self._serve(stream, name, holder).subscription.shown(limit)
            return [{**batch_facts(wire, b), "cursor": cursor_of(at, b)} for at, b in found.items()]

        return await self._ask(job)

    def detach(self, connection: NamedConnection) -> None:
        """The connection is gone: what it had not acknowledged goes to the next one."""

        def job() -> None:
            served = self._served.get(connection.name)
            if served is not None and served.connection is connection:
                served.connection = None
                served.put_back()

        self._feeds.call(job)

    def let_go(self) -> None:
        """Tell everyone that the server is stopping."""
        for served in list(self._served.values()):
            if served.connection is not None:
                served.connection.end(EngineClosed("the server is stopping; what was not acknowledged is kept"))

    async def seek(self, name: str, to: Start) -> dict[str, Any]:
        """Go on from another place. The connection ends; its client connects again, and is sent what is there."""

        def job() -> dict[str, Any]:
            served = self._known(name)
            served.subscription.seek(to)
            served.sent.clear()
            served.before = []
            if served.connection is not None:
                self._tell(served.connection.end, TakenOver(f"subscription {name!r} was moved to {to!r}", name=name))
                served.connection = None
            return {"name": name, "next_offset": served.subscription.done.next, "lag": served.subscription.lag}

        return await self._ask(job)

    async def remove(self, name: str) -> None:
        """Forget the subscription and what it had not acknowledged."""

        def job() -> None:
            served = self._known(name)
            if served.connection is not None:
                self._tell(served.connection.end, TakenOver(f"subscription {name!r} was removed", name=name))
            self._engine.outbox.unsubscribe(name)
            del self._served[name]

        await self._ask(job)

    async def facts(self) -> list[dict[str, Any]]:
        """Every named subscription: its stream, and how many batches wait for it."""

        def job() -> list[dict[str, Any]]:
            outbox = self._engine.outbox
            with self._engine.lock:
                return [
                    {
                        "name": name,
                        "stream": s.stream,
                        "waiting": len(s),
                        "lag_s": lag_s(s),
                        "next_offset": s.done.next,
                        "on_lag": list(s.on_lag) if isinstance(s.on_lag, tuple) else s.on_lag,
                        "connected": name in self._served and self._served[name].connection is not None,
                        "delivered_by_sink": name in outbox.deliveries,
                    }
                    for name, s in outbox.subscriptions.items()
                ]

        return await self._ask(job)

    # ---- on the fan-out thread

    def _serve(
        self, stream: str, name: str, holder: Token | None = None, start: Start = "now", on_lag: Any = None
    ) -> _Served:
        outbox = self._engine.outbox
        if name in outbox.deliveries:
            raise TidegateError(f"{name!r} is a delivery of the app to a sink; subscribe under another name", name=name)
        if name not in outbox.subscriptions:
            if len(outbox.subscriptions) >= MOST_NAMES:
                raise TidegateError(f"there are {MOST_NAMES} named subscriptions already; remove one first", name=name)
            self._check_quota(holder)
        subscription = self._engine.subscribe_durably(stream, name, start=start, on_lag=on_lag)
        served = self._served.get(name)
        if served is None:
            served = self._served[name] = _Served(subscription)
            self._listen(served)
        return served

    def _check_quota(self, holder: Token | None) -> None:
        """A holder's subscriptions are those with names it may use: nothing else needs to be stored."""
        if holder is not None and not holder.admin:
            used = sum(holder.may("subscriptions", name) for name in self._engine.outbox.subscriptions)
            if used >= self._each:
                raise NotAllowed(
                    f"{holder.name!r} has {used} named subscriptions, which is the limit; remove one with DELETE "
                    f"/v1/subscriptions/NAME"
                )

    def _known(self, name: str) -> _Served:
        subscription = self._engine.outbox.subscriptions.get(name)
        if subscription is None or name in self._engine.outbox.deliveries:
            raise unknown("subscriptions", "named subscription", name, self._engine.outbox.subscriptions)
        return self._serve(subscription.stream, name)

    def _listen(self, served: _Served) -> None:
        """Wake the fan-out thread after the durable subscription has received a batch."""

        def wake() -> None:
            if not served.woken:
                served.woken = True
                self._feeds.call(lambda: self._pump(served))

        with self._engine.lock:
            served.subscription.notice = wake

    def _pump(self, served: _Served) -> None:
        """Send the connection what its window has room for."""
        served.woken = False
        room = WINDOW - len(served.sent)
        if served.connection is None or room <= 0:
            return
        try:
            batches = served.subscription.taken(room)
        except CursorGone as error:
            self._tell(served.connection.end, error)
            return
        wire = self._feeds.wires[served.subscription.stream]
        events = []
        for offset, batch in batches.items():
            served.sent[offset] = batch
            cursor = cursor_of(offset, batch)
            events.append(Event(0, cursor, speak({**batch_facts(wire, batch), "cursor": cursor})))
        if events:
            self._tell(served.connection.put, events)

    def _checked(self, served: _Served, cursors: Iterable[Sent], up_to: bool) -> list[int]:
        """The offsets of these batches and, with ``up_to``, of those sent before each (only by this run of the server)."""
        chosen: dict[int, None] = {}
        for cursor in cursors:
            for offsets in (list(served.sent), served.before) if up_to else ():
                if cursor.offset in offsets:
                    chosen |= dict.fromkeys(offsets[: offsets.index(cursor.offset)])
                    break
            chosen[cursor.offset] = None
        wrong = {cursor.offset for cursor in cursors if not self._is_its(served, cursor)}
        return [offset for offset in chosen if offset not in wrong]

    def _is_its(self, served: _Served, cursor: Sent) -> bool:
        """Is it a cursor of this subscription, not of another with its name?"""
        batch = served.sent.get(cursor.offset) or served.subscription.at([cursor.offset]).get(cursor.offset)
        return batch is None or (batch.key, batch.id) == (cursor.key, cursor.id)

    def _acknowledge(self, served: _Served, offsets: Iterable[int], refused: str | None = None) -> None:
        offsets = list(offsets)
        batches = served.subscription.at(offsets)
        if batches and refused is None:
            served.subscription.ack_at(batches)
        elif refused is not None:
            for batch in batches.values():
                served.subscription.refuse(batch, refused)
        for offset in offsets:
            served.sent.pop(offset, None)

    # ---- between the two threads

    def _tell(self, function: Callable[[T], None], value: T) -> None:
        self._loop.call_soon_threadsafe(function, value)

    async def _ask(self, job: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()

        def resolve(value: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(value)
                else:
                    future.set_exception(error)

        def run() -> None:
            try:
                value, error = job(), None
            except Exception as raised:
                value, error = None, raised
            self._loop.call_soon_threadsafe(resolve, value, error)

        self._feeds.call(run)
        return await future
