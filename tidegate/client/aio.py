"""The client for asyncio: the same methods, awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import aclosing
from typing import Any

import httpx
import msgspec
from msgspec import UNSET

from tidegate.client import calls
from tidegate.client.blocking import FIRST_PAUSE_S, LONGEST_PAUSE_S, POLL_S, unreachable
from tidegate.client.calls import Answer, Call, Deduplicated, EventReader, Schemas
from tidegate.client.following import PAUSE_S, SILENCE_S
from tidegate.engine.fed import Fed
from tidegate.engine.questions import Question
from tidegate.engine.result import Result
from tidegate.errors import EngineClosed, Overloaded, QueryFailed, ServerError, StillWaiting, TidegateError
from tidegate.forking import own
from tidegate.storage.codec import from_json
from tidegate.streams.batch import Batch
from tidegate.txn.ticket import Original
from tidegate.wire import whole


class AsyncTicket:
    """A push or a call under way. ``done`` is its last known state; ``await ticket`` gives its result."""

    def __init__(self, client: AsyncClient, facts: dict[str, Any], original: list[Original] | None = None) -> None:
        self._client = client
        self.sequence: int | None = whole(facts.get("sequence"))
        self.original = original or []
        self._take(facts)

    def _take(self, facts: dict[str, Any]) -> None:
        self.done: bool = facts["done"]
        self._name: str | None = facts["ticket"]
        self.duplicate: bool = facts["duplicate"]
        self.batch_ids: list[int] = calls.batch_ids(facts)
        self.error = None if facts["error"] is None else calls.raised(facts["error"])
        self.value = calls.value_of(facts)

    async def refresh(self, wait_s: float = 0.0) -> bool:
        """Ask the server for its state, waiting up to ``wait_s`` seconds; is it done?"""
        if not self.done and self._name is not None:
            self._take((await self._client.send(calls.ticket(self._name, wait_s))).facts())
        return self.done

    async def result(self, timeout_s: float | None = None) -> Any:
        """What the call returned, once it has; raises what undid it, or StillWaiting after ``timeout_s`` seconds."""
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.done and self.error is None:
            left = POLL_S if ends is None else min(POLL_S, max(0.0, ends - time.monotonic()))
            await self.refresh(left)
            if not self.done and self.error is None and ends is not None and time.monotonic() >= ends:
                raise StillWaiting("accepted, but not finished; keep the ticket", ticket=self)
        if self.error is not None:
            raise self.error
        return self.value

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result().__await__()


class AsyncSubscription:
    """The batches of a stream, by ``async for``. With a name: durable, and each must be acknowledged with ``ack``."""

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        name: str | None,
        cursor: str | None,
        begins: dict[str, Any] | None = None,
    ) -> None:
        self._begins = begins or {}
        self.stream = stream
        self.name = name
        self.cursor = cursor
        self._client = client
        self._known = Deduplicated()
        self._cursors: dict[tuple[object, int], str] = {}

        self._following = self._follow()
        client.subscriptions.append(self)

    def __aiter__(self) -> AsyncSubscription:
        return self

    async def __anext__(self) -> Batch:
        return await anext(self._following)

    async def close(self) -> None:
        """Stop following. Closing the client does it too."""
        await self._following.aclose()
        if self in self._client.subscriptions:
            self._client.subscriptions.remove(self)

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _follow(self) -> AsyncGenerator[Batch, None]:
        schemas = await self._client.schemas()
        failing_since: float | None = None
        while True:
            try:
                async with aclosing(self._read(schemas)) as reading:
                    async for cursor, batch in reading:
                        failing_since = None
                        if self.name is None:
                            self.cursor = cursor
                            yield batch
                        elif self._known.is_new(batch):
                            self._cursors[batch.key, batch.id] = cursor
                            yield batch
                        elif self._known.was_acknowledged(batch):
                            (await self._client.send(calls.acknowledge(self.name, [cursor]))).facts()
            except (httpx.HTTPError, Overloaded, EngineClosed) as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > self._client.retry_s:
                    raise ServerError(f"no answer from {self._client.url} ({error})", status=None) from None
            await asyncio.sleep(PAUSE_S)

    async def _read(self, schemas: Schemas) -> AsyncGenerator[tuple[str, Batch], None]:
        call = calls.events(self.stream, self.name, self.cursor if self.name is None else None, self._begins)
        timeout = httpx.Timeout(10.0, read=SILENCE_S)
        async with self._client.http.stream(
            call.method, call.path, params=call.query, headers={"accept": call.accept}, timeout=timeout
        ) as got:
            if got.status_code != 200:
                answer = calls.Answer(got.status_code, await got.aread())
                raise Overloaded(str(answer.error())) if got.status_code in (429, 503) else answer.error()
            reader = EventReader()
            async with aclosing(got.aiter_lines()) as lines:  # type: ignore[type-var]
                async for line in lines:
                    event = reader.line(line)
                    if event is None:
                        continue
                    if event.kind == "open" and self.name is None:
                        self.cursor = event.id
                    elif event.kind == "batch":
                        yield event.id or "", schemas.batch(msgspec.json.decode(event.data))
                    elif event.kind == "end":
                        raise calls.raised(msgspec.json.decode(event.data))

    async def ack(self, batches: Batch | Iterable[Batch]) -> None:
        """The batches are handled for good."""
        if self.name is None:
            raise TidegateError(f"this subscription to {self.stream} has no name, so there is nothing to acknowledge")
        done = [batches] if isinstance(batches, Batch) else list(batches)
        cursors = [cursor for b in done if (cursor := self._cursors.get((b.key, b.id))) is not None]
        (await self._client.send(calls.acknowledge(self.name, cursors))).facts()
        self._known.acknowledged(done)
        for batch in done:
            self._cursors.pop((batch.key, batch.id), None)


class AsyncClient:
    """A server, with the methods of an engine, awaited."""

    def __init__(self, url: str, token: str | None = None, *, retry_s: float = 30.0, verify: Any = True) -> None:
        own(self)
        self.url = url.rstrip("/")
        self.retry_s = retry_s
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        timeout = httpx.Timeout(60.0, connect=10.0, read=330.0)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self.http = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=timeout, verify=verify, limits=limits)
        self.subscriptions: list[AsyncSubscription] = []
        self._schemas: Schemas | None = None

    async def push(
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
    ) -> AsyncTicket:
        """Push rows to a border stream as one atomic batch."""
        call = calls.push(stream, rows, batch_id, source, offset, timeout_s, wait, after)
        return await self._pushed(call, stream)

    async def _pushed(self, call: Call, stream: str) -> AsyncTicket:
        facts = (await self.send(call)).facts()
        original = (await self.schemas()).originals(stream, facts) if facts["original"] else []
        return AsyncTicket(self, facts, original)

    async def feed(self, stream: str, rows: Iterable[Any], *, size: int = 1) -> Fed:
        """Push many rows, ``size`` to a batch; returns how many were accepted and undone, or raises FeedHalted."""
        fed = Fed()
        for call in calls.feeds(stream, rows, size):
            try:
                fed += calls.fed((await self.send(call)).facts())
            except TidegateError as error:
                error.fed = fed.rows + getattr(error, "fed", 0)  # type: ignore[attr-defined]
                raise
        return fed

    async def advance(
        self, stream: str, to: Any, *, key: Any = None, batch_id: int | None = None, wait: bool = True
    ) -> AsyncTicket:
        """Say that no row before ``to`` will follow on a border stream; see :meth:`tidegate.Engine.advance`."""
        return await self._pushed(calls.advance(stream, to, key, batch_id, wait), stream)

    async def finish(self, stream: str | None = None, *, wait: bool = True) -> AsyncTicket:
        """Say that nothing will follow on a border stream, or on any: all that waits for time fires."""
        return AsyncTicket(self, (await self.send(calls.finish(stream, wait))).facts(), [])

    async def halted(self) -> list[dict[str, Any]]:
        """What is halted: dataflow, key, error, trace, and the batch it stopped in front of."""
        return list((await self.send(calls.get("/v1/halted"))).facts()["halted"])

    async def resume(self, dataflow: str, *, key: Any = UNSET) -> None:
        """Resume a halted dataflow, or one key of it."""
        (await self.send(calls.continuing(dataflow, "resume", key))).facts()

    async def skip(self, dataflow: str, *, key: Any = UNSET) -> None:
        """Move the batch that a halted dataflow stopped in front of to the dead letters, and continue after it."""
        (await self.send(calls.continuing(dataflow, "skip", key))).facts()

    async def requeue(self, letter: str) -> AsyncTicket:
        """Accept the batch of a dead letter again, as new work under a new id. ``letter``: its position."""
        return AsyncTicket(self, (await self.send(calls.requeue(letter))).facts(), [])

    async def call(self, procedure: str | Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call an OLTP procedure and return what it returns; raises what undid it."""
        facts = (await self.send(calls.submit(procedure, arguments, named, wait=True))).facts()
        return await AsyncTicket(self, facts).result(POLL_S)

    async def submit(self, procedure: str | Callable[..., Any], *arguments: Any, **named: Any) -> AsyncTicket:
        """Call an OLTP procedure without waiting for it."""
        return AsyncTicket(self, (await self.send(calls.submit(procedure, arguments, named, wait=False))).facts())

    async def position(self, source: str) -> Any:
        """The offset that was pushed last for ``source``."""
        return from_json((await self.send(calls.position(source))).facts()["offset"])

    async def query(
        self, sql: str, *parameters: Any, row_limit: int | None = None, as_of: int | None = None, **named: Any
    ) -> Result:
        """Run a read-only SQL query in the server's query replica."""
        return calls.result(await self.send(calls.query(sql, parameters, named, row_limit, as_of)))

    async def questions(self) -> list[Question]:
        """What open nested transactions wait for, oldest first."""
        return (await self.schemas()).questions((await self.send(calls.get("/v1/questions"))).facts())

    async def answer(self, question: Question, **values: Any) -> AsyncTicket:
        """Answer a question with a row of its stream; the key is filled in. QuestionChanged when it shows something else by
        now, NotAsked when it is not open, and BatchError when it already has a different answer.
        """
        key = next(s for s in (await self.app())["streams"] if s["name"] == question.stream)["key"]
        row = values if key is None else {key: question.key, **values}
        return await self._pushed(calls.answer(question, row), question.stream)

    async def reask(self, question: Question) -> None:
        """Withdraw a question: what led to it runs again, with the code in force now, and asks anew."""
        (await self.send(calls.reask(question))).facts()

    def subscribe(self, stream: str, *, cursor: str | None = None) -> AsyncSubscription:
        """Follow the batches committed to a stream from when iteration begins, or from a cursor."""
        return AsyncSubscription(self, stream, None, cursor)

    def subscribe_durably(self, stream: str, name: str, *, start: Any = "now", on_lag: Any = None) -> AsyncSubscription:
        """Follow a stream under a name: what was not acknowledged is sent again. ``start``, ``on_lag``: of a new name."""
        return AsyncSubscription(self, stream, name, None, calls.begins(start, on_lag))

    async def seek(self, name: str, to: Any) -> None:
        """Let a named subscription go on from ``"earliest"``, ``"now"``, a time or an offset."""
        (await self.send(calls.seek(name, to))).facts()

    async def topics(self) -> list[dict[str, Any]]:
        """What is kept of streams, from which offset to which."""
        found: list[dict[str, Any]] = (await self.send(calls.get("/v1/topics"))).facts()["topics"]
        return found

    async def status(self) -> dict[str, Any]:
        """What the engine is doing."""
        facts: dict[str, Any] = (await self.send(calls.get("/v1/status"))).facts()
        return facts

    async def app(self) -> dict[str, Any]:
        """What the app is made of."""
        facts: dict[str, Any] = (await self.send(calls.get("/v1/app"))).facts()
        return facts

    async def schemas(self) -> Schemas:
        if self._schemas is None:
            self._schemas = Schemas(await self.app())
        return self._schemas

    async def send(self, call: Call) -> Answer:
        """Send a request, again if that is safe and the server can't be reached."""
        headers = {"accept": call.accept, **({"content-type": call.kind} if call.body else {})}
        ends, pause_s = time.monotonic() + self.retry_s, FIRST_PAUSE_S
        while True:
            try:
                got = await self.http.request(
                    call.method, call.path, params=call.query, content=call.body, headers=headers
                )
                if not (call.again and got.status_code in (429, 503) and time.monotonic() < ends):
                    return Answer(got.status_code, got.content, got.headers.get("content-type", ""))
            except httpx.HTTPError as error:
                if call.accept == calls.ARROW and "incomplete" in str(error):
                    raise QueryFailed(f"the result broke off: {error}") from None
                never_left = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if not (call.again or never_left) or time.monotonic() >= ends:
                    raise unreachable(self.url, call, error) from None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def close(self) -> None:
        """Close the connections."""
        for subscription in list(self.subscriptions):
            await subscription.close()
        await self.http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
