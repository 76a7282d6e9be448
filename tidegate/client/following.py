"""Following a stream of a server: a thread reads, reconnects with the last cursor, and queues batches."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from tidegate.client import calls
from tidegate.client.calls import Deduplicated, EventReader
from tidegate.errors import EngineClosed, Overloaded, ServerError, TidegateError
from tidegate.forking import own
from tidegate.streams.batch import Batch

if TYPE_CHECKING:
    from tidegate.client.blocking import Client

SILENCE_S = 45.0  # the server sends something every 15 seconds; after this the connection is considered dead
PAUSE_S = 0.2


class RemoteSubscription:
    """The batches committed to one stream of a server. Iterating gives those that have arrived and stops when there are none.

    A lost connection is resumed with the last cursor, so nothing is missed or doubled. When that is no longer possible,
    ``get`` raises CursorGone.
    """

    def __init__(self, client: Client, stream: str, capacity: int = 1_000, cursor: str | None = None) -> None:
        own(self)
        self.stream = stream
        self.cursor = cursor
        self._client = client
        self._capacity = capacity
        self._batches: deque[tuple[str, Batch]] = deque()
        self._changed = threading.Condition()
        self._open = False
        self._closed = False
        self._error: TidegateError | None = None
        self._socket: socket.socket | None = None
        self._schemas = client.schemas()
        self._thread = threading.Thread(target=self._run, name=f"tidegate-follow-{stream}", daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._open or self._error is not None)
        if self._error is not None:
            raise self._error

    _name: str | None = None
    _begins: Mapping[str, Any] = {}

    # ---- for the user

    def get(self, timeout_s: float | None = 0) -> Batch | None:
        """The next batch, waiting up to ``timeout_s`` seconds for it (None: as long as it takes); None when there is none."""
        with self._changed:
            if not self._batches and timeout_s != 0:
                self._changed.wait_for(lambda: self._batches or self._error is not None or self._closed, timeout_s)
            if self._batches:
                self.cursor, batch = self._batches.popleft()
                self._changed.notify_all()
                return batch
            if self._error is not None:
                raise self._error
            return None

    def follow(self) -> Iterator[Batch]:
        """Every batch, as it comes, until the subscription is closed."""
        while not self._closed:
            batch = self.get(None)
            if batch is not None:
                yield batch

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.get()) is not None:
            yield batch

    def __len__(self) -> int:
        return len(self._batches)

    def close(self) -> None:
        """Stop following."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it was gone already
        self._thread.join(timeout=5)

    def __enter__(self) -> RemoteSubscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the reading thread

    def _run(self) -> None:
        cursor = self.cursor
        failing_since: float | None = None
        while not self._closed:
            try:
                cursor = self._read(cursor)
                failing_since = None
            except (httpx.HTTPError, Overloaded, EngineClosed, OSError) as error:
                if self._closed:
                    return
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > self._client.retry_s:
                    self._fail(ServerError(f"no answer from {self._client.url} ({error})", status=None))
                    return
                time.sleep(PAUSE_S)
                cursor = self._last or cursor
            except TidegateError as error:
                self._fail(error)
                return

    _last: str | None = None

    def _fail(self, error: TidegateError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _read(self, cursor: str | None) -> str | None:
        """One connection, until it ends."""
        call = calls.events(self.stream, self._name, self._resume_at(cursor), self._begins)
        timeout = httpx.Timeout(10.0, read=SILENCE_S)
        with self._client.http.stream(
            call.method, call.path, params=call.query, headers={"accept": call.accept}, timeout=timeout
        ) as got:
            if got.status_code != 200:
                answer = calls.Answer(got.status_code, got.read())
                if got.status_code in (429, 503):
                    raise Overloaded(str(answer.error()))
                raise answer.error()
            self._socket = got.extensions["network_stream"].get_extra_info("socket")
            reader = EventReader()
            for line in got.iter_lines():
                if self._closed:
                    break
                event = reader.line(line)
                if event is None:
                    continue
                if event.id is not None:
                    self._last = cursor = event.id
                if event.kind == "open":
                    with self._changed:
                        self._open = True
                        self._changed.notify_all()
                elif event.kind == "batch":
                    self._take(event.id or "", event.data)
                elif event.kind == "end":
                    raise calls.raised(msgspec.json.decode(event.data))
        self._socket = None
        return cursor

    def _resume_at(self, cursor: str | None) -> str | None:
        return cursor

    def _take(self, cursor: str, data: str) -> None:
        batch = self._schemas.batch(msgspec.json.decode(data))
        with self._changed:
            self._changed.wait_for(lambda: len(self._batches) < self._capacity or self._closed)
            self._batches.append((cursor, batch))
            self._changed.notify_all()


class RemoteDurableSubscription(RemoteSubscription):
    """The unacknowledged batches of a stream, for one named subscriber. ``ack`` what you have handled.

    As long as this object lives every batch is handed out once, across restarts of the server. A new process gets
    what was not acknowledged again, with the same ``batch.stable_id``.
    """

    def __init__(self, client: Client, stream: str, name: str, start: Any = "now", on_lag: Any = None) -> None:
        self.name = self._name = name
        self._begins = calls.begins(start, on_lag)
        self._known = Deduplicated()
        self._cursors: dict[tuple[object, int], str] = {}
        super().__init__(client, stream)

    def take(self, limit: int, timeout_s: float | None = 0) -> list[Batch]:
        """Up to ``limit`` batches not handed out yet, waiting up to ``timeout_s`` seconds for the first."""
        first = self.get(timeout_s)
        batches = [] if first is None else [first]
        while batches and len(batches) < limit and (batch := self.get()) is not None:
            batches.append(batch)
        return batches

    def ack(self, batches: Batch | Iterable[Batch], *, refused: str | None = None) -> None:
        """The batches are handled for good; returns when the server has that on disk.

        ``refused``: why they are refused; the server keeps them as dead letters.
        """
        done = [batches] if isinstance(batches, Batch) else list(batches)
        cursors = [cursor for b in done if (cursor := self._cursors.get((b.key, b.id))) is not None]
        self._client.send(calls.acknowledge(self.name, cursors, refused)).facts()
        self._known.acknowledged(done)
        for batch in done:
            self._cursors.pop((batch.key, batch.id), None)

    @property
    def lag(self) -> int:
        """How many batches are not acknowledged, as the server knows."""
        return int(self._facts["waiting"])

    @property
    def lag_s(self) -> float:
        """How long ago what caused the oldest of them was accepted."""
        return float(self._facts["lag_s"] or 0.0)

    @property
    def _facts(self) -> dict[str, Any]:
        return next(
            (facts for facts in self._client.subscriptions() if facts["name"] == self.name),
            {"waiting": 0, "lag_s": 0.0},
        )

    def _resume_at(self, cursor: str | None) -> str | None:
        return None  # the server knows what was acknowledged; a cursor would acknowledge more

    def _take(self, cursor: str, data: str) -> None:
        batch = self._schemas.batch(msgspec.json.decode(data))
        if self._known.is_new(batch):
            self._cursors[batch.key, batch.id] = cursor
            super()._take(cursor, data)
        elif self._known.was_acknowledged(batch):  # the server went down before that was on disk
            self._client.send(calls.acknowledge(self.name, [cursor])).facts()
