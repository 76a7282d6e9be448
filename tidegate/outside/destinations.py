"""Where an ingestion pushes its rows: an engine in this process, or one behind a server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.errors import BatchError, FeedHalted, TidegateError
from tidegate.storage.schema import Relation

if TYPE_CHECKING:
    from tidegate.client import Client
    from tidegate.engine.engine import Engine


log = logging.getLogger("tidegate")

ROOM_S = 1.0  # how long to wait for room in the queues before checking whether to stop


class Destination(Protocol):
    """An engine, embedded or served, as an ingestion sees it."""

    def relation(self, stream: str) -> Relation: ...
    def has(self, stream: str) -> bool: ...
    def key(self, stream: str) -> str | None:
        """The column that a border stream is keyed by."""

    def check(self, stream: str, row: Any) -> Any: ...
    def offset(self, name: str) -> Any: ...
    def put(self, stream: str, rows: Sequence[Any], size: int | None = None, **place: Any) -> int:
        """Return when the rows are accepted and on disk, with the number of batches that were undone by then.
        ``place``: source, offset and after, as in ``push``.
        """

    def finish(self, stream: str) -> None:
        """Nothing will follow on it; that is on disk when this returns."""

    def advance(self, stream: str, to: Any) -> None:
        """No row before this time will follow on it; that is on disk when this returns."""

    def halted(self, stream: str) -> str | None:
        """Why rows of this stream wait: their dataflow is halted. None: they do not, or it is not known here."""


class Embedded:
    """An engine in this process."""

    def __init__(self, engine: Engine) -> None:
        self.offset = engine.position
        self._borders = engine.borders
        self._acceptance = engine.acceptance
        self._feed = engine.feeding.feed
        self._scheduler = engine.scheduler
        self._push = engine.push
        self._finish = engine.finish
        self._advance = engine.advance
        self._sync = None if engine.durable is None else engine.durable.sync

    def relation(self, stream: str) -> Relation:
        return self._acceptance.border(stream).relation

    def has(self, stream: str) -> bool:
        return stream in self._borders

    def key(self, stream: str) -> str | None:
        return self._borders[stream].key

    def check(self, stream: str, row: Any) -> Any:
        return self._borders[stream].check_row(row)

    def put(self, stream: str, rows: Sequence[Any], size: int | None = None, **place: Any) -> int:
        if size is not None and place:
            fed, _ = self._feed(stream, rows, size=size, timeout_s=ROOM_S, **place)
            return fed.undone
        ticket = self._push(stream, rows, timeout_s=ROOM_S, **place)
        if self._sync is not None:
            self._sync()
        return ticket.error is not None and not ticket.stopped

    def finish(self, stream: str) -> None:
        self._finish(stream, timeout_s=ROOM_S)
        if self._sync is not None:
            self._sync()

    def advance(self, stream: str, to: Any) -> None:
        self._advance(stream, to, timeout_s=ROOM_S)
        if self._sync is not None:
            self._sync()

    def halted(self, stream: str) -> str | None:
        halts = [
            f"dataflow {front.unit.dataflow} is halted in front of {front}" for front in self._scheduler.fronts(stream)
        ]
        return "; ".join(halts) or None


class Served:
    """An engine behind a server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.offset = client.position

    def relation(self, stream: str) -> Relation:
        if not self.has(stream):
            borders = [s["name"] for s in self._client.app()["streams"] if s["border"]]
            raise TidegateError(f"{self._client.url} has no border stream {stream!r}; it has {', '.join(borders)}")
        return self._client.schemas().wires[stream].relation

    def has(self, stream: str) -> bool:
        return any(s["name"] == stream and s["border"] for s in self._client.app()["streams"])

    def key(self, stream: str) -> str | None:
        return next((s["key"] for s in self._client.app()["streams"] if s["name"] == stream), None)

    def check(self, stream: str, row: Any) -> Any:
        return self.relation(stream).conform(row)

    def put(self, stream: str, rows: Sequence[Any], size: int | None = None, **place: Any) -> int:
        if size is None or not place:
            self._client.push(stream, rows, wait=False, **place)
            return 0
        try:
            return self._client.feed(stream, rows, size=size, **place).undone
        except FeedHalted:
            return 0  # they are accepted, and wait

    def finish(self, stream: str) -> None:
        self._client.finish(stream, wait=False)

    def advance(self, stream: str, to: Any) -> None:
        self._client.advance(stream, to, wait=False)

    def halted(self, stream: str) -> str | None:
        return None


def bring_time(advance: Callable[[], object], stream: str) -> None:
    """Advance a stream on behalf of a source. That time has come further already is no failure: others may have brought it."""
    try:
        advance()
    except BatchError as error:
        if "does not go back" not in str(error):
            raise
        log.debug("time on %s has come further already: %s", stream, error)


def destination_of(engine: Engine | Client) -> Destination:
    """Either of the two."""
    from tidegate.engine.engine import Engine

    return Embedded(engine) if isinstance(engine, Engine) else Served(engine)
