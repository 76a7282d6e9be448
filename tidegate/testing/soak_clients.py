"""The clients of a soak, over HTTP: they keep running while the server is killed and restarted, as clients do."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx

import tidegate
from tidegate.client import Client
from tidegate.errors import (
    BatchError,
    CursorGone,
    EngineClosed,
    Overloaded,
    QueryFailed,
    ServerError,
    StillWaiting,
)
from tidegate.testing.soak_app import NEVER, SUBSCRIBERS, Ascending, account_of, amount_of, answer_to, rows_of

RETRY_S = 10.0  # a client's own timeout; then it retries, with the same offset
AWAY = (
    ServerError,
    Overloaded,
    EngineClosed,
    StillWaiting,
    QueryFailed,
)  # errors that a dying or restarting server may cause
GONE = (404, 429, 503, None)  # statuses that go with them: 404 is a ticket of a server that has died


class Clients:
    """Threads that push, call, ask, follow and answer. An error that no restart can explain is a failure."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._chance = random.Random(seed)
        self._stopping = threading.Event()
        self.beats: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.acknowledged: dict[str, int] = {}
        self.got: list[tuple[Any, int, list[list[Any]]]] = []  # what the durable subscriber was given, in this order
        self.failures: list[str] = []
        works = (self.push, self.feed, self.call, self.ask, self.follow, self.take, self.answer, self.ready)
        self._threads = [
            threading.Thread(
                target=self._guarded,
                args=(work, random.Random(self._chance.random())),
                name=f"soak-http-{work.__name__}",
                daemon=True,
            )
            for work in works
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """While the server is still running, so that pending requests are answered."""
        self._stopping.set()
        ends = time.monotonic() + 3 * RETRY_S
        for thread in self._threads:
            thread.join(max(ends - time.monotonic(), 0.1))
            if thread.is_alive():
                self.failures.append(f"{thread.name} does not end")

    def _guarded(self, work: Callable[[Client, random.Random], None], chance: random.Random) -> None:
        while not self._stopping.is_set():
            try:
                with tidegate.connect(self._url, retry_s=RETRY_S) as client:
                    work(client, chance)
            except AWAY as error:
                if isinstance(error, ServerError) and error.status not in GONE and not isinstance(error, CursorGone):
                    self._fail(work, error)
                    return
                self.counts[f"http {work.__name__} began again"] += 1
                self._stopping.wait(0.2)
            except BaseException as error:
                self._fail(work, error)
                return

    def _fail(self, work: Callable[..., None], error: BaseException) -> None:
        if not self._stopping.is_set():
            self.failures.append(f"http {work.__name__}: {type(error).__name__}: {error}")

    def _goes_on(self, name: str, pause_s: float) -> bool:
        self.beats[name] += 1
        return not self._stopping.wait(pause_s)

    # ---- work in

    def push(self, client: Client, chance: random.Random) -> None:
        def one(rows: list[Any], **place: Any) -> None:
            client.push("transfers", rows, wait=chance.random() < 0.5, **place)

        self._send(client, "http push", chance, one)

    def feed(self, client: Client, chance: random.Random) -> None:
        def some(rows: list[Any], **place: Any) -> None:
            client.feed("transfers", rows, size=3, **place)

        self._send(client, "http feed", chance, some)

    def _send(self, client: Client, source: str, chance: random.Random, send: Callable[..., None]) -> None:
        """It continues at the position that the server reports; an interrupted request is sent again unchanged."""
        last = client.position(source) or 0
        if last < self.acknowledged.get(source, 0):
            raise AssertionError(f"{source} is at {last}, but {self.acknowledged[source]} was acknowledged: lost")
        while self._goes_on(source, chance.uniform(0, 0.1)):
            rows = rows_of(source, last + 1, chance.randrange(1, 9))
            send(rows, source=source, offset=last + len(rows), after=last or None)
            last += len(rows)
            self.acknowledged[source] = last
            self.counts[source] += 1

    def call(self, client: Client, chance: random.Random) -> None:
        """An interrupted call may have been carried out: check before the next one."""
        source = "http call"
        last = client.call("last_number", source)
        if last < self.acknowledged.get(source, 0):
            raise AssertionError(f"{source} {self.acknowledged[source]} was acknowledged, the ledger has {last}: lost")
        while self._goes_on(source, chance.uniform(0, 0.1)):
            last += 1
            client.call("deposit", account_of(source, last), source, last, amount_of(last))
            self.acknowledged[source] = last
            self.counts[source] += 1

    def answer(self, client: Client, chance: random.Random) -> None:
        while self._goes_on("http answer", chance.uniform(0.02, 0.3)):
            for question in client.questions():
                if answer_to(question, "remote"):
                    try:
                        client.answer(question, approve=question.batch_id % 3 > 0, who="remote")
                    except BatchError:
                        self.counts["answers that came late"] += 1

    # ---- looking

    def ask(self, client: Client, chance: random.Random) -> None:
        while self._goes_on("http ask", chance.uniform(0, 0.3)):
            sql = chance.choice(NEVER)
            found = client.query(sql).rows
            if found:
                raise AssertionError(f"the replica showed a state that never was: {sql} gave {found[:3]}")
            client.status()
            self.counts["http queries"] += 1

    def follow(self, client: Client, chance: random.Random) -> None:
        """A subscriber without a name: nothing doubled or out of order; it is told what it missed."""
        seen = Ascending("a subscriber over HTTP")
        with client.subscribe("handled") as following:
            while self._goes_on("http follow", 0):
                batch = following.get(0.5)
                if batch is not None:
                    seen.see(batch)
                    self.counts["http batches followed"] += 1

    def take(self, client: Client, chance: random.Random) -> None:
        """A named subscriber: each batch once, in order, however often the server dies meanwhile."""
        seen = Ascending("the named subscriber over HTTP")
        with closing(client.subscribe_durably(SUBSCRIBERS["remote"], "remote")) as subscription:
            while self._goes_on("http take", 0):
                batches = subscription.take(50, 0.5)
                for batch in batches:
                    seen.see(batch)
                self.got += [(batch.key, batch.id, [list(row) for row in batch]) for batch in batches]
                if batches:
                    subscription.ack(batches)

    def ready(self, client: Client, chance: random.Random) -> None:
        """Is the server ready? Counts a step only when it says so."""
        while not self._stopping.wait(0.5):
            try:
                got = client.http.get("/ready", timeout=5.0)
            except httpx.HTTPError:
                continue
            if got.status_code == 200 and got.json()["ready"]:
                self.beats["http ready"] += 1
