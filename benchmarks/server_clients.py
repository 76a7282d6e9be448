"""The clients of the server's benchmark, in a separate process: pushers, subscribers, and one that sends SQL queries.

asyncio over plain sockets, one request at a time on each connection: the server is measured, not a client library.

    python -m tidegate.benchmarks.server_clients URL CLIENTS PUSHES RATE
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import tidegate

PATIENCE_S = 30.0  # for subscribers to get the rest
LOOK_EVERY_S = 0.05


class Clients:
    """All clients of one server."""

    def __init__(self, url: str, clients: int) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._url, self._address, self._clients = url, (host, int(port)), clients
        self._numbers = iter(range(1, sys.maxsize))
        self.seen = [0, 0]
        self.queried: list[float] = []

    async def follow(self, place: int, followed: asyncio.Event) -> None:
        """Count events without decoding them."""
        reader, writer = await asyncio.open_connection(*self._address, limit=1 << 22)
        writer.write(b"GET /v1/streams/valid_votes/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        try:
            while data := await reader.read(1 << 20):
                self.seen[place] += data.count(b"event: batch")
                if b"event: open" in data:
                    followed.set()
        finally:
            writer.close()

    async def ask(self) -> None:
        """A client that queries the leaderboard all the time."""
        async with tidegate.connect_async(self._url) as client:
            while True:
                began = time.perf_counter()
                await client.query("SELECT id, total FROM contestants ORDER BY total DESC LIMIT 3")
                self.queried.append(time.perf_counter() - began)
                await asyncio.sleep(LOOK_EVERY_S)

    async def push_all(self, pushes: int, rate: float | None) -> list[float]:
        """Seconds that each push took until it was done and on disk. With a rate, counted from the moment it was due."""
        took: list[float] = []
        began = time.perf_counter()
        due = iter(began + place / rate for place in range(pushes)) if rate else iter([None] * pushes)
        await asyncio.gather(*(self._push(due, took) for _ in range(self._clients)))
        return took

    async def _push(self, due: Iterator[float | None], took: list[float]) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        for moment in due:
            if moment is not None and (early := moment - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            number = next(self._numbers)
            body = b"[[%d,%d,%d]]" % (number, number, number % 25 + 1)
            began = moment or time.perf_counter()
            writer.write(
                b"POST /v1/streams/votes_in/batches HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            answer = await reader.readexactly(length)
            took.append(time.perf_counter() - began)
            if b'"done":true' not in answer or b'"error":null' not in answer:
                raise RuntimeError(f"push {number} was not done: {answer!r}")
        writer.close()


async def drive(url: str, clients: int, pushes: int, rate: float) -> dict[str, Any]:
    """``pushes`` votes in total as fast as possible, then as many at ``rate`` a second; each is its own batch."""
    with tidegate.connect(url) as client:
        client.call("set_up")
    everyone = Clients(url, clients)
    events = [asyncio.Event(), asyncio.Event()]
    beside = [asyncio.create_task(everyone.follow(place, event)) for place, event in enumerate(events)]
    for event in events:
        await event.wait()
    beside.append(asyncio.create_task(everyone.ask()))
    began = time.perf_counter()
    fast = await everyone.push_all(pushes, None)
    seconds = time.perf_counter() - began
    paced = await everyone.push_all(pushes, rate)
    with tidegate.connect(url) as client:  # votes for contestants who have left are invalid, and emit nothing
        status = client.status()
    ends = time.monotonic() + PATIENCE_S
    while min(everyone.seen) < status["emitted"]["valid_votes"] and time.monotonic() < ends:
        await asyncio.sleep(0.01)
    for task in beside:
        task.cancel()
    return {
        "pushes_per_s": round(pushes / seconds),
        "p50_ms": quantile(fast, 0.5),
        "p99_ms": quantile(fast, 0.99),
        "paced_p50_ms": quantile(paced, 0.5),
        "paced_p99_ms": quantile(paced, 0.99),
        "lost_by_server": 2 * pushes - status["pushed"]["votes_in"],
        "lost_by_subscribers": 2 * status["emitted"]["valid_votes"] - sum(everyone.seen),
        "queries": len(everyone.queried),
        "query_p50_ms": quantile(everyone.queried, 0.5),
        "query_p99_ms": quantile(everyone.queried, 0.99),
    }


def quantile(seconds: list[float], share: float) -> float:
    """In milliseconds; 0 when there is nothing."""
    return round(sorted(seconds)[int(len(seconds) * share)] * 1000, 2) if seconds else 0.0


if __name__ == "__main__":
    found = drive(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
    print(json.dumps(asyncio.run(found)))
