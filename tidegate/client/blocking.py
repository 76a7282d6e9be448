"""The blocking client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

import httpx
from msgspec import UNSET

from tidegate.client import calls
from tidegate.client.calls import Answer, Call, Schemas
from tidegate.client.following import RemoteDurableSubscription, RemoteSubscription
from tidegate.engine.fed import Fed
from tidegate.engine.questions import Question
from tidegate.engine.result import Result
from tidegate.errors import QueryFailed, ServerError, StillWaiting, TidegateError
from tidegate.forking import own
from tidegate.guard.addresses import without_secrets
from tidegate.storage.codec import from_json
from tidegate.streams.batch import Batch
from tidegate.txn.ticket import Original
from tidegate.wire import whole

POLL_S = 30.0  # how long one request for a ticket waits
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0


class RemoteTicket:
    """A push or a call under way at a server; the same meaning as :class:`tidegate.Ticket`."""

    def __init__(self, client: Client, facts: dict[str, Any], stream: str = "") -> None:
        self._client = client
        self._stream = stream
        self.value: Any = None
        self.error: TidegateError | None = None
        self.sequence: int | None = whole(facts.get("sequence"))
        self._take(facts)

    def _take(self, facts: dict[str, Any]) -> None:
        self._done: bool = facts["done"]
        self._name: str | None = facts["ticket"]
        self.duplicate: bool = facts["duplicate"]
        self.batch_ids: list[int] = calls.batch_ids(facts)
        self.original: list[Original] = (
            self._client.schemas().originals(self._stream, facts) if facts["original"] else []
        )
        self.error = None if facts["error"] is None else calls.raised(facts["error"])
        self.value = calls.value_of(facts)

    @property
    def done(self) -> bool:
        """Has everything it caused finished? Asks the server while it has not."""
        if not self._done:
            self._ask(0.0)
        return self._done

    def _ask(self, wait_s: float) -> None:
        assert self._name is not None
        self._take(self._client.send(calls.ticket(self._name, wait_s)).facts())

    def result(self, timeout_s: float | None = None) -> Any:
        """What the call returned, once it has; raises what undid it, or StillWaiting after ``timeout_s`` seconds."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._done and self.error is None:
            left = POLL_S if ends is None else min(POLL_S, max(0.0, ends - time.monotonic()))
            self._ask(left)
            if not self._done and self.error is None and ends is not None and time.monotonic() >= ends:
                raise StillWaiting("accepted, but not finished; keep the ticket", ticket=self)
        if self.error is not None:
            raise self.error
        return self.value

    def __repr__(self) -> str:
        state = "duplicate" if self.duplicate else "failed" if self.error else "done" if self._done else "waiting"
        return f"<RemoteTicket {state}{' ' + str(self.batch_ids) if self.batch_ids else ''}>"


class Client:
    """A server, with the methods of an engine. Threads may share one. Close it, or use it in a ``with`` block."""

    def __init__(self, url: str, token: str | None = None, *, retry_s: float = 30.0, verify: Any = True) -> None:
        own(self)
        self.url = url.rstrip("/")
        self.retry_s = retry_s
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        timeout = httpx.Timeout(60.0, connect=10.0, read=330.0)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        base, transport = self.url, None
        if url.startswith("unix:"):
            base, transport = "http://localhost", httpx.HTTPTransport(uds=url.removeprefix("unix:"), limits=limits)
        self.http = httpx.Client(
            base_url=base, headers=headers, timeout=timeout, verify=verify, limits=limits, transport=transport
        )
        self._schemas: Schemas | None = None

    # ---- sending work

    def push(
        self,
        stream: str,
        rows: Iterable[Any],
        batch_id: int | None = None,
        *,
        timeout_s: float | None = None,
        source: str | None = None,
        offset: Any = None,
        after: Any = UNSET,
        wait: bool = True,
    ) -> RemoteTicket:
        """Push rows to a border stream as one atomic batch; see :meth:`tidegate.Engine.push`.

        With a ``batch_id`` or ``after`` it is repeated when the connection breaks, and still counts once. ``wait=False``
        returns when it is accepted and on disk.
        """
        call = calls.push(stream, rows, batch_id, source, offset, timeout_s, wait, after)
        return RemoteTicket(self, self.send(call).facts(), stream)

    def feed(self, stream: str, rows: Iterable[Any], *, size: int = 1, **place: Any) -> Fed:
        """Push many rows, ``size`` to a batch; returns how many were accepted and undone, or raises FeedHalted. The fast
        way in.

        ``source``, ``offset``, ``after``: as in :meth:`push`; all rows go in one request, and are accepted together
        with the offset or not at all.
        """
        if "source" in place:
            return calls.fed(self.send(calls.feed_whole(stream, rows, size, **place)).facts())
        fed = Fed()
        for call in calls.feeds(stream, rows, size):
            try:
                fed += calls.fed(self.send(call).facts())
            except TidegateError as error:
                error.fed = fed.rows + getattr(error, "fed", 0)  # type: ignore[attr-defined]
                raise
        return fed

    def advance(
        self, stream: str, to: Any, *, key: Any = None, batch_id: int | None = None, wait: bool = True
    ) -> RemoteTicket:
        """Say that no row before ``to`` will follow on a border stream; see :meth:`tidegate.Engine.advance`."""
        return RemoteTicket(self, self.send(calls.advance(stream, to, key, batch_id, wait)).facts(), stream)

    def finish(self, stream: str | None = None, *, wait: bool = True) -> RemoteTicket:
        """Say that nothing will follow on a border stream, or on any: all that waits for time fires."""
        return RemoteTicket(self, self.send(calls.finish(stream, wait)).facts(), stream or "")

    def call(self, procedure: str | Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call an OLTP procedure and return what it returns; raises what undid it."""
        facts = self.send(calls.submit(procedure, arguments, named, wait=True)).facts()
        return RemoteTicket(self, facts).result(POLL_S)

    def submit(self, procedure: str | Callable[..., Any], *arguments: Any, **named: Any) -> RemoteTicket:
        """Call an OLTP procedure without waiting for it."""
        return RemoteTicket(self, self.send(calls.submit(procedure, arguments, named, wait=False)).facts())

    def position(self, source: str) -> Any:
        """The offset that was pushed last for ``source``; None when there is none."""
        return from_json(self.send(calls.position(source)).facts()["offset"])

    def halted(self) -> list[dict[str, Any]]:
        """What is halted: dataflow, key, error, trace, and the batch it stopped in front of."""
        return list(self.send(calls.get("/v1/halted")).facts()["halted"])

    def resume(self, dataflow: str, *, key: Any = UNSET) -> None:
        """Resume a halted dataflow, or one key of it."""
        self.send(calls.continuing(dataflow, "resume", key)).facts()

    def skip(self, dataflow: str, *, key: Any = UNSET) -> None:
        """Move the batch that a halted dataflow stopped in front of to the dead letters, and continue after it."""
        self.send(calls.continuing(dataflow, "skip", key)).facts()

    def requeue(self, letter: str) -> RemoteTicket:
        """Accept the batch of a dead letter again, as new work under a new id. ``letter``: its position."""
        return RemoteTicket(self, self.send(calls.requeue(letter)).facts())

    def checkpoint(self) -> None:
        """Fold everything committed into the base now."""
        self.send(calls.post("/v1/checkpoint")).facts()

    # ---- looking

    def query(
        self, sql: str, *parameters: Any, row_limit: int | None = None, as_of: int | None = None, **named: Any
    ) -> Result:
        """Run a read-only SQL query in the server's query replica."""
        return calls.result(self.send(calls.query(sql, parameters, named, row_limit, as_of)))

    def questions(self) -> list[Question]:
        """What open nested transactions wait for, oldest first."""
        return self.schemas().questions(self.send(calls.get("/v1/questions")).facts())

    def answer(self, question: Question, **values: Any) -> RemoteTicket:
        """Answer a question with a row of its stream; the key is filled in. QuestionChanged when it shows something else by
        now, NotAsked when it is not open, and BatchError when it already has a different answer.
        """
        key = self.status_of_stream(question.stream)["key"]
        row = values if key is None else {key: question.key, **values}
        return RemoteTicket(self, self.send(calls.answer(question, row)).facts(), question.stream)

    def reask(self, question: Question) -> None:
        """Withdraw a question: what led to it runs again, with the code in force now, and asks anew."""
        self.send(calls.reask(question)).facts()

    def status_of_stream(self, stream: str) -> dict[str, Any]:
        """How a stream was declared."""
        return next(s for s in self.app()["streams"] if s["name"] == stream)

    def subscribe(self, stream: str, *, capacity: int = 1_000, cursor: str | None = None) -> RemoteSubscription:
        """Follow the batches committed to a stream from now on, or from a cursor; reconnects automatically."""
        return RemoteSubscription(self, stream, capacity, cursor)

    def subscribe_durably(
        self, stream: str, name: str, *, start: Any = "now", on_lag: Any = None
    ) -> RemoteDurableSubscription:
        """Follow a stream under a name: what was not acknowledged is sent again, after restarts of either side. ``start``,
        ``on_lag``: of a new name, as in :meth:`Engine.subscribe_durably`.
        """
        return RemoteDurableSubscription(self, stream, name, start, on_lag)

    def seek(self, name: str, to: Any) -> None:
        """Let a named subscription go on from ``"earliest"``, ``"now"``, a time or an offset. Who follows it connects anew."""
        self.send(calls.seek(name, to)).facts()

    def subscriptions(self) -> list[dict[str, Any]]:
        """The named subscriptions that may be used here, and how far behind each is."""
        found: list[dict[str, Any]] = self.send(calls.get("/v1/subscriptions")).facts()["subscriptions"]
        return found

    def topics(self) -> list[dict[str, Any]]:
        """What is kept of streams, from which offset to which."""
        found: list[dict[str, Any]] = self.send(calls.get("/v1/topics")).facts()["topics"]
        return found

    def waiting(self, stream: str, name: str, limit: int | None = None) -> list[tuple[str, Batch]]:
        """The oldest batches a named subscription has not acknowledged, each with its cursor; a new name starts now."""
        asked = {"stream": stream} | ({} if limit is None else {"limit": limit})
        facts = self.send(calls.get(f"/v1/subscriptions/{quote(name, '')}/batches", **asked)).facts()
        return [(told["cursor"], self.schemas().batch(told)) for told in facts["batches"]]

    def acknowledge(self, name: str, cursors: list[str]) -> None:
        """The batches at these cursors are handled for good; returns when the server has that on disk."""
        self.send(calls.acknowledge(name, cursors)).facts()

    def unsubscribe(self, name: str) -> None:
        """Forget a named subscription and what it had not acknowledged."""
        self.send(calls.delete(f"/v1/subscriptions/{quote(name, '')}")).facts()

    def status(self) -> dict[str, Any]:
        """What the engine is doing."""
        facts: dict[str, Any] = self.send(calls.get("/v1/status")).facts()
        return facts

    def app(self) -> dict[str, Any]:
        """What the app is made of."""
        facts: dict[str, Any] = self.send(calls.get("/v1/app")).facts()
        return facts

    def schemas(self) -> Schemas:
        if self._schemas is None:
            self._schemas = Schemas(self.app())
        return self._schemas

    # ---- the wire

    def send(self, call: Call) -> Answer:
        """Send a request, again if that is safe and the server can't be reached."""
        headers = {"accept": call.accept, **({"content-type": call.kind} if call.body else {})}
        ends, pause_s = time.monotonic() + self.retry_s, FIRST_PAUSE_S
        while True:
            try:
                got = self.http.request(call.method, call.path, params=call.query, content=call.body, headers=headers)
                if not (call.again and got.status_code in (429, 503) and time.monotonic() < ends):
                    return Answer(got.status_code, got.content, got.headers.get("content-type", ""))
            except httpx.HTTPError as error:
                if call.accept == calls.ARROW and "incomplete" in str(error):
                    raise QueryFailed(f"the result broke off: {error}") from None
                never_left = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if not (call.again or never_left) or time.monotonic() >= ends:
                    raise unreachable(self.url, call, error) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def close(self) -> None:
        """Close the connections. What was sent continues at the server."""
        self.http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {without_secrets(self.url)}>"


def unreachable(url: str, call: Call, error: Exception) -> ServerError:
    """The error when no answer arrived."""
    never_left = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
    doubt = (
        ""
        if call.again or call.method == "GET" or never_left
        else " It is not known whether the request was carried out; push with a batch_id to be able to repeat it safely."
    )
    told = str(error) or type(error).__name__
    return ServerError(
        f"no answer from {without_secrets(url)} ({told}); is the server running there?{doubt}", status=None
    )
